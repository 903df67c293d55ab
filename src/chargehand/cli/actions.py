"""`chargehand git …` and `chargehand action …`: records actions, runs them, shows their output and their end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chargehand.cli.terminal.options import CommandGroup, json_option, repo_option, time_option

if TYPE_CHECKING:
    from chargehand.app.actions import Actions
    from chargehand.cli.terminal.output import Output
    from chargehand.core.actions import ActionKind, ActionState
    from chargehand.durable.actions import ActionLock, OutputLine

_F = TypeVar("_F", bound=Callable[..., Any])


def _action_options(function: _F) -> _F:
    detach = click.option("--detach", is_flag=True, help="Return the action's id at once.")
    return detach(time_option(json_option(function)))


def _mission_option(function: _F) -> _F:
    return click.option("--mission", required=True, metavar="MISSION", help="The mission it is about.")(function)


@click.group(cls=CommandGroup)
def git() -> None:
    """Fetch branches; merge, rebase, describe and push the results of missions.

    Each command is an action: it has an id, is stopped after `actions.time` (60 s), and waits while too many run.
    Your own repository is only read; git runs without its hooks, filters and programs.
    """


@git.command()
@click.argument("remote", default="origin")
@repo_option
@_action_options
def fetch(remote: str, repo: Path | None, out: Output, time: str | None, detach: bool) -> int:
    """Fetch the branches of a remote into the project's depot, as REMOTE/BRANCH."""
    from chargehand.app.actions import Actions
    from chargehand.app.composition import App

    with App.open() as app:
        actions = Actions(app)
        project = app.preparation.register_project(repo)
        # A fetch concerns the project alone: its events are in the project's own log.
        held = actions.begin("fetch", {"remote": remote}, project=project.id, limit=time, detached=detach)
        return run_action(actions, out, held, detach=detach)


@git.command()
@click.argument("tip", required=False)
@_mission_option
@click.option("-m", "--message", metavar="TEXT", help="The message of the merge.")
@_action_options
def merge(tip: str | None, mission: str, message: str | None, **options: Any) -> int:
    """Merge a tip into a mission's result.

    TIP is REMOTE/BRANCH as it was fetched, or a commit of the repository; by default the branch that the mission
    started from, as it is now. Conflicts change nothing and are shown hunk by hunk. The result has no verdict yet:
    `chargehand mission promote` checks and exports it.
    """
    arguments = {"tip": tip, **({"message": message} if message else {})}
    return _run_on_mission("merge", mission, arguments, **options)


@git.command()
@click.argument("tip", required=False)
@_mission_option
@_action_options
def rebase(tip: str | None, mission: str, **options: Any) -> int:
    """Replay a mission's result onto a tip, checkpoint by checkpoint.

    TIP is as for `merge`. Only for missions that have promoted nothing: a promoted branch never moves back.
    """
    return _run_on_mission("rebase", mission, {"tip": tip}, **options)


@git.command()
@_mission_option
@click.option("-m", "--message", required=True, metavar="TEXT", help="A description of the change.")
@_action_options
def commit(mission: str, message: str, **options: Any) -> int:
    """Set the commit message of a mission's result; its promotion uses it."""
    return _run_on_mission("commit", mission, {"message": message}, **options)


@git.command()
@click.argument("remote", default="origin")
@_mission_option
@click.option("--branch", metavar="NAME", help="Its name on the remote (default: as it was exported).")
@click.option("--force", is_flag=True, help="Overwrite the remote branch; a person must approve exactly that.")
@click.option("--delete", is_flag=True, help="Remove the branch there; a person must approve exactly that.")
@click.option("--yes", is_flag=True, help="Ask nothing here: approvals wait for `action answer`.")
@_action_options
def push(
    remote: str, mission: str, branch: str | None, force: bool, delete: bool, yes: bool, **options: Any
) -> int:
    """Push a promoted branch to a remote.

    A push that overwrites or removes anything asks on a terminal; in a pipe it exits 3 and waits for
    `chargehand action answer ID yes`. Only a rule in your own policy can approve it in advance:
    `policy allow action-force`.
    """
    from chargehand.core.errors import UsageError

    if force and delete:
        # Neither option implies the other: a person approves each by name, and one approval covers one operation.
        raise UsageError("--force and --delete were given", hint="--delete removes the branch wherever it is")
    arguments = {"remote": remote, "branch": branch, "force": force, "delete": delete}
    # `--yes` grants nothing: rules or a person decide whether a push may overwrite.
    return _run_on_mission("push", mission, arguments, ask=not yes, **options)


def _run_on_mission(
    kind: ActionKind,
    mission: str,
    arguments: dict[str, Any],
    *,
    out: Output,
    time: str | None,
    detach: bool,
    ask: bool = False,
) -> int:
    from chargehand.app.actions import Actions
    from chargehand.app.composition import App

    with App.open() as app:
        actions = Actions(app)
        # The full id: "last" may be another mission by the time a detached action runs.
        held = actions.begin(kind, arguments, mission=app.find_mission(mission), limit=time, detached=detach)
        return run_action(actions, out, held, detach=detach, ask=ask)


@click.group(cls=CommandGroup)
def action() -> None:
    """Show actions (`git …`, `exec --detach`), cancel them, answer their questions.

    ACTION is an id, its beginning or its end, or 'last' for the newest one.
    """


@action.command("list")
@click.option("--running", is_flag=True, help="Only those that have not ended.")
@json_option
def list_(running: bool, out: Output) -> None:
    """List actions, the oldest first."""
    from chargehand.app.actions import Actions, action_document
    from chargehand.app.composition import App

    with App.open() as app:
        states = Actions(app).all(running=running)
    out.document([action_document(state) for state in states])
    rows = [(state.id, state.kind or "", state.status, state.mission or "", _about(state)) for state in states]
    if not out.as_json:
        out.table(("ACTION", "KIND", "STATUS", "MISSION", ""), rows)


@action.command()
@click.argument("action", default="last")
@json_option
def show(action: str, out: Output) -> None:
    """Show an action: a description, its status and the reasons, its result."""
    from chargehand.app.actions import Actions, action_document
    from chargehand.app.composition import App

    with App.open() as app:
        actions = Actions(app)
        state = actions.state(actions.places.find(action))
    out.document(action_document(state))
    if out.as_json:
        return
    from chargehand.cli.terminal.output import local_time

    out.text(f"{state.id}  {state.kind}  {state.status}", bold=True)
    for key, value in (
        ("mission", state.mission),
        ("asked by", state.identity),
        ("created", local_time(state.created, seconds=True)),
    ):
        if value:
            out.text(f"{key:<9} {value}")
    out.text(f"{'about':<9} {_about(state)}")
    if state.seconds is not None:
        out.text(f"{'took':<9} {state.seconds:.1f} s of {state.limit_seconds:g} s")
    _show_reasons(out, state)


@action.command()
@click.argument("action", default="last")
@click.option("--follow", is_flag=True, help="Continue until it has ended.")
@json_option
def log(action: str, follow: bool, out: Output) -> int:
    """Show the output of an action."""
    from chargehand.app.actions import Actions
    from chargehand.app.composition import App

    with App.open() as app:
        actions = Actions(app)
        found = actions.places.find(action)
        if not follow:
            for line in actions.places.read(found)[0]:
                _show_line(out, found, line)
            return 0
        for line in actions.follow(found):
            _show_line(out, found, line)
            if out.closed:
                return 0
        return _show_end(out, actions.state(found))


@action.command()
@click.argument("action", metavar="ACTION")
@json_option
def cancel(action: str, out: Output) -> int:
    """Stop an action and all processes that it started."""
    from chargehand.app.actions import Actions, action_document
    from chargehand.app.composition import App
    from chargehand.core.actions import ACTION_ENDED
    from chargehand.core.errors import RefusedError

    with App.open() as app:
        actions = Actions(app)
        found = actions.places.find(action)
        state = actions.cancel_and_wait(found)
    out.document(action_document(state))
    out.text(f"action {found} is {state.status}")
    return 0 if state.status in ACTION_ENDED else RefusedError.exit_code


@action.command()
@click.argument("action", metavar="ACTION")
@click.argument("answer", type=click.Choice(["yes", "no"]))
@click.option("--detach", is_flag=True, help="Return at once; it runs in the background.")
@json_option
def answer(action: str, answer: str, detach: bool, out: Output) -> int:
    """Answer an action's question; 'yes' approves exactly that request, once."""
    from chargehand.app.actions import Actions
    from chargehand.app.composition import App

    with App.open() as app:
        actions = Actions(app)
        found = actions.places.find(action)
        # An approved action is returned locked: without an owner it would count as lost until it runs.
        held = actions.answer(found, yes=answer == "yes")
        # A "no" has ended the action.
        if held is None:
            return _show_end(out, actions.state(found))
        return run_action(actions, out, held, detach=detach)


@action.command(hidden=True)
@click.argument("action", metavar="ACTION")
@click.option(
    "--lock", type=int, required=True, hidden=True, help="The locked file that makes this process its owner."
)
@json_option
def run(action: str, lock: int, out: Output) -> int:
    """Run an action that another process recorded; started by Chargehand itself."""
    from chargehand.app.actions import Actions
    from chargehand.app.composition import App
    from chargehand.cli.terminal.interrupt import run_async

    with App.open() as app:
        actions = Actions(app)
        # flock(2) belongs to the open file: the parent's lock came along with the descriptor.
        held = actions.places.take_over(action, lock)
        return _exit_code(run_async(lambda stop: actions.run(held)))


def run_action(actions: Actions, out: Output, held: ActionLock, *, detach: bool, ask: bool = False) -> int:
    """Run a new action and show its output, or leave it to a separate process.

    With `ask`, put its question to the person at the terminal. Raises `WaitingError` if the question stays open.
    """
    import sys

    from chargehand.app.actions import QueuedActionDocument
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.core.errors import WaitingError

    found = held.action
    # The id is written before the work begins: the caller may have to cancel the action from another process.
    out.document(QueuedActionDocument(action=found, status="queued"))
    if detach:
        # The new process inherits the locked descriptor, so that the action always has an owner.
        actions.start(held)
        out.text(found)
        out.notice(f"chargehand action log {found} --follow")
        return 0
    out.notice(f"action {found}")

    def run_shown(owned: ActionLock) -> ActionState:
        # The action records a Ctrl-C as its end before this call raises `KeyboardInterrupt`.
        state = run_async(lambda stop: actions.run(owned, on_line=lambda line: _show_line(out, found, line)))
        sys.stdout.flush()
        return state

    state = run_shown(held)
    if state.status == "waiting" and ask and out.can_ask and state.question is not None:
        approved = actions.answer(found, yes=click.confirm(state.question.text, default=False, err=True))
        state = actions.state(found) if approved is None else run_shown(approved)
    code = _show_end(out, state)
    if state.status == "waiting":
        assert state.question is not None
        # Written last, and as an error: a script recognises the question by the exit code and learns how to
        # answer.
        raise WaitingError(
            f"action {found!r} asks: {state.question.text}",
            code="action_asks",
            hint=f"chargehand action answer {found} yes|no",
        )
    return code


def _exit_code(state: ActionState) -> int:
    """Return the exit code for an action with this status."""
    from chargehand.core.errors import ExhaustedError, RefusedError, WaitingError

    # A cancelled, failed or lost action did not do what the user requested: all exit as refusals do.
    codes = {"done": 0, "waiting": WaitingError.exit_code, "timed_out": ExhaustedError.exit_code}
    return codes.get(state.status, RefusedError.exit_code)


def _show_line(out: Output, action: str, line: OutputLine) -> None:
    from chargehand.app.actions import ActionLineDocument

    if out.as_json:
        out.document(ActionLineDocument(action=action, time=line.time, stream=line.stream, line=line.line))
    else:
        out.raw(line.line.encode("utf-8", "surrogateescape") + b"\n", err=line.stream == "stderr")


def _show_end(out: Output, state: ActionState) -> int:
    """Write how an action ended; return the exit code for it."""
    from chargehand.app.actions import action_document

    out.document(action_document(state))
    if not out.as_json:
        out.text(f"{state.kind} {state.status}: {_about(state)}")
        _show_reasons(out, state)
    return _exit_code(state)


def _show_reasons(out: Output, state: ActionState) -> None:
    from chargehand.core.codec import convert_to
    from chargehand.core.records import Conflict
    from chargehand.workspace.merge import conflict_report

    for reason in state.reasons:
        out.text(f"because   {reason.message}")
    if state.question is not None and state.answer is None:
        out.text(f"next:     chargehand action answer {state.id} yes|no")
    conflicts = state.result.get("conflicts")
    if conflicts:
        out.text(
            conflict_report(convert_to(conflicts, tuple[Conflict, ...]), ours="tip", theirs="mission").rstrip()
        )
    if state.status == "done" and state.kind in ("merge", "rebase") and state.result.get("changed"):
        out.text(f"next:     chargehand mission promote {state.mission}   checks and exports it")


def _about(state: ActionState) -> str:
    """Return a short description of an action's work."""
    given = state.arguments
    result = state.result
    match state.kind:
        case "fetch":
            moved = f", {result['moved']} branches moved" if "moved" in result else ""
            return f"{given.get('remote')}{moved}"
        case "push":
            branch = result.get("branch") or given.get("branch") or ""
            end = ", removed" if given.get("delete") and result else ""
            end = ", unchanged" if result.get("changed") is False else end
            return f"{given.get('remote')} {branch}".strip() + end
        case "merge" | "rebase":
            on = f" at {result['commit'][:12]}" if result.get("commit") else ""
            return f"{result.get('revision') or given.get('tip') or 'its branch'}{on}"
        case "commit":
            return str(given.get("message", "")).split("\n", 1)[0]
        case "exec":
            return " ".join(given.get("command", ()))
        case None:
            return ""
