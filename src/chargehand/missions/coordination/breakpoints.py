"""The points at which a coordinator stops; its child missions go on meanwhile."""

from __future__ import annotations

from chargehand.core.breakpoints import TASK
from chargehand.missions.breakpoints import stop_before
from chargehand.missions.coordination.decisions import Finish, Move, Start
from chargehand.missions.journal import Journal


def stop_before_move(journal: Journal, move: Move) -> None:
    """Return if a coordinator may carry out a move. Raises `BreakpointError`."""
    progress = journal.state.plan
    if isinstance(move, Start):
        began = progress is not None and any(known.runs for known in progress.tasks.values())
        stop_before(journal, "plan", "plan", text="the first task of its plan", done=began)
        kinds = ("step", f"{TASK}{move.task}") if move.round == 1 else ("step",)
        stop_before(journal, f"task/{move.task}/{move.round}", *kinds, text=f"task {move.task}")
    elif isinstance(move, Finish) and move.stopped is None and journal.state.commit is not None:
        point = f"promotion/{journal.state.tree}"
        stop_before(journal, point, "promote", "step", text="the promotion of what its tasks made")
