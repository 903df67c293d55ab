"""Text from agents and repositories, made safe to show and to store."""

from __future__ import annotations

import re

# CSI and OSC sequences first, so that their printable tails go as well; then every other control character.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# Marks of direction too: with them a line reads as something that it is not.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
# UTF-8 cannot encode them.
_SURROGATES = re.compile(r"[\ud800-\udfff]")


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
