"""Scripts: replies written down beforehand, a line each, for tests, demos and work without a provider."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from chargehand.core.codec import convert_to
from chargehand.core.errors import UsageError, nearest
from chargehand.models.contract import Call, Stop, UpstreamReply, Usage
from chargehand.models.dialects.conversation import Offer, Text, ToolResult, UncarriedError
from chargehand.models.dialects.table import CODECS
from chargehand.models.faults import Fault, answer
from chargehand.models.recording import AttemptOrdinals, Turns, append_line, read_header, read_source
from chargehand.models.scripted_replies import (
    ONCE,
    ScriptedCall,
    ScriptedReply,
    error_reply,
    estimated,
    render_for,
)
from chargehand.models.serving.side_requests import is_bare, side_reply

_WORKSPACE = "/workspace"
_PATHS = ("path", "file_path", "filePath", "filename", "absolute_path", "file")
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "path": _PATHS,
    "old": ("old", "old_string", "oldString", "old_str"),
    "new": ("new", "new_string", "newString", "new_str"),
    "content": ("content", "contents", "file_text"),
    "command": ("command", "cmd"),
    "pattern": ("pattern", "query", "regex"),
    "summary": ("summary",),
    "evidence": ("evidence",),
}
_TOOLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bash": (("command",), ("bash", "exec_command", "run_shell_command", "shell", "shell_command", "terminal")),
    "read": (("path",), ("read", "read_file", "view")),
    "edit": (("path", "old", "new"), ("edit", "replace", "str_replace", "edit_file")),
    "write": (("path", "content"), ("write", "write_file", "create_file")),
    "search": (("pattern",), ("search", "grep", "grep_search", "search_file_content", "grep_files")),
    "finish": (("summary",), ("finish",)),
}
"""Each tool of ours: what it must be given, and what clients call theirs, in lower case."""
_REPLACE = (
    "import sys; p, old, new = sys.argv[1:]; s = open(p).read(); "
    "n = s.count(old); n == 1 or sys.exit(f'it stands there {n} times'); open(p, 'w').write(s.replace(old, new))"
)
_FILLED: Mapping[str, Any] = {
    "string": "As the script says.",
    "boolean": False,
    "integer": 0,
    "number": 0,
    "array": [],
}


class ToolUnknownError(Exception):
    """A script calls what is no tool of ours, or what the request offers nothing for; `message` says which."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A tool of the client, and which of its arguments each of ours is."""

    offer: Offer
    names: Mapping[str, str]

    def call(self, call: ScriptedCall, given: Mapping[str, Any]) -> ScriptedCall:
        properties = _properties(self.offer)
        made = {to: _value(given[name], to, properties[to]) for name, to in self.names.items()}
        for name in self.offer.schema.get("required", ()):
            if name not in made:
                made[name] = _filler(properties.get(name, {}))
        return replace(call, name=self.offer.name, arguments=made)


def fitted(reply: ScriptedReply, offers: Sequence[Offer]) -> ScriptedReply:
    """Return a reply whose calls (bash, read, edit, write, search, finish) are calls of what is offered.

    What has no tool of its own is done by a shell; `finish` becomes words where none is offered. A call that names
    an offered tool with its own arguments stays. A request that offers no tool at all, such as for a title, gets
    the words alone. Raises `ToolUnknownError`.
    """
    if not offers:
        return replace(reply, tools=())
    calls: list[ScriptedCall] = []
    text = reply.text
    for call in reply.tools:
        made = _fitted(call, offers)
        if made is None:
            text = "\n".join(filter(None, (text, str(_given(call).get("summary", "")))))
        else:
            calls.append(made)
    return replace(reply, text=text, tools=tuple(calls))


def _fitted(call: ScriptedCall, offers: Sequence[Offer]) -> ScriptedCall | None:
    given = _given(call)
    if any(offer.name == call.name and _takes(offer, given) for offer in offers):
        return call
    if call.name not in _TOOLS:
        raise ToolUnknownError(_unknown(call.name, offers))
    missing = [name for name in _TOOLS[call.name][0] if name not in given]
    if missing:
        raise ToolUnknownError(f"a call of {call.name!r} needs {', '.join(missing)}")
    fit = _fit(call.name, given, offers)
    if fit is not None:
        return fit.call(call, given)
    if call.name == "finish":
        return None
    line = _in_a_shell(call.name, given)
    shell = _fit("bash", {"command": line}, offers) if line else None
    if shell is None:
        raise ToolUnknownError(_unknown(call.name, offers))
    return shell.call(call, {"command": line})


def _takes(offer: Offer, given: Mapping[str, Any]) -> bool:
    return set(offer.schema.get("required", ())) <= set(given) <= set(_properties(offer))


def _given(call: ScriptedCall) -> Mapping[str, Any]:
    return call.arguments if isinstance(call.arguments, Mapping) else {}


def _fit(name: str, given: Mapping[str, Any], offers: Sequence[Offer]) -> _Fit | None:
    for called in _TOOLS[name][1]:
        for offer in offers:
            if offer.name.lower() != called:
                continue
            properties = _properties(offer)
            names = {
                each: next((one for one in _ARGUMENTS.get(each, (each,)) if one in properties), "")
                for each in given
            }
            if all(names.values()):
                return _Fit(offer=offer, names=names)
    return None


def _properties(offer: Offer) -> Mapping[str, Any]:
    found = offer.schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _value(value: Any, name: str, schema: Any) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    if name in _ARGUMENTS["command"] and schema.get("type") == "array":
        return ["bash", "-lc", value]
    # Other programs want the whole path, and not all say so.
    if name in _PATHS[1:] and not str(value).startswith("/"):
        return f"{_WORKSPACE}/{value}"
    return value


def _filler(schema: Any) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    if schema.get("enum"):
        return schema["enum"][0]
    return _FILLED.get(str(schema.get("type", "string")).lower(), {})


def _in_a_shell(name: str, given: Mapping[str, Any]) -> str:
    """Return a command line that does the same, "" where none does."""
    path = shlex.quote(str(given.get("path", ".")))
    match name:
        case "read":
            return f"cat -- {path}"
        case "edit":
            old, new = (shlex.quote(str(given[each])) for each in ("old", "new"))
            return f"python3 -c {shlex.quote(_REPLACE)} {path} {old} {new}"
        case "write":
            return f'mkdir -p -- "$(dirname -- {path})" && printf %s {shlex.quote(str(given["content"]))} > {path}'
        case "search":
            return f"grep -rnE -e {shlex.quote(str(given['pattern']))} -- {path}"
    return ""


def _unknown(name: str, offers: Sequence[Offer]) -> str:
    offered = ", ".join(offer.name for offer in offers) or "none"
    near = nearest(name, [*_TOOLS, *(offer.name for offer in offers)])
    ours = "" if name in _TOOLS else f"; a script's own are {', '.join(_TOOLS)}"
    return f"the tool {name!r} is not there: the request offers {offered}{ours}{'; ' if near else ''}{near}"


FORMAT, VERSION = "chargehand-script", 1
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLine:
    """One reply of a script and when it is due: `line` is where it stands in the file.

    `expect` lists what the newest messages of the call must contain, so that a script cannot drift unseen.
    """

    reply: ScriptedReply
    line: int = 0
    attempt: int | None = None
    turn: int | None = None
    expect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The replies of a scripted model, in order.

    Lines that name an attempt are that attempt's; an attempt that no line names gets those that name none. A line
    without a turn is due one turn after the line before it. The calls of a `neutral` one are made to fit what each
    request offers.
    """

    lines: tuple[ScriptLine, ...]
    note: str = ""
    name: str = "script"
    neutral: bool = False

    @classmethod
    def load(cls, source: Path | str | bytes) -> Script:
        """Read a script from a file, or from its bytes.

        Raises `UsageError` (`script_invalid`, `file_unreadable`) that names file and line.
        """
        content, name = read_source(source, "script")
        lines = content.split(b"\n")
        header = read_header(lines[0], FORMAT, VERSION, lambda text: _invalid(name, 1, text))
        found = tuple(_read_line(line, name, n) for n, line in enumerate(lines[1:], start=2) if line.strip())
        if header.get("tools", "as written") not in ("as written", "neutral"):
            raise _invalid(name, 1, f'tools are "neutral" or "as written", not {header["tools"]!r}')
        neutral = header.get("tools") == "neutral"
        return cls(lines=found, note=str(header.get("note", "")), name=name, neutral=neutral)

    @classmethod
    def of(cls, *replies: ScriptedReply | str) -> Script:
        """Return the script of these replies in order, the same for every attempt."""
        made = (ScriptedReply(text=one) if isinstance(one, str) else one for one in replies)
        return cls(lines=tuple(ScriptLine(reply=reply, line=n) for n, reply in enumerate(made, start=2)))

    def dump(self) -> bytes:
        """Return the script as the file that `load` reads."""
        header = {"format": FORMAT, "version": VERSION, "note": self.note}
        header |= {"tools": "neutral"} if self.neutral else {}
        return b"".join(json.dumps(line).encode() + b"\n" for line in (header, *map(_written, self.lines)))

    def turns(self) -> Iterator[tuple[int | None, int, ScriptLine]]:
        """Yield each line with the attempt and the turn that it is due for."""
        last: dict[int | None, int] = {}
        for line in self.lines:
            turn = last.get(line.attempt, 0) + 1 if line.turn is None else line.turn
            last[line.attempt] = turn
            yield line.attempt, turn, line


_BESIDE = ScriptLine(reply=ScriptedReply(text="As the script says."))
"""What a request gets that takes no line: for a title, a summary, a look at the quota."""


class ScriptUpstream:
    """Answers from a script by attempt and turn, so that a resumed attempt goes on where it was.

    `attempts` (id to number) says which attempt is which, else they are numbered as they come. Each call that a
    line answered is in `calls`, and appended to `journal` where several processes have to count together.
    """

    def __init__(
        self, script: Script, *, attempts: Mapping[str, int] | None = None, journal: Path | None = None
    ) -> None:
        self.calls: list[Call] = []
        self._script = script
        self._attempts = AttemptOrdinals(attempts)
        self._journal = journal
        self._named = {line.attempt for line in script.lines if line.attempt is not None}
        # Whose lines work with tools: a request that offers none is beside that work.
        self._working = {line.attempt or 0 for line in script.lines if script.neutral and line.reply.tools}
        self._turns: Turns[ScriptLine] = Turns()
        for attempt, turn, line in script.turns():
            self._turns.add(attempt or 0, turn, line)

    async def send(self, call: Call) -> UpstreamReply:
        """Answer with the line that is due: 410 where there is none, 409 where the call is not what it expects.

        Counts of tokens and embeddings take no line: they are made of the bytes, the same every time. Neither does
        a request without tools where the attempt's lines are neutral and work with tools: it gets a few words.
        """
        if call.operation != "reply":
            return side_reply(call)
        attempt = self._attempts.of(call.attempt)
        like, turn = attempt if attempt in self._named else 0, call.turn
        if like in self._working:
            if is_bare(call.body):
                return await self._said(call, _BESIDE)
            turn -= call.bare
        line = self._turns.take(attempt, turn, like=like)
        if line is None:
            return self._missing(call, attempt, turn)
        heard = newest_text(call.body)
        absent = [words for words in line.expect if words not in heard]
        if absent:
            return self._unexpected(call, line, absent[0], heard)
        if self._script.neutral:
            try:
                line = replace(line, reply=fitted(line.reply, _offers(call)))
            except ToolUnknownError as error:
                message = f"{self._script.name}, line {line.line}: {error.message}"
                return error_reply(call.dialect, 409, "script_tool_unknown", message, headers=ONCE)
        self._count(call, attempt, line)
        if line.reply.delay:
            await asyncio.sleep(line.reply.delay)
        if line.reply.fault:
            return await answer(Fault.parse(line.reply.fault), call, lambda: self._said(call, line))
        return await self._said(call, line)

    async def close(self) -> None:
        """Nothing is held open."""

    async def _said(self, call: Call, line: ScriptLine) -> UpstreamReply:
        usage = line.reply.usage or Usage()
        guess = estimated(line.reply, call.body)
        known = replace(
            usage,
            input=guess.input if usage.input is None else usage.input,
            output=guess.output if usage.output is None else usage.output,
        )
        return render_for(call.dialect, replace(line.reply, usage=known), call.body, id=f"t{call.turn}")

    def _count(self, call: Call, attempt: int, line: ScriptLine) -> None:
        self.calls.append(call)
        if self._journal is None:
            return
        file = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            append_line(file, {"call": call.id, "attempt": attempt, "turn": call.turn, "line": line.line})
        finally:
            os.close(file)

    def _missing(self, call: Call, attempt: int, turn: int) -> UpstreamReply:
        message = (
            f"{self._script.name} has no line for attempt {attempt}, turn {turn}: add "
            f'{{"attempt": {attempt}, "turn": {turn}, "text": "…"}}'
        )
        return error_reply(call.dialect, 410, "script_exhausted", message, headers=ONCE)

    def _unexpected(self, call: Call, line: ScriptLine, words: str, heard: str) -> UpstreamReply:
        shown = heard if len(heard) <= _LONGEST_SHOWN else f"…{heard[-_LONGEST_SHOWN:]}"
        message = (
            f"{self._script.name}, line {line.line} expects {words!r} in the newest message, which is {shown!r}"
        )
        return error_reply(call.dialect, 409, "script_mismatch", message, headers=ONCE)


def _offers(call: Call) -> tuple[Offer, ...]:
    """Return the tools that a request offers; none where it cannot be read."""
    try:
        return CODECS[call.dialect].asked(call.body).tools
    except UncarriedError:
        return ()


def newest_text(body: Mapping[str, Any]) -> str:
    """Return the text of all messages after the model's last one, tool results included."""
    texts: list[str] = []
    if "input" in body or "contents" in body:
        return _newest_said(body)
    for message in reversed(_messages(body)):
        if message.get("role") == "assistant":
            break
        texts.append("\n".join(_texts(message.get("content"))))
    return "\n".join(reversed(texts))


def _newest_said(body: Mapping[str, Any]) -> str:
    """Return the same of the newer dialects, read as the gateway reads them; none where they cannot be."""
    try:
        turns = CODECS["responses" if "input" in body else "gemini"].asked(body).turns
    except UncarriedError:
        return ""
    newest = turns[-1].parts if turns and turns[-1].role == "user" else ()
    return "\n".join(part.text for part in newest if isinstance(part, Text | ToolResult))


def _messages(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found = body.get("messages")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else ()


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content: text itself, text blocks, and tool results with either."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list | tuple):
        for part in content:
            yield from _texts(part)
    elif isinstance(content, Mapping):
        yield from _texts(content.get("text"))
        yield from _texts(content.get("content"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RawCall:
    name: str
    arguments: dict[str, Any] | str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RawLine:
    """A line as the file has it; every field may be left out."""

    attempt: int | None = None
    turn: int | None = None
    text: str = ""
    tools: tuple[_RawCall, ...] = ()
    usage: Usage | None = None
    stop: Stop | None = None
    fault: str = ""
    delay: float = 0.0
    expect: str | tuple[str, ...] = ()
    note: str = ""


def _read_line(line: bytes, name: str, number: int) -> ScriptLine:
    try:
        found = json.loads(line)
        raw = convert_to(found, _RawLine)
        if raw.fault:
            _check_fault(raw.fault)
    except (ValueError, msgspec.ValidationError) as error:
        raise _invalid(name, number, str(error)) from error
    _check_keys(found, (one.name for one in fields(_RawLine)), name, number)
    for call in found.get("tools", ()):
        _check_keys(call, (one.name for one in fields(_RawCall)), name, number)
    if min(raw.attempt or 1, raw.turn or 1) < 1 or raw.attempt == 0 or raw.turn == 0 or raw.delay < 0:
        raise _invalid(name, number, "attempts and turns count from 1, and a delay is not negative")
    tools = tuple(ScriptedCall(name=c.name, arguments=c.arguments or {}, id=c.id) for c in raw.tools)
    return ScriptLine(
        line=number,
        attempt=raw.attempt,
        turn=raw.turn,
        expect=(raw.expect,) if isinstance(raw.expect, str) else raw.expect,
        reply=ScriptedReply(
            text=raw.text, tools=tools, usage=raw.usage, stop=raw.stop, fault=raw.fault, delay=raw.delay
        ),
    )


def _check_fault(text: str) -> None:
    fault = Fault.parse(text)
    if fault.turn is not None or fault.probability is not None:
        raise ValueError(f"the fault {text!r} names a turn, which the line already is")


def _check_keys(found: Mapping[str, Any], known: Iterable[str], name: str, number: int) -> None:
    names = list(known)
    for key in found:
        if key not in names:
            raise _invalid(name, number, f"{key!r} is no field of a script", nearest(key, names))


def _written(line: ScriptLine) -> dict[str, Any]:
    reply, made = line.reply, dict[str, Any]()
    made |= {"attempt": line.attempt, "turn": line.turn, "text": reply.text or None}
    made["tools"] = [
        {"name": call.name, "arguments": call.arguments, **({"id": call.id} if call.id else {})}
        for call in reply.tools
    ]
    if reply.usage is not None:
        usage = {one.name: getattr(reply.usage, one.name) for one in fields(Usage)}
        made["usage"] = {key: value for key, value in usage.items() if value is not None}
    made |= {"stop": reply.stop, "fault": reply.fault, "delay": reply.delay, "expect": list(line.expect)}
    return {
        key: value for key, value in made.items() if value or (key in ("attempt", "turn") and value is not None)
    }


def _invalid(name: str, line: int, problem: str, hint: str = "") -> UsageError:
    more = "docs/reference/recording.md has the format"
    return UsageError(f"{name}, line {line}: {problem}", code="script_invalid", hint=f"{hint}\n{more}".strip())
