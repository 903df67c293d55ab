"""`chargehand stats`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli.options import json_option, repo_option


@click.command()
@repo_option
@click.option("--all", "everywhere", is_flag=True, help="Of all projects, not of this repository alone.")
@click.option(
    "--since", metavar="WHEN", help="Only missions created since then: 7d, 12h, 30m, 2w or a date (UTC)."
)
@json_option
def stats(repo: Path | None, everywhere: bool, since: str | None, as_json: bool) -> int:
    """Show how missions end: rates, causes, times and cost.

    Of the repository one is in, outside of any of all projects. Missions that are not at their end yet count in no
    rate; what is not known is said so and never counted as 0.

    \b
    Example:
      chargehand stats --all --since 7d
    """
    from chargehand.cli._stats import show_stats
    from chargehand.cli.output import Output

    return show_stats(Output(as_json=as_json), repo=repo, everywhere=everywhere, since=since)
