"""OpenAI responses: https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chargehand.models.contract import Dialect, Usage
from chargehand.models.dialects.base import Metered, document, event_data, mapping, tokens
from chargehand.models.dialects.openai_chat import OpenAIRules

_ENDS = ("response.completed", "response.incomplete", "response.failed")
_CHAT = OpenAIRules()


class ResponsesRules:
    """Responses."""

    name: Dialect = "responses"

    def error(self, status: int, code: str, message: str) -> bytes:
        """Return `{"error": {...}}`, as chat completions have it."""
        return _CHAT.error(status, code, message)

    def error_event(self, status: int, code: str, message: str) -> bytes:
        """Return an `error` event."""
        error = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
        return b"event: error\ndata: " + msgspec.json.encode(error) + b"\n\n"

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return `max_output_tokens`."""
        return tokens(body.get("max_output_tokens"))

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return 1: there is never more than one reply."""
        return 1

    def prepared(self, body: Mapping[str, Any], model: str, cap: int | None) -> dict[str, Any]:
        """Return the body with model and limit replaced; the provider keeps nothing of it."""
        limit = {} if cap is None else {"max_output_tokens": cap}
        return {**body, "model": model, "store": False, **limit}

    def metered(self, document: Mapping[str, Any]) -> Metered:
        """Return `usage`."""
        usage = mapping(document.get("usage"))
        cost = usage.get("cost")
        known = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < 1e6
        return Metered(
            usage=Usage(
                input=tokens(usage.get("input_tokens")),
                output=tokens(usage.get("output_tokens")),
                cached=tokens(mapping(usage.get("input_tokens_details")).get("cached_tokens")),
                cost_usd=float(cost) if known and cost is not None else None,
            )
        )

    def tally(self, body: Mapping[str, Any]) -> ResponsesTally:
        """Return the counter of one stream."""
        return ResponsesTally(self)


class ResponsesTally:
    """Counts the events of one stream."""

    def __init__(self, rules: ResponsesRules) -> None:
        self._rules = rules
        self._metered = Metered(usage=Usage())
        self.deltas = 0
        self.finished = False
        self.ended = False
        self.failed = ""

    def see(self, event: bytes) -> bool:
        """Take in one event; all of them go on to the client."""
        data = event_data(event)
        try:
            content = mapping(document(data)) if data and not data.startswith(b"[DONE]") else {}
        except ValueError:
            # The client's own reader decides about it; one token at least was paid for.
            self.deltas += 1
            return True
        kind = str(content.get("type", ""))
        self.deltas += kind.endswith(".delta")
        if kind == "error":
            self.failed = str(content.get("message") or mapping(content.get("error")).get("message") or "error")
        if kind in _ENDS:
            self._end(mapping(content.get("response")), failed=kind == _ENDS[2])
        return True

    def _end(self, response: Mapping[str, Any], *, failed: bool) -> None:
        self._metered = self._rules.metered(response)
        self.ended = True
        self.finished = not failed
        if failed:
            self.failed = str(mapping(response.get("error")).get("message") or "the response failed")

    def metered(self) -> Metered:
        """Return the usage that the last event reported."""
        return self._metered
