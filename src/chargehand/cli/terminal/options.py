"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

PROGRAM = "chargehand"
_F = TypeVar("_F", bound=Callable[..., Any])


def json_wanted(words: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON; what follows `--` belongs to another program."""
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _with_root(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    return value or bool(context.find_root().params.get("as_json"))


def json_option(function: _F) -> _F:
    """Add `--json`, which is also taken before the command's name."""
    return click.option(
        "--json", "as_json", is_flag=True, callback=_with_root, help="Print JSON on stdout and nothing else."
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
