"""`chargehand config`: the configuration in force, and changes to the user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

from chargehand.cli.terminal.options import json_option, repo_option


@click.group()
def config() -> None:
    """Show and change the configuration."""


@config.command()
@repo_option
@click.option("--origin", is_flag=True, help="Show the source of each value.")
@json_option
def show(repo: Path | None, origin: bool, out: Output) -> None:
    """Show the configuration in force here, or in another repository."""
    import msgspec

    from chargehand.app.composition import App
    from chargehand.app.configuration import format_setting, show_configuration

    with App.open() as app:
        shown = show_configuration(app, repo, with_origins=origin)
    out.document(shown)
    values = [(name, format_setting(name, value)) for name, value in shown.values.items()]
    if isinstance(shown.origins, msgspec.UnsetType):
        out.table(("KEY", "VALUE"), values)
    else:
        out.table(("KEY", "VALUE", "FROM"), [(*row, shown.origins.get(row[0], "")) for row in values])
    for key in shown.untrusted:
        out.text(f"not in force: {key.key} = {key.value} ({key.place}) {key.reason}; see chargehand project trust")
    for note in shown.notes:
        out.text(f"note: {note}")


# A value may begin with a dash: "-5" must be refused as a value, not as an unknown option.
@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@json_option
def set_(key: str, value: str, out: Output) -> None:
    """Set a key in your own configuration file. Write lists as ["a", "b"] or a,b.

    \b
    Example:
      chargehand config set agents.linter.command '["ruff", "check", "--fix"]'
    """
    from chargehand.app.configuration import set_configuration
    from chargehand.core.text import shown_path
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        changed = set_configuration(reader, key, value)
    out.document(changed)
    out.text(f"{key} is set in {shown_path(changed.path)}")
