"""`chargehand checkpoint list`, `show` and `restore`."""

from __future__ import annotations

from chargehand.app import App, Session
from chargehand.cli._diff import base_tree, depot_of, show_stat
from chargehand.cli._interrupt import Stop, run_async
from chargehand.cli._output import Output
from chargehand.cli._prepare import find_mission
from chargehand.core import Checkpoint, NotFoundError
from chargehand.missions import find_checkpoint


def list_checkpoints(out: Output, mission: str) -> int:
    """Write a mission's checkpoints."""
    with App.open() as app:
        state = app.look.state(find_mission(app, mission))
    out.document({"mission": state.id, "checkpoints": state.checkpoints})
    if state.checkpoints:
        rows = [(point.commit[:12], point.trigger, point.changed, point.tree[:12]) for point in state.checkpoints]
        out.table(("CHECKPOINT", "MADE AT", "CHANGED", "TREE"), rows)
    else:
        out.text(f"mission {state.id} has no checkpoint: nothing was changed")
    return 0


def show_checkpoint(out: Output, checkpoint: str, *, mission: str) -> int:
    """Write one checkpoint and how its tree differs from the base."""
    with App.open() as app:
        state = app.look.state(find_mission(app, mission))
        point = find_checkpoint(state, checkpoint)
        depot, base = depot_of(app, state), base_tree(state)
        out.document({"mission": state.id, "checkpoint": point, "files": depot.numstat(base, point.tree)})
        out.text(f"checkpoint {point.commit}", bold=True)
        out.text(f"mission    {state.id}")
        out.text(f"made at    {point.trigger}, {point.changed} changed since the one before")
        out.text(f"tree       {point.tree}")
        out.text(f"parent     {point.parent}")
        if not out.as_json:
            show_stat(out, depot, base, point.tree)
    return 0


def restore_checkpoint(out: Output, mission: str, checkpoint: str) -> int:
    """Make an earlier checkpoint a mission's last one."""
    with App.open() as app:
        found = find_mission(app, mission)
        state = app.look.state(found)
        if not state.checkpoints:
            raise NotFoundError(f"mission {found!r} has no checkpoint")
        wanted = find_checkpoint(state, checkpoint)

        async def work(stop: Stop) -> Checkpoint:
            async with app.mission_session(found) as (_, session):
                return await _restored(session, found, wanted.commit)

        restored = run_async(work)
    out.document({"mission": found, "checkpoint": restored, "from": wanted.commit})
    out.text(f"the last checkpoint is now {restored.commit[:12]}, with the tree of {wanted.commit[:12]}")
    out.text(f"next:     chargehand mission promote {found} --reason …")
    return 0


async def _restored(session: Session, mission: str, commit: str) -> Checkpoint:
    return await session.missions.restore(mission, commit)
