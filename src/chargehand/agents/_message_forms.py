"""What a program is told whose last message could not be read: what is wrong, its form, what was there."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import msgspec

from chargehand.core.errors import MessageError
from chargehand.core.messages import (
    ClarificationRequest,
    ErrorReport,
    InformationReport,
    Message,
    TaskCompletion,
    repaired_json,
    repaired_words,
)

ENDS: tuple[type[Message], ...] = (TaskCompletion, InformationReport, ErrorReport, ClarificationRequest)
"""The messages that an attempt may end with."""
_SHOWN = 1_000
_UNREAD = (
    "The message that you left in the file that $CHARGEHAND_MESSAGE names could not be read, so your work has not "
    "ended: {problem}\n\n"
    "Write the whole file anew, as one JSON object with nothing around it, of {forms} (a `?` marks what may be "
    "left out):\n\n{lines}\n\n"
    "Say in it what you meant to say. What you did is kept: change nothing else, and end."
)
_THERE = "\n\nWhat is there now begins:\n\n{text}"


def unread_words(error: MessageError, text: str) -> str:
    """Return what to tell a program whose message is malformed; `text` is what it left, shown cut short."""
    kinds = _meant(text)
    words = _UNREAD.format(
        problem=error.message,
        forms="this form" if len(kinds) == 1 else "one of these forms",
        lines="\n".join(map(form_of, kinds)),
    )
    there = text.replace("\0", "").strip()
    if not there:
        return words
    return words + _THERE.format(text=there if len(there) <= _SHOWN else f"{there[:_SHOWN]}…")


def form_of(kind: type[Message]) -> str:
    """Return one line with the form of an end, made of its class."""
    hints = get_type_hints(kind)
    said = (word for word in get_args(hints["status"]) if word != "in_progress")  # which is no end
    payload = hints["payload"]
    of = get_type_hints(payload)
    parts = ", ".join(
        f'"{field.name}"{"" if field.required else "?"}: {"TEXT" if of[field.name] is str else "[TEXT, ...]"}'
        for field in msgspec.structs.fields(payload)
    )
    status = " or ".join(f'"{word}"' for word in said)
    return f'{{"type": "{kind.__struct_config__.tag}", "status": {status}, "payload": {{{parts}}}}}'


def _meant(text: str) -> tuple[type[Message], ...]:
    """Return the kind of message that a text names as its own, all of them where it names none."""
    try:
        document: Any = repaired_json(text)
    except MessageError:
        return ENDS
    named = repaired_words(document).get("type") if isinstance(document, dict) else None
    return tuple(kind for kind in ENDS if kind.__struct_config__.tag == named) or ENDS
