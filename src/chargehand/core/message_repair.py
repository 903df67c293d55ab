"""What may be mended of a malformed message because it is lossless and certain: nothing else is ever guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from chargehand.core.errors import MessageError
from chargehand.core.messages import MessageStatus, MessageType, read_json

_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*\w*[ \t]*\n(?P<inner>.*)\n[ \t]*\1", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_COMMA = re.compile(r",(?=\s*[\]}])")
_WORDS = {"status": get_args(MessageStatus), "type": get_args(MessageType)}


def repaired_json(text: str) -> Any:
    """Return the JSON that a text is, also within one fence and with commas before a closing bracket.

    Nothing else may stand around it. Raises `MessageError` as `read_json` does.
    """
    plain = text.removeprefix("\ufeff").strip()
    fenced = _FENCE.fullmatch(plain)
    inner = fenced["inner"] if fenced and fenced[1] not in fenced["inner"] else plain
    try:
        return read_json(inner)
    except MessageError as error:
        mended = _without_commas(inner)
        if mended == inner:
            raise
        try:
            return read_json(mended)
        except MessageError:
            raise error from None


def repaired_words(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document whose status and type are spelled as they should be where only case or spaces differ."""
    made = dict(document)
    for name, known in _WORDS.items():
        given = made.get(name)
        if isinstance(given, str):
            plain = re.sub(r"[\s-]+", "_", given.strip().lower())
            made[name] = plain if plain in known else given
    return made


def _without_commas(text: str) -> str:
    """Take out commas before a closing bracket; strings are left alone."""
    out, end = [], 0
    for found in _STRING.finditer(text):
        out += [_COMMA.sub("", text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*out, _COMMA.sub("", text[end:])])
