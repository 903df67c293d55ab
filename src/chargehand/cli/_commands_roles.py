"""`chargehand role …`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli.options import complete_roles, json_option, repo_option


@click.group()
def role() -> None:
    """Look at the roles that agents can be given: what they are told, and what they may do."""


@role.command("list")
@repo_option
@json_option
def list_roles(repo: Path | None, as_json: bool) -> int:
    """List the roles that can be named after --role, where each comes from, and what is wrong with a file.

    The exit code is 1 where a file is wrong; the other roles work all the same.
    """
    from chargehand.cli._roles import list_roles
    from chargehand.cli.output import Output

    return list_roles(Output(as_json=as_json), repo=repo)


@role.command("show")
@click.argument("name", shell_complete=complete_roles)
@repo_option
@json_option
def show_role(name: str, repo: Path | None, as_json: bool) -> int:
    """Show one role: its prompt, its tools, where it may write, and who works in it."""
    from chargehand.cli._roles import show_role
    from chargehand.cli.output import Output

    return show_role(Output(as_json=as_json), name, repo=repo)


@role.command("path")
@click.argument("name", required=False, shell_complete=complete_roles)
@repo_option
@json_option
def role_path(name: str | None, repo: Path | None, as_json: bool) -> int:
    """Print where your own roles lie, or with NAME the file that is in force for that role.

    \b
    Example:
      chargehand role show developer > "$(chargehand role path)/developer.toml"
    """
    from chargehand.cli._roles import role_path
    from chargehand.cli.output import Output

    return role_path(Output(as_json=as_json), name, repo=repo)
