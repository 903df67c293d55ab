"""Every dialect by its name: how it spells limits and errors, and how it is read and written."""

from __future__ import annotations

from collections.abc import Mapping

from chargehand.models.contract import Dialect
from chargehand.models.dialects.anthropic import AnthropicRules
from chargehand.models.dialects.anthropic_messages import AnthropicCodec
from chargehand.models.dialects.base import DialectRules
from chargehand.models.dialects.conversation import Codec
from chargehand.models.dialects.gemini import GeminiRules
from chargehand.models.dialects.gemini_messages import GeminiCodec
from chargehand.models.dialects.openai_chat import OpenAIRules
from chargehand.models.dialects.openai_chat_messages import OpenAICodec
from chargehand.models.dialects.openai_responses import ResponsesRules
from chargehand.models.dialects.openai_responses_messages import ResponsesCodec

RULES: Mapping[Dialect, DialectRules] = {
    "openai": OpenAIRules(),
    "anthropic": AnthropicRules(),
    "responses": ResponsesRules(),
    "gemini": GeminiRules(),
}
CODECS: Mapping[Dialect, Codec] = {
    "openai": OpenAICodec(),
    "anthropic": AnthropicCodec(),
    "responses": ResponsesCodec(),
    "gemini": GeminiCodec(),
}
