"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

PROGRAM = "chargehand"
_F = TypeVar("_F", bound=Callable[..., Any])


def json_wanted(words: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON; what follows `--` belongs to another program."""
    # Words alone, as click has parsed nothing yet: a `--json` that is a value costs only the form of an error.
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def json_option(function: _F) -> _F:
    """Add `--json`, also taken before the command's name; the command gets an `Output` as its argument `out`."""

    def open_output(context: click.Context, parameter: click.Parameter, value: bool) -> Output | None:
        if context.resilient_parsing:  # a shell completes a word: it waits, and nothing will be written
            return None
        from chargehand.cli.terminal.output import Output

        return Output(as_json=value or bool(context.find_root().params.get("as_json")))

    return click.option(
        "--json", "out", is_flag=True, callback=open_output, help="Print JSON on stdout and nothing else."
    )(function)


def repo_option(function: _F) -> _F:
    """Add `--repo`."""
    return click.option(
        "--repo",
        type=click.Path(path_type=Path),
        help="The repository to work on (default: the one you are in).",
    )(function)


def base_option(function: _F) -> _F:
    """Add `--base`."""
    return click.option("--base", metavar="REV", help="The commit, branch or tag to start from (default: HEAD).")(
        function
    )


def time_option(function: _F) -> _F:
    """Add `--time`."""
    return click.option("--time", metavar="DURATION", help="At most this long, such as 90s, 30m or 1h30m.")(
        function
    )


def mission_argument(function: _F) -> _F:
    """Add a mission that is the newest one when not named."""
    return click.argument("mission", metavar="[MISSION]", default="last")(function)


def named_mission_argument(function: _F) -> _F:
    """Add a mission that has to be named: what changes one does not guess."""
    return click.argument("mission", metavar="MISSION")(function)


def complete_roles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the roles that a name begun so may mean: those that are shipped and the person's own."""
    import os

    from chargehand.app.agents import role_names

    return [name for name in role_names(os.environ) if name.startswith(incomplete)]


def role_option(function: _F) -> _F:
    """Add `--role`."""
    return click.option(
        "--role",
        metavar="NAME",
        help="The role to work in; `chargehand role list` names them (default: developer).",
        shell_complete=complete_roles,
    )(function)
