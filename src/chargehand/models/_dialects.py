"""Every dialect by its name: how it spells limits and errors, and how it is read and written."""

from __future__ import annotations

from collections.abc import Mapping

from chargehand.models._contract import Dialect
from chargehand.models._dialect_anthropic import AnthropicRules
from chargehand.models._dialect_gemini import GeminiRules
from chargehand.models._dialect_openai import OpenAIRules
from chargehand.models._dialect_responses import ResponsesRules
from chargehand.models._gateway_dialect import DialectRules
from chargehand.models._talk import Codec
from chargehand.models._talk_anthropic import AnthropicCodec
from chargehand.models._talk_gemini import GeminiCodec
from chargehand.models._talk_openai import OpenAICodec
from chargehand.models._talk_responses import ResponsesCodec

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
