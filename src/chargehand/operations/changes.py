"""Routes of missions' changes and stored data: trees, checkpoints, artifacts."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from chargehand.app import checkpoints, storage
from chargehand.app.checkpoints import (
    CheckpointDocument,
    DiffDocument,
    FileDifference,
    PlannedRestore,
    RestoreDocument,
    RestoreRequest,
)
from chargehand.app.composition import App
from chargehand.app.storage import ArtifactList, ArtifactView
from chargehand.identity.accounts import Caller
from chargehand.operations.operation import (
    MissionName,
    NamedMission,
    OperationTable,
    RawContent,
    RestArguments,
    Words,
)
from chargehand.reports import story
from chargehand.reports.documents import CheckpointsDocument
from chargehand.reports.reading import StateReader
from chargehand.reports.story import HunkDecision, MissionReviews, ReviewDecisions

OPERATIONS = OperationTable()
# A review may reject each of a large change's hunks.
_HunkId = Annotated[str, Meta(min_length=1, max_length=64)]
_Parts = Annotated[tuple[Words, ...], Meta(max_length=5_000)]


class DiffQuery(RestArguments, frozen=True):
    """The trees of a mission to compare: checkpoints, `base` or `result`."""

    mission: MissionName
    old: Annotated[str, Meta(max_length=64)] = "base"
    new: Annotated[str, Meta(max_length=64)] = "result"
    patch: bool = True


class SaveReview(RestArguments, frozen=True, kw_only=True):
    """Your notes on a change; they replace those of `revision` (0 if there are no notes), or of `If-Match`."""

    mission: MissionName
    revision: Annotated[int, Meta(ge=0, le=1 << 53)]
    tree: Annotated[str, Meta(max_length=64)] = ""
    decided: Annotated[dict[_HunkId, HunkDecision], Meta(max_length=20_000)]
    comments: Annotated[dict[_HunkId, Words], Meta(max_length=2_000)]


class TreesQuery(DiffQuery, frozen=True, kw_only=True):
    """The trees of a mission to compare, optionally reversed."""

    inverse: bool = False


class FileQuery(DiffQuery, frozen=True, kw_only=True):
    """The file to compare in two trees."""

    path: Words


class OneArtifact(RestArguments, frozen=True):
    """An artifact, by its id or the beginning of it, and its format: its bytes, or a document."""

    artifact: Annotated[str, Meta(min_length=4, max_length=128)]
    format: Annotated[str, Meta(pattern="^(json|raw)$")] = "raw"


class OneCheckpoint(RestArguments, frozen=True):
    """A checkpoint of a mission, by its commit or the beginning of it."""

    mission: MissionName
    checkpoint: Annotated[str, Meta(min_length=4, max_length=64)]


class RestoreBody(RestArguments, frozen=True):
    """The checkpoint to restore, and the parts; with `dry_run` only the plan is returned."""

    mission: MissionName
    checkpoint: Annotated[str, Meta(min_length=4, max_length=64)]
    files: _Parts = ()
    hunks: _Parts = ()
    smart: bool = False
    dry_run: bool = False


class UndoBody(RestArguments, frozen=True):
    """The mission whose last checkpoint is undone; with `dry_run` only the plan is returned."""

    mission: MissionName
    dry_run: bool = False


@OPERATIONS.add("GET", "/missions/{mission}/reviews", action="mission.review")
def list_reviews(reader: StateReader, call: NamedMission, by: Caller) -> MissionReviews:
    """Show each reviewer's notes on its change so far."""
    return story.list_reviews(reader, call.mission)


@OPERATIONS.add("GET", "/missions/{mission}/review/decisions", action="mission.review")
def show_own_review(reader: StateReader, call: NamedMission, by: Caller) -> ReviewDecisions:
    """Show your notes on its change so far."""
    return story.find_review(reader, call.mission, by.user)


@OPERATIONS.add("PUT", "/missions/{mission}/review/decisions", action="review.decide")
def save_own_review(app: App, call: SaveReview, by: Caller) -> ReviewDecisions:
    """Store your notes on its change so far."""
    return story.save_review(
        app,
        call.mission,
        by.user,
        revision=call.revision,
        tree=call.tree,
        decided=call.decided,
        comments=call.comments,
    )


@OPERATIONS.add(
    "GET", "/missions/{mission}/diff", action="mission.diff", commands=("mission diff", "checkpoint diff")
)
def compare_trees(reader: StateReader, call: TreesQuery, by: Caller) -> DiffDocument:
    """Show the difference between two of its trees."""
    found = checkpoints.checkpoint_difference(
        reader, call.old, call.new, mission=call.mission, inverse=call.inverse
    )
    return found.document(with_patch=call.patch)


@OPERATIONS.add("GET", "/missions/{mission}/diff/file", action="mission.diff")
def compare_file(reader: StateReader, call: FileQuery, by: Caller) -> FileDifference:
    """Show one file in two trees."""
    return checkpoints.compare_file(reader, call.mission, call.path, old=call.old, new=call.new)


@OPERATIONS.add(
    "GET", "/missions/{mission}/checkpoints", action="mission.checkpoints", commands=("checkpoint list",)
)
def list_checkpoints(reader: StateReader, call: NamedMission, by: Caller) -> CheckpointsDocument:
    """List its checkpoints, the oldest first."""
    state = reader.mission_state(call.mission)
    return CheckpointsDocument(mission=state.id, checkpoints=state.checkpoints)


@OPERATIONS.add(
    "GET",
    "/missions/{mission}/checkpoints/{checkpoint}",
    action="mission.checkpoints",
    commands=("checkpoint show",),
)
def show_checkpoint(reader: StateReader, call: OneCheckpoint, by: Caller) -> CheckpointDocument:
    """Show a checkpoint, and its files that differ from the base."""
    return checkpoints.show_checkpoint(reader, call.checkpoint, mission=call.mission)


@OPERATIONS.add("GET", "/missions/{mission}/artifacts", action="mission.artifacts", commands=("artifact list",))
def list_artifacts(reader: StateReader, call: NamedMission, by: Caller) -> ArtifactList:
    """List the artifacts of a mission."""
    return storage.list_artifacts(reader, call.mission)


@OPERATIONS.add(
    "GET",
    "/artifacts/{artifact}",
    action="artifact.show",
    gives=ArtifactView,
    raw="text/plain",
    commands=("artifact show",),
)
def read_artifact(reader: StateReader, call: OneArtifact, by: Caller) -> ArtifactView | RawContent:
    """Read an artifact."""
    content, view = storage.read_artifact(reader, call.artifact)
    if call.format == "json":
        return view
    return RawContent(content, "text/plain; charset=utf-8", file_name=f"{call.artifact}.txt")


@OPERATIONS.add("POST", "/missions/{mission}/restore", action="mission.restore", commands=("checkpoint restore",))
async def restore_checkpoint(app: App, call: RestoreBody, by: Caller) -> RestoreDocument:
    """Restore an earlier checkpoint as a new one."""
    request = RestoreRequest(
        mission=call.mission, checkpoint=call.checkpoint, files=call.files, hunks=call.hunks, smart=call.smart
    )
    return await _carry_out(app, await checkpoints.plan_restore(app, request), dry_run=call.dry_run)


@OPERATIONS.add("POST", "/missions/{mission}/undo", action="mission.restore", commands=("checkpoint undo",))
async def undo_checkpoint(app: App, call: UndoBody, by: Caller) -> RestoreDocument:
    """Restore the checkpoint before the last one."""
    planned = await asyncio.to_thread(checkpoints.plan_undo, app, call.mission)
    return await _carry_out(app, planned, dry_run=call.dry_run)


async def _carry_out(app: App, planned: PlannedRestore, *, dry_run: bool) -> RestoreDocument:
    if dry_run:
        return planned.document(dry_run=True)
    return planned.document(dry_run=False, checkpoint=await checkpoints.carry_out_restore(app, planned))
