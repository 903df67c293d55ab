"""`chargehand config`: the configuration in force, and changes to the user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

from chargehand.cli.terminal.options import CommandGroup, complete_keys, json_option, repo_option


@click.group(cls=CommandGroup)
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
@click.argument("key", shell_complete=complete_keys)
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


@config.command()
@click.argument("key", shell_complete=complete_keys)
@repo_option
@json_option
def get(key: str, repo: Path | None, out: Output) -> None:
    """Show the value of one key in force."""
    from chargehand.app.composition import App
    from chargehand.app.configuration import format_setting, get_configuration

    with App.open() as app:
        found = get_configuration(app, key, repo)
    out.document(found)
    out.text(format_setting(key, found.value))


@config.command()
@click.argument("key", shell_complete=complete_keys)
@json_option
def unset(key: str, out: Output) -> None:
    """Remove a key from your own configuration file, so that its default applies."""
    from chargehand.app.configuration import unset_configuration
    from chargehand.core.text import shown_path
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        done = unset_configuration(reader, key)
    out.document(done)
    out.text(f"{key} is {'no longer' if done.removed else 'not'} set in {shown_path(done.path)}")


@config.command("list")
@repo_option
@click.option("--all", "everything", is_flag=True, help="List every key that exists, with its meaning.")
@json_option
def list_(repo: Path | None, everything: bool, out: Output) -> None:
    """List the keys that are set, with the source of each."""
    from chargehand.app.composition import App
    from chargehand.app.configuration import format_setting, list_configuration, list_configuration_keys

    if everything:
        keys = list_configuration_keys()
        out.document(keys)
        rows = [(each.key, format_setting(each.key, each.default), each.meaning) for each in keys.keys]
        out.table(("KEY", "DEFAULT", "MEANING"), rows)
        return
    with App.open() as app:
        shown = list_configuration(app, repo)
    out.document(shown)
    origins = shown.origins if isinstance(shown.origins, dict) else {}
    rows = [(key, format_setting(key, value), origins.get(key, "")) for key, value in shown.values.items()]
    if rows:
        out.table(("KEY", "VALUE", "FROM"), rows)
    else:
        out.text("Nothing is set: every key has its default. `chargehand config list --all` lists them.")


@config.command()
@json_option
def path(out: Output) -> None:
    """Show the path of your own configuration file, which need not exist."""
    from chargehand.app.configuration import find_configuration
    from chargehand.core.text import shown_path
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = find_configuration(reader)
    out.document(found)
    out.text(shown_path(found.path))


@config.command()
@json_option
def edit(out: Output) -> None:
    """Change your own configuration file in your editor ($VISUAL, $EDITOR), and check it afterwards.

    A file with an error is not stored: you edit it again, or it stays as it was.
    """
    from chargehand.app.configuration import edit_configuration
    from chargehand.cli.terminal.prompts import confirm_another_edit, open_editor
    from chargehand.core.errors import UsageError
    from chargehand.core.text import shown_path
    from chargehand.reports.reading import StateReader

    if not out.can_ask:
        raise UsageError("an editor needs a terminal", hint="chargehand config set KEY VALUE")
    with StateReader.open() as reader:
        done = edit_configuration(reader, edit=open_editor, ask_again=confirm_another_edit)
    out.text(f"{shown_path(done.path)} is {'changed' if done.changed else 'as it was'}")
