"""`chargehand project …`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli.options import base_option, json_option, repo_option


@click.group()
def project() -> None:
    """Look at projects, prepare their environment, trust their configuration."""


@project.command("list")
@json_option
def list_projects(as_json: bool) -> int:
    """List the repositories that Chargehand has worked on."""
    from chargehand.cli._project import list_projects
    from chargehand.cli.output import Output

    return list_projects(Output(as_json=as_json))


@project.command()
@repo_option
@json_option
def show(repo: Path | None, as_json: bool) -> int:
    """Show a project: its base, its checks and setup, whether it is trusted."""
    from chargehand.cli._project import show_project
    from chargehand.cli.output import Output

    return show_project(Output(as_json=as_json), repo=repo)


@project.command()
@repo_option
@base_option
@json_option
def setup(repo: Path | None, base: str | None, as_json: bool) -> int:
    """Build the environment layer of a base now, so that the first mission need not."""
    from chargehand.cli._project import set_up
    from chargehand.cli.output import Output

    return set_up(Output(as_json=as_json), repo=repo, base=base)


@project.command()
@repo_option
@base_option
@click.option("--show", "only_show", is_flag=True, help="Only show what asks for trust.")
@click.option("--yes", is_flag=True, help="Trust it without being asked.")
@json_option
def trust(repo: Path | None, base: str | None, only_show: bool, yes: bool, as_json: bool) -> int:
    """Let a repository's chargehand.toml have what it asks for: this exact content, nothing later.

    In a pipe it needs --yes.
    """
    from chargehand.cli._project import trust
    from chargehand.cli.output import Output

    return trust(Output(as_json=as_json), repo=repo, base=base, only_show=only_show, yes=yes)


@project.command()
@repo_option
@json_option
def log(repo: Path | None, as_json: bool) -> int:
    """Show a project's own log: actions that belong to no mission."""
    from chargehand.cli.mission import show_project_log
    from chargehand.cli.output import Output

    return show_project_log(Output(as_json=as_json), repo=repo)


@project.group()
def hook() -> None:
    """A pre-commit hook in your repository that checks the format of what is staged."""


@hook.command("install")
@repo_option
@json_option
def install_hook(repo: Path | None, as_json: bool) -> int:
    """Write the hook, where git looks for hooks; one of somebody else is never changed."""
    from chargehand.cli._format import install
    from chargehand.cli.output import Output

    return install(Output(as_json=as_json), repo=repo)


@hook.command("remove")
@repo_option
@json_option
def remove_hook(repo: Path | None, as_json: bool) -> int:
    """Take the hook away; one of somebody else stays."""
    from chargehand.cli._format import remove
    from chargehand.cli.output import Output

    return remove(Output(as_json=as_json), repo=repo)
