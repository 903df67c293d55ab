"""`chargehand mission promote` and `rollback`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from chargehand.app.composition import App
from chargehand.app.wiring.session import Session
from chargehand.cli._prepare import find_mission
from chargehand.cli.interrupt import Stop, run_async
from chargehand.cli.output import Output
from chargehand.cli.progress import progress
from chargehand.cli.rendering import exit_code, result_document, show_result
from chargehand.core.state import MissionState

_Change = Callable[[Session, str], Awaitable[MissionState]]


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


def _changed(app: App, out: Output, mission: str, change: _Change) -> MissionState:
    async def work(stop: Stop) -> MissionState:
        with progress(out) as shown:
            async with app.mission_session(mission, watch=shown.watch) as (found, session):
                return await change(session, found)

    return run_async(work)


def _show(out: Output, state: MissionState) -> None:
    out.document(result_document(state))
    show_result(out, state)
