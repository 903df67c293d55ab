"""`chargehand mission pause`, `resume`, `send`, `cancel` and `discard`: by order where it runs, else here."""

from __future__ import annotations

import time

from chargehand.app.composition import App
from chargehand.app.worker import ensure_worker
from chargehand.cli._prepare import find_mission
from chargehand.cli.output import Output
from chargehand.cli.rendering import result_document, show_result
from chargehand.core.errors import UsageError
from chargehand.core.state import SETTLED, MissionState

_CANCEL_SECONDS = 30.0
_LONGEST = 100_000


def pause(out: Output, mission: str, *, reason: str) -> int:
    """Stop a mission where it is; nothing of it runs any more when this returns."""
    with App.open() as app:
        found = find_mission(app, mission)
        ordered = app.order(found, "pause", reason=reason)
        _show(out, app.look.state(found) if ordered else app.steering.pause(found, reason))
    return 0


def resume(out: Output, mission: str) -> int:
    """Let a mission go on: in its worker, or in one that is started for it."""
    with App.open() as app:
        found = find_mission(app, mission)
        if app.order(found, "resume"):
            _show(out, app.look.state(found))
            return 0
        state = app.steering.resume(found)
        if ensure_worker(app):
            out.notice("a worker was started for it")
        _show(out, state)
    return 0


def send(out: Output, mission: str, text: str, *, critical: bool = False) -> int:
    """Tell the agent something; what is critical it has to acknowledge."""
    with App.open() as app:
        found = find_mission(app, mission)
        state = send_to(app, found, text, critical=critical)
        sent = state.messages[-1]
        out.document(
            {
                "mission": found,
                "status": state.status,
                "messages": len(state.messages),
                "message": sent.message,
                "critical": sent.critical,
            }
        )
        out.text("kept; the agent gets it with its next attempt")
        if critical:
            out.text("where it does not acknowledge it in 10 s it is frozen, and you are asked")
    return 0


def cancel(out: Output, mission: str) -> int:
    """Stop the process that runs a mission, and wait for it; or close one that waits."""
    with App.open() as app:
        _show(out, cancel_it(app, find_mission(app, mission)))
    return 0


def send_to(app: App, mission: str, text: str, *, critical: bool = False) -> MissionState:
    """Tell the agent of a mission something, by order where it runs. Raises `UsageError`, `RefusedError`."""
    _check_message(text)
    more = {"critical": "yes"} if critical else {}
    ordered = app.order(mission, "send", text=text, **more)
    return app.look.state(mission) if ordered else app.steering.send(mission, text, critical=critical)


def cancel_it(app: App, mission: str) -> MissionState:
    """Stop a mission, waiting up to 30 s for what runs, or close one that waits. Raises `RefusedError`."""
    ordered = app.order(mission, "cancel")
    return _stopped(app, mission) if ordered else app.steering.cancel(mission)


def discard(out: Output, mission: str) -> int:
    """Settle a mission as not wanted."""
    with App.open() as app:
        _show(out, app.steering.discard(find_mission(app, mission)))
    return 0


def _check_message(text: str) -> None:
    if not text.strip():
        raise UsageError("the message is empty", hint="say what the agent is to know")
    if len(text.encode(errors="replace")) > _LONGEST:
        raise UsageError(f"the message has more than {_LONGEST} bytes", hint="put the rest into a file")


def _stopped(app: App, mission: str) -> MissionState:
    deadline = time.monotonic() + _CANCEL_SECONDS
    while True:
        state = app.look.state(mission)
        if state.status in SETTLED - {"paused"} or time.monotonic() > deadline:
            return state
        time.sleep(0.05)


def _show(out: Output, state: MissionState) -> None:
    out.document(result_document(state))
    show_result(out, state)
