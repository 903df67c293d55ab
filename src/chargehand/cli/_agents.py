"""`chargehand agent …`."""

from __future__ import annotations

import asyncio
import functools
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from chargehand.app import (
    NATIVE,
    App,
    Resolved,
    choose,
    model_config,
    named_agent,
    probe_model,
    programs_on_path,
)
from chargehand.cli._configuration import configuration_here
from chargehand.cli._models import probe_words
from chargehand.cli._output import Output
from chargehand.core import AgentConfig, ChargehandError


def list_agents(out: Output, *, repo: Path | None) -> int:
    """Write the agents that are there, where each comes from, and what is installed but not driven."""
    with App.open() as app:
        resolved = configuration_here(app, repo)
        programs = programs_on_path(_which(app.environ))
    agents = [_document(resolved, name) for name in _names(resolved)]
    undriven = [{"name": name, "path": path, "driven": False} for name, path in programs.items()]
    out.document({"agents": agents, "found": undriven})
    rows = [
        (name, agent.kind, _works_with(agent), _origin(resolved, name))
        for name in _names(resolved)
        for agent in (named_agent(resolved, name),)
    ]
    out.table(("NAME", "KIND", "WORKS WITH", "FROM"), rows)
    for name, path in programs.items():
        out.text(f"{name} is installed ({path}), but not driven yet")
    if not resolved.config.agents:
        out.text('keep one with  chargehand config set agents.NAME.command \'["PROGRAM", "ARG"]\'')
        out.text('or name one for a run with  --agent "command:PROGRAM ARG"')
    return 0


def _names(resolved: Resolved) -> list[str]:
    return sorted({*resolved.config.agents, NATIVE})


def _document(resolved: Resolved, name: str) -> dict[str, object]:
    agent = named_agent(resolved, name)
    return {
        "name": name,
        "kind": agent.kind,
        "command": agent.command,
        "model": agent.model,
        "fallback": agent.fallback,
        "origin": _origin(resolved, name),
    }


def _origin(resolved: Resolved, name: str) -> str:
    if name not in resolved.config.agents:
        return "built in"
    said = (resolved.origins.get(f"agents.{name}.{field}", "default") for field in ("command", "kind", "model"))
    return next((origin for origin in said if origin != "default"), "")


def _works_with(agent: AgentConfig) -> str:
    if agent.kind == NATIVE:
        return " then ".join((agent.model or "the model that is found first", *agent.fallback))
    return shlex.join(agent.command) + (f" and {agent.model}" if agent.model else "")


def _which(environ: Mapping[str, str]) -> functools.partial[str | None]:
    return functools.partial(shutil.which, path=environ.get("PATH"))


def probe_agents(out: Output, name: str | None, *, repo: Path | None) -> int:
    """Try one agent or all, and write how each did."""
    with App.open() as app:
        resolved = configuration_here(app, repo)
        probes = [_probe(app, out, resolved, each) for each in ([name] if name else _names(resolved))]
    documents = [{"name": name, "fine": fine, "found": said} for name, fine, said in probes]
    out.document({"agents": documents})
    for each, fine, said in probes:
        out.text(f"{each}: {'' if fine else 'cannot work: '}{said}")
    return 0 if all(fine for _, fine, _ in probes) else 1


def _probe(app: App, out: Output, resolved: Resolved, name: str) -> tuple[str, bool, str]:
    agent = named_agent(resolved, name)
    if agent.kind != NATIVE:
        return (name, *_probe_program(app, resolved, agent))
    try:
        choice = choose(resolved.config, app.environ, app.credentials, agent=name, which=_which(app.environ))
    except ChargehandError as error:
        return name, False, error.message
    model = choice.model or ""
    out.notice(f"asking {model} …")
    probe = asyncio.run(
        probe_model(
            model,
            model_config(resolved.config, model),
            keys=app.credentials,
            limits=resolved.config.limits,
            environ=app.environ,
        )
    )
    return name, probe.fine, f"{model}: {probe_words(probe)}"


def _probe_program(app: App, resolved: Resolved, agent: AgentConfig) -> tuple[bool, str]:
    """Return whether the sandbox will find an agent's program, and where."""
    program = agent.command[0]
    if "/" in program and not program.startswith("/"):
        return True, f"{program} is looked for in the repository"
    toolchain = app.toolchain(resolved)
    place = toolchain.find(program)
    if place is None:
        hint = "; name its directory in sandbox.toolchain" if shutil.which(program) else ""
        return False, f"{program!r} is not found inside the sandbox{hint}"
    return True, place
