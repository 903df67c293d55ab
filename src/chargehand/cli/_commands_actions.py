"""`chargehand git …` and `chargehand action …`, as they are declared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from chargehand.cli.options import json_option, repo_option, time_option

_F = TypeVar("_F", bound=Callable[..., Any])


def _action_options(function: _F) -> _F:
    detach = click.option("--detach", is_flag=True, help="Return the action's id at once.")
    return detach(time_option(json_option(function)))


def _mission_option(function: _F) -> _F:
    return click.option("--mission", required=True, metavar="MISSION", help="The mission it is about.")(function)


@click.group()
def git() -> None:
    """Bring branches in and out, merge and rebase what a mission left.

    Each is an action: it has an id, is ended after `actions.time` (60 s), and waits where too many run. Your own
    repository is only read; git runs without its hooks, filters and programs.
    """


@git.command()
@click.argument("remote", default="origin")
@repo_option
@_action_options
def fetch(remote: str, repo: Path | None, **options: Any) -> int:
    """Fetch the branches of a remote into the project's depot, as REMOTE/BRANCH."""
    from chargehand.cli._actions import fetch

    return fetch(remote, repo=repo, **options)


@git.command()
@click.argument("tip", required=False)
@_mission_option
@click.option("-m", "--message", metavar="TEXT", help="The message of the merge.")
@_action_options
def merge(tip: str | None, mission: str, message: str | None, **options: Any) -> int:
    """Merge a tip into what a mission left.

    TIP is REMOTE/BRANCH as it was fetched, or a commit of the repository; by default the branch that the mission
    started from, as it is now. Conflicts change nothing and are told hunk by hunk. What comes of it has no
    verdict: `chargehand mission promote` judges it and lets it out.
    """
    from chargehand.cli._actions import merge

    return merge("merge", tip, mission=mission, message=message, **options)


@git.command()
@click.argument("tip", required=False)
@_mission_option
@_action_options
def rebase(tip: str | None, mission: str, **options: Any) -> int:
    """Make what a mission left anew on a tip, checkpoint by checkpoint.

    As `merge`, for missions that have promoted nothing: a promoted branch never moves back.
    """
    from chargehand.cli._actions import merge

    return merge("rebase", tip, mission=mission, message=None, **options)


@git.command()
@_mission_option
@click.option("-m", "--message", required=True, metavar="TEXT", help="What the change is.")
@_action_options
def commit(mission: str, message: str, **options: Any) -> int:
    """Give what a mission left a message, which its promotion takes."""
    from chargehand.cli._actions import commit

    return commit(message, mission=mission, **options)


@git.command()
@click.argument("remote", default="origin")
@_mission_option
@click.option("--branch", metavar="NAME", help="Its name on the remote (default: as it was exported).")
@click.option("--force", is_flag=True, help="Overwrite what is there; a person has to say yes to exactly that.")
@click.option("--delete", is_flag=True, help="Remove the branch there; a person has to say yes to exactly that.")
@click.option("--yes", is_flag=True, help="Ask nothing here: what needs a word waits for `action answer`.")
@_action_options
def push(remote: str, **options: Any) -> int:
    """Push a promoted branch to a remote.

    What overwrites or removes anything asks on a terminal; in a pipe it exits 3 and waits for
    `chargehand action answer ID yes`. Only a rule of your own policy grants it ahead: `policy allow action-force`.
    """
    from chargehand.cli._actions import push

    return push(remote, **options)


@click.command("format")
@click.argument("paths", nargs=-1, metavar="[PATH]…")
@repo_option
@click.option("--mission", metavar="MISSION", help="Format what this mission left, as a new checkpoint.")
@click.option("--check", is_flag=True, help="Only look: exit 1 where a file would change.")
@click.option("--staged", is_flag=True, help="Only files that are staged for the next commit.")
@click.option("--apply", is_flag=True, help="Write into your files, those that are as they were staged.")
@time_option
@json_option
def format_(as_json: bool, **options: Any) -> int:
    """Run the formatters that the project's configuration names, in a sandbox.

    On what is in the index (what a commit would hold), or what a mission left; your own files change with --apply
    alone. Exits 1 where --check finds a file that would change, 2 where a formatter failed or is not there.
    """
    from chargehand.cli._format import FormatOptions, format_files
    from chargehand.cli.output import Output

    return format_files(Output(as_json=as_json), FormatOptions(**options))


@click.group()
def action() -> None:
    """Look at actions (`git …`, `exec --detach`), cancel them, answer what they ask.

    ACTION is an id, its beginning or its end, or 'last' for the newest one.
    """


@action.command("list")
@click.option("--running", is_flag=True, help="Only those that have not ended.")
@json_option
def list_(running: bool, as_json: bool) -> int:
    """List actions, the oldest first."""
    from chargehand.cli._action_view import list_actions
    from chargehand.cli.output import Output

    return list_actions(Output(as_json=as_json), running=running)


@action.command()
@click.argument("action", default="last")
@json_option
def show(action: str, as_json: bool) -> int:
    """Show an action: what it does, how it stands and why, what came of it."""
    from chargehand.cli._action_view import show_action
    from chargehand.cli.output import Output

    return show_action(Output(as_json=as_json), action)


@action.command()
@click.argument("action", default="last")
@click.option("--follow", is_flag=True, help="Go on until it has ended.")
@json_option
def log(action: str, follow: bool, as_json: bool) -> int:
    """Show what an action printed."""
    from chargehand.cli._action_view import show_output
    from chargehand.cli.output import Output

    return show_output(Output(as_json=as_json), action, follow=follow)


@action.command()
@click.argument("action", metavar="ACTION")
@json_option
def cancel(action: str, as_json: bool) -> int:
    """End an action, with all that it started."""
    from chargehand.cli._action_view import cancel_action
    from chargehand.cli.output import Output

    return cancel_action(Output(as_json=as_json), action)


@action.command()
@click.argument("action", metavar="ACTION")
@click.argument("answer", type=click.Choice(["yes", "no"]))
@click.option("--detach", is_flag=True, help="Let it go on by itself.")
@json_option
def answer(action: str, answer: str, detach: bool, as_json: bool) -> int:
    """Answer what an action asks; with yes it goes on, for exactly what it asked, once."""
    from chargehand.cli._actions import answer as answer_action
    from chargehand.cli.output import Output

    return answer_action(Output(as_json=as_json), action, yes=answer == "yes", detach=detach)


@action.command(hidden=True)
@click.argument("action", metavar="ACTION")
@click.option("--lock", type=int, required=True, hidden=True, help="The locked file that makes this its owner.")
@json_option
def run(action: str, lock: int, as_json: bool) -> int:
    """Run an action that another process made and handed on; not to be called by hand."""
    from chargehand.cli._actions import run_handed_on

    return run_handed_on(action, lock)
