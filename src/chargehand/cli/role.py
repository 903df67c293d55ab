"""`chargehand agent`, `role` and `team`: the agents, their instructions and permissions, and teams of roles."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import CommandGroup, complete_names, complete_roles, json_option, repo_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output


@click.group(cls=CommandGroup)
def role() -> None:
    """List the roles that agents can work in: their instructions, tools and permissions."""


@role.command("list")
@repo_option
@json_option
def list_(repo: Path | None, out: Output) -> int:
    """List the roles that --role accepts, the source of each, and errors in roles' files.

    Exits 1 if a file has an error; the other roles still work.
    """
    import msgspec

    from chargehand.app.agents import list_roles
    from chargehand.app.composition import App
    from chargehand.core.text import shown_path

    with App.open() as app:
        listed = list_roles(app, repo)
    out.document(listed)
    rows = []
    for each in listed.roles:
        origin = "built in" if each.level == "shipped" else shown_path(each.place)
        role = each.role
        if isinstance(role, msgspec.UnsetType):
            rows.append((each.name, "-", "-", origin, "(invalid file)"))
            continue
        writes = "no"
        if role.writes:
            writes = ", ".join(role.areas[:2]) + (", …" if len(role.areas) > 2 else "") if role.areas else "yes"
        rows.append((each.name, role.output, writes, origin, role.summary))
    out.table(("ROLE", "DELIVERS", "WRITES", "FROM", "SUMMARY"), rows)
    for each in listed.roles:
        if each.problem is not None:
            out.text(f"invalid: {each.problem} (details: chargehand role show {each.name})")
        if not each.trusted:
            out.text(f"not trusted: {each.place}; to trust it: chargehand project trust")
    for name in listed.unknown:
        out.text(f"[roles.{name}] is configured, but that role does not exist")
    return 1 if any(each.problem is not None for each in listed.roles) else 0


@role.command()
@click.argument("name", shell_complete=complete_roles)
@repo_option
@json_option
def show(name: str, repo: Path | None, out: Output) -> None:
    """Show one role: its instructions, its tools, the paths it may write, and which agent and model work in it.

    Prints the role's file itself, so that you can use it as a template.
    """
    from chargehand.app.agents import show_role
    from chargehand.app.composition import App
    from chargehand.core.text import shown_path

    with App.open() as app:
        shown, text = show_role(app, name, repo)
    out.document(shown)
    out.text(f"# {shown.name}: {shown_path(shown.place)}")
    for each in shown.works:
        out.text(f"# {each.where}: {' then '.join(filter(None, (each.agent, each.model, *each.fallback)))}")
    out.text(text.strip())


@role.command()
@click.argument("name", required=False, shell_complete=complete_roles)
@repo_option
@json_option
def path(name: str | None, repo: Path | None, out: Output) -> None:
    """Print the directory for your roles; with NAME, the file in force for that role.

    \b
    Example:
      chargehand role show developer > "$(chargehand role path)/developer.toml"
    """
    from chargehand.app.agents import role_path
    from chargehand.app.composition import App

    with App.open() as app:
        found = role_path(app, name, repo)
    out.document(found)
    out.text(found.path)


@click.group(cls=CommandGroup)
def team() -> None:
    """List the teams that a request can go through: roles in order, and who reviews whose results."""


@team.command("list")
@json_option
def list_teams(out: Output) -> int:
    """List the teams that `run --team` accepts, and errors in teams' files.

    Exits 1 if a file has an error; the other teams still work.
    """
    import msgspec

    from chargehand.app.agents import list_teams
    from chargehand.core.text import shown_path

    listed = list_teams(os.environ)
    out.document(listed)
    rows = []
    for each in listed.teams:
        origin = "built in" if each.shipped else shown_path(each.place)
        team = each.team
        if isinstance(team, msgspec.UnsetType):
            rows.append((each.name, "-", "-", origin, "(invalid file)"))
            continue
        reviewers = ", ".join(dict.fromkeys(role for member in team.members for role in member.reviewers))
        rows.append((each.name, ", ".join(team.steps), reviewers or "-", origin, team.summary))
    out.table(("TEAM", "STEPS", "REVIEWED BY", "FROM", "SUMMARY"), rows)
    for each in listed.teams:
        if each.problem is not None:
            out.text(f"invalid: {each.problem}")
    out.text(f"To make your own, write {listed.directory}/NAME.toml")
    return 1 if any(each.problem is not None for each in listed.teams) else 0


@click.group(cls=CommandGroup)
def agent() -> None:
    """List the agents that missions can use, and test them."""


@agent.command("list")
@repo_option
@json_option
def agent_list(repo: Path | None, out: Output) -> None:
    """List the agents that --agent accepts, and which other coding agents are installed."""
    from chargehand.app.agents import list_agents
    from chargehand.app.composition import App
    from chargehand.cli.terminal.prompts import installed_line

    with App.open() as app:
        listed = list_agents(app, repo)
    out.document(listed)
    rows = []
    for each in listed.agents:
        if each.kind == "native":
            runs = " then ".join((each.model or "the first model found", *each.fallback))
        else:
            runs = shlex.join(each.command) or each.cli or ("a patch" if each.kind == "patch" else "")
            runs += f" with {each.model}" if each.model else ""
        rows.append((each.name, each.kind, runs, each.origin))
    out.table(("NAME", "KIND", "RUNS", "FROM"), rows)
    for program in listed.found:
        out.text(installed_line(program))
    if all(each.origin == "built in" for each in listed.agents):
        out.text('To configure an agent:  chargehand config set agents.NAME.command \'["PROGRAM", "ARG"]\'')
        out.text('To use one for one run: chargehand run --agent "command:PROGRAM ARG" "TEXT"')


@agent.command("probe")
@click.argument("name", required=False, shell_complete=complete_names("agents"))
@repo_option
@json_option
def agent_probe(name: str | None, repo: Path | None, out: Output) -> int:
    """Check whether an agent can work: its program starts in a sandbox, or its model answers.

    Without NAME every agent is checked. Exits 1 if any of them cannot work.
    """
    from chargehand.app.agents import probe_agents
    from chargehand.app.composition import App
    from chargehand.cli.terminal.interrupt import run_loop

    with App.open() as app:
        probes = run_loop(lambda: probe_agents(app, name, repo, asking=out.notice))
    out.document(probes)
    for each in probes.agents:
        out.text(f"{each.name}: {'' if each.fine else 'cannot work: '}{each.found}")
        if not each.acknowledge:
            out.text('  After "mission send --critical" this agent stops until you decide.')
    return 0 if all(each.fine for each in probes.agents) else 1
