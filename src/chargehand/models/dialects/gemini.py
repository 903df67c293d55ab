"""Gemini's own dialect: https://ai.google.dev/api/generate-content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from chargehand.models.contract import Dialect, GatewayFault, Usage
from chargehand.models.dialects.base import Metered, document, event_data, mapping, objects, tokens

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MOST_CHOICES = 8


class GeminiRules:
    """`generateContent`; the body holds `model` and `stream` here, which on the wire stand in the path."""

    name: Dialect = "gemini"

    def error(self, status: int, code: str, message: str) -> bytes:
        """Return `{"error": {...}}`; our code stands among its details."""
        kind = _STATUS.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "chargehand"}
        error = {"code": status, "message": message, "status": kind, "details": [info]}
        return msgspec.json.encode({"error": error})

    def error_event(self, status: int, code: str, message: str) -> bytes:
        """Return a data event with the error."""
        return b"data: " + self.error(status, code, message) + b"\n\n"

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return `generationConfig.maxOutputTokens`."""
        return tokens(mapping(body.get("generationConfig")).get("maxOutputTokens"))

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return `generationConfig.candidateCount`."""
        count = mapping(body.get("generationConfig")).get("candidateCount")
        if count is not None and (not isinstance(count, int) or not 1 <= count <= _MOST_CHOICES):
            raise GatewayFault("bad_request", f"`candidateCount` must be a whole number from 1 to {_MOST_CHOICES}")
        return 1 if count is None else int(count)

    def prepared(self, body: Mapping[str, Any], model: str, cap: int | None) -> dict[str, Any]:
        """Return the body with model and limit replaced."""
        ready = {**body, "model": model}
        if cap is not None:
            ready["generationConfig"] = {**mapping(body.get("generationConfig")), "maxOutputTokens": cap}
        return ready

    def metered(self, document: Mapping[str, Any]) -> Metered:
        """Return `usageMetadata`; reasoning counts as output, what tools brought in as input."""
        usage = mapping(document.get("usageMetadata"))
        given, brought = tokens(usage.get("promptTokenCount")), tokens(usage.get("toolUsePromptTokenCount"))
        written, thought = tokens(usage.get("candidatesTokenCount")), tokens(usage.get("thoughtsTokenCount"))
        total = tokens(usage.get("totalTokenCount"))
        if given is None:
            return Metered(usage=Usage())
        read = given + (brought or 0)
        known = written is not None or thought is not None
        # A reply without a word has no count of its own, only the total.
        output = (written or 0) + (thought or 0) if known else None if total is None else max(0, total - read)
        cached = tokens(usage.get("cachedContentTokenCount"))
        return Metered(usage=Usage(input=read, output=output, cached=cached))

    def tally(self, body: Mapping[str, Any]) -> GeminiTally:
        """Return the counter of one stream."""
        return GeminiTally(self, choices=self.choices(body))


class GeminiTally:
    """Counts the chunks of one stream; it has no last event: the connection's end is the end."""

    def __init__(self, rules: GeminiRules, *, choices: int) -> None:
        self._rules = rules
        self._choices = choices
        self._done: set[object] = set()
        self._metered = Metered(usage=Usage())
        self.deltas = 0
        self.finished = False
        self.ended = False
        self.failed = ""

    def see(self, event: bytes) -> bool:
        """Take in one chunk; all of them go on to the client."""
        data = event_data(event)
        try:
            content = mapping(document(data)) if data else {}
        except ValueError:
            # The client's own reader decides about it; one token at least was paid for.
            self.deltas += 1
            return True
        if content.get("error"):
            self.failed = str(mapping(content["error"]).get("message") or "error")
        for candidate in objects(content.get("candidates")):
            parts = objects(mapping(candidate.get("content")).get("parts"))
            self.deltas += any(part.get("text") or part.get("functionCall") for part in parts)
            if candidate.get("finishReason"):
                self._done.add(candidate.get("index", 0))
        blocked = bool(mapping(content.get("promptFeedback")).get("blockReason"))
        self.finished = blocked or len(self._done) >= self._choices
        if mapping(content.get("usageMetadata")):
            self._metered = self._rules.metered(content)
        return True

    def metered(self) -> Metered:
        """Return the usage of the latest chunk that had one."""
        return self._metered


_UNDERSCORE = re.compile(r"_([a-z])")
_AS_THEY_ARE = frozenset({"args", "response", "parameters", "parametersJsonSchema", "responseSchema"})
_USERS_OWN = _AS_THEY_ARE | {"responseJsonSchema", "labels"}
"""What holds the user's own names."""


def camel(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with its fields spelt as the documentation has them."""
    return {name: _value(name, value) for name, value in ((_spelt(key), one) for key, one in body.items())}


def _spelt(key: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), key)


def _value(name: str, value: Any) -> Any:
    if name in _USERS_OWN:
        return value
    if isinstance(value, dict):
        return camel(value)
    return [_value("", one) for one in value] if isinstance(value, list) else value
