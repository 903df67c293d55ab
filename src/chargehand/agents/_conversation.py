"""The conversation of a native attempt, made from what is recorded of it, for whichever model is asked next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from chargehand.agents import _text_protocol
from chargehand.agents._recorded import Reply, ToolCall, whole

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ModelResponsePart

FINISH, ASK = "finish", "ask"
_LATER = "not done: finish came before it"
_FINISHED = "noted; the checks decide whether it is so"


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

    @classmethod
    def by_model(cls, reply: Reply, message: dict[str, Any]) -> Said:
        """Return a reply as an entry; `message` is it as recorded."""
        return cls(kind="reply", text=reply.text, message=message, calls=reply.calls)


def dump_reply(response: ModelResponse) -> dict[str, Any]:
    """Return a model's reply as JSON for the log."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    message: dict[str, Any] = ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]
    keys = ("parts", "usage", "model_name", "timestamp", "kind", "finish_reason")
    return {key: whole(message[key]) for key in keys}


def made_reply(text: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a reply as if a model had given it: a person's edit."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    calls = [ToolCallPart(tool["name"], tool.get("arguments", {})) for tool in tools]
    parts: list[ModelResponsePart] = [*([TextPart(text)] if text else []), *calls]
    return dump_reply(ModelResponse(parts=parts, model_name="edited"))


def unanswered(reply: Said, results: Sequence[Said]) -> list[Said]:
    """Return results for the calls of a reply that have none, because it finished or its attempt ended there."""
    answered = {result.call.index for result in results if result.call is not None}
    return [
        Said(kind="result", call=call, text=_FINISHED if call.name == FINISH else _LATER)
        for call in reply.calls
        if call.index not in answered
    ]


def to_messages(system: str, entries: Sequence[Said], *, native: bool) -> tuple[list[ModelMessage], set[int]]:
    """Return the conversation as pydantic-ai takes it, and which of its messages are pinned.

    For a model without tools of its own, calls and results are text. Calls get ids of ours, which every provider
    takes and takes once: those of other models, or of a person's edit, may be neither.
    """
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, SystemPromptPart

    messages: list[ModelMessage] = [ModelRequest(parts=[SystemPromptPart(system)])]
    pins = {0}
    parts: list[ModelRequestPart] = []
    replies = 0

    def close() -> None:
        if parts:
            messages.append(ModelRequest(parts=list(parts)))
            parts.clear()

    for entry in entries:
        if entry.kind != "reply":
            if entry.pinned:  # a message of its own, so that nothing else is kept with it
                close()
            parts.append(_part(entry, replies, native=native))
            if entry.pinned:
                close()
                pins.add(len(messages) - 1)
            continue
        close()
        replies += 1
        if native and not any(call.written for call in entry.calls):
            messages.extend(ModelMessagesTypeAdapter.validate_python([_with_ids(entry, replies)]))
        else:
            messages.append(_as_text(entry))
    close()
    return messages, pins


def _id(reply: int, index: int) -> str:
    return f"call-{reply}-{index}"


def _with_ids(entry: Said, reply: int) -> dict[str, Any]:
    assert entry.message is not None
    parts, index = [], 0
    for part in entry.message["parts"]:
        if part["part_kind"] == "tool-call":
            part, index = part | {"tool_call_id": _id(reply, index)}, index + 1
        parts.append(part)
    return entry.message | {"parts": parts}


def _part(entry: Said, reply: int, *, native: bool) -> ModelRequestPart:
    from pydantic_ai.messages import ToolReturnPart, UserPromptPart

    if entry.call is None:
        return UserPromptPart(entry.text)
    if native and not entry.call.written:
        about = {"artifact": entry.artifact, "failed": entry.failed}
        return ToolReturnPart(entry.call.name, entry.text, _id(reply, entry.call.index), metadata=about)
    return UserPromptPart(_text_protocol.render_result(entry.call.name, entry.text))


def _as_text(entry: Said) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse, TextPart

    written = [
        "```tool\n" + json.dumps({"name": call.name, "arguments": call.arguments}) + "\n```"
        for call in entry.calls
        if not call.written
    ]
    return ModelResponse(parts=[TextPart("\n".join([entry.text, *written]).strip() or "(nothing)")])
