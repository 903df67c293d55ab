"""`chargehand audit …` and `chargehand config …`, as they are declared."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from chargehand.cli.options import json_option, repo_option


@click.group()
def audit() -> None:
    """Prove that the log is what was written."""


@audit.command()
@click.argument("mission", required=False)
@click.option(
    "--head",
    type=click.File("rb"),
    metavar="FILE",
    help="Also hold against this signed head, such as a git note has (- for stdin).",
)
@click.option(
    "--export", type=click.File("rb"), metavar="FILE", help="Verify an exported file instead of the log here."
)
@json_option
def verify(mission: str | None, head: IO[bytes] | None, export: IO[bytes] | None, as_json: bool) -> int:
    """Check the chain of one mission, or of all; exits 1 and names the places where it is broken.

    \b
    Example, with the note of a promoted commit:
      git notes --ref chargehand show COMMIT | chargehand audit verify --head -
    """
    from chargehand.cli._audit import verify_log
    from chargehand.cli.output import Output

    return verify_log(Output(as_json=as_json), mission, head=head, export=export)


@audit.command("export")
@click.argument("mission", required=False)
@click.option("--all", "every", is_flag=True, help="Export all missions.")
@click.option("--output", type=click.Path(path_type=Path), help="Write to this new file (default: stdout).")
@json_option
def export_log(mission: str | None, every: bool, output: Path | None, as_json: bool) -> int:
    """Write events, signed heads and public key as JSON lines that verify with nothing else."""
    from chargehand.cli._audit import export_missions
    from chargehand.cli.output import Output

    return export_missions(Output(as_json=as_json), mission, every=every, output=output)


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
    from chargehand.cli.output import Output

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
    from chargehand.cli.output import Output

    return set_configuration(Output(as_json=as_json), key, value)
