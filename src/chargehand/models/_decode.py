"""Bodies of every dialect, read back into what the model said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chargehand.models._contract import STOP_WORDS, Dialect, Usage
from chargehand.models._dialects import CODECS
from chargehand.models._render import ScriptedCall, ScriptedReply
from chargehand.models._sse import parse_events
from chargehand.models._talk import Said, folded


def decode_body(dialect: Dialect, body: bytes, *, stream: bool) -> ScriptedReply:
    """Return what a body says; what it leaves out or has in another shape is left out.

    Raises `ValueError` where it is no JSON.
    """
    if stream:
        events = (event.data for event in parse_events(body))
        return decode_events(dialect, [json.loads(data) for data in events if data != "[DONE]"])
    return decode_document(dialect, json.loads(body))


def decode_document(dialect: Dialect, document: Any) -> ScriptedReply:
    """Return what a body in one piece says."""
    if dialect in ("responses", "gemini"):
        return _as_scripted(folded(CODECS[dialect].reader("").whole(_dict(document))))
    found = _Found(dialect=dialect)
    found.count(_dict(_dict(document).get("usage")))
    if dialect == "anthropic":
        for index, block in enumerate(_dicts(_dict(document).get("content"))):
            found.block(index, block)
        found.end(_dict(document).get("stop_reason"))
        return found.reply()
    for choice in _dicts(_dict(document).get("choices"))[:1]:
        message = _dict(choice.get("message"))
        found.openai_delta({**message, "tool_calls": _numbered(message.get("tool_calls"))})
        found.end(choice.get("finish_reason"))
    return found.reply()


def decode_events(dialect: Dialect, events: Iterable[Any]) -> ScriptedReply:
    """Return what the data of a stream's events says."""
    if dialect in ("responses", "gemini"):
        reader = CODECS[dialect].reader("")
        pieces = [piece for data in events for piece in reader.event(_dict(data))]
        return _as_scripted(folded([*pieces, *reader.end()]))
    found = _Found(dialect=dialect)
    for data in map(_dict, events):
        if dialect == "anthropic":
            found.anthropic_event(data)
            continue
        found.count(_dict(data.get("usage")))
        for choice in _dicts(data.get("choices"))[:1]:
            found.openai_delta(_dict(choice.get("delta")))
            found.end(choice.get("finish_reason"))
    return found.reply()


def _as_scripted(said: Said) -> ScriptedReply:
    tools = (ScriptedCall(id=c.id, name=c.name, arguments=_arguments(c.arguments)) for c in said.calls)
    stop = said.stop if said.ended else None
    return ScriptedReply(text=said.text, tools=tuple(tools), usage=said.usage, stop=stop)


@dataclass(slots=True, kw_only=True)
class _Call:
    id: str = ""
    name: str = ""
    text: str = ""


@dataclass(slots=True, kw_only=True)
class _Found:
    dialect: Dialect
    text: str = ""
    calls: dict[int, _Call] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    word: str = ""

    def openai_delta(self, delta: Mapping[str, Any]) -> None:
        self.text += _text(delta.get("content"))
        for part in _dicts(delta.get("tool_calls")):
            call = self.calls.setdefault(int(part.get("index", 0)), _Call())
            function = _dict(part.get("function"))
            call.id += _text(part.get("id"))
            call.name += _text(function.get("name"))
            call.text += _text(function.get("arguments"))

    def anthropic_event(self, data: Mapping[str, Any]) -> None:
        delta, index = _dict(data.get("delta")), data.get("index", 0)
        self.count(_dict(_dict(data.get("message")).get("usage")) | _dict(data.get("usage")))
        self.end(delta.get("stop_reason"))
        if data.get("type") == "content_block_start":
            self.block(index, {**_dict(data.get("content_block")), "input": None})
        self.text += _text(delta.get("text"))
        if index in self.calls:
            self.calls[index].text += _text(delta.get("partial_json"))

    def block(self, index: int, block: Mapping[str, Any]) -> None:
        self.text += _text(block.get("text"))
        if block.get("type") == "tool_use":
            given = block.get("input")
            text = "" if given is None else given if isinstance(given, str) else json.dumps(given)
            self.calls[index] = _Call(id=_text(block.get("id")), name=_text(block.get("name")), text=text)

    def count(self, usage: Mapping[str, Any]) -> None:
        self.counts |= {key: value for key, value in usage.items() if value is not None}

    def end(self, word: Any) -> None:
        self.word = _text(word) or self.word

    def reply(self) -> ScriptedReply:
        calls = (self.calls[index] for index in sorted(self.calls))
        stops = {word: stop for stop, word in STOP_WORDS[self.dialect].items()}
        return ScriptedReply(
            text=self.text,
            tools=tuple(ScriptedCall(id=c.id, name=c.name, arguments=_arguments(c.text)) for c in calls),
            usage=self._usage(),
            stop=stops.get(self.word),
        )

    def _usage(self) -> Usage | None:
        counts = self.counts
        if self.dialect == "openai":
            if "prompt_tokens" not in counts:
                return None
            cached = _dict(counts.get("prompt_tokens_details")).get("cached_tokens")
            return Usage(input=counts["prompt_tokens"], output=counts.get("completion_tokens"), cached=cached)
        if "input_tokens" not in counts:
            return None
        cached, written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens")
        read = counts["input_tokens"] + (cached or 0) + (written or 0)
        return Usage(input=read, output=counts.get("output_tokens"), cached=cached, cache_write=written)


def _arguments(text: str) -> Mapping[str, Any] | str:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def _numbered(calls: Any) -> list[dict[str, Any]]:
    return [{**call, "index": number} for number, call in enumerate(_dicts(calls))]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
