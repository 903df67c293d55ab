"""What an agent's own program is: started inside a sandbox, asked for its version or greeted by ACP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chargehand.agents._acp import Run, greet, started
from chargehand.agents._acp_wire import METHOD_NOT_FOUND, AcpError, Wire
from chargehand.agents._cli import write_files
from chargehand.agents._cli_specs import SPECS, CliSpec, Launch
from chargehand.agents._look import inner, objects_at, text_at
from chargehand.core.config import AgentConfig
from chargehand.sandbox.contract import Converses, Sandbox

_SECONDS = 30.0
_VERSION = re.compile(r"\d+(?:\.\d+)+(?:[-+.\w]*\w)?")
_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSeen:
    """What a program said of itself; `problem` says why it cannot work, "" where it can.

    `tried` is the version that it was driven with, "" where that is not known; `logins` are its ways to log in,
    of which none is needed behind the gateway.
    """

    version: str = ""
    tried: str = ""
    name: str = ""
    logins: tuple[str, ...] = ()
    problem: str = ""

    def words(self) -> str:
        """Return it as a person reads it."""
        if self.problem:
            return self.problem
        tried = "" if self.tried in ("", self.version) else f", tried with {self.tried}"
        return " ".join(filter(None, (self.name, self.version or "of unknown version"))) + tried


async def see_agent(config: AgentConfig, sandbox: Sandbox) -> AgentSeen:
    """Start the program of a `cli` or `acp` agent in an open sandbox and ask what it is; takes seconds."""
    spec = SPECS[config.cli] if config.cli is not None else None
    if spec is not None and spec.outside and not config.command:
        return AgentSeen(problem=f"{spec.name} cannot be driven: {spec.outside}")
    if config.kind == "acp":
        return await _greeted(config, spec, sandbox)
    assert spec is not None
    program = config.command or (spec.program,)
    said = await sandbox.exec([*program, "--version"], timeout=_SECONDS, cwd="/")
    lines = [line for line in (said.stdout + said.stderr).decode(errors="replace").splitlines() if line.strip()]
    if said.exit_code != 0:
        why = "it took too long" if said.timed_out else lines[-1][:_LONGEST] if lines else f"exit {said.exit_code}"
        return AgentSeen(problem=f"{program[0]!r} does not start inside the sandbox: {why}")
    found = next((match[0] for line in lines if (match := _VERSION.search(line))), "")
    return AgentSeen(name=spec.name, version=found, tried=spec.tried)


async def _greeted(config: AgentConfig, spec: CliSpec | None, sandbox: Sandbox) -> AgentSeen:
    if not isinstance(sandbox, Converses):
        return AgentSeen(problem=f"sandboxes of tier {sandbox.tier!r} cannot talk with a running program")
    program = config.command or ((spec.program, *(spec.acp or ())) if spec is not None else ())
    if spec is not None and spec.acp is None and not config.command:
        return AgentSeen(problem=f"{spec.name} does not speak ACP by itself")
    environment: Mapping[str, str] = {}
    if spec is not None:
        launch = Launch(prompt="", model="none", dialect=(*spec.dialects, "")[0], token="none", asks=True)
        environment = spec.environment(launch)
        await write_files(sandbox, spec.files(launch))
    wire, run = Wire(_unknown, _unheard), Run()
    async with started(sandbox, None, program, wire, environment, _SECONDS, run) as running:
        greeting = asyncio.ensure_future(greet(wire))
        waited: list[asyncio.Future[Any]] = [running, greeting]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not greeting.done():
            greeting.cancel()
            last = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return AgentSeen(problem=f"{program[0]!r} ended before it greeted: {''.join(last)[:_LONGEST]}")
        try:
            hello = greeting.result()
        except AcpError as error:
            return AgentSeen(problem=f"{program[0]!r}: {error.message}")
    about = inner(hello, "agentInfo")
    return AgentSeen(
        name=text_at(about, "title", "name")[:_LONGEST] or program[0],
        version=text_at(about, "version")[:_LONGEST],
        tried=spec.tried if spec is not None else "",
        logins=tuple(text_at(each, "id")[:_LONGEST] for each in objects_at(hello, "authMethods")),
    )


async def _unknown(method: str, params: Mapping[str, Any]) -> Any:
    raise AcpError(f"not while it is greeted: {method[:100]}", number=METHOD_NOT_FOUND)


def _unheard(method: str, params: Mapping[str, Any]) -> None:
    """Nothing that is told before a session matters."""
