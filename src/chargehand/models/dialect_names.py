"""The registered dialects.

Only the modules at the top of the package use its dialects: the gateway, the upstreams, replay and probes. They
pass them to the code below. No extension adds one: each dialect reads every call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chargehand.core.registry import Registry

if TYPE_CHECKING:
    from chargehand.models.dialects.base import ModelDialect

_PLACE = "chargehand.models.dialects"
DIALECTS: Registry[ModelDialect] = Registry("dialects", "dialect", extensible=False)
DIALECTS.register("openai", f"{_PLACE}.openai_chat:OpenAIChatDialect", "OpenAI's Chat Completions")
DIALECTS.register("anthropic", f"{_PLACE}.anthropic:AnthropicDialect", "Anthropic's Messages")
DIALECTS.register("responses", f"{_PLACE}.openai_responses:ResponsesDialect", "OpenAI's Responses")
DIALECTS.register("gemini", f"{_PLACE}.gemini:GeminiDialect", "Google's generateContent")
