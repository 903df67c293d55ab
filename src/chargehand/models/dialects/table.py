"""Every dialect by its name."""

from __future__ import annotations

from collections.abc import Mapping

from chargehand.models.contract import Dialect
from chargehand.models.dialects.anthropic import AnthropicDialect
from chargehand.models.dialects.base import ModelDialect
from chargehand.models.dialects.gemini import GeminiDialect
from chargehand.models.dialects.openai_chat import OpenAIChatDialect
from chargehand.models.dialects.openai_responses import ResponsesDialect

_CHAT = OpenAIChatDialect()
DIALECTS: Mapping[Dialect, ModelDialect] = {
    dialect.name: dialect for dialect in (_CHAT, AnthropicDialect(), ResponsesDialect(_CHAT), GeminiDialect())
}
