"""`chargehand checkpoint restore` and `undo`, and what a roll-back would do."""

from __future__ import annotations

from collections.abc import Sequence

from chargehand.app.composition import App
from chargehand.cli._diff import base_tree, depot_of, named_tree
from chargehand.cli._prepare import find_mission
from chargehand.cli.interrupt import Stop, run_async
from chargehand.cli.output import Output
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.records import Checkpoint, Finding
from chargehand.core.state import MissionState
from chargehand.core.text import shown_path
from chargehand.missions._missions import find_checkpoint
from chargehand.missions._promote import nothing_promoted, rolled_back_already
from chargehand.workspace._hunks import LineRange
from chargehand.workspace._rollback import PathPlan, RollbackPlan, plan_rollback
from chargehand.workspace._rollback_hunks import Drop, HunkPlan, drops_of


def restore_checkpoint(
    out: Output,
    mission: str,
    checkpoint: str,
    *,
    files: Sequence[str] = (),
    hunks: Sequence[str] = (),
    smart: bool = False,
    dry_run: bool = False,
) -> int:
    """Go back to an earlier checkpoint: all of it, some files, or only hunks of them."""
    with App.open() as app:
        state = _with_checkpoints(app, mission)
        drops = [*(Drop(path=path) for path in files), *map(parse_hunk, hunks)]
        if smart:
            drops += _violating(app, state)
        target = named_tree(state, checkpoint)
        name = checkpoint if checkpoint == "base" else find_checkpoint(state, checkpoint).commit
        chosen = drops if files or hunks or smart else None
        plan = plan_rollback(depot_of(app, state), state.checkpoints[-1].tree, target, drops=chosen)
        return _carry_out(app, out, state, name, plan, dry_run=dry_run)


def undo_checkpoint(out: Output, mission: str, *, dry_run: bool = False) -> int:
    """Go back to the checkpoint before the last one."""
    with App.open() as app:
        state = _with_checkpoints(app, mission)
        before = state.checkpoints[-2] if len(state.checkpoints) > 1 else None
        target = before.tree if before else base_tree(state)
        plan = plan_rollback(depot_of(app, state), state.checkpoints[-1].tree, target)
        return _carry_out(app, out, state, before.commit if before else "base", plan, dry_run=dry_run)


def preview_roll_back(out: Output, mission: str) -> int:
    """Show what rolling back a promotion would do, and refuse what it would refuse."""
    with App.open() as app:
        state = app.look.state(find_mission(app, mission))
        if state.commit is None or state.tree is None or state.promoted_on is None:
            raise nothing_promoted(state)
        before = state.promoted_on.tree
        if state.tree == before:
            raise rolled_back_already(state)
        plan = plan_rollback(depot_of(app, state), state.tree, before)
    out.document(
        {"mission": state.id, "dry_run": True, "ref": state.ref, "commit": state.commit, "plan": shown(plan)}
    )
    _show_plan(out, plan)
    out.text(f"nothing was done; a new commit on {state.ref} would do this")
    return 0


def parse_hunk(text: str) -> Drop:
    """Return what `PATH:LINE` or `PATH:FIRST-LAST` names. Raises `UsageError`."""
    path, colon, lines = text.rpartition(":")
    first, dash, last = lines.partition("-")
    numbers = (first, last) if dash else (first, first)
    if not (colon and path and all(number.isascii() and number.isdecimal() for number in numbers)):
        raise UsageError(f"{text!r} is no PATH:LINE or PATH:FIRST-LAST", hint="such as src/app.py:12-20")
    lines_named = LineRange(first=int(numbers[0]), last=int(numbers[1]))
    if not 1 <= lines_named.first <= lines_named.last:
        raise UsageError(f"{text!r} names no lines", hint="lines count from 1, the first before the last")
    return Drop(path=path, lines=(lines_named,))


def shown(plan: RollbackPlan) -> dict[str, object]:
    """Return a plan as its document: which paths become what, and the exact tree that is left."""
    return {
        "kind": plan.kind,
        "source": plan.source,
        "target": plan.target,
        "result": plan.result,
        "changes": plan.result != plan.source,
        "paths": plan.paths,
        "unchanged": plan.unchanged,
    }


def _with_checkpoints(app: App, mission: str) -> MissionState:
    state = app.look.state(find_mission(app, mission))
    if not state.checkpoints:
        raise NotFoundError(f"mission {state.id!r} has no checkpoint")
    return state


def _violating(app: App, state: MissionState) -> tuple[Drop, ...]:
    """Return what inspection finds wrong in the last checkpoint. Raises `UsageError` where that is nothing."""

    async def work(stop: Stop) -> tuple[Finding, ...]:
        async with app.mission_session(state.id) as (_, session):
            return session.missions.findings(state.id)

    drops = drops_of(run_async(work))
    if not drops:
        raise UsageError(
            f"nothing in the last checkpoint of mission {state.id!r} breaks a rule",
            hint="name what to set back with --file or --hunk",
        )
    return drops


def _carry_out(app: App, out: Output, state: MissionState, name: str, plan: RollbackPlan, *, dry_run: bool) -> int:
    """Do what the plan says, or only show it."""
    document: dict[str, object] = {"mission": state.id, "from": name, "dry_run": dry_run, "plan": shown(plan)}
    _show_plan(out, plan)
    if dry_run:
        out.document(document)
        out.text("nothing was done")
        return 0

    async def work(stop: Stop) -> Checkpoint:
        async with app.mission_session(state.id) as (_, session):
            return await session.missions.restore(state.id, name, plan=plan)

    restored = run_async(work)
    out.document(document | {"checkpoint": restored})
    if plan.result == plan.source:
        out.text(f"nothing was changed: the last checkpoint is still {restored.commit[:12]}")
        return 0
    out.text(f"the last checkpoint is now {restored.commit[:12]}")
    out.text(f"next:     chargehand mission promote {state.id} --reason …")
    out.text(f"undo:     chargehand checkpoint undo {state.id}")
    return 0


def _show_plan(out: Output, plan: RollbackPlan) -> None:
    if out.as_json:
        return
    rows = [(path.action, shown_path(path.path), _note(path)) for path in plan.paths]
    if rows:
        out.table(("ACTION", "FILE", ""), rows)
    for name in plan.unchanged:
        out.text(f"{shown_path(name)} is as it was already")


def _note(path: PathPlan) -> str:
    notes = []
    if path.hunks:
        gone = [_lines(hunk) for hunk in path.hunks if not hunk.kept]
        notes.append(f"{len(gone)} of {len(path.hunks)} hunks: {', '.join(gone)}")
    if path.why:
        notes.append(f"set back whole, since it {path.why}")
    if path.renamed_from is not None:
        notes.append(f"renamed from {shown_path(path.renamed_from)}")
    return "; ".join(notes)


def _lines(hunk: HunkPlan) -> str:
    if not hunk.new_lines:
        return f"deletion after line {hunk.new_start}"
    last = hunk.new_start + hunk.new_lines - 1
    return f"line {last}" if hunk.new_lines == 1 else f"lines {hunk.new_start}-{last}"
