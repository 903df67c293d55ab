"""What stands in a conversation of pydantic-ai: calls with their results, and how long its parts are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

_FILE_BYTES = 4_000
"""What a picture or document counts as."""
_RETURNS = frozenset({"tool-return", "retry-prompt"})
_BAD = frozenset({"failed", "denied", "interrupted", "retried"})
_EXIT = re.compile(r"\[exit code (-?\d+)\]\s*\Z")
_TIMED_OUT = re.compile(r"\[timed out after [^\n]*\]\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A tool call and its result: in which messages they stand, and what they say.

    `arguments` is canonical JSON; `exit_code` and `artifact` are `None` where the result does not tell.
    """

    call_at: int
    result_at: int
    part_at: int
    name: str
    arguments: str
    result: str
    failed: bool
    exit_code: int | None
    artifact: str | None


def is_reply(message: ModelMessage) -> bool:
    """Tell whether a model said it."""
    return message.kind == "response"


def pairs(messages: Sequence[ModelMessage]) -> list[Pair]:
    """Return all calls that have a result, in the order of the results; an id used again means its latest call."""
    found, open_calls = [], dict[str, tuple[int, Any]]()
    for index, message in enumerate(messages):
        for at, part in enumerate(message.parts):
            if part.part_kind == "tool-call":
                open_calls[part.tool_call_id] = (index, part)
            elif part.part_kind in _RETURNS and getattr(part, "tool_call_id", None) in open_calls:
                found.append(_pair(*open_calls[getattr(part, "tool_call_id", "")], index, at, part))
    return found


def _pair(call_at: int, call: Any, result_at: int, part_at: int, part: Any) -> Pair:
    text = result_text(part) or ""
    known = part.metadata if isinstance(getattr(part, "metadata", None), Mapping) else {}
    code = known.get("exit_code", _exit_code(text) if call.tool_name == "bash" else None)
    bad = getattr(part, "outcome", "failed") in _BAD or bool(known.get("failed"))
    bad = bad or (call.tool_name == "bash" and _TIMED_OUT.search(text) is not None)
    return Pair(
        call_at=call_at,
        result_at=result_at,
        part_at=part_at,
        name=call.tool_name,
        arguments=json.dumps(arguments(call.args), sort_keys=True, ensure_ascii=False, default=str),
        result=text,
        failed=bad or code not in (0, None),
        exit_code=code,
        artifact=known.get("artifact"),
    )


def _exit_code(text: str) -> int | None:
    found = _EXIT.search(text)
    return int(found[1]) if found else None


def arguments(written: Any) -> dict[str, Any]:
    """Return a call's arguments as an object; what is none comes back under the key `text`."""
    if written is None or written == "":
        return {}
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except (ValueError, RecursionError):
            return {"text": written}
    return written if isinstance(written, dict) else {"text": written}


def result_text(part: Any) -> str | None:
    """Return the text of a result, or of what a user said; `None` for every other part."""
    if part.part_kind == "user-prompt":
        return part.content if isinstance(part.content, str) else None
    if part.part_kind not in _RETURNS:
        return None
    if holds_picture(part):
        return "\n".join(item for item in part.content if isinstance(item, str))
    return part.content if isinstance(part.content, str) else _plain(part)


def holds_picture(part: Any) -> bool:
    """Tell whether a tool's result is words and pictures, as the `read` tool makes it."""
    content = getattr(part, "content", None)
    if part.part_kind != "tool-return" or not isinstance(content, list):
        return False
    return any(getattr(item, "kind", "") == "binary" for item in content)


def _plain(part: Any) -> str:
    render = getattr(part, "model_response_str", None) or part.model_response
    return str(render())


def with_text(part: Any, text: str) -> Any:
    """Return a part with another text; the rest of it, its call's id first of all, stays."""
    return replace(part, content=text)


def cut(text: str, length: int) -> str:
    """Return head and tail of `text`, `length` characters of it at most, with a line in between."""
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half :]}"


def content_bytes(part: Any) -> int:
    """Return how many bytes of a part a model gets to read."""
    if part.part_kind in ("tool-call", "builtin-tool-call"):
        written = part.args if isinstance(part.args, str) else json.dumps(part.args, default=str)
        return len(part.tool_name) + _bytes(written)
    text = result_text(part)
    if text is not None:
        return _bytes(text) + (_FILE_BYTES if holds_picture(part) else 0)
    content = getattr(part, "content", "")
    if isinstance(content, str):
        return _bytes(content)
    if part.part_kind == "user-prompt":
        return sum(_bytes(item) if isinstance(item, str) else _FILE_BYTES for item in content)
    return _bytes(json.dumps(content, default=str))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
