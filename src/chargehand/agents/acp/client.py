"""The client side of ACP: an agent's requests, judged and executed inside its sandbox, and its updates.

Version 1 of the Agent Client Protocol (https://agentclientprotocol.com, schema 1.19).
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from chargehand.agents._json_rpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RpcError,
    content_text,
    count_at,
    object_at,
    objects_at,
    text_at,
)
from chargehand.agents.acp.connection import AcpConnection
from chargehand.agents.contract import AttemptContext
from chargehand.agents.messages import denial_text
from chargehand.agents.programs.events import AgentEvent, SessionLog
from chargehand.network.addresses import host_of
from chargehand.policy.actions import Action, Command, FileRead, FileWrite, Network, Other, Several, Shell

_PATHS = ("file_path", "filePath", "filepath", "path", "absolute_path", "old_path", "new_path")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_MOST_PATHS = 200


def action_of_call(call: Mapping[str, Any]) -> Action | None:
    """Return a call that asks for permission as a policy action; `None` if it does nothing.

    If kind, input and paths do not show its action, it is `Other`, which no rule allows by itself.
    """
    raw, kind = object_at(call, "rawInput"), call.get("kind")
    places = (*objects_at(call, "locations"), *objects_at(call, "content"))
    named = [*(text_at(place, "path") for place in places), *(text_at(raw, name) for name in _PATHS)]
    paths = tuple(dict.fromkeys(filter(None, named)))[:_MOST_PATHS]
    command = raw.get("command")
    if kind == "execute" and not raw:  # gemini sends no input: its title is the command, and just as reliable
        command = text_at(call, "title")
    if kind in ("execute", "other", None) and command:
        cwd = text_at(raw, "cwd", "directory", "workdir")
        if isinstance(command, str):
            return Shell(text=command, cwd=cwd or None)
        words = tuple(map(str, command)) if isinstance(command, list) else (str(command),)
        return action_of_terminal(words, cwd)
    match kind:
        case "think":
            return None
        case "read" | "search":
            return _combine([FileRead(path=path) for path in paths or (".",)])
        case "edit" | "delete" | "move" | "other" | None if paths:
            removal = kind == "delete"
            return _combine([FileWrite(path=path, removal=removal) for path in paths])
        case "fetch" if host := host_of(text_at(raw, "url", "prompt")):
            return Network(host=host)
    # Never guessed from its title: a rule or a person decides about unknown actions.
    return Other(kind="tool", name=text_at(call, "title", "kind") or "unnamed")


def action_of_terminal(argv: Sequence[str], cwd: str) -> Action:
    """Return the action of a terminal's command; a shell's script is inspected."""
    # A shell's script is inspected, or every command could hide behind `sh -c`.
    if len(argv) == 3 and argv[0].rpartition("/")[2] in _SHELLS and argv[1] in ("-c", "-lc"):
        return Shell(text=argv[2], cwd=cwd or None)
    return Command(argv=tuple(argv), cwd=cwd or None)


def _combine(actions: Sequence[Action]) -> Action:
    return actions[0] if len(actions) == 1 else Several(actions=tuple(actions))


# Each field becomes a question to a person, one after the other.
_MOST_FIELDS = 10
_YES, _NO = ("yes", "y", "true"), ("no", "n", "false")


class FormField(Struct, frozen=True, kw_only=True):
    """One field: `kind` is its JSON type, `options` its allowed answers (empty: any)."""

    name: str
    kind: str
    text: str
    options: tuple[str, ...] = ()


def fields_of(params: Mapping[str, Any]) -> tuple[FormField, ...]:
    """Return the fields of a form that a person can answer one by one; empty for other forms."""
    properties = object_at(params, "requestedSchema", "properties")
    if params.get("mode", "form") != "form" or len(properties) > _MOST_FIELDS:
        return ()
    fields: list[FormField] = []
    for name, schema in properties.items():
        kind = (text_at(schema, "type") or "string") if isinstance(schema, Mapping) else ""
        if kind not in ("string", "boolean", "integer", "number"):
            return ()
        listed = schema.get("enum")
        options = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
        options += [text_at(each, "const") for each in objects_at(schema, "oneOf")]
        if kind == "boolean":
            options = ["yes", "no"]
        text = ": ".join(filter(None, (text_at(schema, "title"), text_at(schema, "description")))) or name
        fields.append(FormField(name=name, kind=kind, text=text, options=tuple(filter(None, options))))
    return tuple(fields)


def read_answer(field: FormField, answer: str) -> Any:
    """Convert an answer to the field's type, or return `None` if that is impossible."""
    text = answer.strip()
    if field.kind == "boolean":
        return True if text.lower() in _YES else False if text.lower() in _NO else None
    if field.kind == "string":
        return text if not field.options or text in field.options else None
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        return None


# Calls that are remembered: an agent that never ends its calls must not fill our memory.
_MOST_CALLS = 10_000
_LONGEST_TEXT = 100_000


class UpdateReader:
    """Converts `session/update` notifications to events and puts them into a log."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._text = ""
        self._speaking: Literal["text", "thought"] = "text"
        self._calls: dict[str, dict[str, Any]] = {}
        self._logged: set[str] = set()
        self._on_turn: Callable[[], None] | None = None

    def on_turn(self, began: Callable[[], None]) -> None:
        """Call `began` once, at the first update of the turn that begins now."""
        self._on_turn = began

    def take(self, method: str, params: Mapping[str, Any]) -> None:
        """Take one notification; only `session/update` concerns the work."""
        update = object_at(params, "update")
        if method != "session/update":
            return
        began, self._on_turn = self._on_turn, None
        if began is not None:
            began()
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                self._add_text("text", content_text(update.get("content")))
            case "agent_thought_chunk":
                self._add_text("thought", content_text(update.get("content")))
            case "tool_call" | "tool_call_update":
                call = self.merge_call(update)
                number, status = text_at(call, "toolCallId"), call.get("status")
                ended = status in ("completed", "failed")
                # Logged once its input is known: agents announce a call first and fill it in with updates.
                if number not in self._logged and (call.get("rawInput") or ended):
                    self._logged.add(number)
                    self.flush()
                    tool = text_at(call, "kind", "title")
                    self._log.take(AgentEvent(kind="call", tool=tool, call=number, arguments=call.get("rawInput")))
                if ended and update.get("status") == status:
                    contents = [each.get("content") for each in objects_at(call, "content")]
                    text = content_text(contents) or content_text(call.get("rawOutput"))
                    self.flush()
                    self._log.take(AgentEvent(kind="result", call=number, text=text, failed=status == "failed"))

    def flush(self) -> None:
        """Convert the text received so far to an event."""
        text, self._text = self._text, ""
        if text:
            self._log.take(AgentEvent(kind=self._speaking, text=text))

    def merge_call(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call merged with its earlier updates: each message contains only the changes."""
        number = text_at(update, "toolCallId")
        fresh = {key: value for key, value in update.items() if value not in (None, {}, [])}
        merged = {**self._calls.get(number, {}), **fresh}
        if len(self._calls) < _MOST_CALLS or number in self._calls:
            self._calls[number] = merged
        return merged

    def record_refusal(self, call: str, reason: str) -> None:
        """Log that a permission request was refused, as the call's result."""
        self.flush()
        self._log.take(AgentEvent(kind="result", call=call, text=reason, failed=True))

    def _add_text(self, kind: Literal["text", "thought"], text: str) -> None:
        if kind != self._speaking or len(self._text) > _LONGEST_TEXT:
            self.flush()
        self._speaking = kind
        self._text += text


CAPABILITIES: Mapping[str, Any] = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "elicitation": {"form": {}},
}
# Each is a process with a megabyte of output in the sandbox.
_MOST_TERMINALS = 32
_TERMINAL_ORDERS = {
    "terminal/output": "terminal_output",
    "terminal/wait_for_exit": "terminal_wait",
    "terminal/kill": "terminal_kill",
    "terminal/release": "terminal_release",
}


def lines_of(text: str, *, first: int | None, limit: int | None) -> str:
    """Return `limit` lines from the `first` on, counted from 1; by default all, from the beginning."""
    # Only at line feeds: a form feed or U+2028 begins no line for an editor.
    lines = io.StringIO(text, newline="\n")
    start = max(0, (first or 1) - 1)
    return "".join(itertools.islice(lines, start, None if limit is None else start + limit))


class AcpClient:
    """Answers the requests of one agent on `connection`; `updates` logs its notifications about its work."""

    def __init__(self, context: AttemptContext, log: SessionLog) -> None:
        self.updates = UpdateReader(log)
        self.connection = AcpConnection(self._handle, self.updates.take)
        self._context = context
        self._terminals: set[str] = set()
        self._numbers = itertools.count(1)

    async def _handle(self, method: str, params: Mapping[str, Any]) -> Any:
        match method:
            case "session/request_permission":
                return await self._answer_permission(params)
            case "fs/read_text_file":
                path = _absolute_path(params)
                await self._require(FileRead(path=path))
                text = str((await self.connection.order("read", path=path)).get("text", ""))
                return {"content": lines_of(text, first=count_at(params, "line"), limit=count_at(params, "limit"))}
            case "fs/write_text_file":
                path, content = _absolute_path(params), params.get("content")
                if not isinstance(content, str):
                    raise RpcError("content must be a text", number=INVALID_PARAMS)
                await self._require(FileWrite(path=path))
                await self.connection.order("write", path=path, text=content)
                return None
            case "terminal/create":
                return await self._create_terminal(params)
            case "elicitation/create":
                return await self._ask_person(params)
        order = _TERMINAL_ORDERS.get(method)
        if order is None:
            raise RpcError(f"no such method: {method[:100]}", number=METHOD_NOT_FOUND)
        name = text_at(params, "terminalId")
        if name not in self._terminals:
            raise RpcError(f"no such terminal: {name[:100]!r}", number=INVALID_PARAMS)
        if order == "terminal_release":
            self._terminals.discard(name)
        answer = await self.connection.order(order, terminal=name)
        return answer if order in ("terminal_output", "terminal_wait") else None

    async def _refusal_of(self, action: Action) -> str:
        """Return "" if an action is allowed, otherwise the reason; a person may be asked first."""
        # The same act has the same name in every run of an attempt, so it finds the answer that ended the previous
        # run.
        name = f"act/{hashlib.sha256(repr(action).encode()).hexdigest()[:16]}"
        judgement = await self._context.judge(name, action)
        return "" if judgement.effect == "allow" else denial_text(judgement)

    async def _require(self, action: Action) -> None:
        if refused := await self._refusal_of(action):
            raise RpcError(refused)

    async def _answer_permission(self, params: Mapping[str, Any]) -> Any:
        call = self.updates.merge_call(object_at(params, "toolCall"))
        # A call without an act (thinking) needs no judgement; every other waits for one.
        action = action_of_call(call)
        refused = await self._refusal_of(action) if action is not None else ""
        options = {text_at(each, "kind"): text_at(each, "optionId") for each in objects_at(params, "options")}
        # Never "allow_always": each act is judged separately.
        chosen = options.get("allow_once")
        if refused:
            chosen = options.get("reject_once") or options.get("reject_always")
            self.updates.record_refusal(text_at(call, "toolCallId"), refused)
        if not chosen:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    async def _create_terminal(self, params: Mapping[str, Any]) -> Any:
        command, arguments = text_at(params, "command"), params.get("args") or []
        if not command or not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
            raise RpcError("command and args must be texts", number=INVALID_PARAMS)
        if len(self._terminals) >= _MOST_TERMINALS:
            raise RpcError(f"more than {_MOST_TERMINALS} terminals are open")
        # Some agents send a whole command line as the command.
        argv = [command, *arguments] if arguments or " " not in command else ["sh", "-c", command]
        cwd = text_at(params, "cwd")
        await self._require(action_of_terminal(argv, cwd))
        name = f"terminal-{next(self._numbers)}"
        environment = {text_at(each, "name"): text_at(each, "value") for each in objects_at(params, "env")}
        await self.connection.order(
            "terminal_create",
            terminal=name,
            argv=argv,
            cwd=cwd,
            environment={name: value for name, value in environment.items() if name},
            limit=count_at(params, "outputByteLimit"),
        )
        self._terminals.add(name)
        return {"terminalId": name}

    async def _ask_person(self, params: Mapping[str, Any]) -> Any:
        """Ask a person the agent's questions, one for each field of its form."""
        fields = fields_of(params)
        if not fields:
            return {"action": "decline"}
        content: dict[str, Any] = {}
        for each in fields:
            text = "\n".join(filter(None, (text_at(params, "message"), each.text)))
            name = f"elicitation/{hashlib.sha256(f'{text}/{each.name}'.encode()).hexdigest()[:16]}"
            answer = read_answer(each, await self._context.ask(name, text, each.options))
            if answer is None:
                return {"action": "decline"}
            content[each.name] = answer
        return {"action": "accept", "content": content}


def _absolute_path(params: Mapping[str, Any]) -> str:
    path = text_at(params, "path")
    if not path.startswith("/"):
        raise RpcError(f"{path[:100]!r} is not an absolute path", number=INVALID_PARAMS)
    return path
