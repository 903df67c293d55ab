"""Specifications of deliberate provider faults, which agents and the gateway have to survive."""

from __future__ import annotations

import re

from msgspec import Struct

from chargehand.core.errors import UsageError, nearest

_KINDS = ("cut", "drip", "malformed", "twin-ids", "big", "stall")
_WITH_ARGUMENT = ("cut", "big", "stall")
_ENTRY = re.compile(r"([a-z0-9-]+)(?:/([0-9]+(?:\.[0-9]+)?))?(?:@([1-9][0-9]*)|%([0-9]+(?:\.[0-9]+)?))?")
_HINT = (
    "write KIND@TURN or KIND%PROBABILITY, such as 429/7@2 or cut%0.1; kinds: an HTTP status from 400 to 599 "
    "(/SECONDS: Retry-After), cut (/BYTES), drip, malformed, twin-ids, big (/BYTES), stall (/SECONDS)"
)


class Fault(Struct, frozen=True, kw_only=True):
    """One fault: an HTTP status or a kind, on one turn of each attempt or with a probability per call.

    `argument` is, for a status, the Retry-After in seconds; for `stall` the delay of the reply in seconds; for
    `cut` the position where the body breaks off, and for `big` its length, in bytes.
    """

    kind: str
    argument: float | None = None
    turn: int | None = None
    probability: float | None = None

    @classmethod
    def parse(cls, entry: str) -> Fault:
        """Read `KIND[/ARGUMENT]`, optionally followed by `@TURN` or `%PROBABILITY`.

        Raises `UsageError` (`faults_invalid`).
        """
        found = _ENTRY.fullmatch(entry.strip())
        if found is None:
            raise _invalid(f"{entry!r} is not a fault")
        kind, argument, turn, probability = found.groups()
        if not _is_status(kind) and kind not in _KINDS:
            raise _invalid(f"{kind!r} is not a kind of fault", nearest(kind, [*_KINDS, "429", "500"]))
        if argument is not None and not _is_status(kind) and kind not in _WITH_ARGUMENT:
            raise _invalid(f"{entry!r}: {kind!r} takes no argument")
        if probability is not None and not 0 < float(probability) <= 1:
            raise _invalid(f"{entry!r}: a probability must be above 0 and at most 1")
        return cls(
            kind=kind,
            argument=None if argument is None else float(argument),
            turn=None if turn is None else int(turn),
            probability=None if probability is None else float(probability),
        )

    @property
    def status(self) -> int | None:
        """The HTTP status of the answer, `None` for the other kinds."""
        return int(self.kind) if _is_status(self.kind) else None

    @property
    def replaces(self) -> bool:
        """Whether the call never reaches the inner upstream."""
        return self.status is not None or self.kind == "malformed"


class Faults(Struct, frozen=True, kw_only=True):
    """The faults of one run, in order."""

    entries: tuple[Fault, ...] = ()

    @classmethod
    def parse(cls, spec: str) -> Faults:
        """Read entries separated by commas, each with a turn or a probability.

        Raises `UsageError` (`faults_invalid`).
        """
        entries = tuple(Fault.parse(entry) for entry in spec.split(","))
        for entry, text in zip(entries, spec.split(","), strict=True):
            if entry.turn is None and entry.probability is None:
                raise _invalid(f"{text.strip()!r} has no turn or probability")
        return cls(entries=entries)


def _is_status(kind: str) -> bool:
    return kind.isdecimal() and 400 <= int(kind) <= 599


def _invalid(message: str, more: str = "") -> UsageError:
    return UsageError(f"faults: {message}", code="faults_invalid", hint=f"{more}\n{_HINT}".strip())
