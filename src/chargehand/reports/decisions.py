"""Reviewers' decisions on the hunks of a change, stored so that other browsers and colleagues see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import RefusedError, UsageError
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader
from chargehand.store.reviews import ReviewRow

HunkDecision = Literal["accepted", "rejected"]
# Enough for a change of thousands of hunks, with a comment on each tenth.
_LONGEST = 512 * 1024


class ReviewDecisions(Document, frozen=True):
    """One person's decisions on a mission's change, by the ids of its hunks, with comments.

    These are notes: they restore or promote nothing and are not sent to an agent. `tree` is the tree seen last, ""
    if unknown; hunks that a later round does not change keep their ids. `revision` is 0 if nothing is stored.
    """

    mission: str
    user: str
    revision: int
    changed: str
    tree: str
    decided: dict[str, HunkDecision]
    comments: dict[str, str]


class MissionReviews(Document, frozen=True):
    """The notes of all reviewers of a mission's change, the newest first."""

    mission: str
    reviews: tuple[ReviewDecisions, ...]


class ReviewNotes(msgspec.Struct, frozen=True, kw_only=True):
    """The stored part of a person's notes."""

    tree: str = ""
    decided: dict[str, HunkDecision] = {}
    comments: dict[str, str] = {}


def find_review(reader: StateReader, name: str, user: str) -> ReviewDecisions:
    """Return a person's notes on a mission, empty ones by default. Raises `NotFoundError`."""
    mission = reader.find_mission(name)
    rows = [row for row in reader.store.reviews.list(mission) if row.user == user]
    none = ReviewRow(user=user, revision=0, changed="", content=b"{}")
    return _document(mission, rows[0] if rows else none)


def list_reviews(reader: StateReader, name: str) -> MissionReviews:
    """Return all notes on a mission. Raises `NotFoundError`."""
    mission = reader.find_mission(name)
    rows = reader.store.reviews.list(mission)
    return MissionReviews(mission=mission, reviews=tuple(_document(mission, row) for row in rows))


def save_review(
    reader: StateReader, name: str, user: str, *, revision: int, tree: str,
    decided: Mapping[str, HunkDecision], comments: Mapping[str, str],
) -> ReviewDecisions:  # fmt: skip
    """Replace a person's notes of `revision` (0 if there are no notes), and return the new ones.

    Raises `RefusedError` (`review_changed`) if others were written since, `UsageError` (`review_too_long`),
    `NotFoundError`.
    """
    mission = reader.find_mission(name)
    notes = ReviewNotes(tree=tree, decided=dict(decided), comments=dict(comments))
    content = msgspec.json.encode(notes)
    if len(content) > _LONGEST:
        raise UsageError(
            f"these notes have {len(content)} bytes, and at most {_LONGEST} are stored",
            code="review_too_long",
            hint="send the agent the comments so far, then continue",
        )
    row = reader.store.reviews.save(mission, user, revision=revision, content=content)
    if row is None:
        raise RefusedError(
            f"the notes of {user} on {mission} are of another revision than {revision}: another tab wrote them",
            code="review_changed",
            hint="read them again and repeat your changes",
        )
    return _document(mission, row)


def _document(mission: str, row: ReviewRow) -> ReviewDecisions:
    try:
        notes = decode_as(row.content, ReviewNotes)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        notes = ReviewNotes()
    return ReviewDecisions(
        mission=mission,
        user=row.user,
        revision=row.revision,
        changed=row.changed,
        tree=notes.tree,
        decided=notes.decided,
        comments=notes.comments,
    )
