"""Names the parts of a request that its provider was not sent, in a header of the reply and in the log."""

from __future__ import annotations

from collections.abc import Mapping

# The header that names the client's fields that were not sent to the provider.
LEFT_OUT = "x-chargehand-left-out"
_MOST_NAMES = 40
_LONGEST_NAME = 80  # characters


def join_left_out(names: tuple[str, ...], more: str = "") -> tuple[str, ...]:
    """Return unique names for the header and the log, made safe: clients invented some of them.

    `more` are the names that the header has already.
    """
    plain = (name[:_LONGEST_NAME].encode("ascii", "backslashreplace").decode().replace(",", "") for name in names)
    found = {"".join(one if one.isprintable() else "?" for one in name) for name in plain}
    found |= set(more.split(", ")) if more else set()
    few = sorted(found)[:_MOST_NAMES]
    return (*few, f"{len(found) - len(few)} more") if len(found) > len(few) else tuple(few)


def read_left_out(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in a reply's header."""
    return tuple(headers[LEFT_OUT].split(", ")) if LEFT_OUT in headers else ()
