"""The types of the fields in a dialect's replies, which clients rely on without checking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The types of a leaf, the fields of an object, or a list of one: the shape of each entry. Every field may be
# missing or null, and a field that is not named may hold anything, because providers add their own. Arguments that
# a model writes as an object are not named: a mistake in them is the model's fault.
Shape = type | tuple[type, ...] | Mapping[str, Any] | Sequence[Any]

_NAMES = {str: "text", dict: "an object", list: "a list", int: "a number", float: "a number"}
_NUMBER = (int, float)
# Some providers send a message's content in parts, and arguments as an object instead of text.
_CHAT_MESSAGE = {
    "role": str,
    "content": (str, list),
    "refusal": str,
    "reasoning_content": str,
    "tool_calls": [
        {
            "index": _NUMBER,
            "id": str,
            "type": str,
            "function": {"name": str, "arguments": (str, dict)},
            "custom": {"name": str, "input": str},
        }
    ],
}
CHAT = {
    "choices": [{"delta": _CHAT_MESSAGE, "message": _CHAT_MESSAGE, "finish_reason": str}],
    "usage": dict,
}
_BLOCK = {"type": str, "text": str, "thinking": str, "signature": str, "id": str, "name": str}
_MESSAGE = {"content": [_BLOCK], "stop_reason": str, "usage": dict}
MESSAGES = {
    **_MESSAGE,
    "type": str,
    "index": _NUMBER,
    "message": _MESSAGE,
    "content_block": _BLOCK,
    "delta": {
        "type": str,
        "text": str,
        "partial_json": str,
        "thinking": str,
        "signature": str,
        "stop_reason": str,
    },
}
_ITEM = {
    "type": str,
    "id": str,
    "call_id": str,
    "name": str,
    "arguments": str,
    "input": str,
    "content": [{"type": str, "text": str}],
}
_RESPONSE = {"id": str, "status": str, "output": [_ITEM], "usage": dict}
RESPONSES = {
    **_RESPONSE,
    "type": str,
    "response": _RESPONSE,
    "item": _ITEM,
    "delta": (str, dict),
    "output_index": _NUMBER,
}
CONTENTS = {
    "candidates": [
        {
            "index": _NUMBER,
            "finishReason": str,
            "content": {
                "role": str,
                "parts": [{"text": str, "functionCall": {"id": str, "name": str}}],
            },
        }
    ],
    "usageMetadata": dict,
    "promptFeedback": dict,
}


def find_misfit(value: object, shape: Shape, path: str = "") -> str:
    """Say where the type of `value` differs from `shape`, or return "" if it fits."""
    if value is None:
        return ""
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return f"{path or 'the reply'} is not an object"
        inside = [(value.get(name), inner, f"{path}.{name}".strip(".")) for name, inner in shape.items()]
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return f"{path} is not a list"
        inside = [(each, shape[0], f"{path}[{place}]") for place, each in enumerate(value)]
    else:
        kinds = shape if isinstance(shape, tuple) else (shape,)
        if isinstance(value, kinds):
            return ""
        return f"{path} is not {' or '.join(dict.fromkeys(_NAMES[kind] for kind in kinds))}"
    return next((found for each in inside if (found := find_misfit(*each))), "")
