"""Messages of a conversation with a model, as the native agent builds, shortens and sends them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from chargehand.core.codec import convert_to

FinishReason = Literal["stop", "length", "content_filter", "tool_call", "error"]


class BinaryContent(Struct, frozen=True):
    """A picture and its media type."""

    data: bytes
    media_type: str
    kind: Literal["binary"] = "binary"


class SystemPromptPart(Struct, frozen=True, tag_field="part_kind", tag="system-prompt"):
    """Chargehand's instructions, in front of the conversation."""

    content: str

    part_kind: ClassVar[str] = "system-prompt"


class UserPromptPart(Struct, frozen=True, tag_field="part_kind", tag="user-prompt"):
    """A text of a person or of Chargehand, or texts and pictures."""

    content: str | list[str | BinaryContent]

    part_kind: ClassVar[str] = "user-prompt"


class ToolReturnPart(Struct, frozen=True, tag_field="part_kind", tag="tool-return"):
    """The result of a call; `metadata` (`artifact`, `failed`, `exit_code`) is not sent."""

    tool_name: str
    content: str | list[str | BinaryContent]
    tool_call_id: str
    metadata: dict[str, Any] = field(default_factory=dict)

    part_kind: ClassVar[str] = "tool-return"


class ReplyText(Struct, frozen=True, tag_field="part_kind", tag="text"):
    """A text of the model."""

    content: str

    part_kind: ClassVar[str] = "text"


class ReplyThinking(Struct, frozen=True, tag_field="part_kind", tag="thinking"):
    """Reasoning; `id` is the field that held it, `provider_name` whose `signature` it is."""

    content: str
    id: str | None = None
    signature: str | None = None
    provider_name: str | None = None

    part_kind: ClassVar[str] = "thinking"


class ReplyCall(Struct, frozen=True, tag_field="part_kind", tag="tool-call"):
    """A call with its arguments as the model wrote them: JSON text, an object, or none."""

    tool_name: str
    args: str | dict[str, Any] | None = None
    tool_call_id: str = ""

    part_kind: ClassVar[str] = "tool-call"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments as an object; anything else is wrapped, since providers accept only objects."""
        if not self.args:
            return {}
        if isinstance(self.args, dict):
            return self.args
        try:
            read = msgspec.json.decode(self.args)
        except (msgspec.DecodeError, RecursionError, ValueError):
            read = None
        return read if isinstance(read, dict) else {"INVALID_JSON": self.args}


RequestPart = SystemPromptPart | UserPromptPart | ToolReturnPart
ReplyPart = ReplyText | ReplyThinking | ReplyCall
_REPLY_KINDS = frozenset({"text", "thinking", "tool-call"})


class ModelRequest(Struct, frozen=True, tag_field="kind", tag="request"):
    """Consecutive texts and results; `metadata` is not sent."""

    parts: list[RequestPart]
    metadata: dict[str, Any] | None = None

    kind: ClassVar[str] = "request"


class ReplyTokens(Struct, frozen=True, kw_only=True):
    """Tokens of one reply; `input_tokens` includes cache reads and writes."""

    input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0


class ModelResponse(Struct, frozen=True, tag_field="kind", tag="response"):
    """A model's reply; `finish_reason` is `None` if the provider named none that is known."""

    parts: list[ReplyPart]
    usage: ReplyTokens = ReplyTokens()
    model_name: str | None = None
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    finish_reason: FinishReason | None = None

    kind: ClassVar[str] = "response"


ModelMessage = ModelRequest | ModelResponse


def read_response(message: Mapping[str, Any]) -> ModelResponse:
    """Read the parts of a reply as it was recorded, by any version; raises `msgspec.ValidationError`.

    Older versions recorded more fields, and kinds of parts that no request contained.
    """
    parts = [part for part in message["parts"] if part["part_kind"] in _REPLY_KINDS]
    return ModelResponse(parts=convert_to(parts, list[ReplyPart]))
