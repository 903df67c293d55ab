"""The conversation of a native attempt, built from its record for the model that is asked next."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from chargehand.agents.model_messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ReplyText,
    RequestPart,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
    read_response,
)
from chargehand.agents.text_protocol import render_result
from chargehand.agents.tool_specs import ToolCall

FINISH, ASK = "finish", "ask"
_SKIPPED = "not done: finish came before it"
_FINISHED = "noted; the checks decide whether it is so"
_NO_PICTURES = "[not shown: this model does not take it; look at it with a program, or work without it]"
_OLDER_PICTURE = "[not shown any more; read it again to see it]"
# At 2 MB each (the `read` tool's limit) they fit into one request.
_MOST_PICTURES = 8
# Returns the bytes of an artifact, `None` if it is gone.
ReadPicture = Callable[[str], bytes | None]


class ConversationEntry(Struct, frozen=True, kw_only=True):
    """One entry: a text of a person or Chargehand, a model's reply, or the result of a call.

    Compaction never touches `pinned` entries. `report` marks the report on the previous attempt; `message` is a
    reply as recorded; `image` is the media type of the picture in `artifact`.
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

    def message_with_own_ids(self, reply: int) -> dict[str, Any]:
        """Return the recorded reply with our own call ids.

        Every provider accepts ours; it may refuse those of another provider, or ids that a person's edit
        duplicated.
        """
        assert self.message is not None
        parts = []
        index = 0
        for part in self.message["parts"]:
            if part["part_kind"] == "tool-call":
                part = part | {"tool_call_id": _call_id(reply, index)}
                index += 1
            parts.append(part)
        return self.message | {"parts": parts}

    def request_part(self, reply: int, native: bool, picture: bytes | str | None) -> RequestPart:
        """Return a user's text, or the result of a call of reply number `reply`, with its picture, if any."""
        text = f"{self.text}\n{picture}" if isinstance(picture, str) else self.text
        if self.call is None:
            return UserPromptPart(text)
        shown: list[str | BinaryContent] = []
        if isinstance(picture, bytes):
            assert self.image is not None
            shown = [BinaryContent(picture, self.image)]
        if native and not self.call.written:
            about = {"artifact": self.artifact, "failed": self.failed}
            content = [text, *shown] if shown else text
            return ToolReturnPart(self.call.name, content, _call_id(reply, self.call.index), about)
        # A model without tools knows no results: they are sent to it as the user's text.
        rendered = render_result(self.call.name, text)
        return UserPromptPart([rendered, *shown] if shown else rendered)

    def reply_as_text(self) -> ModelResponse:
        """Return the reply with its calls as text, for a model without tools."""
        blocks = [
            "```tool\n" + json.dumps({"name": call.name, "arguments": call.arguments}) + "\n```"
            for call in self.calls
            if not call.written
        ]
        # Never empty: some providers refuse an empty message.
        return ModelResponse(parts=[ReplyText("\n".join([self.text, *blocks]).strip() or "(nothing)")])


def missing_results(reply: ConversationEntry, results: Sequence[ConversationEntry]) -> list[ConversationEntry]:
    """Return results for calls without one, because the reply finished or its attempt ended there.

    Providers refuse a conversation in which a call has no result.
    """
    answered = {result.call.index for result in results if result.call is not None}
    return [
        ConversationEntry(kind="result", call=call, text=_FINISHED if call.name == FINISH else _SKIPPED)
        for call in reply.calls
        if call.index not in answered
    ]


def to_messages(
    system: str, entries: Sequence[ConversationEntry], *, native: bool, picture: ReadPicture | None = None
) -> tuple[list[ModelMessage], set[int]]:
    """Return the conversation as messages for a model, and the indexes of the pinned ones.

    With `native` false, for a model without tools, calls and results are text. `picture` is `None` for a model
    without pictures, and a text says so; otherwise the last few are shown.
    """
    # Only the last few: every picture is sent again with every request.
    pictured = [entry for entry in entries if entry.image is not None and entry.artifact is not None]
    visible = {id(entry) for entry in pictured[-_MOST_PICTURES:]}
    messages: list[ModelMessage] = [ModelRequest(parts=[SystemPromptPart(system)])]
    pins = {0}
    parts: list[RequestPart] = []
    replies = 0

    def end_request() -> None:
        if parts:
            messages.append(ModelRequest(parts=list(parts)))
            parts.clear()

    for entry in entries:
        if entry.kind == "reply":
            end_request()
            replies += 1
            if native and not any(call.written for call in entry.calls):
                messages.append(read_response(entry.message_with_own_ids(replies)))
            else:
                messages.append(entry.reply_as_text())
            continue
        if entry.pinned:  # a separate message, so that nothing else is kept with it
            end_request()
        shown: bytes | str | None = None
        if entry.image is not None and entry.artifact is not None:
            content = picture(entry.artifact) if picture is not None and id(entry) in visible else None
            shown = _NO_PICTURES if picture is None else _OLDER_PICTURE if content is None else content
        parts.append(entry.request_part(replies, native, shown))
        if entry.pinned:
            end_request()
            pins.add(len(messages) - 1)
    end_request()
    return messages, pins


def _call_id(reply: int, index: int) -> str:
    return f"call-{reply}-{index}"
