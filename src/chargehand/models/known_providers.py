"""The registered providers of models: the dialect, the address and the usual key of each."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from chargehand.core.registry import Registry


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
