"""`chargehand audit …` and `chargehand config …`, as they are declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli._options import json_option, repo_option


@click.group()
def audit() -> None:
    """Prove that the log is what was written."""


@audit.command()
@click.argument("mission", required=False)
@json_option
def verify(mission: str | None, as_json: bool) -> int:
    """Check the chain of one mission, or of all; exits 1 and names the places where it is broken."""
    from chargehand.cli._audit import verify_log
    from chargehand.cli._output import Output

    return verify_log(Output(as_json=as_json), mission)


@click.group()
def config() -> None:
    """See and set the configuration."""


@config.command("show")
@repo_option
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@json_option
def show_config(repo: Path | None, origin: bool, as_json: bool) -> int:
    """Show the configuration in force, here or in another repository."""
    from chargehand.cli._configuration import show_configuration
    from chargehand.cli._output import Output

    return show_configuration(Output(as_json=as_json), repo=repo, origin=origin)


@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@json_option
def set_config(key: str, value: str, as_json: bool) -> int:
    """Set a key in your own configuration file; lists as ["a", "b"] or a,b.

    \b
    Example:
      chargehand config set agents.linter.command '["ruff", "check", "--fix", "."]'
    """
    from chargehand.cli._configuration import set_configuration
    from chargehand.cli._output import Output

    return set_configuration(Output(as_json=as_json), key, value)
