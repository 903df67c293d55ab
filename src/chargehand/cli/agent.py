"""`chargehand agent`: the available agents, and whether each can work."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import CommandGroup, complete_names, json_option, repo_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output


@click.group(cls=CommandGroup)
def agent() -> None:
    """List the agents that missions can use, and test them."""


@agent.command("list")
@repo_option
@json_option
def list_(repo: Path | None, out: Output) -> None:
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


@agent.command()
@click.argument("name", required=False, shell_complete=complete_names("agents"))
@repo_option
@json_option
def probe(name: str | None, repo: Path | None, out: Output) -> int:
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
