"""`chargehand mission cancel`, `promote`, `rollback` and `discard`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from chargehand.app import App, Session
from chargehand.cli._interrupt import Stop, run_async
from chargehand.cli._output import Output
from chargehand.cli._prepare import find_mission
from chargehand.cli._progress import progress
from chargehand.cli._result import exit_code, result_document, show_result
from chargehand.core import SETTLED, MissionState, RefusedError

_CANCEL_SECONDS = 30.0

_Change = Callable[[Session, str], Awaitable[MissionState]]


def cancel(out: Output, mission: str) -> int:
    """Stop the process that runs a mission, and wait for it; or close one that waits for a person."""
    with App.open() as app:
        found = find_mission(app, mission)
        ordered = app.liveness.order(found, "cancel")
        state = _stopped(app, found) if ordered else _changed(app, out, found, _close)
    _show(out, state)
    return 0


def _stopped(app: App, mission: str) -> MissionState:
    deadline = time.monotonic() + _CANCEL_SECONDS
    while True:
        state = app.look.state(mission)
        if state.status in SETTLED or time.monotonic() > deadline:
            return state
        time.sleep(0.1)


async def _close(session: Session, mission: str) -> MissionState:
    if not session.missions.cancel(mission):
        status = session.missions.look.state(mission).status
        raise RefusedError(
            f"mission {mission!r} is {status}: there is nothing to cancel",
            code="not_cancellable",
            hint=f"chargehand mission show {mission}",
        )
    return session.missions.look.state(mission)


def promote(out: Output, mission: str, *, reason: str) -> int:
    """Promote what a mission left by the decision of the person who calls."""
    with App.open() as app:
        identity = app.identity()

        async def change(session: Session, found: str) -> MissionState:
            return await session.missions.promote(found, identity=identity, reason=reason)

        state = _changed(app, out, find_mission(app, mission), change)
    _show(out, state)
    return exit_code(state)


def roll_back(out: Output, mission: str) -> int:
    """Undo a promotion by a new commit; exit 3 where it could not be exported."""
    with App.open() as app:

        async def change(session: Session, found: str) -> MissionState:
            return await session.missions.roll_back(found)

        state = _changed(app, out, find_mission(app, mission), change)
    _show(out, state)
    return 0 if state.export is not None and state.export.state == "done" else 3


def discard(out: Output, mission: str) -> int:
    """Settle a mission as not wanted."""
    with App.open() as app:

        async def change(session: Session, found: str) -> MissionState:
            return session.missions.discard(found)

        state = _changed(app, out, find_mission(app, mission), change)
    _show(out, state)
    return 0


def _changed(app: App, out: Output, mission: str, change: _Change) -> MissionState:
    async def work(stop: Stop) -> MissionState:
        with progress(out) as shown:
            async with app.mission_session(mission, watch=shown.watch) as (found, session):
                return await change(session, found)

    return run_async(work)


def _show(out: Output, state: MissionState) -> None:
    out.document(result_document(state))
    show_result(out, state)
