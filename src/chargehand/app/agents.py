"""Agents and roles: their lists, abilities, probes and assignments."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from chargehand.agents.clis import SPECS
from chargehand.agents.kinds import AGENTS
from chargehand.agents.roles import Role
from chargehand.app.models import describe_probe
from chargehand.app.providers.probe import probe_model
from chargehand.app.providers.served import existing_keys, model_config
from chargehand.app.selection.agents import NATIVE, named_agent, probe_agent
from chargehand.app.selection.choice import (
    DEFAULT_ROLE,
    RoleSetting,
    choose_for_request,
    programs_on_path,
    role_settings,
)
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.app.selection.teams import team_files, user_teams_path
from chargehand.configuration.records import ResolvedConfig
from chargehand.core.config import AgentConfig
from chargehand.core.errors import ChargehandError, ConfigError
from chargehand.missions.plan_documents import Team

if TYPE_CHECKING:
    from chargehand.app.composition import App


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An agent for `--agent`; `acknowledge`: it confirms that it read a critical message."""

    name: str
    kind: str
    cli: str | None
    command: tuple[str, ...]
    model: str | None
    fallback: tuple[str, ...]
    acknowledge: bool
    mcp: tuple[str, ...]
    origin: str


class InstalledProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A coding agent found on PATH; `driven`: Chargehand knows how to run it."""

    name: str
    path: str
    driven: bool


class AgentList(msgspec.Struct, frozen=True, kw_only=True):
    """The available agents, and other installed coding agents."""

    agents: tuple[AgentEntry, ...]
    found: tuple[InstalledProgram, ...]


class AgentProbe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an agent can work, and the details in words."""

    name: str
    fine: bool
    found: str
    acknowledge: bool


class AgentProbes(msgspec.Struct, frozen=True, kw_only=True):
    """Whether each agent can work."""

    agents: tuple[AgentProbe, ...]


def list_agents(app: App, repo: Path | None) -> AgentList:
    """Return the agents available in a repository, or outside any repository, and those installed on PATH."""
    resolved = app.preparation.configuration_here(repo)
    entries = []
    for name in _agent_names(resolved):
        agent = named_agent(resolved.config, name)
        origin = "built in"
        if name in resolved.config.agents:
            said = (
                resolved.origins.get(f"agents.{name}.{field}", "default") for field in ("command", "kind", "model")
            )
            origin = next((each for each in said if each != "default"), "")
        entries.append(
            AgentEntry(
                name=name,
                kind=agent.kind,
                cli=agent.cli,
                command=agent.command,
                model=agent.model,
                fallback=agent.fallback,
                acknowledge=AGENTS.find(agent.kind).abilities.acknowledges,
                mcp=agent.mcp,
                origin=origin,
            )
        )
    return AgentList(agents=tuple(entries), found=installed_programs(app.environ))


def _agent_names(resolved: ResolvedConfig) -> list[str]:
    return sorted({*resolved.config.agents, NATIVE})


def _which(environ: Mapping[str, str]) -> functools.partial[str | None]:
    return functools.partial(shutil.which, path=environ.get("PATH"))


def installed_programs(environ: Mapping[str, str]) -> tuple[InstalledProgram, ...]:
    """Return the known coding agents on PATH."""
    found = programs_on_path(_which(environ))
    return tuple(
        InstalledProgram(name=name, path=path, driven=bool(agent_option(name))) for name, path in found.items()
    )


def agent_option(program: str) -> str:
    """Return the `--agent` value for an installed program, such as `cli:claude`; "" if it has none."""
    built_in = (SPECS.find(name) for name in SPECS.built_in())
    ways = {spec.program: "" if spec.outside else f"cli:{spec.name}" for spec in built_in}
    return ways.get(program, "")


async def probe_agents(
    app: App, name: str | None, repo: Path | None, *, asking: Callable[[str], None] = lambda what: None
) -> AgentProbes:
    """Return whether one agent, or each, can work: its program starts in a sandbox, or its model answers.

    `asking` is called with a text before each step that takes a while. Raises `NotFoundError`, `ConfigError` for a
    bad name.
    """
    resolved = app.preparation.configuration_here(repo)
    probes = []
    for each in [name] if name else _agent_names(resolved):
        agent = named_agent(resolved.config, each)
        if agent.kind == "patch":
            fine, found = True, "applies a patch"
        elif agent.kind in ("cli", "acp"):
            fine, found = await _probe_in_sandbox(app, resolved, agent, asking)
        elif agent.kind == NATIVE:
            fine, found = await _probe_native(app, resolved, each, asking)
        else:
            fine, found = _probe_program(app, resolved, agent)
        acknowledges = AGENTS.find(agent.kind).abilities.acknowledges
        probes.append(AgentProbe(name=each, fine=fine, found=found, acknowledge=acknowledges))
    return AgentProbes(agents=tuple(probes))


async def _probe_native(
    app: App, resolved: ResolvedConfig, name: str, asking: Callable[[str], None]
) -> tuple[bool, str]:
    """Return whether the model of a native agent answers, with details."""
    try:
        choice, _ = choose_for_request(
            resolved.config,
            app.environ,
            existing_keys(app.credentials),
            agent=name,
            which=_which(app.environ),
            decider=app.decider,
        )
    except ChargehandError as error:
        return False, error.message
    model = choice.model or ""
    asking(f"asking {model} …")
    probe = await probe_model(
        model,
        model_config(resolved.config, model),
        keys=existing_keys(app.credentials),
        limits=resolved.config.limits,
        environ=app.environ,
    )
    return probe.fine, describe_probe(probe)


async def _probe_in_sandbox(
    app: App, resolved: ResolvedConfig, agent: AgentConfig, asking: Callable[[str], None]
) -> tuple[bool, str]:
    """Return whether an agent's program starts inside a sandbox, with its version."""
    program = agent.command[0] if agent.command else SPECS[agent.cli].program if agent.cli else ""
    toolchain = app.preparation.toolchain(resolved)
    if toolchain.find(program) is None:
        return _probe_program(app, resolved, replace(agent, command=(program,)))
    asking(f"starting {program} …")
    try:
        seen = await probe_agent(agent, toolchain, scratch=app.home)
    except ChargehandError as error:
        return False, error.message
    return not seen.problem, seen.words()


def _probe_program(app: App, resolved: ResolvedConfig, agent: AgentConfig) -> tuple[bool, str]:
    """Return whether a sandbox finds an agent's program, and its path."""
    if not agent.command:
        return True, f"of the kind {agent.kind}: tried only by a mission"
    program = agent.command[0]
    if "/" in program and not program.startswith("/"):
        return True, f"{program} is looked up in the repository"
    place = app.preparation.toolchain(resolved).find(program)
    if place is None:
        hint = "; add its directory to sandbox.toolchain" if shutil.which(program) else ""
        return False, f"{program!r} is not found inside the sandbox{hint}"
    return True, place


class RoleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A role with its file's path and digest; `hides` are overridden files of the same name.

    `problem` describes an error in the file; then `role` is missing.
    """

    name: str
    level: str
    place: str
    digest: str
    trusted: bool
    hides: tuple[str, ...]
    problem: str | None
    role: Role | msgspec.UnsetType = msgspec.UNSET


class RoleList(msgspec.Struct, frozen=True, kw_only=True):
    """All roles, the directory of the user's roles, and configured names without a role."""

    roles: tuple[RoleEntry, ...]
    directory: str
    unknown: tuple[str, ...]


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """A role as it is in force; `works` lists the sources of its agent and model, the deciding one first."""

    name: str
    level: str
    place: str
    digest: str
    role: Role
    works: tuple[RoleSetting, ...]


class RolePath(msgspec.Struct, frozen=True, kw_only=True):
    """The directory of the user's own roles, or the file of one role."""

    path: str


def _roles_here(app: App, repo: Path | None) -> tuple[RoleCatalogue, ResolvedConfig]:
    if app.projects.current(repo) is None:
        return app.preparation.roles(), app.user_configuration()
    found = app.preparation.configured(repo, only_reads=True)
    return app.preparation.roles(found), found.resolved


def list_roles(app: App, repo: Path | None) -> RoleList:
    """Return the roles of a repository, or outside any repository, including those with an invalid file."""
    roles, resolved = _roles_here(app, repo)
    entries = tuple(
        RoleEntry(
            name=found.file.name,
            level=found.file.level,
            place=found.file.place,
            digest=found.file.digest,
            trusted=found.file.trusted,
            hides=tuple(file.place for file in found.hidden),
            problem=None if found.problem is None else found.problem.message,
            role=msgspec.UNSET if found.role is None else found.role,
        )
        for found in roles.all()
    )
    unknown = sorted(set(resolved.config.roles) - {each.name for each in entries} - {DEFAULT_ROLE})
    return RoleList(roles=entries, directory=str(roles.directory), unknown=tuple(unknown))


def show_role(app: App, name: str, repo: Path | None) -> tuple[RoleView, str]:
    """Return a role as it is in force, and the text of its file. Raises `NotFoundError`, `ConfigError`."""
    roles, resolved = _roles_here(app, repo)
    role, file = roles.find(name, resolved.config)
    works = role_settings(resolved.config, role)
    view = RoleView(name=role.name, level=file.level, place=file.place, digest=file.digest, role=role, works=works)
    return view, file.text()


def role_path(app: App, name: str | None, repo: Path | None) -> RolePath:
    """Return the directory of the user's roles, or the file of one role.

    Raises `ConfigError` (`role_shipped`) for a role without a file on this machine.
    """
    roles, resolved = _roles_here(app, repo)
    if name is None:
        return RolePath(path=str(roles.directory))
    _, file = roles.find(name, resolved.config)
    if file.level == "shipped":
        raise ConfigError(
            f"the role {name!r} is built in and has no file",
            code="role_shipped",
            hint=f"to make one: chargehand role show {name} > {roles.directory / name}.toml",
        )
    return RolePath(path=file.place)


class TeamEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A team for `--team`: `steps` are the roles that a request passes through, `members` their agents.

    `problem` describes an error in the file; then `team` is missing.
    """

    name: str
    shipped: bool
    place: str
    problem: str | None
    team: Team | msgspec.UnsetType = msgspec.UNSET


class TeamList(msgspec.Struct, frozen=True, kw_only=True):
    """All teams, and the directory of the user's teams."""

    teams: tuple[TeamEntry, ...]
    directory: str


def list_teams(environ: Mapping[str, str]) -> TeamList:
    """Return all teams, including those with an invalid file."""
    entries = []
    for found in team_files(environ).values():
        team, problem = None, None
        try:
            team = found.team()
        except ConfigError as error:
            problem = error.message
        entries.append(
            TeamEntry(
                name=found.name,
                shipped=found.shipped,
                place=found.place,
                problem=problem,
                team=msgspec.UNSET if team is None else team,
            )
        )
    return TeamList(teams=tuple(entries), directory=str(user_teams_path(environ)))


def role_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the roles outside any repository. Raises `ConfigError` for unreadable files."""
    return sorted({file.name for file in RoleCatalogue(environ).files()})


def team_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the teams, shipped ones and the user's."""
    return list(team_files(environ))
