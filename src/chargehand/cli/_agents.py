"""`chargehand agent …`."""

from __future__ import annotations

import asyncio
import functools
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from chargehand.agents._cli_specs import SPECS
from chargehand.agents.opening import abilities_of
from chargehand.app.composition import App
from chargehand.app.config.records import ResolvedConfig
from chargehand.app.providers.probe import probe_model
from chargehand.app.providers.served import model_config
from chargehand.app.selection.agents import NATIVE, named_agent, probe_agent
from chargehand.app.selection.choice import choose_agent, programs_on_path
from chargehand.cli._configuration import configuration_here
from chargehand.cli._models import probe_words
from chargehand.cli._output import Output
from chargehand.core.config import AgentConfig
from chargehand.core.errors import ChargehandError


def list_agents(out: Output, *, repo: Path | None) -> int:
    """Write the agents that are there, where each comes from, and what else is installed."""
    with App.open() as app:
        resolved = configuration_here(app, repo)
        programs = programs_on_path(_which(app.environ))
    agents = [_document(resolved, name) for name in _names(resolved)]
    found = [{"name": name, "path": path, "driven": how != ""} for name, path, how in ways_of(programs)]
    out.document({"agents": agents, "found": found})
    rows = [
        (name, agent.kind, _works_with(agent), _origin(resolved, name))
        for name in _names(resolved)
        for agent in (named_agent(resolved, name),)
    ]
    out.table(("NAME", "KIND", "WORKS WITH", "FROM"), rows)
    for name, path, how in ways_of(programs):
        out.text(installed_words(name, path, how))
    if not resolved.config.agents:
        out.text('keep one with  chargehand config set agents.NAME.command \'["PROGRAM", "ARG"]\'')
        out.text('or name one for a run with  --agent "command:PROGRAM ARG"')
    return 0


def ways_of(programs: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return programs with their paths and what to write after --agent, "" for one that cannot be driven."""
    ways = {spec.program: "" if spec.outside else f"cli:{spec.name}" for spec in SPECS.values()}
    return [(name, path, ways.get(name, "")) for name, path in programs.items()]


def installed_words(name: str, path: str, how: str) -> str:
    """Return what people are told of an agent that is installed."""
    return f"{name} is installed ({path}): " + (f"--agent {how} with --model" if how else "it cannot be driven")


def _names(resolved: ResolvedConfig) -> list[str]:
    return sorted({*resolved.config.agents, NATIVE})


def _document(resolved: ResolvedConfig, name: str) -> dict[str, object]:
    agent = named_agent(resolved, name)
    return {
        "name": name,
        "kind": agent.kind,
        "cli": agent.cli,
        "command": agent.command,
        "model": agent.model,
        "fallback": agent.fallback,
        "acknowledge": abilities_of(agent.kind).acknowledges,
        "mcp": agent.mcp,
        "origin": _origin(resolved, name),
    }


def _origin(resolved: ResolvedConfig, name: str) -> str:
    if name not in resolved.config.agents:
        return "built in"
    said = (resolved.origins.get(f"agents.{name}.{field}", "default") for field in ("command", "kind", "model"))
    return next((origin for origin in said if origin != "default"), "")


def _works_with(agent: AgentConfig) -> str:
    if agent.kind == NATIVE:
        return " then ".join((agent.model or "the model that is found first", *agent.fallback))
    program = shlex.join(agent.command) or agent.cli or agent.patch or "the request"
    return program + (f" and {agent.model}" if agent.model else "")


def _which(environ: Mapping[str, str]) -> functools.partial[str | None]:
    return functools.partial(shutil.which, path=environ.get("PATH"))


def probe_agents(out: Output, name: str | None, *, repo: Path | None) -> int:
    """Try one agent or all, and write how each did."""
    with App.open() as app:
        resolved = configuration_here(app, repo)
        probes = [_probe(app, out, resolved, each) for each in ([name] if name else _names(resolved))]
    documents = [
        {"name": name, "fine": fine, "found": said, "acknowledge": _acknowledges(resolved, name)}
        for name, fine, said in probes
    ]
    out.document({"agents": documents})
    for each, fine, said in probes:
        out.text(f"{each}: {'' if fine else 'cannot work: '}{said}")
        if not _acknowledges(resolved, each):
            out.text("  it acknowledges nothing: a critical message freezes it, and you decide")
    return 0 if all(fine for _, fine, _ in probes) else 1


def _acknowledges(resolved: ResolvedConfig, name: str) -> bool:
    return abilities_of(named_agent(resolved, name).kind).acknowledges


def _probe(app: App, out: Output, resolved: ResolvedConfig, name: str) -> tuple[str, bool, str]:
    agent = named_agent(resolved, name)
    if agent.kind == "patch":
        return name, True, "it applies a patch"
    if agent.kind in ("cli", "acp"):
        return (name, *_probe_started(app, out, resolved, agent))
    if agent.kind != NATIVE:
        return (name, *_probe_program(app, resolved, agent))
    try:
        choice = choose_agent(resolved.config, app.environ, app.credentials, agent=name, which=_which(app.environ))
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


def _probe_started(app: App, out: Output, resolved: ResolvedConfig, agent: AgentConfig) -> tuple[bool, str]:
    """Return whether an agent's program starts inside a sandbox, and what it says it is."""
    program = agent.command[0] if agent.command else SPECS[agent.cli].program if agent.cli else ""
    if app.toolchain(resolved).find(program) is None:
        return _probe_program(app, resolved, replace(agent, command=(program,)))
    out.notice(f"starting {program} …")
    try:
        seen = asyncio.run(probe_agent(agent, app.toolchain(resolved), scratch=app.home))
    except ChargehandError as error:
        return False, error.message
    return not seen.problem, seen.words()


def _probe_program(app: App, resolved: ResolvedConfig, agent: AgentConfig) -> tuple[bool, str]:
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
