"""Our side of the Agent Client Protocol: what an agent asks of us, judged, and done inside its sandbox.

Version 1 of the protocol (https://agentclientprotocol.com, schema 1.19).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

from chargehand.agents._acp_acts import action_of_call, action_of_terminal
from chargehand.agents._acp_forms import Field, fields_of, read_answer
from chargehand.agents._acp_updates import Updates
from chargehand.agents._acp_wire import INVALID_PARAMS, METHOD_NOT_FOUND, AcpError, Wire
from chargehand.agents._contract import AttemptContext
from chargehand.agents._judged import refusal
from chargehand.agents._look import count_at, objects_at, text_at
from chargehand.policy.actions import Action, FileRead, FileWrite

CAPABILITIES: Mapping[str, Any] = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "elicitation": {"form": {}},
}
_MOST_TERMINALS = 32


class AcpClient:
    """Answers the requests of one agent; `updates` hears what it tells."""

    def __init__(self, context: AttemptContext, updates: Updates) -> None:
        self.wire = Wire(self._handle, updates.told)
        self._context = context
        self._updates = updates
        self._terminals: set[str] = set()
        self._numbers = itertools.count(1)
        self._methods = {
            "session/request_permission": self._permission,
            "fs/read_text_file": self._read,
            "fs/write_text_file": self._write,
            "terminal/create": self._create,
            "terminal/output": self._output,
            "terminal/wait_for_exit": self._wait,
            "terminal/kill": self._kill,
            "terminal/release": self._release,
            "elicitation/create": self._elicit,
        }

    async def _handle(self, method: str, params: Mapping[str, Any]) -> Any:
        if method not in self._methods:
            raise AcpError(f"no such method: {method[:100]}", number=METHOD_NOT_FOUND)
        return await self._methods[method](params)

    async def _judged(self, action: Action) -> str:
        """Return "" where an action is allowed, else why it is not; a person may be asked first."""
        # The same act has the same name in every run of an attempt: it finds the answer that ended the run before.
        name = f"act/{hashlib.sha256(repr(action).encode()).hexdigest()[:16]}"
        judgement = await self._context.judge(name, action)
        return "" if judgement.effect == "allow" else refusal(judgement)

    async def _must(self, action: Action) -> None:
        if refused := await self._judged(action):
            raise AcpError(refused)

    async def _permission(self, params: Mapping[str, Any]) -> Any:
        call = self._updates.merged(params)
        action = action_of_call(call)
        refused = await self._judged(action) if action is not None else ""
        options = {text_at(each, "kind"): text_at(each, "optionId") for each in objects_at(params, "options")}
        # Never "always": each act is judged by itself.
        chosen = options.get("reject_once" if refused else "allow_once") or (
            options.get("reject_always") if refused else ""
        )
        self._updates.permitted(text_at(call, "toolCallId"), refused)
        if not chosen:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    async def _read(self, params: Mapping[str, Any]) -> Any:
        path = _path(params)
        await self._must(FileRead(path=path))
        text = str((await self.wire.order("read", path=path)).get("text", ""))
        first, limit = count_at(params, "line"), count_at(params, "limit")
        if first is None and limit is None:
            return {"content": text}
        start = max(0, (first or 1) - 1)
        lines = text.splitlines(keepends=True)[start:]
        return {"content": "".join(lines if limit is None else lines[:limit])}

    async def _write(self, params: Mapping[str, Any]) -> Any:
        path, text = _path(params), params.get("content")
        if not isinstance(text, str):
            raise AcpError("content is no text", number=INVALID_PARAMS)
        await self._must(FileWrite(path=path))
        await self.wire.order("write", path=path, text=text)
        return None

    async def _create(self, params: Mapping[str, Any]) -> Any:
        command, arguments = text_at(params, "command"), params.get("args") or []
        if not command or not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
            raise AcpError("command or args are no texts", number=INVALID_PARAMS)
        if len(self._terminals) >= _MOST_TERMINALS:
            raise AcpError(f"more than {_MOST_TERMINALS} terminals are open")
        # Some agents send a whole command line as the command.
        argv = [command, *arguments] if arguments or " " not in command else ["sh", "-c", command]
        cwd = text_at(params, "cwd")
        await self._must(action_of_terminal(argv, cwd))
        name = f"terminal-{next(self._numbers)}"
        environment = {text_at(each, "name"): text_at(each, "value") for each in objects_at(params, "env")}
        await self.wire.order(
            "terminal_create",
            terminal=name,
            argv=argv,
            cwd=cwd,
            environment={name: value for name, value in environment.items() if name},
            limit=count_at(params, "outputByteLimit"),
        )
        self._terminals.add(name)
        return {"terminalId": name}

    def _terminal(self, params: Mapping[str, Any]) -> str:
        name = text_at(params, "terminalId")
        if name not in self._terminals:
            raise AcpError(f"no such terminal: {name[:100]!r}", number=INVALID_PARAMS)
        return name

    async def _output(self, params: Mapping[str, Any]) -> Any:
        return await self.wire.order("terminal_output", terminal=self._terminal(params))

    async def _wait(self, params: Mapping[str, Any]) -> Any:
        return await self.wire.order("terminal_wait", terminal=self._terminal(params))

    async def _kill(self, params: Mapping[str, Any]) -> Any:
        await self.wire.order("terminal_kill", terminal=self._terminal(params))

    async def _release(self, params: Mapping[str, Any]) -> Any:
        name = self._terminal(params)
        self._terminals.discard(name)
        await self.wire.order("terminal_release", terminal=name)

    async def _elicit(self, params: Mapping[str, Any]) -> Any:
        """Put what the agent wants to know to a person, one question for each field of its form."""
        fields = fields_of(params)
        if not fields:
            return {"action": "decline"}
        content: dict[str, Any] = {}
        for each in fields:
            answer = read_answer(each, await self._asked(text_at(params, "message"), each))
            if answer is None:
                return {"action": "decline"}
            content[each.name] = answer
        return {"action": "accept", "content": content}

    async def _asked(self, message: str, field: Field) -> str:
        text = "\n".join(filter(None, (message, field.text)))
        name = f"elicitation/{hashlib.sha256(f'{text}/{field.name}'.encode()).hexdigest()[:16]}"
        return await self._context.ask(name, text, field.options)


def _path(params: Mapping[str, Any]) -> str:
    path = text_at(params, "path")
    if not path.startswith("/"):
        raise AcpError(f"{path[:100]!r} is no absolute path", number=INVALID_PARAMS)
    return path
