"""Tools for models without native tools: calls written as fenced JSON in a reply's text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

from msgspec import Struct

from chargehand.agents.tool_specs import ToolCall, ToolSpec
from chargehand.core.text import late_pattern

_HOW = 'Write each call as\n```tool\n{"name": "<tool>", "arguments": {...}}\n```\nwith valid JSON inside, no more.'
_FENCE = late_pattern(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^`\n]*(?:\n|\Z)")
_TAG = late_pattern(r"[ \t]*<(tool_call)>")
# Models without tools often think aloud first, and try calls there that they do not intend.
_THOUGHTS = late_pattern(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
# Only in this order: another object in an explanation stays text.
_HEAD = late_pattern(r'\s*\{\s*"name"\s*:\s*"(\w+)"\s*,\s*"arguments"\s*:')
_SPACE = late_pattern(r"\s*")
# The prefix of tools that only an attempt knows.
_FOREIGN = "mcp_"
_CALL_FENCES = ("tool", "tool_call", "tool_calls", "tool_code")
_DECODER_ERRORS = (ValueError, RecursionError)


class ParsedReply(Struct, frozen=True, kw_only=True):
    """A reply's text without its calls, and the calls in order; their arguments are not checked yet.

    `problem` tells the model about mistakes in calls written as text. With a problem there are no calls, so that
    no half of the model's intention is run.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    problem: str | None = None


def describe(specs: Sequence[ToolSpec]) -> str:
    """Return the part of the system prompt about the tools and how to call them."""
    tools = []
    for spec in specs:
        lines = [f"{spec.name}: {spec.description}"]
        for name, schema in cast("Mapping[str, Mapping[str, Any]]", spec.parameters["properties"]).items():
            need = "" if name in cast("list[str]", spec.parameters["required"]) else ", may be left out"
            kind = schema.get("type")
            if kind == "array" and schema.get("items") == {"type": "string"}:
                kind = "list of strings"
            elif kind not in ("string", "integer", "number", "boolean") or "enum" in schema:
                kind = "of the JSON schema " + json.dumps({k: v for k, v in schema.items() if k != "description"})
            lines.append(f"  - {name} ({kind}{need}): {schema.get('description', '')}")
        tools.append("\n".join(lines))
    properties = cast("Mapping[str, Mapping[str, Any]]", specs[0].parameters["properties"])
    required = cast("list[str]", specs[0].parameters["required"])
    placeholders = {"array": ["..."], "integer": 1, "boolean": True}
    example = json.dumps({name: placeholders.get(properties[name]["type"], "...") for name in required})
    return (
        "You work with tools. To call one, end your reply with a fenced block like this:\n\n"
        f'```tool\n{{"name": "{specs[0].name}", "arguments": {example}}}\n```\n\n'
        "The block holds one JSON object with exactly the keys name and arguments; line breaks inside strings "
        "are written \\n. Several blocks in one reply are run in order. Then stop: the results come in the next "
        "message. Never write a result yourself.\n\nThe tools:\n\n" + "\n\n".join(tools)
    )


def render_result(name: str, text: str) -> str:
    """Return a result as text for the model, in a fence longer than any within it."""
    # A result with a fence in it must not end its own quotation.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"Result of {name}:\n{fence}result\n{text.rstrip()}\n{fence}"


def parse(reply_text: str, specs: Sequence[ToolSpec]) -> ParsedReply:
    """Return the calls in a reply; never raises, and never invents a call.

    Accepted in addition to ```tool fences: <tool_call> tags, and for known tools ```json fences and one bare
    object at the end of the reply. Commas before a closing bracket and plain line breaks in strings are tolerated.
    """
    reader = _CallReader(_THOUGHTS.sub("", reply_text, count=1), {spec.name for spec in specs})
    try:
        reader.read()
    except _Malformed as error:
        return ParsedReply(text=reader.text(), problem=f"{error} None of the calls in this reply was run. {_HOW}")
    calls = (
        ToolCall(index=index, name=name, arguments=arguments, written=True)
        for index, (name, arguments) in enumerate(reader.calls)
    )
    return ParsedReply(text=reader.text(), calls=tuple(calls))


class _Malformed(ValueError):
    """A malformed attempt at a call."""


# Name and arguments of a call.
_WrittenCall = tuple[str, dict[str, Any]]


class _CallReader:
    """Goes through a reply and extracts its calls."""

    def __init__(self, source: str, known: set[str]) -> None:
        self.calls: list[_WrittenCall] = []
        self._source = source
        self._known = known
        self._said: list[str] = []

    def text(self) -> str:
        """Return the text outside the calls."""
        return "".join(self._said).strip()

    def read(self) -> None:
        """Go through the reply line by line; raises `_Malformed`."""
        at = 0
        while at < len(self._source):
            if fence := _FENCE.match(self._source, at):
                at = self._take_fence(fence)
            elif tag := _TAG.match(self._source, at):
                calls, at = _read_calls(self._source, tag.end())
                end = re.compile(rf"\s*</{tag[1]}>").match(self._source, at)
                if end is None:
                    raise _Malformed(f"A <{tag[1]}> is not closed by </{tag[1]}> right after its JSON object.")
                self.calls += calls
                at = end.end()
            elif (
                self._source.startswith("{", at)
                and (head := _HEAD.match(self._source, at))
                and self._knows(head[1])
            ):
                value, end_at = _read_json(self._source, at)
                # It is a call if it ends the reply; with words after it, it is part of an explanation.
                if self._source[end_at:].strip():
                    at = self._add_text(at, end_at)
                else:
                    self.calls.append(_read_call(value))
                    at = len(self._source)
            else:
                at = self._add_text(at, self._source.find("\n", at) + 1 or len(self._source))

    def _knows(self, name: str) -> bool:
        return name in self._known or name.startswith(_FOREIGN)

    def _add_text(self, start: int, end: int) -> int:
        self._said.append(self._source[start:end])
        return end

    def _take_fence(self, fence: re.Match[str]) -> int:
        kind = fence[2].lower()
        marks = rf"{re.escape(fence[1])}{fence[1][0]}*[ \t]*(?:\n|\Z)"
        if kind in _CALL_FENCES:
            calls, at = _read_calls(self._source, fence.end())
            end = re.compile(rf"\s*{marks}").match(self._source, at)
            if end is None and self._source[at:].strip():
                raise _Malformed(f"After a call comes {_clip(self._source[at:].strip())} in the same block.")
            self.calls += calls
            return end.end() if end else len(self._source)
        # Any other fence is an example or a file: it counts only if it holds calls of known tools and nothing
        # else.
        end = re.compile(rf"^[ \t]*{marks}", re.MULTILINE).search(self._source, fence.end())
        stop = end.end() if end else len(self._source)
        if kind in ("json", "") and end:
            body = self._source[fence.end() : end.start()]
            try:
                calls, at = _read_calls(body, 0)
            except _Malformed:
                head = _HEAD.match(body)
                if head and self._knows(head[1]):
                    raise
            else:
                if calls and all(self._knows(name) for name, _ in calls) and not body[at:].strip():
                    self.calls += calls
                    return stop
        return self._add_text(fence.start(), stop)


def _read_calls(source: str, at: int) -> tuple[list[_WrittenCall], int]:
    """Return the JSON objects (or one list of them) at `at` as calls, and the position after them."""
    found: list[_WrittenCall] = []
    while True:
        at = cast("re.Match[str]", _SPACE.match(source, at)).end()
        if found and not source.startswith("{", at):
            return found, at
        value, at = _read_json(source, at)
        found += [_read_call(each) for each in (value if isinstance(value, list) and value else [value])]


def _read_json(source: str, at: int) -> tuple[object, int]:
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=_refuse_constant, strict=False)
    try:
        return decoder.raw_decode(source, at)
    except _Malformed:
        raise
    except _DECODER_ERRORS as error:
        problem = error
    try:
        value, end = decoder.raw_decode(_without_trailing_commas(source[at:]))
        return value, at + end
    except _Malformed:
        raise
    except _DECODER_ERRORS:
        reason = "nested too deeply or a number too long"
        if isinstance(problem, json.JSONDecodeError):
            reason = f"{problem.msg} at its character {problem.pos - at + 1}"
        raise _Malformed(f"A call is not valid JSON ({reason}): {_clip(source[at:])}.") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raises `ValueError` for a repeated key."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Malformed("A call has one key twice: which of the two is meant would be a guess.")
    return made


def _refuse_constant(word: str) -> NoReturn:
    raise _Malformed(f"{word} is not a JSON number.")


def _read_call(value: object) -> _WrittenCall:
    # No extra keys: guessing the meaning of an unknown one could run something else.
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        keys = f"the keys {', '.join(map(repr, value))}" if isinstance(value, dict) else f"{_clip(repr(value))}"
        raise _Malformed(f'A call is an object with exactly the keys "name" and "arguments", not {_clip(keys)}.')
    name = value["name"]
    arguments = value["arguments"]
    if isinstance(arguments, str):
        arguments, end = _read_json(arguments, 0) if arguments.startswith("{") else (None, 0)
        arguments = arguments if end == len(value["arguments"].rstrip()) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise _Malformed('The "name" of a call is a string and its "arguments" an object.')
    return name, arguments


def _without_trailing_commas(source: str) -> str:
    """Blank out commas before a closing bracket, except in strings; every character keeps its place."""
    # Blanked instead of removed, so that positions in error messages stay right.
    out = list(source)
    comma: int | None = None
    at = 0
    in_string = False
    while at < len(out):
        char = out[at]
        if in_string:
            at += char == "\\"
            in_string = char != '"'
        elif char == '"':
            in_string, comma = True, None
        elif char == ",":
            comma = at
        elif not char.isspace():
            if char in "]}" and comma is not None:
                out[comma] = " "
            comma = None
        at += 1
    return "".join(out)


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 120 else text[:120] + "..."
