"""The conversation of a native attempt, made from what is recorded of it, for whichever model is asked next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from chargehand.agents import _text_protocol
from chargehand.agents._tools import ToolSpec

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ModelResponsePart

FINISH, ASK = "finish", "ask"
_LATER = "not done: finish came before it"
_FINISHED = "noted; the checks decide whether it is so"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What a model wants done; `arguments` is an object, or the text that should have been one."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One entry of a conversation: what a person or Chargehand says, a reply, or the result of a call.

    `pinned` entries are what the whole work is about: compaction never touches them. `report` marks the report on
    the attempt before.
    """

    kind: Literal["user", "reply", "result"]
    text: str = ""
    pinned: bool = False
    message: dict[str, Any] | None = None
    calls: tuple[ToolCall, ...] = ()
    call: ToolCall | None = None
    artifact: str | None = None
    failed: bool = False
    report: bool = False


def dump_reply(response: ModelResponse) -> dict[str, Any]:
    """Return a model's reply as JSON for the log."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    message: dict[str, Any] = ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]
    keys = ("parts", "usage", "model_name", "timestamp", "kind", "finish_reason")
    return {key: _whole(message[key]) for key in keys}


def made_reply(text: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a reply as if a model had given it: a person's edit."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    calls = [
        ToolCallPart(tool["name"], tool.get("arguments", {}), tool_call_id=f"edited-{number}")
        for number, tool in enumerate(tools)
    ]
    parts: list[ModelResponsePart] = [*([TextPart(text)] if text else []), *calls]
    return dump_reply(ModelResponse(parts=parts, model_name="edited"))


def said_by_model(message: dict[str, Any], specs: Sequence[ToolSpec], *, native: bool) -> tuple[Said, str | None]:
    """Return a recorded reply as an entry, and what was wrong with calls written as text, if anything."""
    text = "".join(part["content"] for part in message["parts"] if part["part_kind"] == "text")
    calls = _calls(message)
    if calls or native:
        return Said(kind="reply", text=text, message=message, calls=calls), None
    parsed = _text_protocol.parse(text, specs)
    written = tuple(
        ToolCall(id=f"text-{number}", name=call.name, arguments=call.arguments)
        for number, call in enumerate(parsed.calls)
    )
    return Said(kind="reply", text=text, message=message, calls=written), parsed.problem


def _calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    """Return the calls of a reply; ids that come twice are told apart, else no provider takes them back."""
    found: list[ToolCall] = []
    seen: set[str] = set()
    for part in message["parts"]:
        if part["part_kind"] != "tool-call":
            continue
        while part["tool_call_id"] in seen:
            part["tool_call_id"] += "-again"
        seen.add(part["tool_call_id"])
        found.append(ToolCall(id=part["tool_call_id"], name=part["tool_name"], arguments=_arguments(part["args"])))
    return tuple(found)


def _arguments(written: Any) -> Any:
    """Return a call's arguments; text that is no JSON comes back as it is, for the tool to refuse."""
    if written is None or written == "":
        return {}
    if not isinstance(written, str):
        return written
    try:
        return _whole(json.loads(written))
    except (ValueError, RecursionError):
        return written


def _whole(value: Any) -> Any:
    """Return JSON with halves of characters joined or replaced: nothing can keep or send them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(part) for part in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(part) for key, part in value.items()}
    return value


def unanswered(reply: Said, results: Sequence[Said]) -> list[Said]:
    """Return results for the calls of a reply that have none, because it finished or its attempt ended there."""
    answered = {result.call.id for result in results if result.call is not None}
    return [
        Said(kind="result", call=call, text=_FINISHED if call.name == FINISH else _LATER)
        for call in reply.calls
        if call.id not in answered
    ]


def to_messages(system: str, entries: Sequence[Said], *, native: bool) -> tuple[list[ModelMessage], set[int]]:
    """Return the conversation as pydantic-ai takes it, and which of its messages are pinned.

    For a model without tools of its own, calls and results are text.
    """
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, SystemPromptPart

    messages: list[ModelMessage] = [ModelRequest(parts=[SystemPromptPart(system)])]
    pins = {0}
    parts: list[ModelRequestPart] = []
    ids: dict[str, str] = {}
    replies = 0

    def close() -> None:
        if parts:
            messages.append(ModelRequest(parts=list(parts)))
            parts.clear()

    for entry in entries:
        if entry.kind != "reply":
            if entry.pinned:  # a message of its own, so that nothing else is kept with it
                close()
            parts.append(_part(entry, ids, native=native))
            if entry.pinned:
                close()
                pins.add(len(messages) - 1)
            continue
        close()
        replies += 1
        ids = {call.id: f"call-{replies}-{index}" for index, call in enumerate(entry.calls)}
        if native and not any(call.id.startswith("text-") for call in entry.calls):
            messages.extend(ModelMessagesTypeAdapter.validate_python([_with_ids(entry, ids)]))
        else:
            messages.append(_as_text(entry))
    close()
    return messages, pins


def _with_ids(entry: Said, ids: Mapping[str, str]) -> dict[str, Any]:
    """Return a reply whose calls have ids that every provider takes, and takes once: others' may be neither."""
    assert entry.message is not None
    parts = [
        part | {"tool_call_id": ids[part["tool_call_id"]]} if part["part_kind"] == "tool-call" else part
        for part in entry.message["parts"]
    ]
    return entry.message | {"parts": parts}


def _part(entry: Said, ids: Mapping[str, str], *, native: bool) -> ModelRequestPart:
    from pydantic_ai.messages import ToolReturnPart, UserPromptPart

    if entry.call is None:
        return UserPromptPart(entry.text)
    if native and not entry.call.id.startswith("text-"):
        about = {"artifact": entry.artifact, "failed": entry.failed}
        return ToolReturnPart(entry.call.name, entry.text, ids[entry.call.id], metadata=about)
    return UserPromptPart(_text_protocol.render_result(entry.call.name, entry.text))


def _as_text(entry: Said) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse, TextPart

    written = [
        "```tool\n" + json.dumps({"name": call.name, "arguments": call.arguments}) + "\n```"
        for call in entry.calls
        if not call.id.startswith("text-")
    ]
    return ModelResponse(parts=[TextPart("\n".join([entry.text, *written]).strip() or "(nothing)")])
