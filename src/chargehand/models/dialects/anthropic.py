"""Anthropic messages: https://docs.anthropic.com/en/api/messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chargehand.models._json import as_mapping, as_mappings, as_tokens, dump_json
from chargehand.models.contract import GatewayFault, ModelCall, Operation, ReplyUsage, Usage
from chargehand.models.conversation import FilePart, NeutralRequest
from chargehand.models.dialects.anthropic_messages import (
    AnthropicReader,
    AnthropicWriter,
    mark_cached,
    read_messages_request,
    write_messages_request,
)
from chargehand.models.dialects.base import (
    ModelDialect,
    StreamMeter,
    WireHeaders,
    WireRequest,
    error_message,
    offered_tools,
    require_client_tools,
    screen_fields,
)
from chargehand.models.dialects.shapes import MESSAGES

_VERSION = "2023-06-01"
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# Allowed fields: known to be free of extra charges and to reach no other system. All others are dropped, since a
# list of forbidden fields would always be outdated (decision 0010).
_FIELDS = frozenset(
    {"messages", "model", "stream", "temperature", "top_p", "top_k", "stop", "metadata", "max_tokens"}
    | {"tools", "tool_choice", "thinking", "reasoning", "system", "stop_sequences", "cache_control"}
    | {"context_management", "output_config", "output_format"}
)
# Types of tools that the client runs; dated types by their prefix.
_CLIENT_TOOLS = ("custom", "bash_2", "text_editor_2", "computer_2", "memory_2")
# Beta features that do not change prices.
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


class AnthropicDialect(ModelDialect):
    """The dialect of Anthropic's messages."""

    name = "anthropic"
    shape = MESSAGES
    required = ("content",)
    endpoints: ClassVar[Mapping[str, Operation]] = {"/messages": "reply", "/messages/count_tokens": "count"}
    reply_path = "/v1/messages"
    key_header = "x-api-key"
    feature_headers = ("anthropic-",)
    # The last one is for browsers.
    plain_headers = frozenset({"anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access"})
    spelling: ClassVar[Mapping[str, str]] = {
        "effort": "output_config.effort",
        "budget": "thinking.budget_tokens",
        "summary": "thinking.display",
        "failed": "messages.content.is_error",
        "file_name": "messages.content.title",
        "strict": "tools.strict",
        "parallel": "tool_choice.disable_parallel_tool_use",
        "choice": "tool_choice",
        "user": "metadata.user_id",
    }
    reset_header = "anthropic-ratelimit-unified-reset"
    reset_windows = tuple(
        (f"anthropic-ratelimit-{window}-reset", f"anthropic-ratelimit-{window}-remaining")
        for window in ("requests", "tokens", "input-tokens", "output-tokens")
    )

    def claims_path(self, path: str, place: str) -> bool:
        """Claim paths below `/messages`."""
        return place.startswith("/messages")

    def write_error(self, status: int, code: str, message: str) -> bytes:
        """Return `{"type": "error", "error": {...}}`; we add `code` to the dialect's own fields."""
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return dump_json({"type": "error", "error": {"type": kind, "message": message, "code": code}})

    def write_error_event(self, status: int, code: str, message: str) -> bytes:
        """Return an `error` event."""
        return b"event: error\ndata: " + self.write_error(status, code, message) + b"\n\n"

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return `max_tokens`."""
        return as_tokens(body.get("max_tokens"))

    def prepare(self, body: Mapping[str, Any], model: str, limit: int | None) -> dict[str, Any]:
        """Return the body with model and limit replaced."""
        capped = {} if limit is None else {"max_tokens": limit}
        return {**body, "model": model, **capped}

    def read_usage(self, document: Mapping[str, Any]) -> ReplyUsage:
        """Return `usage`; tokens read from or written to the cache are added to the input."""
        usage = as_mapping(document.get("usage"))
        plain = as_tokens(usage.get("input_tokens"))
        output = as_tokens(usage.get("output_tokens"))
        cached = as_tokens(usage.get("cache_read_input_tokens"))
        written = as_tokens(usage.get("cache_creation_input_tokens"))
        whole = None if plain is None else plain + (cached or 0) + (written or 0)
        hours = as_tokens(as_mapping(usage.get("cache_creation")).get("ephemeral_1h_input_tokens"))
        return ReplyUsage(
            usage=Usage(input=whole, output=output, cached=cached, cache_write=written),
            hour_writes=None if hours is None else min(hours, written or 0),
        )

    def stream_meter(self, body: Mapping[str, Any]) -> StreamMeter:
        """Return the meter of one stream."""
        return _AnthropicStreamMeter(self)

    def screen(self, body: Mapping[str, Any]) -> WireRequest:
        """Return the known fields without unsigned reasoning: the provider refuses that of another provider."""
        kept, left = screen_fields(body, _FIELDS)
        require_client_tools(offered_tools(kept), _CLIENT_TOOLS)
        edits = as_mappings(as_mapping(kept.get("context_management")).get("edits"))
        if any(not str(edit.get("type")).startswith("clear_") for edit in edits):
            message = "context_management may only clear: compacting costs further calls"
            raise GatewayFault("bad_request", message)
        messages = kept.get("messages")
        if isinstance(messages, list):
            kept["messages"] = list(messages)
            for place, message in enumerate(messages):
                content = as_mapping(message).get("content")
                blocks = content if isinstance(content, list) else []
                read = [(one, as_mapping(one)) for one in blocks]
                signed = [one for one, seen in read if seen.get("type") != "thinking" or seen.get("signature")]
                if len(signed) < len(blocks):
                    kept["messages"][place] = {**message, "content": signed}
                    left = (*left, "reasoning")
        return WireRequest(kept, left)

    def screen_headers(self, headers: Mapping[str, str]) -> WireHeaders:
        """Return the version, and the beta features that do not change prices."""
        betas = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",")]
        good = [beta for beta in betas if beta.startswith(_BETAS)]
        kept = {"anthropic-version": headers.get("anthropic-version", ""), "anthropic-beta": ",".join(good)}
        left_out = [
            *super().screen_headers(headers).left_out,
            *(beta for beta in betas if beta and beta not in good),
        ]
        return WireHeaders({name: value for name, value in kept.items() if value}, tuple(good), tuple(left_out))

    def read_part(self, part: Mapping[str, Any]) -> FilePart | None:
        """Return the content of an `image` or a `document`."""
        source = as_mapping(part.get("source"))
        kind = part.get("type")
        if kind not in ("image", "document") or source.get("type") in ("text", "content"):
            return None  # text, or pages that are looked at one by one
        return FilePart(
            kind="image" if kind == "image" else "file",
            media_type=str(source.get("media_type") or ""),
            data=str(source.get("data") or "") if source.get("type") == "base64" else "",
            name=str(part.get("title") or ""),
        )

    def read_request(self, body: Mapping[str, Any]) -> NeutralRequest:
        """Read `messages`, `system`, `tools` and the settings of the reply."""
        return read_messages_request(body)

    def write_request(self, request: NeutralRequest, model: str) -> WireRequest:
        """Write a request; a missing limit is added, since this dialect requires one."""
        return write_messages_request(request, model)

    def reply_reader(self, seed: str) -> AnthropicReader:
        """Return the reader of one reply."""
        return AnthropicReader(self)

    def reply_writer(self, model: str, id: str) -> AnthropicWriter:
        """Return the writer of one reply."""
        return AnthropicWriter(self, model, id)

    def locate(self, call: ModelCall) -> tuple[str, Mapping[str, Any]]:
        """Return path and body; cache marks are added if the client, in any dialect, set no mark."""
        path, body = super().locate(call)
        return path, mark_cached(body) if call.operation == "reply" else body

    def provider_headers(self, key: str | None) -> dict[str, str]:
        """Return the version that we read and write, and the key."""
        return {"anthropic-version": _VERSION, **super().provider_headers(key)}


class _AnthropicStreamMeter(StreamMeter):
    """Meters named events; values of later events replace earlier ones."""

    shape = MESSAGES

    def __init__(self, dialect: AnthropicDialect) -> None:
        super().__init__()
        self._dialect = dialect
        self._usage: dict[str, Any] = {}

    def take(self, content: Mapping[str, Any]) -> bool:
        """Take in one event; all of them are sent to the client."""
        match content.get("type"):
            case "content_block_delta":
                self.deltas += as_mapping(content.get("delta")).get("type") != "signature_delta"
            case "message_start":
                self._add_usage(as_mapping(content.get("message")), without="output_tokens")
            case "message_delta":
                self.finished = self.finished or bool(as_mapping(content.get("delta")).get("stop_reason"))
                self._add_usage(content)
            case "message_stop":
                self.ended = True
            case "error":
                self.failed = error_message(content, "error")
        return True

    def _add_usage(self, holder: Mapping[str, Any], *, without: str = "") -> None:
        # The output count at a message's start says nothing about its final count.
        usage = as_mapping(holder.get("usage"))
        self._usage |= {name: value for name, value in usage.items() if value is not None and name != without}
        self.metered = self._dialect.read_usage({"usage": self._usage})
