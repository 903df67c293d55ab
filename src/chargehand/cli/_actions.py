"""`chargehand git …` and `exec --detach`: actions made, run and shown as they go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from chargehand.app.actions import Actions
from chargehand.app.composition import App
from chargehand.cli._action_view import exit_code, show_end, show_line
from chargehand.cli._exec import require_commands
from chargehand.cli._prepare import find_mission
from chargehand.cli.interrupt import Stop, run_async
from chargehand.cli.output import Output
from chargehand.core.action_events import ActionKind
from chargehand.core.action_state import ActionState
from chargehand.core.errors import UsageError, WaitingError
from chargehand.durable._actions import ActionHold


def fetch(remote: str, *, repo: Path | None, as_json: bool, time: str | None, detach: bool) -> int:
    """Fetch into the depot of a repository's project."""
    with App.open() as app:
        project = app.project(repo)
        return _begin(app, Output(as_json=as_json), "fetch", {"remote": remote}, project=project.id, mission=None,
                      time=time, detach=detach)  # fmt: skip


def merge(
    kind: ActionKind,
    tip: str | None,
    *,
    mission: str,
    message: str | None,
    as_json: bool,
    time: str | None,
    detach: bool,
) -> int:
    """Merge or rebase what a mission left."""
    arguments = {"tip": tip, **({"message": message} if message else {})}
    return _on_mission(kind, mission, arguments, as_json=as_json, time=time, detach=detach)


def commit(message: str, *, mission: str, as_json: bool, time: str | None, detach: bool) -> int:
    """Give what a mission left a message."""
    return _on_mission("commit", mission, {"message": message}, as_json=as_json, time=time, detach=detach)


def push(
    remote: str,
    *,
    mission: str,
    branch: str | None,
    force: bool,
    delete: bool,
    yes: bool,
    as_json: bool,
    time: str | None,
    detach: bool,
) -> int:
    """Push a promoted branch."""
    if force and delete:
        raise UsageError("--force and --delete were given", hint="--delete removes the branch wherever it is")
    arguments = {"remote": remote, "branch": branch, "force": force, "delete": delete}
    return _on_mission("push", mission, arguments, as_json=as_json, time=time, detach=detach, ask=not yes)


def start_exec(
    out: Output,
    command: tuple[str, ...],
    *,
    repo: Path | None,
    base: str | None,
    mission: str | None,
    time: str | None,
    sandbox: str | None,
) -> int:
    """Run a command in a sandbox without waiting for it."""
    require_commands(sandbox)
    if mission is not None and any(each is not None for each in (base, repo, sandbox)):
        raise UsageError(
            "--mission has its own repository, base and tier", hint="leave out --base, --repo and --sandbox"
        )
    with App.open() as app:
        named = None if mission is None else find_mission(app, mission)
        arguments: dict[str, Any] = {"command": list(command)}
        if named is None:
            found = app.project(repo)
            project = found.id
            arguments |= {"repository": str(found.path), "base": base, "sandbox": sandbox}
        else:
            project = app.store.log.get(named).project
        return _begin(app, out, "exec", arguments, project=project, mission=named, time=time, detach=True)


def answer(out: Output, name: str, *, yes: bool, detach: bool) -> int:
    """Answer an action's question and, after a yes, let it go on."""
    with App.open() as app:
        actions = Actions(app)
        action = actions.places.find(name)
        held = actions.answer(action, yes=yes)
        if held is None:
            return show_end(out, actions.state(action))
        return _go(app, actions, out, held, detach=detach)


def run_handed_on(action: str, lock: int) -> int:
    """Run an action that was handed on with its lock."""
    with App.open() as app:
        actions = Actions(app)
        held = actions.places.take_over(action, lock)
        return exit_code(_run(actions, held, Output(as_json=True), quiet=True))


def _on_mission(
    kind: ActionKind,
    name: str,
    arguments: dict[str, Any],
    *,
    as_json: bool,
    time: str | None,
    detach: bool,
    ask: bool = False,
) -> int:
    with App.open() as app:
        mission = find_mission(app, name)
        project = app.store.log.get(mission).project
        return _begin(app, Output(as_json=as_json), kind, arguments, project=project, mission=mission, time=time,
                      detach=detach, ask=ask)  # fmt: skip


def _begin(
    app: App,
    out: Output,
    kind: ActionKind,
    arguments: dict[str, Any],
    *,
    project: str,
    mission: str | None,
    time: str | None,
    detach: bool,
    ask: bool = False,
) -> int:
    actions = Actions(app)
    seconds = actions.config(time).time
    held = actions.create(kind, arguments, project=project, mission=mission, seconds=seconds, detached=detach)
    return _go(app, actions, out, held, detach=detach, ask=ask)


def _go(app: App, actions: Actions, out: Output, held: ActionHold, *, detach: bool, ask: bool = False) -> int:
    action = held.action
    if detach:
        actions.start(held)
        out.document({"action": action, "status": "queued"})
        out.text(action)
        out.notice(f"chargehand action log {action} --follow")
        return 0
    out.document({"action": action, "status": "queued"})
    out.notice(f"action {action}")
    state = _run(actions, held, out)
    if state.status == "waiting" and ask and out.can_ask and state.question is not None:
        yes = click.confirm(state.question.text, default=False, err=True)
        again = actions.answer(action, yes=yes)
        state = actions.state(action) if again is None else _run(actions, again, out)
    code = show_end(out, state)
    if state.status == "waiting":
        assert state.question is not None
        raise WaitingError(
            f"action {action!r} asks: {state.question.text}",
            code="action_asks",
            hint=f"chargehand action answer {action} yes|no",
        )
    return code


def _run(actions: Actions, held: ActionHold, out: Output, *, quiet: bool = False) -> ActionState:
    async def work(stop: Stop) -> ActionState:
        return await actions.run(held, on_line=lambda line: None if quiet else show_line(out, held.action, line))

    state = run_async(work)
    sys.stdout.flush()
    return state
