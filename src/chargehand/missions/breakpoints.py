"""Breakpoints: a mission stops at these places and waits for a person to resume it."""

from __future__ import annotations

from collections.abc import Collection

from chargehand.core.errors import UsageError, WaitingError
from chargehand.core.mission_events import MissionPaused
from chargehand.missions.journal import Journal

PLAN, PROMOTE, STEP, _TASK = "plan", "promote", "step", "task:"
BREAKPOINT = "breakpoint"
_HINT = "plan, promote, step or task:ID, several with commas between them"


def task_breakpoint(task: str) -> str:
    """Return the breakpoint before a task starts."""
    return _TASK + task


def parse_breakpoints(text: str | None, tasks: Collection[str] | None = None) -> tuple[str, ...]:
    """Return the breakpoints of a comma-separated list; `tasks` are the plan's tasks, empty without a plan.

    Raises `UsageError` for an unknown breakpoint, or for a task that the plan does not have.
    """
    if text is None:
        return ()
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in (PLAN, PROMOTE, STEP) and name.removeprefix(_TASK) in ("", name):
            raise UsageError(f"--break-at: unknown breakpoint {name!r}", hint=_HINT)
        if tasks is None or name in (PROMOTE, STEP):
            continue
        if not tasks:
            raise UsageError(f"--break-at: {name!r} needs a plan with several tasks", hint="add --plan FILE")
        if name != PLAN and name.removeprefix(_TASK) not in tasks:
            known = ", ".join(tasks)
            raise UsageError(
                f"--break-at: the plan has no task {name.removeprefix(_TASK)!r}", hint=f"it has: {known}"
            )
    return names


def stop_before_step(journal: Journal, name: str) -> None:
    """Stop in single-step mode before one of the mission's own recorded steps; raises `WaitingError`."""
    # An agent's work within its attempt is one step of the mission, and so is a promotion with its verdict.
    if "/work/" not in name and name != "verdict/merged":
        stop_at(journal, STEP, f"step {name}")


def stop_at(journal: Journal, kind: str, place: str = "") -> None:
    """Pause the mission, once per place, at a breakpoint of this kind or in single-step mode.

    Raises `WaitingError` (`breakpoint`): this run of the mission ends, nothing is held, and any worker resumes it.
    """
    state, place = journal.state, place or kind
    wanted = {kind, STEP} & set(state.request.break_at) if state.request is not None else set()
    if state.to_end or place in state.stops or not (wanted or state.stepping):
        return
    reason = f"before {place}"
    journal.record(MissionPaused(identity=BREAKPOINT, reason=reason, breakpoint=place), durable=True)
    raise WaitingError(reason, code="breakpoint")
