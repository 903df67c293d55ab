"""Probes an agent's own program: starts it inside a sandbox and asks for its version, by option or by ACP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from chargehand.agents._json_rpc import METHOD_NOT_FOUND, RpcError, object_at, objects_at, text_at
from chargehand.agents.acp.agent import AcpRun, greet, running_agent
from chargehand.agents.acp.connection import AcpConnection
from chargehand.agents.clis import SPECS, CliLaunch, CliSpec
from chargehand.agents.programs.launching import write_files
from chargehand.core.config import AgentConfig
from chargehand.sandbox.contract import Converses, Sandbox

_SECONDS = 30.0
_VERSION = re.compile(r"\d+(?:\.\d+)+(?:[-+.\w]*\w)?")
_LONGEST = 200


class AgentIdentity(Struct, frozen=True, kw_only=True):
    """A program's self-description; `problem` says why it cannot work, "" if it can.

    `tried` is the version that it was tested with, "" if unknown; `logins` are its ways to log in, which are not
    needed behind the gateway.
    """

    version: str = ""
    tried: str = ""
    name: str = ""
    logins: tuple[str, ...] = ()
    problem: str = ""

    def words(self) -> str:
        """Return it as text for a person."""
        if self.problem:
            return self.problem
        tried = "" if self.tried in ("", self.version) else f", tried with {self.tried}"
        return " ".join(filter(None, (self.name, self.version or "of unknown version"))) + tried


async def identify_agent(config: AgentConfig, sandbox: Sandbox) -> AgentIdentity:
    """Start the program of a `cli` or `acp` agent in an open sandbox and identify it; takes seconds."""
    spec = SPECS[config.cli] if config.cli is not None else None
    if spec is not None and spec.outside and not config.command:
        return AgentIdentity(problem=f"{spec.name} cannot be driven: {spec.outside}")
    if config.kind == "acp":
        return await _probe_acp(config, spec, sandbox)
    assert spec is not None
    program = config.command or (spec.program,)
    # All of the known CLIs have this option, and it never calls a model.
    said = await sandbox.exec([*program, "--version"], timeout=_SECONDS, cwd="/")
    lines = [line for line in (said.stdout + said.stderr).decode(errors="replace").splitlines() if line.strip()]
    if said.exit_code != 0:
        why = "it took too long" if said.timed_out else lines[-1][:_LONGEST] if lines else f"exit {said.exit_code}"
        return AgentIdentity(problem=f"{program[0]!r} does not start inside the sandbox: {why}")
    found = next((match[0] for line in lines if (match := _VERSION.search(line))), "")
    return AgentIdentity(name=spec.name, version=found, tried=spec.tried)


async def _probe_acp(config: AgentConfig, spec: CliSpec | None, sandbox: Sandbox) -> AgentIdentity:
    if not isinstance(sandbox, Converses):
        return AgentIdentity(problem=f"sandboxes of tier {sandbox.tier!r} cannot talk with a running program")
    program = config.command or ((spec.program, *(spec.acp or ())) if spec is not None else ())
    if spec is not None and spec.acp is None and not config.command:
        return AgentIdentity(problem=f"{spec.name} does not speak ACP by itself")
    environment: Mapping[str, str] = {}
    # No model is called: the greeting comes before any session.
    if spec is not None:
        launch = CliLaunch(prompt="", model="none", dialect=(*spec.dialects, "")[0], token="none", asks=True)
        environment = spec.environment(launch)
        await write_files(sandbox, spec.files(launch))

    async def refuse(method: str, params: Mapping[str, Any]) -> Any:
        raise RpcError(f"not before a session is open: {method[:100]}", number=METHOD_NOT_FOUND)

    # Its notifications before a session do not matter.
    connection, run = AcpConnection(refuse, lambda method, params: None), AcpRun()
    async with running_agent(sandbox, None, program, connection, environment, _SECONDS, run) as running:
        greeting = asyncio.ensure_future(greet(connection))
        waited: list[asyncio.Future[Any]] = [running, greeting]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not greeting.done():
            greeting.cancel()
            last = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return AgentIdentity(problem=f"{program[0]!r} ended before it greeted: {''.join(last)[:_LONGEST]}")
        try:
            hello = greeting.result()
        except RpcError as error:
            return AgentIdentity(problem=f"{program[0]!r}: {error.message}")
    about = object_at(hello, "agentInfo")
    return AgentIdentity(
        name=text_at(about, "title", "name")[:_LONGEST] or program[0],
        version=text_at(about, "version")[:_LONGEST],
        tried=spec.tried if spec is not None else "",
        logins=tuple(text_at(each, "id")[:_LONGEST] for each in objects_at(hello, "authMethods")),
    )
