"""Use cases of checkpoints: list, show, compare, restore, undo; and previews of roll-backs."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.records import Checkpoint
from chargehand.core.state import MissionState
from chargehand.missions.reading import (
    already_rolled_back_error,
    base_tree,
    find_checkpoint,
    not_promoted_error,
    result_tree,
)
from chargehand.missions.task_rollback import check_whole, plan_task_rollback
from chargehand.reports.documents import Document
from chargehand.reports.reading import LAST, StateReader
from chargehand.workspace.depot import Depot, LineCount, PathEntry
from chargehand.workspace.hunks import LineRange
from chargehand.workspace.rollback import Drop, PathPlan, RollbackPlan, drops_of, plan_rollback

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.core.events import OnEvent

# Names of a mission's base and result, accepted like a checkpoint's name.
BASE = "base"
RESULT = "result"
# A larger file is not shown in full in a comparison.
_LARGEST_FILE_BYTES = 1_000_000


class CheckpointDocument(Document, frozen=True):
    """`checkpoint show`: one checkpoint, and the line counts by which its files differ from the base."""

    mission: str
    checkpoint: Checkpoint
    files: tuple[LineCount, ...]


class DiffDocument(Document, frozen=True):
    """`mission diff`, `checkpoint diff`: two trees and their difference; without the patch if `--stat` is given.

    A patch that is not UTF-8 is encoded as base64, as `patch_encoding` says, so that no byte is lost.
    """

    mission: str
    old: str
    new: str
    files: tuple[LineCount, ...]
    patch: str | UnsetType = UNSET
    patch_encoding: str | UnsetType = UNSET


class RollbackPlanDocument(Document, frozen=True):
    """The plan of a restore or roll-back: the change of each path, and the exact resulting tree."""

    kind: str
    source: str
    target: str
    result: str
    changes: bool
    paths: tuple[PathPlan, ...]
    unchanged: tuple[str, ...]


class RestoreDocument(Document, frozen=True):
    """`checkpoint restore`, `checkpoint undo`: the plan and, once carried out, the new last checkpoint."""

    mission: str
    source: str = msgspec.field(name="from")
    dry_run: bool
    plan: RollbackPlanDocument
    checkpoint: Checkpoint | UnsetType = UNSET


class RollbackPreviewDocument(Document, frozen=True):
    """`mission rollback --dry-run`: the effect of a new commit on `ref`, for all changes or these `tasks`."""

    mission: str
    tasks: tuple[str, ...]
    dry_run: bool
    ref: str | None
    commit: str
    plan: RollbackPlanDocument


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a restore, and its extent: everything, files, hunks (`PATH:LINES`), or what breaks a rule."""

    mission: str
    checkpoint: str
    files: tuple[str, ...] = ()
    hunks: tuple[str, ...] = ()
    smart: bool = False


class TreeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Two trees of a mission's depot."""

    mission: str
    depot: Depot
    old: str
    new: str

    def line_counts(self) -> tuple[LineCount, ...]:
        """Return the number of added and removed lines of each differing file."""
        return self.depot.numstat(self.old, self.new)

    def patch(self) -> bytes:
        """Return the difference as a git patch."""
        return self.depot.patch(self.old, self.new)

    def document(self, *, with_patch: bool) -> DiffDocument:
        """Return the difference as a document."""
        found = DiffDocument(mission=self.mission, old=self.old, new=self.new, files=self.line_counts())
        if not with_patch:
            return found
        patch = self.patch()
        try:
            text, encoding = patch.decode(), "utf-8"
        except UnicodeDecodeError:
            text, encoding = base64.b64encode(patch).decode(), "base64"
        return msgspec.structs.replace(found, patch=text, patch_encoding=encoding)


class FileDifference(Document, frozen=True):
    """One file in two trees: both texts, null if missing or larger than 1 MB, and the patch."""

    mission: str
    path: str
    old: str | None
    new: str | None
    patch: str


class PlannedRestore(msgspec.Struct, frozen=True, kw_only=True):
    """A planned restore, not carried out yet; `target` is a checkpoint's commit, or `base`."""

    mission: str
    target: str
    plan: RollbackPlan

    def document(self, *, dry_run: bool, checkpoint: Checkpoint | UnsetType = UNSET) -> RestoreDocument:
        """Return the plan as a document, with the new last checkpoint once carried out."""
        return RestoreDocument(
            mission=self.mission,
            source=self.target,
            dry_run=dry_run,
            plan=plan_document(self.plan),
            checkpoint=checkpoint,
        )


def mission_difference(reader: StateReader, name: str, *, checkpoint: str | None) -> TreeDifference:
    """Return what a mission changed against its base, up to `checkpoint` if given."""
    state = reader.mission_state(name)
    old = base_tree(state)
    new = result_tree(state) if checkpoint is None else find_checkpoint(state, checkpoint).tree
    return TreeDifference(mission=state.id, depot=reader.projects.mission_depot(state), old=old, new=new)


def checkpoint_difference(
    reader: StateReader, old: str, new: str, *, mission: str = LAST, inverse: bool = False
) -> TreeDifference:
    """Return the difference between two checkpoints of the same project.

    Each is named `CHECKPOINT` or `MISSION:CHECKPOINT`; `inverse` returns the reverse difference. Raises
    `NotFoundError`, `UsageError`.
    """
    states = [reader.mission_state(name.rpartition(":")[0] or mission) for name in (old, new)]
    if states[0].project != states[1].project:
        raise UsageError(
            f"missions {states[0].id!r} and {states[1].id!r} are of different projects",
            hint="only checkpoints of one project can be compared",
        )
    trees = [named_tree(state, name.rpartition(":")[2]) for state, name in zip(states, (old, new), strict=True)]
    first, second = reversed(trees) if inverse else trees
    depot = reader.projects.mission_depot(states[1])
    return TreeDifference(mission=states[1].id, depot=depot, old=first, new=second)


def compare_file(reader: StateReader, name: str, path: str, *, old: str, new: str) -> FileDifference:
    """Return one file in two of a mission's trees, each a checkpoint, `base` or `result`.

    Raises `NotFoundError` if neither has it.
    """
    state = reader.mission_state(name)
    depot = reader.projects.mission_depot(state)
    trees = named_tree(state, old), named_tree(state, new)
    entries = [depot.lookup(tree, path) for tree in trees]
    if not any(entries):
        raise NotFoundError(f"there is no file {path!r} in either tree", hint="`mission diff --stat` lists them")

    def read_text(entry: PathEntry | None) -> str | None:
        if entry is None or depot.blob_size(entry.id) > _LARGEST_FILE_BYTES:
            return None
        content = depot.read_blob(entry.id)
        return None if b"\0" in content else content.decode(errors="replace")

    before, after = map(read_text, entries)
    patch = depot.patch(*trees, (path,))[:_LARGEST_FILE_BYTES].decode(errors="replace")
    return FileDifference(mission=state.id, path=path, old=before, new=after, patch=patch)


def show_checkpoint(reader: StateReader, checkpoint: str, *, mission: str) -> CheckpointDocument:
    """Return one checkpoint and its tree's difference from the base."""
    state = reader.mission_state(mission)
    point = find_checkpoint(state, checkpoint)
    files = reader.projects.mission_depot(state).numstat(base_tree(state), point.tree)
    return CheckpointDocument(mission=state.id, checkpoint=point, files=files)


async def plan_restore(app: App, request: RestoreRequest) -> PlannedRestore:
    """Plan the restore of an earlier checkpoint. Raises `NotFoundError`, `UsageError`."""
    state = await asyncio.to_thread(_state_with_checkpoints, app, request.mission)
    drops = [*(Drop(path=path) for path in request.files), *map(parse_hunk, request.hunks)]
    if request.smart:
        async with app.mission_session(state.id) as (_, session):
            wrong = drops_of(session.missions.findings(state.id))
        if not wrong:
            raise UsageError(
                f"nothing in the last checkpoint of mission {state.id!r} breaks a rule",
                hint="name files or hunks to revert: --file, --hunk",
            )
        drops += wrong
    target = named_tree(state, request.checkpoint)
    name = BASE if request.checkpoint == BASE else find_checkpoint(state, request.checkpoint).commit
    # `None` means everything; an empty list would mean nothing.
    chosen = drops if request.files or request.hunks or request.smart else None
    depot = await asyncio.to_thread(app.projects.mission_depot, state)
    plan = await asyncio.to_thread(plan_rollback, depot, state.checkpoints[-1].tree, target, drops=chosen)
    return PlannedRestore(mission=state.id, target=name, plan=plan)


def plan_undo(reader: StateReader, mission: str) -> PlannedRestore:
    """Plan the restore of the checkpoint before the last one. Raises `NotFoundError`."""
    state = _state_with_checkpoints(reader, mission)
    before = state.checkpoints[-2] if len(state.checkpoints) > 1 else None
    target = before.tree if before else base_tree(state)
    plan = plan_rollback(reader.projects.mission_depot(state), state.checkpoints[-1].tree, target)
    return PlannedRestore(mission=state.id, target=before.commit if before else BASE, plan=plan)


async def carry_out_restore(app: App, planned: PlannedRestore) -> Checkpoint:
    """Carry out a plan as a new checkpoint. Raises `RefusedError` (`plan_stale`)."""
    async with app.mission_session(planned.mission) as (_, session):
        return await session.missions.restore(planned.mission, planned.target, plan=planned.plan)


async def roll_back_task(
    app: App, name: str, task: str, *, with_dependents: bool, watch: OnEvent | None = None
) -> MissionState:
    """Revert a task of a coordinator by a new commit; its export may be blocked. Raises `RefusedError`."""
    mission = app.find_mission(name)
    async with app.mission_session(mission, watch=watch) as (found, session):
        return await session.missions.roll_back_task(found, task, with_dependents=with_dependents)


def preview_roll_back(
    reader: StateReader, name: str, *, task: str | None = None, with_dependents: bool = False
) -> RollbackPreviewDocument:
    """Return the effect of rolling back a promotion, or a task of it. Raises `RefusedError` as that would.

    Only the roll-back itself shows whether the remaining tree passes every gate.
    """
    state = reader.mission_state(name)
    if task is not None:
        depot = reader.projects.mission_depot(state)
        back = plan_task_rollback(reader.store, depot, state, task, with_dependents=with_dependents)
        return _rollback_preview(depot, state, back.tree, back.tasks)
    check_whole(state)
    if state.commit is None or state.tree is None or state.promoted_on is None:
        raise not_promoted_error(state)
    # Not the mission's base: a promotion may be based on a branch that had moved.
    before = state.promoted_on.tree
    if state.tree == before:
        raise already_rolled_back_error(state)
    return _rollback_preview(reader.projects.mission_depot(state), state, before)


def _rollback_preview(
    depot: Depot, state: MissionState, result: str, tasks: tuple[str, ...] = ()
) -> RollbackPreviewDocument:
    assert state.commit is not None
    plan = plan_document(plan_rollback(depot, depot.tree_of(state.commit), result))
    return RollbackPreviewDocument(
        mission=state.id, tasks=tasks, dry_run=True, ref=state.ref, commit=state.commit, plan=plan
    )


def plan_document(plan: RollbackPlan) -> RollbackPlanDocument:
    """Return a plan as a document."""
    return RollbackPlanDocument(
        kind=plan.kind,
        source=plan.source,
        target=plan.target,
        result=plan.result,
        changes=plan.result != plan.source,
        paths=plan.paths,
        unchanged=plan.unchanged,
    )


def parse_hunk(text: str) -> Drop:
    """Parse `PATH:LINE` or `PATH:FIRST-LAST`. Raises `UsageError`."""
    # From the right, since a path may contain colons. `isdecimal` alone accepts digits of every script.
    path, colon, lines = text.rpartition(":")
    first, dash, last = lines.partition("-")
    numbers = (first, last) if dash else (first, first)
    if not (colon and path and all(number.isascii() and number.isdecimal() for number in numbers)):
        raise UsageError(f"{text!r} is not PATH:LINE or PATH:FIRST-LAST", hint="such as src/app.py:12-20")
    named = LineRange(first=int(numbers[0]), last=int(numbers[1]))
    if not 1 <= named.first <= named.last:
        raise UsageError(f"{text!r} names no lines", hint="lines count from 1, the first before the last")
    return Drop(path=path, lines=(named,))


def named_tree(state: MissionState, name: str) -> str:
    """Return the tree of a checkpoint, of `base` or of `result`. Raises `NotFoundError`."""
    if name == RESULT:
        return result_tree(state)
    return base_tree(state) if name == BASE else find_checkpoint(state, name).tree


def _state_with_checkpoints(reader: StateReader, mission: str) -> MissionState:
    state = reader.mission_state(mission)
    if not state.checkpoints:
        hint = f"chargehand mission show {state.id}"
        raise NotFoundError(f"mission {state.id!r} has no checkpoint", hint=hint)
    return state
