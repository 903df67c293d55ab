"""Every dialect by its name.

Only the modules at the top of the package import this table: the gateway, the upstreams, replay and probes. They
pass it to the code between them and the dialects.
"""

from __future__ import annotations

from chargehand.models.dialects.anthropic import AnthropicDialect
from chargehand.models.dialects.base import DialectTable
from chargehand.models.dialects.gemini import GeminiDialect
from chargehand.models.dialects.openai_chat import OpenAIChatDialect
from chargehand.models.dialects.openai_responses import ResponsesDialect

DIALECTS: DialectTable = {
    dialect.name: dialect
    for dialect in (OpenAIChatDialect(), AnthropicDialect(), ResponsesDialect(), GeminiDialect())
}
