"""`chargehand agent …`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli.options import json_option, repo_option


@click.group()
def agent() -> None:
    """Look at the agents that can be put to work, and try them."""


@agent.command("list")
@repo_option
@json_option
def list_agents(repo: Path | None, as_json: bool) -> int:
    """List the agents that can be named after --agent, where each comes from, and what else is installed."""
    from chargehand.cli._agents import list_agents
    from chargehand.cli.output import Output

    return list_agents(Output(as_json=as_json), repo=repo)


@agent.command("probe")
@click.argument("name", required=False)
@repo_option
@json_option
def probe_agents(name: str | None, repo: Path | None, as_json: bool) -> int:
    """See whether an agent can work: its program is found, or its model answers; without NAME every one.

    The exit code is 1 unless all is well.
    """
    from chargehand.cli._agents import probe_agents
    from chargehand.cli.output import Output

    return probe_agents(Output(as_json=as_json), name, repo=repo)
