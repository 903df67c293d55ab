"""The registered providers of models: the dialect, the address and the usual key of each."""

from __future__ import annotations

from msgspec import Struct

from chargehand.core.registry import Registry


class ProviderSpec(Struct, frozen=True, kw_only=True):
    """A provider: its dialect, its own address ("": each configuration names one), and its usual key.

    `key` is the variable that the provider's own programs use, "" if it needs none.
    """

    dialect: str = "openai"
    address: str = ""
    key: str = ""


PROVIDERS: Registry[ProviderSpec] = Registry("providers", "provider")


def _register(name: str, summary: str, dialect: str = "openai", address: str = "", key: str = "") -> None:
    spec = ProviderSpec(dialect=dialect, address=address, key=key)
    PROVIDERS.register(name, lambda: spec, summary)


_OPENAI = "https://api.openai.com/v1"
_GEMINI = "https://generativelanguage.googleapis.com"
_RESETDATA = "https://models.au-syd.resetdata.ai/v1"
_register("openai", "OpenAI, Chat Completions", "openai", _OPENAI, "OPENAI_API_KEY")
_register("openai-responses", "OpenAI, Responses", "responses", _OPENAI, "OPENAI_API_KEY")
_register("anthropic", "Anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY")
_register("gemini", "Google Gemini", "gemini", _GEMINI, "GEMINI_API_KEY")
_register("ollama", "models on this machine", "openai", "http://127.0.0.1:11434/v1")
_register("resetdata", "ResetData", "openai", _RESETDATA, "RESETDATA_API_KEY")
_register("openai-compatible", "any server with OpenAI's Chat Completions")
_register("anthropic-compatible", "any server with Anthropic's Messages", "anthropic")
_register("script", "a file of replies")
