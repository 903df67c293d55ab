"""Anthropic messages: https://docs.anthropic.com/en/api/messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chargehand.models.contract import Dialect, Usage
from chargehand.models.dialects.base import Metered, document, event_data, mapping, tokens

_TYPES = {
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


class AnthropicRules:
    """Messages."""

    name: Dialect = "anthropic"

    def error(self, status: int, code: str, message: str) -> bytes:
        """Return `{"type": "error", "error": {...}}`; the code is ours, on top of the dialect's own fields."""
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message, "code": code}})

    def error_event(self, status: int, code: str, message: str) -> bytes:
        """Return an `error` event."""
        return b"event: error\ndata: " + self.error(status, code, message) + b"\n\n"

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return `max_tokens`."""
        return tokens(body.get("max_tokens"))

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return 1: there is never more than one reply."""
        return 1

    def prepared(self, body: Mapping[str, Any], model: str, cap: int | None) -> dict[str, Any]:
        """Return the body with model and limit replaced."""
        limit = {} if cap is None else {"max_tokens": cap}
        return {**body, "model": model, **limit}

    def metered(self, document: Mapping[str, Any]) -> Metered:
        """Return `usage`, with what was cached and written to the cache added to the input."""
        return _metered(mapping(document.get("usage")))

    def tally(self, body: Mapping[str, Any]) -> AnthropicTally:
        """Return the counter of one stream."""
        return AnthropicTally()


def _metered(usage: Mapping[str, Any]) -> Metered:
    plain, output = tokens(usage.get("input_tokens")), tokens(usage.get("output_tokens"))
    cached = tokens(usage.get("cache_read_input_tokens"))
    written = tokens(usage.get("cache_creation_input_tokens"))
    whole = None if plain is None else plain + (cached or 0) + (written or 0)
    hours = tokens(mapping(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")) or 0
    return Metered(
        usage=Usage(input=whole, output=output, cached=cached, cache_write=written),
        hour_writes=min(hours, written or 0),
    )


class AnthropicTally:
    """Counts the events of one stream."""

    def __init__(self) -> None:
        self._usage: dict[str, Any] = {}
        self.deltas = 0
        self.finished = False
        self.ended = False
        self.failed = ""

    def see(self, event: bytes) -> bool:
        """Take in one event; all of them go on to the client."""
        data = event_data(event)
        try:
            content = mapping(document(data)) if data else {}
        except ValueError:
            # The client's own reader decides about it; one token at least was paid for.
            self.deltas += 1
            return True
        self.take(content)
        return True

    def take(self, content: Mapping[str, Any]) -> None:
        """Count what one event holds."""
        match content.get("type"):
            case "content_block_delta":
                self.deltas += mapping(content.get("delta")).get("type") != "signature_delta"
            case "message_start":
                self._reported(mapping(content.get("message")))
                # What it has written by now says nothing of what it will have.
                self._usage.pop("output_tokens", None)
            case "message_delta":
                self.finished = self.finished or bool(mapping(content.get("delta")).get("stop_reason"))
                self._reported(content)
            case "message_stop":
                self.ended = True
            case "error":
                self.failed = str(mapping(content.get("error")).get("message") or "error")

    def _reported(self, holder: Mapping[str, Any]) -> None:
        usage = mapping(holder.get("usage"))
        self._usage |= {name: value for name, value in usage.items() if value is not None}

    def metered(self) -> Metered:
        """Return the usage reported so far; later events count over earlier ones."""
        return _metered(self._usage)
