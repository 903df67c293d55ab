"""What Gemini answers: candidates, whole or in chunks that each look like a whole reply."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from chargehand.models._contract import Stop, Usage
from chargehand.models._dialect_gemini import GeminiRules
from chargehand.models._gateway_dialect import mapping, objects
from chargehand.models._talk import (
    Broken,
    CallBegun,
    CallPiece,
    Ended,
    Piece,
    Said,
    TextPiece,
    ThoughtPiece,
    ToolUse,
    UncarriedError,
)

_RULES = GeminiRules()
_STOPS: Mapping[str, Stop] = {"STOP": "end", "MAX_TOKENS": "length"}
_WORDS: Mapping[Stop, str] = {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}
_UNUSABLE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})


class GeminiReader:
    """Reads one reply; calls that have no id get one with `seed` in it."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._count = 0
        self._word = ""
        self._usage: Usage | None = None

    def event(self, data: Mapping[str, Any]) -> list[Piece]:
        """Return what a chunk says."""
        if data.get("error"):
            return [Broken(message=str(mapping(data["error"]).get("message") or "error"))]
        if mapping(data.get("usageMetadata")):
            self._usage = _RULES.metered(data).usage
        if mapping(data.get("promptFeedback")).get("blockReason"):
            self._word = "SAFETY"
        found: list[Piece] = []
        for candidate in objects(data.get("candidates"))[:1]:
            for part in objects(mapping(candidate.get("content")).get("parts")):
                found += self._part(part)
            self._word = str(candidate.get("finishReason") or self._word)
        return [Broken(message=f"the reply ended with {self._word}")] if self._word in _UNUSABLE else found

    def whole(self, document: Mapping[str, Any]) -> list[Piece]:
        """Return what a body says."""
        return [*self.event(document), *self.end()]

    def end(self) -> list[Piece]:
        """Return the end, where the model said that it is done."""
        if not self._word:
            return []
        stop = _STOPS.get(self._word, "refusal")
        return [Ended(stop="tools" if self._count and stop == "end" else stop, usage=self._usage)]

    def _part(self, part: Mapping[str, Any]) -> Iterator[Piece]:
        text, call = part.get("text"), mapping(part.get("functionCall"))
        if isinstance(text, str) and text:
            yield ThoughtPiece(text=text) if part.get("thought") else TextPiece(text=text)
        elif call:
            index, self._count = self._count, self._count + 1
            own = str(call.get("id") or f"call_{self._seed}_{self._count}")
            yield CallBegun(index=index, id=own, name=str(call.get("name", "")))
            yield CallPiece(index=index, text=json.dumps(call.get("args") or {}))
        elif part.get("inlineData"):
            raise UncarriedError("image", "a picture that a model made cannot go to a client of another dialect")


class GeminiWriter:
    """Writes one reply; a call goes out when it is whole, for this dialect knows no half ones."""

    def __init__(self, model: str, id: str) -> None:
        self._head = {"modelVersion": model, "responseId": id}
        self._calls: dict[int, CallBegun] = {}
        self._texts: dict[int, str] = {}

    def event(self, piece: Piece) -> bytes:
        """Return the chunks of one piece."""
        match piece:
            case TextPiece():
                return self._chunk([{"text": piece.text}])
            case ThoughtPiece():
                return self._chunk([{"text": piece.text, "thought": True}])
            case CallBegun():
                self._calls[piece.index], self._texts[piece.index] = piece, ""
                return b""
            case CallPiece():
                self._texts[piece.index] += piece.text
                return b""
            case Ended():
                calls = [
                    ToolUse(id=call.id, name=call.name, arguments=self._texts[index])
                    for index, call in self._calls.items()
                ]
                return self._chunk(list(map(_call, calls)), _WORDS[piece.stop], piece.usage)
            case Broken():
                return _RULES.error_event(502, "upstream_error", piece.message)

    def _chunk(self, parts: list[dict[str, Any]], finish: str = "", usage: Usage | None = None) -> bytes:
        return b"data: " + msgspec.json.encode(self._document(parts, finish, usage)) + b"\n\n"

    def _document(self, parts: list[dict[str, Any]], finish: str, usage: Usage | None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        return {"candidates": [candidate], **self._head} | (
            {"usageMetadata": _usage(usage)} if usage is not None else {}
        )

    def whole(self, said: Said) -> dict[str, Any]:
        """Return a reply in one piece."""
        parts: list[dict[str, Any]] = [{"text": said.thoughts, "thought": True}] if said.thoughts else []
        parts += [{"text": said.text}] if said.text else []
        return self._document([*parts, *map(_call, said.calls)], _WORDS[said.stop], said.usage)


def _call(call: ToolUse) -> dict[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": call.value()}}


def _usage(usage: Usage) -> dict[str, int]:
    read, written = usage.input or 0, usage.output or 0
    cached = {} if usage.cached is None else {"cachedContentTokenCount": usage.cached}
    counts = {"promptTokenCount": read, "candidatesTokenCount": written, "totalTokenCount": read + written}
    return {**counts, **cached}
