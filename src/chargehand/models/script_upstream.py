"""The scripted model: answers from a script, for tests, demos and work without a provider."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from chargehand.core.errors import nearest
from chargehand.models._json import as_mapping
from chargehand.models.contract import ModelCall, UpstreamReply, Usage
from chargehand.models.conversation import (
    NeutralRequest,
    OfferedTool,
    TextPart,
    ToolResultPart,
    UntranslatableError,
)
from chargehand.models.dialects.base import is_bare
from chargehand.models.faults import Fault
from chargehand.models.faulty_upstream import answer_with_fault
from chargehand.models.recording import AttemptOrdinals, TurnAnswers, append_line
from chargehand.models.registries import DIALECTS
from chargehand.models.scripted_replies import (
    NO_RETRY,
    ScriptedCall,
    ScriptedReply,
    error_reply,
    estimate_usage,
    render_for,
    side_reply,
)
from chargehand.models.scripts import Script, ScriptLine

_LONGEST_SHOWN = 80
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
# Each of our tools: its required arguments, and the names of the clients' tools, in lower case.
_TOOLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bash": (("command",), ("bash", "exec_command", "run_shell_command", "shell", "shell_command", "terminal")),
    "read": (("path",), ("read", "read_file", "view")),
    "edit": (("path", "old", "new"), ("edit", "replace", "str_replace", "edit_file")),
    "write": (("path", "content"), ("write", "write_file", "create_file")),
    "search": (("pattern",), ("search", "grep", "grep_search", "search_file_content", "grep_files")),
    "finish": (("summary",), ("finish",)),
}
# Like editing tools: the replaced text must occur exactly once.
_REPLACE = (
    "import sys; p, old, new = sys.argv[1:]; s = open(p).read(); "
    "n = s.count(old); n == 1 or sys.exit(f'it stands there {n} times'); open(p, 'w').write(s.replace(old, new))"
)
# Values for arguments that a client requires and a script does not know.
_FILLED: Mapping[str, Any] = {
    "string": "As the script says.",
    "boolean": False,
    "integer": 0,
    "number": 0,
    "array": [],
}


class ScriptUpstream:
    """Answers from a script by attempt and turn, so that a resumed attempt continues at its turn.

    `attempts` (id to number) identifies the attempts, which are otherwise numbered in order of appearance. Each
    call that a line answered is in `calls`, and appended to `journal` if several processes must count together.
    """

    def __init__(
        self, script: Script, *, attempts: Mapping[str, int] | None = None, journal: Path | None = None
    ) -> None:
        self.calls: list[ModelCall] = []
        self._script = script
        self._attempts = AttemptOrdinals(attempts)
        self._journal = journal
        self._named = {line.attempt for line in script.lines if line.attempt is not None}
        # Attempts whose lines work with tools: a request that offers no tool is not part of that work.
        self._working = {line.attempt or 0 for line in script.lines if script.neutral and line.reply.tools}
        self._turns: TurnAnswers[ScriptLine] = TurnAnswers()
        for attempt, turn, line in script.turns():
            self._turns.add(attempt or 0, turn, line)

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Answer with the line that is due: 410 if no line is left, 409 if the call is not the expected one.

        Counts of tokens and embeddings take no line: they are computed from the bytes, equal every time. Neither
        does a request without tools if the attempt's lines are neutral and work with tools: it gets a few words.
        """
        dialect = DIALECTS[call.dialect]
        if call.operation != "reply":
            return side_reply(dialect, call)
        attempt = self._attempts.of(call.attempt)
        like = attempt if attempt in self._named else 0
        turn = call.turn
        if like in self._working:
            if is_bare(call.body):  # for a title, a summary, or a check of the quota
                return self._render(call, ScriptedReply(text="As the script says."))
            turn -= call.bare
        line = self._turns.take(attempt, turn, like=like)
        if line is None:
            message = (
                f"{self._script.name} has no line for attempt {attempt}, turn {turn}: add "
                f'{{"attempt": {attempt}, "turn": {turn}, "text": "…"}}'
            )
            return error_reply(dialect, 410, "script_exhausted", message, headers=NO_RETRY)
        newest = find_newest_text(call) if line.expect else ""
        absent = next((text for text in line.expect if text not in newest), None)
        if absent is not None:
            shown = newest if len(newest) <= _LONGEST_SHOWN else f"…{newest[-_LONGEST_SHOWN:]}"
            message = (
                f"{self._script.name}, line {line.line} expects {absent!r} in the newest message, "
                f"which is {shown!r}"
            )
            return error_reply(dialect, 409, "script_mismatch", message, headers=NO_RETRY)
        return await self._answer(call, attempt, line)

    async def close(self) -> None:
        """Do nothing: nothing is held open."""

    async def _answer(self, call: ModelCall, attempt: int, line: ScriptLine) -> UpstreamReply:
        reply = line.reply
        dialect = DIALECTS[call.dialect]
        if self._script.neutral:
            try:
                reply = fit_tools(reply, _read_request(call).tools)
            except ToolUnknownError as error:
                message = f"{self._script.name}, line {line.line}: {error.message}"
                return error_reply(dialect, 409, "script_tool_unknown", message, headers=NO_RETRY)
        self.calls.append(call)
        if self._journal is not None:
            # Reopened each time, to append: several processes count in one file.
            file = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                append_line(file, {"call": call.id, "attempt": attempt, "turn": call.turn, "line": line.line})
            finally:
                os.close(file)
        if reply.delay:
            await asyncio.sleep(reply.delay)

        async def render() -> UpstreamReply:
            return self._render(call, reply)

        return await (answer_with_fault(Fault.parse(reply.fault), call, render) if reply.fault else render())

    def _render(self, call: ModelCall, reply: ScriptedReply) -> UpstreamReply:
        usage = reply.usage or Usage()
        guess = estimate_usage(reply, call.body)
        known = replace(
            usage,
            input=guess.input if usage.input is None else usage.input,
            output=guess.output if usage.output is None else usage.output,
        )
        return render_for(DIALECTS[call.dialect], replace(reply, usage=known), call.body, id=f"t{call.turn}")


def _read_request(call: ModelCall) -> NeutralRequest:
    """Return a request in its neutral form; empty if it cannot be read."""
    try:
        return DIALECTS[call.dialect].read_request(call.body)
    except UntranslatableError:
        return NeutralRequest(turns=())


def find_newest_text(call: ModelCall) -> str:
    """Return the text of all messages after the model's last one, including tool results.

    Empty if the request cannot be read.
    """
    turns = _read_request(call).turns
    newest = turns[-1].parts if turns and turns[-1].role == "user" else ()
    return "\n".join(part.text for part in newest if isinstance(part, TextPart | ToolResultPart))


class ToolUnknownError(Exception):
    """A script calls an unknown tool, or one that the request does not offer; `message` says which."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _ToolFit(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client, with its name for each of our arguments."""

    offer: OfferedTool
    names: Mapping[str, str]

    def convert(self, call: ScriptedCall, given: Mapping[str, Any]) -> ScriptedCall:
        properties = _list_properties(self.offer)
        made = dict[str, Any]()
        for name, to in self.names.items():
            made[to] = given[name]
            if to in _ARGUMENTS["command"] and as_mapping(properties[to]).get("type") == "array":
                made[to] = ["bash", "-lc", given[name]]
            # Other programs want the whole path, and not all say so.
            elif to in _PATHS[1:] and not str(given[name]).startswith("/"):
                made[to] = f"{_WORKSPACE}/{given[name]}"
        for name in self.offer.schema.get("required", ()):
            if name not in made:
                # A value that fits its schema: a script does not know this argument.
                schema = as_mapping(properties.get(name, {}))
                usual = _FILLED.get(str(schema.get("type", "string")).lower(), {})
                made[name] = schema["enum"][0] if schema.get("enum") else usual
        return replace(call, name=self.offer.name, arguments=made)


def fit_tools(reply: ScriptedReply, offers: Sequence[OfferedTool]) -> ScriptedReply:
    """Convert a reply's calls (bash, read, edit, write, search, finish) to calls of the offered tools.

    A shell replaces missing tools; `finish` becomes text if no such tool is offered. A call that names an offered
    tool with that tool's own arguments stays. A request that offers no tool at all, for example for a title, gets
    only the text. Raises `ToolUnknownError`.
    """
    if not offers:
        return replace(reply, tools=())
    calls: list[ScriptedCall] = []
    text = reply.text
    for call in reply.tools:
        given = call.arguments if isinstance(call.arguments, Mapping) else {}
        made = _fit_call(call, given, offers)
        if made is None:
            text = "\n".join(filter(None, (text, str(given.get("summary", "")))))
        else:
            calls.append(made)
    return replace(reply, text=text, tools=tuple(calls))


def _fit_call(call: ScriptedCall, given: Mapping[str, Any], offers: Sequence[OfferedTool]) -> ScriptedCall | None:
    """Return the equivalent call of an offered tool, or `None` for `finish` if no such tool is offered."""
    # A call with the client's own tool and arguments is meant literally, even if the name is one of ours.
    for offer in offers:
        required = set(offer.schema.get("required", ()))
        if offer.name == call.name and required <= set(given) <= set(_list_properties(offer)):
            return call
    if call.name not in _TOOLS:
        raise ToolUnknownError(_explain_unknown(call.name, offers))
    missing = [name for name in _TOOLS[call.name][0] if name not in given]
    if missing:
        raise ToolUnknownError(f"a call of {call.name!r} needs {', '.join(missing)}")
    fit = _find_fit(call.name, given, offers)
    if fit is not None:
        return fit.convert(call, given)
    if call.name == "finish":
        return None
    # Some clients have no file tools, only a shell: codex is one.
    line = _write_shell_line(call.name, given)
    shell = _find_fit("bash", {"command": line}, offers) if line else None
    if shell is None:
        raise ToolUnknownError(_explain_unknown(call.name, offers))
    return shell.convert(call, {"command": line})


def _find_fit(name: str, given: Mapping[str, Any], offers: Sequence[OfferedTool]) -> _ToolFit | None:
    for called in _TOOLS[name][1]:
        for offer in offers:
            if offer.name.lower() != called:
                continue
            properties = _list_properties(offer)
            names = {
                each: next((one for one in _ARGUMENTS.get(each, (each,)) if one in properties), "")
                for each in given
            }
            if all(names.values()):
                return _ToolFit(offer=offer, names=names)
    return None


def _list_properties(offer: OfferedTool) -> Mapping[str, Any]:
    found = offer.schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _write_shell_line(name: str, given: Mapping[str, Any]) -> str:
    """Return an equivalent command line, or "" if no command does the same."""
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


def _explain_unknown(name: str, offers: Sequence[OfferedTool]) -> str:
    offered = ", ".join(offer.name for offer in offers) or "none"
    near = nearest(name, [*_TOOLS, *(offer.name for offer in offers)])
    ours = "" if name in _TOOLS else f"; a script's own are {', '.join(_TOOLS)}"
    return f"the tool {name!r} is unknown: the request offers {offered}{ours}{'; ' if near else ''}{near}"
