"""Text from agents and repositories: made safe to show and to store, parsed; patterns compiled at first use."""

from __future__ import annotations

import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, AnyStr, cast

if TYPE_CHECKING:
    import ast

# What is asked for often: kept in the instance, so that a later call is as fast as with the pattern itself.
_ASKED = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")


class _LatePattern:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self._written: tuple[Any, int] = (text, flags)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and the like ask for these before there is anything to compile
            raise AttributeError(name)
        text, flags = self._written
        compiled: Any = re.compile(text, flags)
        self.__dict__.update((each, getattr(compiled, each)) for each in _ASKED)
        return getattr(compiled, name)


def late_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what `re.compile` returns, but compiled at its first use; a mistake in it is raised only then.

    For constants of modules: what is made while a program works may as well be compiled at once. The functions
    of `re` do not take it, its methods are there.
    """
    return cast("re.Pattern[AnyStr]", _LatePattern(text, flags))


# CSI and OSC sequences first, so that their printable tails go as well; then every other control character.
_ESCAPES = late_pattern(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# Marks of direction too: with them a line reads as something that it is not.
_CONTROLS = late_pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
# UTF-8 cannot encode them.
_SURROGATES = late_pattern(r"[\ud800-\udfff]")


def printable(text: str) -> str:
    """Return `text` without escape sequences, control and bidirectional characters; newline and tab stay."""
    clean = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", clean)


def shown_path(path: str) -> str:
    """Return `path` on one line, bytes that are not UTF-8 and control characters as `\\xNN`."""
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
    """Return the syntax tree of a Python text; any text that Python cannot parse raises `SyntaxError`."""
    import ast

    # Two threads that parse at the same time disturb each other before Python 3.11.8 and 3.12.2 (CPython issue
    # 106905: SystemError); filters of warnings belong to all threads, too.
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in an agent's file would warn in our log
        try:
            return ast.parse(source)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "too deeply nested") from error
