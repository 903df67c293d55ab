"""Actions as they are shown: their list, one of them, what they printed, how they ended."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from chargehand.app.actions import Actions
from chargehand.app.composition import App
from chargehand.cli.output import Output
from chargehand.core.action_state import ACTION_ENDED, ActionState
from chargehand.core.codec import convert_to
from chargehand.core.conflicts import Conflict
from chargehand.core.errors import ExhaustedError, RefusedError, WaitingError
from chargehand.durable._actions import OutputLine
from chargehand.workspace._merge_conflicts import conflict_report

_LOOK_SECONDS = 0.1
_CANCEL_SECONDS = 15.0
_CODES = {"done": 0, "waiting": WaitingError.exit_code, "timed_out": ExhaustedError.exit_code}


def exit_code(state: ActionState) -> int:
    """Return how a command ends whose action stands so."""
    return _CODES.get(state.status, RefusedError.exit_code)


def document(state: ActionState) -> dict[str, Any]:
    """Return an action as its JSON document."""
    found: dict[str, Any] = msgspec.to_builtins(state)
    return {"action": found.pop("id"), **found}


def list_actions(out: Output, *, running: bool) -> int:
    """Write all actions, one line each."""
    with App.open() as app:
        states = [state for state in Actions(app).all() if not (running and state.status in ACTION_ENDED)]
    out.document([document(state) for state in states])
    rows = [(state.id, state.kind or "", state.status, state.mission or "", _about(state)) for state in states]
    if not out.as_json:
        out.table(("ACTION", "KIND", "STATUS", "MISSION", ""), rows)
    return 0


def show_action(out: Output, name: str) -> int:
    """Write all that is known of an action."""
    with App.open() as app:
        actions = Actions(app)
        state = actions.state(actions.places.find(name))
    out.document(document(state))
    if out.as_json:
        return 0
    out.text(f"{state.id}  {state.kind}  {state.status}", bold=True)
    for key, value in (("mission", state.mission), ("asked by", state.identity), ("created", state.created[:19])):
        if value:
            out.text(f"{key:<9} {value}")
    out.text(f"{'about':<9} {_about(state)}")
    if state.seconds is not None:
        out.text(f"{'took':<9} {state.seconds:.1f} s of {state.limit_seconds:g} s")
    _show_why(out, state)
    return 0


def show_output(out: Output, name: str, *, follow: bool) -> int:
    """Write what an action printed, and with `follow` what it prints until it ends."""
    with App.open() as app:
        actions = Actions(app)
        action = actions.places.find(name)
        offset = 0
        while not out.closed:
            state = actions.state(action)  # before its lines are read: what it wrote before it ended is among them
            lines, offset = actions.places.read(action, offset)
            for line in lines:
                show_line(out, action, line)
            if not follow:
                return 0
            if state.status in ACTION_ENDED or state.status == "waiting":
                return show_end(out, state)
            time.sleep(_LOOK_SECONDS)
    return 0


def cancel_action(out: Output, name: str) -> int:
    """End an action and say how it stands."""
    with App.open() as app:
        actions = Actions(app)
        action = actions.places.find(name)
        state = actions.cancel(action)
        until = time.monotonic() + _CANCEL_SECONDS
        while state.status not in ACTION_ENDED and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
            state = actions.state(action)
    out.document(document(state))
    out.text(f"action {action} is {state.status}")
    return 0 if state.status in ACTION_ENDED else RefusedError.exit_code


def show_line(out: Output, action: str, line: OutputLine) -> None:
    """Write one line that an action printed."""
    if out.as_json:
        out.document({"action": action, "time": line.time, "stream": line.stream, "line": line.line})
    else:
        out.raw(line.line.encode("utf-8", "surrogateescape") + b"\n", err=line.stream == "stderr")


def show_end(out: Output, state: ActionState) -> int:
    """Write how an action ended; return the exit code for it."""
    out.document(document(state))
    if not out.as_json:
        out.text(f"{state.kind} {state.status}: {_about(state)}")
        _show_why(out, state)
    return exit_code(state)


def _show_why(out: Output, state: ActionState) -> None:
    for reason in state.reasons:
        out.text(f"because   {reason.message}")
    if state.question is not None and state.answer is None:
        out.text(f"next:     chargehand action answer {state.id} yes|no")
    told = state.result.get("conflicts")
    if told:
        out.text(conflict_report(convert_to(told, tuple[Conflict, ...]), ours="tip", theirs="mission").rstrip())
    if state.status == "done" and state.kind in ("merge", "rebase") and state.result.get("changed"):
        out.text(f"next:     chargehand mission promote {state.mission} judges it and lets it out")


def _about(state: ActionState) -> str:
    """Return what an action did, or was to do, in a few words."""
    given, result = state.arguments, state.result
    match state.kind:
        case "fetch":
            moved = f", {result['moved']} branches moved" if "moved" in result else ""
            return f"{given.get('remote')}{moved}"
        case "push":
            branch = result.get("branch") or given.get("branch") or ""
            return f"{given.get('remote')} {branch}".strip() + _how(given, result)
        case "merge" | "rebase":
            on = f" at {result['commit'][:12]}" if result.get("commit") else ""
            return f"{result.get('revision') or given.get('tip') or 'its branch'}{on}"
        case "commit":
            return str(given.get("message", "")).split("\n", 1)[0]
        case "exec":
            return " ".join(given.get("command", ()))
        case None:
            return ""


def _how(given: dict[str, Any], result: dict[str, Any]) -> str:
    if result.get("changed") is False:
        return ", as it was"
    return ", removed" if given.get("delete") and result else ""
