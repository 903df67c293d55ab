"""Routes of what missions changed and kept: trees, checkpoints, artifacts."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from chargehand.app.accounts import Caller
from chargehand.app.checkpoints import (
    CheckpointDocument,
    DiffDocument,
    FileDifference,
    PlannedRestore,
    RestoreDocument,
    RestoreRequest,
    carry_out_restore,
    checkpoint_difference,
    compare_file,
    plan_restore,
    plan_undo,
    show_checkpoint,
)
from chargehand.app.composition import App
from chargehand.app.documents import CheckpointsDocument
from chargehand.app.reading import StateReader
from chargehand.app.storage import ArtifactList, ArtifactView, list_artifacts, read_artifact
from chargehand.app.story import (
    HunkDecision,
    MissionReviews,
    ReviewDecisions,
    find_review,
    list_reviews,
    save_review,
)
from chargehand.server._routes import MissionName, NamedMission, RawContent, RestArguments, Route, Words

# A review may take back each of a large change's hunks.
_HunkId = Annotated[str, Meta(min_length=1, max_length=64)]
_Parts = Annotated[tuple[Words, ...], Meta(max_length=5_000)]


class DiffQuery(RestArguments, frozen=True):
    """Which trees of a mission are compared: checkpoints, `base` or `result`."""

    mission: MissionName
    old: Annotated[str, Meta(max_length=64)] = "base"
    new: Annotated[str, Meta(max_length=64)] = "result"
    patch: bool = True


class SaveReview(RestArguments, frozen=True, kw_only=True):
    """Your notes on a change, in the place of those of `revision`, 0 for none: `If-Match` says it as well."""

    mission: MissionName
    revision: Annotated[int, Meta(ge=0, le=1 << 53)]
    tree: Annotated[str, Meta(max_length=64)] = ""
    decided: Annotated[dict[_HunkId, HunkDecision], Meta(max_length=20_000)]
    comments: Annotated[dict[_HunkId, Words], Meta(max_length=2_000)]


class TreesQuery(DiffQuery, frozen=True, kw_only=True):
    """Which trees of a mission are compared, and whether from the new one back to the old."""

    inverse: bool = False


class FileQuery(DiffQuery, frozen=True, kw_only=True):
    """Which file of two trees is compared."""

    path: Words


class OneArtifact(RestArguments, frozen=True):
    """An artifact, by its id or its beginning, and in which form it is given: its bytes, or a document of it."""

    artifact: Annotated[str, Meta(min_length=4, max_length=128)]
    format: Annotated[str, Meta(pattern="^(json|raw)$")] = "raw"


class OneCheckpoint(RestArguments, frozen=True):
    """A checkpoint of a mission, by its commit or the beginning of that."""

    mission: MissionName
    checkpoint: Annotated[str, Meta(min_length=4, max_length=64)]


class RestoreBody(RestArguments, frozen=True):
    """Which checkpoint is restored, and how far; with `dry_run` only what that would do."""

    mission: MissionName
    checkpoint: Annotated[str, Meta(min_length=4, max_length=64)]
    files: _Parts = ()
    hunks: _Parts = ()
    smart: bool = False
    dry_run: bool = False


class UndoBody(RestArguments, frozen=True):
    """Whose last checkpoint is undone; with `dry_run` only what that would do."""

    mission: MissionName
    dry_run: bool = False


def _compare(reader: StateReader, call: TreesQuery, by: Caller) -> DiffDocument:
    found = checkpoint_difference(reader, call.old, call.new, mission=call.mission, inverse=call.inverse)
    return found.document(with_patch=call.patch)


async def _restore(app: App, call: RestoreBody, by: Caller) -> RestoreDocument:
    request = RestoreRequest(
        mission=call.mission, checkpoint=call.checkpoint, files=call.files, hunks=call.hunks, smart=call.smart
    )
    return await _carry_out(app, await plan_restore(app, request), dry_run=call.dry_run)


async def _undo(app: App, call: UndoBody, by: Caller) -> RestoreDocument:
    return await _carry_out(app, await asyncio.to_thread(plan_undo, app, call.mission), dry_run=call.dry_run)


async def _carry_out(app: App, planned: PlannedRestore, *, dry_run: bool) -> RestoreDocument:
    if dry_run:
        return planned.document(dry_run=True)
    return planned.document(dry_run=False, checkpoint=await carry_out_restore(app, planned))


def _artifact(reader: StateReader, call: OneArtifact, by: Caller) -> ArtifactView | RawContent:
    content, view = read_artifact(reader, call.artifact)
    if call.format == "json":
        return view
    return RawContent(content, "text/plain; charset=utf-8", file_name=f"{call.artifact}.txt")


def _checkpoints(reader: StateReader, call: NamedMission, by: Caller) -> CheckpointsDocument:
    state = reader.mission_state(call.mission)
    return CheckpointsDocument(mission=state.id, checkpoints=state.checkpoints)


_ONE = "/missions/{mission}"
ROUTES = (
    Route(
        method="GET", path=f"{_ONE}/reviews", action="mission.review",
        summary="Show what each person noted on its change so far.",
        takes=NamedMission, gives=MissionReviews,
        call=lambda reader, call, by: list_reviews(reader, call.mission),
    ),
    Route(
        method="GET", path=f"{_ONE}/review/decisions", action="mission.review",
        summary="Show what you noted on its change so far.",
        takes=NamedMission, gives=ReviewDecisions,
        call=lambda reader, call, by: find_review(reader, call.mission, by.user),
    ),
    Route(
        method="PUT", path=f"{_ONE}/review/decisions", action="review.decide",
        summary="Keep what you noted on its change so far.",
        takes=SaveReview, gives=ReviewDecisions,
        call=lambda app, call, by: save_review(
            app, call.mission, by.user, revision=call.revision, tree=call.tree, decided=call.decided,
            comments=call.comments,
        ),
    ),
    Route(
        method="GET", path=f"{_ONE}/diff", action="mission.diff",
        summary="Show what changed between two of its trees.",
        takes=TreesQuery, gives=DiffDocument, call=_compare, commands=("mission diff", "checkpoint diff"),
    ),
    Route(
        method="GET", path=f"{_ONE}/diff/file", action="mission.diff",
        summary="Show one file of two trees.",
        takes=FileQuery, gives=FileDifference,
        call=lambda reader, call, by: compare_file(reader, call.mission, call.path, old=call.old, new=call.new),
    ),
    Route(
        method="GET", path=f"{_ONE}/checkpoints", action="mission.checkpoints",
        summary="List its checkpoints, the oldest first.",
        takes=NamedMission, gives=CheckpointsDocument, call=_checkpoints, commands=("checkpoint list",),
    ),
    Route(
        method="GET", path=f"{_ONE}/checkpoints/{{checkpoint}}", action="mission.checkpoints",
        summary="Show a checkpoint, and its files that differ from the base.",
        takes=OneCheckpoint, gives=CheckpointDocument, commands=("checkpoint show",),
        call=lambda reader, call, by: show_checkpoint(reader, call.checkpoint, mission=call.mission),
    ),
    Route(
        method="GET", path=f"{_ONE}/artifacts", action="mission.artifacts",
        summary="List the artifacts of a mission.",
        takes=NamedMission, gives=ArtifactList, commands=("artifact list",),
        call=lambda reader, call, by: list_artifacts(reader, call.mission),
    ),
    Route(
        method="GET", path="/artifacts/{artifact}", action="artifact.show",
        summary="Read an artifact.",
        takes=OneArtifact, gives=ArtifactView, raw="text/plain", call=_artifact, commands=("artifact show",),
    ),
    Route(
        method="POST", path=f"{_ONE}/restore", action="mission.restore",
        summary="Restore an earlier checkpoint as a new one.",
        takes=RestoreBody, gives=RestoreDocument,
        call=_restore, commands=("checkpoint restore",),
    ),
    Route(
        method="POST", path=f"{_ONE}/undo", action="mission.restore",
        summary="Restore the checkpoint before the last one.",
        takes=UndoBody, gives=RestoreDocument, call=_undo, commands=("checkpoint undo",),
    ),
)  # fmt: skip
