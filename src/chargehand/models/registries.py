"""The registered providers of models, and the registered dialects that they speak.

Only the modules at the top of the package use the dialects: the gateway, the upstreams, replay and probes. They
pass them to the code below.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from chargehand.core.registry import Registry

if TYPE_CHECKING:
    from chargehand.core.config import ModelConfig
    from chargehand.models.dialects.base import ModelDialect


class ProviderSpec(Struct, frozen=True):
    """A provider: its dialect, its own address ("": each configuration names one), and its usual key.

    `key` is the variable that the provider's own programs use, "" if it needs none.
    """

    dialect: str = "openai"
    address: str = ""
    key: str = ""


_OPENAI = ("https://api.openai.com/v1", "OPENAI_API_KEY")
PROVIDERS: Registry[ProviderSpec] = Registry("providers", "provider")
for _name, _summary, *_spec in (
    ("openai", "OpenAI, Chat Completions", "openai", *_OPENAI),
    ("openai-responses", "OpenAI, Responses", "responses", *_OPENAI),
    ("anthropic", "Anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    ("gemini", "Google Gemini", "gemini", "https://generativelanguage.googleapis.com", "GEMINI_API_KEY"),
    ("ollama", "Ollama on this machine", "openai", "http://127.0.0.1:11434/v1"),
    ("resetdata", "ResetData", "openai", "https://models.au-syd.resetdata.ai/v1", "RESETDATA_API_KEY"),
    ("openai-compatible", "any server with OpenAI's Chat Completions"),
    ("anthropic-compatible", "any server with Anthropic's Messages", "anthropic"),
    ("script", "a file of replies"),
):
    PROVIDERS.register(_name, partial(ProviderSpec, *_spec), _summary)

# No extension adds a dialect: each reads every call.
_PLACE = "chargehand.models.dialects"
DIALECTS: Registry[ModelDialect] = Registry("dialects", "dialect", extensible=False)
DIALECTS.register("openai", f"{_PLACE}.openai_chat:OpenAIChatDialect", "OpenAI's Chat Completions")
DIALECTS.register("anthropic", f"{_PLACE}.anthropic:AnthropicDialect", "Anthropic's Messages")
DIALECTS.register("responses", f"{_PLACE}.openai_responses:ResponsesDialect", "OpenAI's Responses")
DIALECTS.register("gemini", f"{_PLACE}.gemini:GeminiDialect", "Google's generateContent")


def key_name(config: ModelConfig) -> str | None:
    """Return the name of the key that a model needs, `None` if it needs no key.

    The usual key of a provider is sent to that provider's own address only; any other address gets the configured
    key.
    """
    if config.key is not None:
        return config.key
    return usual_key(config.provider) or None if config.base_url is None else None


def usual_key(provider: str) -> str:
    """Return the variable that a provider's own programs use for its key, "" if it needs none."""
    return PROVIDERS.find(provider).key
