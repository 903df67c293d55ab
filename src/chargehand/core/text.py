"""Texts: untrusted ones cleaned for display and storage, amounts as people write them, late patterns."""

from __future__ import annotations

import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, AnyStr, cast

if TYPE_CHECKING:
    import ast

# Frequently used methods, cached in the instance, so that a later call is as fast as with the pattern itself.
_ASKED = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")


class _LatePattern:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self._written: tuple[Any, int] = (text, flags)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying asks for these before there is anything to compile
            raise AttributeError(name)
        text, flags = self._written
        compiled: Any = re.compile(text, flags)
        self.__dict__.update((each, getattr(compiled, each)) for each in _ASKED)
        return getattr(compiled, name)


def late_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern like `re.compile`, but compiled at its first use; an invalid pattern raises only then.

    For constants of modules; a pattern made while a program runs may as well be compiled at once. Call its
    methods: the functions of `re` do not accept it.
    """
    return cast("re.Pattern[AnyStr]", _LatePattern(text, flags))


# CSI and OSC sequences first, so that their printable tails are removed as well; then all control characters.
_ESCAPES = late_pattern(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# Direction marks too: with them the displayed line can differ from the stored text.
_CONTROLS = late_pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
# UTF-8 cannot encode them.
_SURROGATES = late_pattern(r"[\ud800-\udfff]")


def printable(text: str) -> str:
    """Return `text` without escape sequences, control and bidirectional characters; newline and tab are kept."""
    clean = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", clean)


def shown_path(path: str) -> str:
    """Return `path` on one line, with bytes that are not UTF-8 and control characters as `\\xNN`."""
    out = []
    for char in path:
        code = ord(char)
        if 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif _CONTROLS.match(char) or char in "\n\t":
            out.append(f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
        else:
            out.append(char)
    return "".join(out)


_PARSING = threading.Lock()


def parse_python(source: str | bytes) -> ast.Module:
    """Return the syntax tree of a Python text; raise `SyntaxError` for any text that Python cannot parse."""
    import ast

    # Before Python 3.11.8 and 3.12.2 two threads that parse at the same time disturb each other (CPython issue
    # 106905: SystemError); warning filters are also shared by all threads.
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in an agent's file would warn in our log
        try:
            return ast.parse(source)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "too deeply nested") from error


# The longest duration, in seconds.
LONGEST_SECONDS = 366 * 86400.0
# The largest sum of USD, and the largest count: far beyond any use, far below any overflow.
LARGEST_AMOUNT = 1_000_000
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_AMOUNT = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_DURATION = late_pattern("".join(f"(?:{_AMOUNT}{unit})?" for unit in _UNITS))
_NUMBER = late_pattern(_AMOUNT)


def parse_number(text: str) -> float | None:
    """Return a plain number of at least 0, or `None` if the text is not one."""
    # By itself float() also takes `nan`, `inf` and `1_0`.
    return float(text) if _NUMBER.fullmatch(text) else None


def parse_seconds(value: object) -> float | None:
    """Return a duration in seconds from a text (`90s`, `1h30m`, `90`) or a number; `None` for anything else.

    The caller checks the range. A number is clipped to twice `LONGEST_SECONDS`; NaN and everything negative become
    -1.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("-"):
            return None if parse_seconds(text[1:]) is None or text[1:2] == "-" else -1.0
        match = _DURATION.fullmatch(text)
        if not text or match is None:
            return parse_number(text)
        amounts = zip(match.groups(), _UNITS.values(), strict=True)
        return sum(float(amount) * size for amount, size in amounts if amount)
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Clipped first: an integer may have more digits than a float can hold. NaN becomes -1.
        return float(max(-1, min(value, 2 * LONGEST_SECONDS)))
    return None


def format_seconds(seconds: float) -> str:
    """Return a duration as a person writes it: `30m`, `1h30m`, `0.5s`."""
    rest = seconds
    out = ""
    for unit, size in (("h", 3600), ("m", 60)):
        if rest >= size:
            out += f"{int(rest // size)}{unit}"
            rest %= size
    return out + (f"{rest:g}s" if rest or not out else "")
