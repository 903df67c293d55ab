"""The conversation of a native attempt, made from what is recorded of it, for whichever model is asked next."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from chargehand.agents import _text_protocol
from chargehand.agents._recorded import Reply, ToolCall, whole

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        BinaryContent,
        ModelMessage,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
    )

FINISH, ASK = "finish", "ask"
_LATER = "not done: finish came before it"
_NO_PICTURES = "[not shown: this model does not take it; look at it with a program, or work without it]"
_OLDER = "[not shown any more; read it again to see it]"
_MOST_PICTURES = 8
"""With 2 MB each they fit into one request."""
_FINISHED = "noted; the checks decide whether it is so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One entry of a conversation: what a person or Chargehand says, a reply, or the result of a call.

    `pinned` entries are what the whole work is about: compaction never touches them. `report` marks the report on
    the attempt before, `image` is the media type of the picture that the artifact is.
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
    image: str | None = None

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


def to_messages(
    system: str, entries: Sequence[Said], *, native: bool, picture: Callable[[str], bytes | None] | None = None
) -> tuple[list[ModelMessage], set[int]]:
    """Return the conversation as pydantic-ai takes it, and which of its messages are pinned.

    For a model without tools of its own, calls and results are text. Calls get ids of ours, which every provider
    takes and takes once: those of other models, or of a person's edit, may be neither. `picture` returns the bytes
    of an artifact that is still there, and is `None` for a model that takes no pictures: it is told so. The last
    few are shown.
    """
    pictured = [entry for entry in entries if entry.image is not None and entry.artifact is not None]
    shown = {id(entry) for entry in pictured[-_MOST_PICTURES:]}
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
            parts.append(_part(entry, replies, native=native, said=_said(entry, shown, picture)))
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


def _said(
    entry: Said, shown: Collection[int], picture: Callable[[str], bytes | None] | None
) -> tuple[str, BinaryContent | None]:
    """Return the words of an entry, and the picture that belongs to it where the model is shown it."""
    if entry.image is None or entry.artifact is None:
        return entry.text, None
    if picture is None:
        return f"{entry.text}\n{_NO_PICTURES}", None
    content = picture(entry.artifact) if id(entry) in shown else None
    if content is None:
        return f"{entry.text}\n{_OLDER}", None
    from pydantic_ai.messages import BinaryContent

    return entry.text, BinaryContent(content, media_type=entry.image)


def _part(entry: Said, reply: int, *, native: bool, said: tuple[str, BinaryContent | None]) -> ModelRequestPart:
    from pydantic_ai.messages import ToolReturnPart, UserPromptPart

    text, picture = said
    if entry.call is None:
        return UserPromptPart(text)
    if native and not entry.call.written:
        about = {"artifact": entry.artifact, "failed": entry.failed}
        content = text if picture is None else [text, picture]
        return ToolReturnPart(entry.call.name, content, _id(reply, entry.call.index), metadata=about)
    rendered = _text_protocol.render_result(entry.call.name, text)
    return UserPromptPart(rendered if picture is None else [rendered, picture])


def _as_text(entry: Said) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse, TextPart

    written = [
        "```tool\n" + json.dumps({"name": call.name, "arguments": call.arguments}) + "\n```"
        for call in entry.calls
        if not call.written
    ]
    return ModelResponse(parts=[TextPart("\n".join([entry.text, *written]).strip() or "(nothing)")])
