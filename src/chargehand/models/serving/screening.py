"""What a request may ask for: nothing that is priced beside its tokens, or that leads past the list of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chargehand.models.contract import Dialect, GatewayFault
from chargehand.models.dialects.base import mapping, objects
from chargehand.models.dialects.gemini import camel

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
_RESPONSES = frozenset(
    {"model", "stream", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text"}
    | {"max_output_tokens", "temperature", "top_p", "reasoning", "store", "include", "prompt_cache_key", "user"}
    | {"prompt_cache_retention", "truncation", "metadata", "safety_identifier", "top_logprobs", "stream_options"}
    | {"client_metadata"}
)
_GEMINI = frozenset(
    {"model", "stream", "contents", "systemInstruction", "tools", "toolConfig", "generationConfig"}
    | {"safetySettings", "labels"}
)
_FIELDS: Mapping[Dialect, frozenset[str]] = {
    "openai": _BOTH | _OPENAI,
    "anthropic": _BOTH | _ANTHROPIC,
    "responses": _RESPONSES,
    "gemini": _GEMINI,
}
"""What goes on; all else is dropped: `models`, `plugins`, `api_base`, `speed`, `mcp_servers`, `container` …"""
_OWN_TOOLS: Mapping[Dialect, tuple[str, ...]] = {
    "openai": ("function", "custom"),
    "responses": ("function", "custom"),
    "gemini": ("custom",),
    "anthropic": ("custom", "bash_2", "text_editor_2", "computer_2", "memory_2"),
}
"""Tools that the client runs; what a provider runs has a price of its own and reaches the network."""
_KEPT_THERE = ("previous_response_id", "conversation", "prompt", "background")
"""What leads to something that a provider keeps: this gateway sends whole conversations only."""
_DROPPED_TOOLS = ("web_search", "image_generation")
"""What clients of responses offer without being asked; they do well without it."""
_INCLUDED = ("reasoning.encrypted_content", "message.output_text.logprobs")
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
    if dialect == "responses":
        body = _stateless(body)
    elif dialect == "gemini":
        body = camel(body)
        _check_declared(body)
    elif dialect == "anthropic":
        body = _signed(body)
    kept = {name: value for name, value in body.items() if name in _FIELDS[dialect]}
    for tool in _offered(dialect, kept):
        kind = tool.get("type") or "custom"
        if not isinstance(kind, str) or not kind.startswith(_OWN_TOOLS[dialect]):
            raise GatewayFault("bad_request", f"tool type {kind!r:.60} is not served: the provider would run it")
    edits = objects(mapping(kept.get("context_management")).get("edits"))
    if any(not str(edit.get("type")).startswith("clear_") for edit in edits):
        raise GatewayFault("bad_request", "context_management may only clear: compacting costs calls of its own")
    return kept


def _stateless(body: Mapping[str, Any]) -> dict[str, Any]:
    kept = next((name for name in _KEPT_THERE if body.get(name)), None)
    if kept is not None:
        raise GatewayFault(
            "bad_request", f"`{kept}` is not served: no conversation is kept here, send all of it as `input`"
        )
    tools = [tool for tool in objects(body.get("tools")) if not str(tool.get("type")).startswith(_DROPPED_TOOLS)]
    included = body.get("include")
    wanted = [one for one in included if one in _INCLUDED] if isinstance(included, list) else []
    return {**body, **({"tools": tools} if "tools" in body else {}), **({"include": wanted} if wanted else {})}


def _check_declared(body: Mapping[str, Any]) -> None:
    if body.get("cachedContent"):
        raise GatewayFault("bad_request", "`cachedContent` is not served: nothing is kept at the provider")
    for tool in objects(body.get("tools")):
        others = sorted(name for name in tool if name != "functionDeclarations" and tool[name] is not None)
        if others:
            raise GatewayFault("bad_request", f"tool {others[0]!r:.60} is not served: the provider would run it")


def _signed(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body without reasoning that has no signature: another provider's, which this one refuses."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_unsigned(part) for part in _parts(messages)):
        return body
    kept = []
    for message in messages:
        content = mapping(message).get("content")
        if isinstance(content, list):
            message = {**message, "content": [part for part in content if not _unsigned(part)]}
        kept.append(message)
    return {**body, "messages": kept}


def _parts(messages: list[Any]) -> Iterator[Mapping[str, Any]]:
    for message in objects(messages):
        yield from objects(message.get("content"))


def _unsigned(part: object) -> bool:
    return mapping(part).get("type") == "thinking" and not mapping(part).get("signature")


def _offered(dialect: Dialect, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for tool in objects(body.get("tools")):
        group = objects(tool.get("tools")) if dialect == "responses" and tool.get("type") == "namespace" else []
        yield from group or [tool]  # a group is no tool: each of its own is held to the same rule
    for message in objects(body.get("messages")):
        yield from (part for part in objects(message.get("content")) if part.get("type") == "tool_addition")


def kept_betas(given: str) -> str:
    """Return the beta features that change no price."""
    return ",".join(one for each in given.split(",") if (one := each.strip()).startswith(_BETAS))
