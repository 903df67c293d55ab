"""OpenAI chat completions: https://platform.openai.com/docs/api-reference/chat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from chargehand.models.contract import Dialect, GatewayFault, Usage
from chargehand.models.dialects.base import Metered, document, event_data, mapping, objects, tokens

_LIMITS = ("max_completion_tokens", "max_tokens")
_NEW_LIMIT = re.compile(r"(^|/)(o\d|gpt-[5-9]|gpt-\d\d|codex)")
"""Models that take only `max_completion_tokens`; other providers often know only `max_tokens`."""
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 402: "insufficient_quota"}
_OUTPUT = ("content", "tool_calls", "reasoning_content", "reasoning", "refusal", "function_call", "audio")
_MOST_CHOICES = 128
_DEFAULT_METERED = Metered(usage=Usage())


class OpenAIRules:
    """Chat completions."""

    name: Dialect = "openai"

    def error(self, status: int, code: str, message: str) -> bytes:
        """Return `{"error": {...}}`."""
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})

    def error_event(self, status: int, code: str, message: str) -> bytes:
        """Return a data event with the error; no `[DONE]` comes after it."""
        return b"data: " + self.error(status, code, message) + b"\n\n"

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return the smaller of `max_completion_tokens` and `max_tokens`."""
        given = [limit for name in _LIMITS if (limit := tokens(body.get(name))) is not None]
        return min(given, default=None)

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return `n`; the provider refuses what is out of its range."""
        count = body.get("n")
        if count is not None and (not isinstance(count, int) or not 1 <= count <= _MOST_CHOICES):
            raise GatewayFault("bad_request", f"`n` must be a whole number from 1 to {_MOST_CHOICES}")
        return 1 if count is None else int(count)

    def prepared(self, body: Mapping[str, Any], model: str, cap: int | None) -> dict[str, Any]:
        """Return the body with the limit in the client's own field, and usage asked for in streams."""
        ready = {**body, "model": model}
        if cap is not None:
            for name in _LIMITS:
                ready.pop(name, None)
            # Not in the client's own field: a provider that does not know it would write without end.
            ready[_LIMITS[0] if _NEW_LIMIT.search(model) else _LIMITS[1]] = cap
        if body.get("stream") is True:
            ready["stream_options"] = {**mapping(body.get("stream_options")), "include_usage": True}
        return ready

    def metered(self, document: Mapping[str, Any]) -> Metered:
        """Return `usage`, as OpenAI, OpenRouter (`cost`), DeepSeek and xAI report it."""
        usage = mapping(document.get("usage"))
        if not usage:
            return _DEFAULT_METERED
        details = mapping(usage.get("prompt_tokens_details"))
        cached = tokens(details.get("cached_tokens"))
        return Metered(
            usage=Usage(
                input=tokens(usage.get("prompt_tokens")),
                output=_output(usage),
                cached=cached if cached is not None else tokens(usage.get("prompt_cache_hit_tokens")),
                cache_write=tokens(details.get("cache_write_tokens")),
                cost_usd=_cost(usage),
            )
        )

    def tally(self, body: Mapping[str, Any]) -> OpenAITally:
        """Return the counter of one stream."""
        return OpenAITally(
            self,
            asked=mapping(body.get("stream_options")).get("include_usage") is True,
            choices=self.choices(body),
        )


def _cost(usage: Mapping[str, Any]) -> float | None:
    cost = usage.get("cost")
    if usage.get("is_byok") or isinstance(cost, bool) or not isinstance(cost, int | float):
        return None  # with a key of the user's own at its provider, `cost` is only the router's fee
    return float(cost) if 0 <= cost < 1e6 else None


def _output(usage: Mapping[str, Any]) -> int | None:
    output = tokens(usage.get("completion_tokens"))
    total, given = tokens(usage.get("total_tokens")), tokens(usage.get("prompt_tokens"))
    if output is None or total is None or given is None:
        return output
    # Some providers leave reasoning out of `completion_tokens`, and charge for it.
    return max(output, total - given)


class OpenAITally:
    """Counts the chunks of one stream; `asked`: the client wants the chunk that holds nothing but usage."""

    def __init__(self, rules: OpenAIRules, *, asked: bool, choices: int) -> None:
        self._rules = rules
        self._asked = asked
        self._choices = choices
        self._done: set[object] = set()
        self._metered = _DEFAULT_METERED
        self.deltas = 0
        self.finished = False
        self.ended = False
        self.failed = ""

    def see(self, event: bytes) -> bool:
        """Take in one chunk; return whether it goes on to the client."""
        data = event_data(event)
        if not data:
            return True
        if data.startswith(b"[DONE]"):
            self.ended = True
            return True
        try:
            chunk = mapping(document(data))
        except ValueError:
            # The client's own reader decides about it; one token at least was paid for.
            self.deltas += 1
            return True
        return self._chunk(chunk)

    def _chunk(self, chunk: Mapping[str, Any]) -> bool:
        if chunk.get("error"):
            self.failed = str(mapping(chunk["error"]).get("message") or chunk["error"])
        choices = objects(chunk.get("choices"))
        for choice in choices:
            delta = mapping(choice.get("delta"))
            self.deltas += any(delta.get(name) for name in _OUTPUT)
            if choice.get("finish_reason"):
                self._done.add(str(choice.get("index")))
        self.finished = len(self._done) >= self._choices
        if not mapping(chunk.get("usage")):
            return True
        self._metered = self._rules.metered(chunk)
        return self._asked or bool(choices)

    def metered(self) -> Metered:
        """Return the usage of the latest chunk that had one."""
        return self._metered
