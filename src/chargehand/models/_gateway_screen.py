"""What a request may ask for: nothing that is priced beside its tokens, or that leads past the list of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chargehand.models._contract import Dialect
from chargehand.models._gateway_dialect import mapping, objects
from chargehand.models._gateway_fault import GatewayFault

_BOTH = frozenset(
    {"messages", "model", "stream", "temperature", "top_p", "top_k", "stop", "metadata", "max_tokens"}
    | {"tools", "tool_choice", "thinking", "reasoning"}
)
_OPENAI = frozenset(
    {"frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs"}
    | {"function_call", "functions", "parallel_tool_calls", "response_format", "max_completion_tokens", "n"}
    | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "min_p", "seed", "user", "verbosity"}
    | {"reasoning_effort", "reasoning_format", "include_reasoning", "enable_thinking", "chat_template_kwargs"}
    | {"safety_identifier", "stream_options"}
)
_ANTHROPIC = frozenset(
    {"system", "stop_sequences", "cache_control", "context_management", "output_config", "output_format"}
)
_FIELDS: Mapping[Dialect, frozenset[str]] = {"openai": _BOTH | _OPENAI, "anthropic": _BOTH | _ANTHROPIC}
"""What goes on; all else is dropped: `models`, `plugins`, `api_base`, `speed`, `mcp_servers`, `container` …"""
_OWN_TOOLS: Mapping[Dialect, tuple[str, ...]] = {
    "openai": ("function", "custom"),
    "anthropic": ("custom", "bash_2", "text_editor_2", "computer_2", "memory_2"),
}
"""Tools that the client runs; what a provider runs has a price of its own and reaches the network."""
_BETAS = (
    "computer-use-",
    "context-management-",
    "effort-",
    "extended-cache-ttl-",
    "fine-grained-tool-streaming-",
    "interleaved-thinking-",
    "output-128k-",
    "prompt-caching-",
    "structured-outputs-",
    "token-efficient-tools-",
)


def screened(dialect: Dialect, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body without what has no place here; raises `GatewayFault` for tools that the provider runs."""
    kept = {name: value for name, value in body.items() if name in _FIELDS[dialect]}
    for tool in _offered(kept):
        kind = tool.get("type") or "custom"
        if not isinstance(kind, str) or not kind.startswith(_OWN_TOOLS[dialect]):
            raise GatewayFault("bad_request", f"tool type {kind!r:.60} is not served: the provider would run it")
    edits = objects(mapping(kept.get("context_management")).get("edits"))
    if any(not str(edit.get("type")).startswith("clear_") for edit in edits):
        raise GatewayFault("bad_request", "context_management may only clear: compacting costs calls of its own")
    return kept


def _offered(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from objects(body.get("tools"))
    for message in objects(body.get("messages")):
        yield from (part for part in objects(message.get("content")) if part.get("type") == "tool_addition")


def kept_betas(given: str) -> str:
    """Return the beta features that change no price."""
    return ",".join(one for each in given.split(",") if (one := each.strip()).startswith(_BETAS))
