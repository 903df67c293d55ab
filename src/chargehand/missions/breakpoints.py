"""How a mission stops at a breakpoint: nobody holds it until a person lets it go on.

A stop is the end of a worker's turn and no wait in it, so it costs no slot and survives every process. Whoever
goes on finds all recorded steps, so nothing is done or judged twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from chargehand.core.errors import WaitingError
from chargehand.core.events import Payload
from chargehand.core.mission_events import BreakpointsChanged, MissionFinished, MissionPaused, MissionReleased
from chargehand.core.records import Reason
from chargehand.core.state import MissionState
from chargehand.missions.journal import Journal

# How far a mission goes on: as it was asked for, to the next point, or to its end without another stop.
Until = Literal["", "step", "end"]


class BreakpointError(WaitingError):
    """The mission stops before `point`, until a person lets it go on."""

    default_code = "breakpoint"

    def __init__(self, point: str, text: str) -> None:
        super().__init__(f"stopped at a breakpoint, before {text}")
        self.point = point


def stop_before(journal: Journal, point: str, *kinds: str, text: str, done: bool = False) -> None:
    """Return if a mission goes on past a point of these kinds, at once where that is `done` already.

    `text` says what comes next. Raises `BreakpointError`.
    """
    if not done and journal.state.breakpoints.stop_at(point, kinds):
        raise BreakpointError(point, text)


def stop_before_attempt(journal: Journal, number: int) -> None:
    """Return if a mission begins an attempt, or has begun it. Raises `BreakpointError`."""
    begun = journal.state.attempt(number) is not None
    stop_before(journal, f"attempt/{number}", "step", text=f"attempt {number}", done=begun)


def stop_before_verdict(journal: Journal, number: int) -> None:
    """Return if an attempt is judged, or was. Raises `BreakpointError`."""
    attempt = journal.state.attempt(number)
    ended = attempt is not None and attempt.status != "running"
    judged = ended or f"attempt/{number}/verdict" in journal.state.steps
    stop_before(journal, f"verdict/{number}", "step", text=f"the verdict on attempt {number}", done=judged)


def rest_events(error: WaitingError, worker: str) -> Sequence[Payload]:
    """Return what records that a mission rests: at a breakpoint, or until a person answers its agent."""
    if isinstance(error, BreakpointError):
        paused = MissionPaused(identity="chargehand", reason=error.message, point=error.point)
        return paused, MissionReleased(worker=worker)
    return (MissionFinished(status="waiting", reasons=(Reason(code=error.code, message=error.message),)),)


def breakpoint_events(state: MissionState, until: Until, identity: str) -> Sequence[Payload]:
    """Return what records how far a person lets a mission go on; nothing where its breakpoints stay."""
    if not until:
        return ()
    kinds = state.breakpoints.kinds if until == "step" else ()
    return (BreakpointsChanged(identity=identity, kinds=kinds, once=until == "step"),)
