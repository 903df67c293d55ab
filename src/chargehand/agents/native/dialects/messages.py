"""Anthropic's messages as the native agent speaks them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chargehand.agents.model_messages import (
    BinaryContent,
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ReplyCall,
    ReplyPart,
    ReplyText,
    ReplyThinking,
    SystemPromptPart,
    UserPromptPart,
)
from chargehand.agents.native.dialects.parts import ReplyParts, add_call
from chargehand.agents.native.dialects.schemas import plain_schema
from chargehand.agents.tool_specs import ToolSpec

# This dialect needs an output limit; the gateway lowers it to an affordable one.
_OUTPUT = 16_000
_PROVIDER = "anthropic"
_REDACTED = "redacted_thinking"
# Without marks nothing is cached, and a conversation is paid in full each turn.
_CACHED: Mapping[str, Any] = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "refusal": "content_filter",
}


class MessagesDialect:
    """Messages for one model."""

    path = "/v1/messages"
    headers: Mapping[str, str] = {"anthropic-version": "2026-10-21"}

    def __init__(self, model: str) -> None:
        self._model = model

    def write(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolSpec], max_output: int | None
    ) -> dict[str, Any]:
        """Return the body of a streamed request."""
        system = "\n\n".join(
            part.content for message in messages for part in message.parts if isinstance(part, SystemPromptPart)
        )
        said: list[dict[str, Any]] = []
        for message in messages:
            if isinstance(message, ModelRequest):
                if blocks := list(_write_request(message)):
                    said.append({"role": "user", "content": blocks})
            else:
                said.extend(_write_reply(message))
        body: dict[str, Any] = {
            "model": self._model,
            "messages": said,
            "max_tokens": max_output or _OUTPUT,
            "stream": True,
            **_CACHED,
        }
        if system:
            body["system"] = [{"type": "text", "text": system, **_CACHED}]
        if tools:
            offered = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": plain_schema(tool.parameters),
                }
                for tool in tools
            ]
            body["tools"] = [*offered[:-1], {**offered[-1], **_CACHED}]
            body["tool_choice"] = {"type": "auto"}
        return body

    def reader(self, on_text: Callable[[str], None]) -> MessagesReader:
        """Return the reader of one reply."""
        return MessagesReader(self._model, on_text)


def _write_request(message: ModelRequest) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        if isinstance(part, SystemPromptPart):
            continue
        content = [part.content] if isinstance(part.content, str) else part.content
        blocks = [_write_content(item) for item in content]
        if isinstance(part, UserPromptPart):
            yield from (block for block in blocks if block.get("text") != "")
        else:
            result = {"type": "tool_result", "tool_use_id": part.tool_call_id, "is_error": False}
            yield {**result, "content": blocks or ""}


def _write_content(item: str | BinaryContent) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    data = base64.b64encode(item.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": item.media_type, "data": data}}


def _write_reply(message: ModelResponse) -> Iterator[dict[str, Any]]:
    """Yield a reply, and before it a user message with reasoning that this provider did not sign."""
    blocks: list[dict[str, Any]] = []
    foreign: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case ReplyText() if part.content:
                blocks.append({"type": "text", "text": part.content})
            case ReplyThinking(signature=str(signature), provider_name="anthropic") if signature:
                redacted = part.id == _REDACTED
                held = {"data": signature} if redacted else {"thinking": part.content, "signature": signature}
                blocks.append({"type": _REDACTED if redacted else "thinking", **held})
            case ReplyThinking() if part.content:
                # Not in the reply, or the model writes such tags itself.
                text = f"<assistant_thinking>\n{part.content}\n</assistant_thinking>"
                foreign.append({"type": "text", "text": text})
            case ReplyCall():
                named = {"id": part.tool_call_id, "name": part.tool_name}
                blocks.append({"type": "tool_use", **named, "input": part.arguments()})
    if foreign:
        yield {"role": "user", "content": foreign}
    if blocks:
        yield {"role": "assistant", "content": blocks}


class MessagesReader:
    """Reads the events of one reply."""

    def __init__(self, model: str, on_text: Callable[[str], None]) -> None:
        self._parts = ReplyParts()
        self._show = on_text
        self._begun = False
        self.model = model
        self.finish_reason: FinishReason | None = None

    def read(self, event: Mapping[str, Any]) -> None:
        """Take in one event; raises `ValueError` and the like if it does not have the dialect's shape."""
        match event.get("type"):
            case "message_start":
                self._begun = True
                self.model = str((event.get("message") or {}).get("model") or self.model)
            case "content_block_start":
                self._read_block(event["index"], event["content_block"])
            case "content_block_delta":
                self._read_block(event["index"], event["delta"])
            case "message_delta":
                if word := event["delta"].get("stop_reason"):
                    self.finish_reason = _FINISH_REASONS.get(word)

    def finish(self) -> list[ReplyPart]:
        """Return the parts, once the stream has ended."""
        return self._parts.finish()

    def _read_block(self, index: object, block: Mapping[str, Any]) -> None:
        if not self._begun:
            raise ValueError("the reply has content before its start")
        key = str(index)
        match block["type"]:
            case "text" | "text_delta":
                if block["text"]:
                    self._parts.open(key, ReplyText)[0].pieces.append(block["text"])
                    self._show(block["text"])
            case "thinking" | "thinking_delta" | "signature_delta":
                draft, _ = self._parts.open(key, ReplyThinking)
                draft.provider = _PROVIDER
                draft.pieces.append(block.get("thinking") or "")
                draft.signature = block.get("signature") or draft.signature
            case "redacted_thinking":
                draft, _ = self._parts.open(key, ReplyThinking)
                draft.id, draft.provider, draft.signature = _REDACTED, _PROVIDER, block["data"]
            case "tool_use":
                draft, _ = self._parts.open(key, ReplyCall)
                add_call(draft, block["name"], block.get("input") or None, block["id"])
            case "input_json_delta":
                draft, _ = self._parts.open(key, ReplyCall)
                add_call(draft, None, block["partial_json"], None)
