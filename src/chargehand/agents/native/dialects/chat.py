"""OpenAI's chat completions as the native agent speaks them."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

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
    ToolReturnPart,
    UserPromptPart,
)
from chargehand.agents.native.dialects.parts import ReplyParts, add_call
from chargehand.agents.native.dialects.schemas import chat_schema
from chargehand.agents.native.dialects.special_tokens import break_tokens, may_read_tokens, restore_tokens
from chargehand.agents.tool_specs import ToolSpec

# Recorded with reasoning: only the provider that wrote it gets it back in its field.
_PROVIDER = "gateway"
_THOUGHT_FIELDS = ("reasoning", "reasoning_content")
# The `id` of reasoning that a model wrote between tags in its text.
_TAGGED = "content"
_TAGS = ("<think>", "</think>")
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "content_filter": "content_filter",
    "function_call": "tool_call",
}


class ChatDialect:
    """Chat completions for one model."""

    path = "/v1/chat/completions"
    headers: Mapping[str, str] = {}

    def __init__(self, model: str) -> None:
        self._model = model
        self._breaks = may_read_tokens(model)

    def write(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolSpec], max_output: int | None
    ) -> dict[str, Any]:
        """Return the body of a streamed request."""
        said: list[dict[str, Any]] = []
        for message in messages:
            if isinstance(message, ModelRequest):
                said.extend(self._write_request(message))
            elif (reply := self._write_reply(message)) is not None:
                said.append(reply)
        _fill_thoughts(said)
        body: dict[str, Any] = {
            "model": self._model,
            "messages": said,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": chat_schema(tool.parameters),
                    },
                }
                for tool in tools
            ]
            body["tool_choice"] = "auto"
        if max_output is not None:
            body["max_completion_tokens"] = max_output
        return body

    def reader(self, on_text: Callable[[str], None]) -> ChatReader:
        """Return the reader of one reply."""
        return ChatReader(self._model, on_text, restore=restore_tokens if self._breaks else None)

    def _safe(self, value: Any) -> Any:
        return break_tokens(value) if self._breaks else value

    def _write_request(self, message: ModelRequest) -> Iterator[dict[str, Any]]:
        pictures: list[dict[str, Any]] = []
        for part in message.parts:
            match part:
                case SystemPromptPart():
                    yield {"role": "system", "content": part.content}
                case UserPromptPart():
                    yield {"role": "user", "content": self._write_content(part.content)}
                case ToolReturnPart():
                    text, shown = self._write_result(part)
                    pictures += shown
                    yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
        if pictures:
            yield {"role": "user", "content": pictures}

    def _write_content(self, content: str | list[str | BinaryContent]) -> Any:
        if isinstance(content, str):
            return self._safe(content)
        return [_picture(item) if isinstance(item, BinaryContent) else self._text(item) for item in content]

    def _text(self, text: str) -> dict[str, Any]:
        return {"type": "text", "text": self._safe(text)}

    def _write_result(self, part: ToolReturnPart) -> tuple[str, list[dict[str, Any]]]:
        """Return the text of a result, and its pictures for the user's message: a result holds only text."""
        if isinstance(part.content, str):
            return self._safe(part.content), []
        names: list[str] = []
        shown: list[dict[str, Any]] = []
        for item in part.content:
            if isinstance(item, str):
                names.append(self._safe(item))
                continue
            own = hashlib.sha1(item.data).hexdigest()[:6]
            names.append(f"See file {own}.")
            about = {"tool_name": part.tool_name, "tool_call_id": part.tool_call_id, "file_id": own}
            written = "".join(f' {name}="{html.escape(value)}"' for name, value in about.items())
            # The tags say that the picture comes from a tool, and not from a person.
            shown += [
                {"type": "text", "text": f"<pyai:tool_result{written}>"},
                _picture(item),
                {"type": "text", "text": "</pyai:tool_result>"},
            ]
        return msgspec.json.encode(names).decode(), shown

    def _write_reply(self, message: ModelResponse) -> dict[str, Any] | None:
        """Return a reply; `None` if it has neither text nor calls, which providers refuse."""
        texts: list[str] = []
        thoughts: dict[str, list[str]] = {}
        calls: list[dict[str, Any]] = []
        for part in message.parts:
            match part:
                case ReplyText():
                    texts.append(self._safe(part.content))
                case ReplyThinking(id=str(name), provider_name="gateway") if name != _TAGGED:
                    thoughts.setdefault(name, []).append(self._safe(part.content))
                case ReplyThinking():
                    texts.append(f"{_TAGS[0]}\n{self._safe(part.content)}\n{_TAGS[1]}")
                case ReplyCall():
                    written = msgspec.json.encode(self._safe(part.arguments())).decode()
                    function = {"name": part.tool_name, "arguments": written}
                    calls.append({"id": part.tool_call_id, "type": "function", "function": function})
        if not texts and not calls:
            return None
        reply: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts) if texts else None}
        reply |= {name: "\n\n".join(told) for name, told in thoughts.items()}
        return reply | ({"tool_calls": calls} if calls else {})


def _picture(item: BinaryContent) -> dict[str, Any]:
    data = base64.b64encode(item.data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{item.media_type};base64,{data}"}}


def _fill_thoughts(messages: list[dict[str, Any]]) -> None:
    """Give the calls after the last user message an empty field for reasoning if others have it.

    DeepSeek refuses a call without that field.
    """
    sent = {name for message in messages for name in _THOUGHT_FIELDS if name in message}
    if len(sent) != 1:
        return
    (field,) = sent
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for message in messages[last + 1 :]:
        if message.get("tool_calls"):
            message.setdefault(field, "")


class ChatReader:
    """Reads the chunks of one reply."""

    def __init__(
        self, model: str, on_text: Callable[[str], None], *, restore: Callable[[Any], Any] | None
    ) -> None:
        self._parts = ReplyParts()
        self._show = on_text
        self._restore = restore or (lambda value: value)
        self._texts = 0  # the number of the current text and of the current reasoning
        self._thoughts = 0
        self._refused = False
        self._word = ""
        self.model = model
        self.finish_reason: FinishReason | None = None

    def read(self, chunk: Mapping[str, Any]) -> None:
        """Take in one chunk; raises `ValueError` and the like if it does not have the dialect's shape."""
        if isinstance(name := chunk.get("model"), str) and name:
            self.model = name
        choices = chunk.get("choices")
        if not choices:
            return
        choice = choices[0]
        delta = choice.get("delta")
        word = choice.get("finish_reason")
        self._word = word or self._word
        if delta is None:
            return
        if delta.get("refusal"):
            self._refused = True
            return
        if word:
            self.finish_reason = _FINISH_REASONS.get(word)
        self._read_thought(delta)
        self._read_text(delta.get("content"))
        for call in delta.get("tool_calls") or ():
            self._read_call(call)

    def finish(self) -> list[ReplyPart]:
        """Return the parts, once the stream has ended."""
        if self._refused:
            self.finish_reason = "content_filter"
        elif not self._word:
            self.finish_reason = "stop"  # some providers name no reason
        return [_restore_part(part, self._restore) for part in self._parts.finish()]

    def _read_thought(self, delta: Mapping[str, Any]) -> None:
        for field in _THOUGHT_FIELDS:
            thought = delta.get(field)
            if isinstance(thought, str) and thought:
                draft, begins = self._parts.open(("thought", field, self._thoughts), ReplyThinking)
                draft.id, draft.provider = field, _PROVIDER
                draft.pieces.append(thought)
                if begins:
                    self._end_text()
                return

    def _read_text(self, content: object) -> None:
        if isinstance(content, list):  # some servers send a list of parts
            content = "".join(item if isinstance(item, str) else str(item.get("text") or "") for item in content)
        if not isinstance(content, str) or not content:
            return
        key = ("text", self._texts)
        if self._parts.kind_of(key) is ReplyThinking:
            if content == _TAGS[1]:
                self._parts.forget(key)
            else:
                self._parts.open(key, ReplyThinking)[0].pieces.append(content)
            return
        if content == _TAGS[0]:
            self._parts.forget(key)
            draft, begins = self._parts.open(key, ReplyThinking)
            draft.id, draft.provider = _TAGGED, _PROVIDER
        else:
            draft, begins = self._parts.open(key, ReplyText)
            draft.pieces.append(content)
            self._show(self._restore(content))
        if begins:
            self._thoughts += 1

    def _read_call(self, call: Mapping[str, Any]) -> None:
        function = call.get("function") or {}
        name = function.get("name")
        index = call.get("index")
        draft = self._parts.last_call() if index is None and name is None else None
        if draft is None:
            # Without an index each named call is a call of its own.
            key = ("call", index) if index is not None else ("call", object())
            draft, begins = self._parts.open(key, ReplyCall)
            if begins:
                self._thoughts += 1
                self._end_text()
        add_call(draft, name, function.get("arguments"), call.get("id"))

    def _end_text(self) -> None:
        if self._parts.kind_of(("text", self._texts)) is ReplyText:
            self._texts += 1


def _restore_part(part: ReplyPart, restore: Callable[[Any], Any]) -> ReplyPart:
    match part:
        case ReplyText():
            return ReplyText(restore(part.content))
        case ReplyCall():
            return ReplyCall(part.tool_name, restore(part.args), part.tool_call_id)
    return part
