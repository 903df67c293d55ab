"""Every dialect by its name."""

from __future__ import annotations

from collections.abc import Mapping

from chargehand.models.contract import Dialect
from chargehand.models.dialects.anthropic import AnthropicDialect
from chargehand.models.dialects.base import EmbeddingsFormat, ModelDialect
from chargehand.models.dialects.gemini import GeminiDialect
from chargehand.models.dialects.openai_chat import OpenAIChatDialect
from chargehand.models.dialects.openai_responses import ResponsesDialect

_CHAT = OpenAIChatDialect()
DIALECTS: Mapping[Dialect, ModelDialect] = {
    dialect.name: dialect for dialect in (_CHAT, AnthropicDialect(), ResponsesDialect(_CHAT), GeminiDialect())
}


def embeddings_format(dialect: Dialect) -> EmbeddingsFormat:
    """Return the form in which clients of a dialect that has an endpoint for embeddings ask for them."""
    form = DIALECTS[dialect].embeddings
    assert form is not None
    return form
