"""`chargehand checkpoint list` and `show`."""

from __future__ import annotations

from chargehand.app.composition import App
from chargehand.cli._diff import base_tree, depot_of, show_stat
from chargehand.cli._prepare import find_mission
from chargehand.cli.output import Output
from chargehand.missions._missions import find_checkpoint


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
