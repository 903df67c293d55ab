"""What people decided on the hunks of a change so far: kept, so that another browser and colleagues see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from chargehand.app.documents import Document
from chargehand.app.reading import StateReader
from chargehand.core.codec import decode_as
from chargehand.core.errors import RefusedError, UsageError
from chargehand.store.reviews import ReviewRow

HunkDecision = Literal["accepted", "rejected"]
# A change of thousands of hunks, with a comment on each tenth.
_LONGEST = 512 * 1024


class ReviewDecisions(Document, frozen=True):
    """What one person decided on a mission's change, by the ids of its hunks, and what they said to them.

    These are notes: nothing is restored, promoted or told to an agent by them. `tree` is what they looked at last,
    "" for nobody knows; hunks that a later round leaves as they are keep their ids. `revision` is 0 where nothing
    is kept.
    """

    mission: str
    user: str
    revision: int
    changed: str
    tree: str
    decided: dict[str, HunkDecision]
    comments: dict[str, str]


class MissionReviews(Document, frozen=True):
    """The notes of all who review a mission's change, the newest first."""

    mission: str
    reviews: tuple[ReviewDecisions, ...]


class ReviewNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a person's notes."""

    tree: str = ""
    decided: dict[str, HunkDecision] = {}
    comments: dict[str, str] = {}


def find_review(reader: StateReader, name: str, user: str) -> ReviewDecisions:
    """Return a person's notes on a mission, empty ones where there are none. Raises `NotFoundError`."""
    mission = reader.find_mission(name)
    rows = [row for row in reader.store.reviews.list(mission) if row.user == user]
    none = ReviewRow(user=user, revision=0, changed="", content=b"{}")
    return _document(mission, rows[0] if rows else none)


def list_reviews(reader: StateReader, name: str) -> MissionReviews:
    """Return everybody's notes on a mission. Raises `NotFoundError`."""
    mission = reader.find_mission(name)
    rows = reader.store.reviews.list(mission)
    return MissionReviews(mission=mission, reviews=tuple(_document(mission, row) for row in rows))


def save_review(
    reader: StateReader, name: str, user: str, *, revision: int, tree: str,
    decided: Mapping[str, HunkDecision], comments: Mapping[str, str],
) -> ReviewDecisions:  # fmt: skip
    """Put a person's notes in the place of those of `revision` (0 for none), and return them.

    Raises `RefusedError` (`review_changed`) where others were written since, `UsageError` (`review_too_long`),
    `NotFoundError`.
    """
    mission = reader.find_mission(name)
    notes = ReviewNotes(tree=tree, decided=dict(decided), comments=dict(comments))
    content = msgspec.json.encode(notes)
    if len(content) > _LONGEST:
        raise UsageError(
            f"these notes have {len(content)} bytes, and at most {_LONGEST} are kept",
            code="review_too_long",
            hint="send the agent what is commented so far, and go on with the rest",
        )
    row = reader.store.reviews.save(mission, user, revision=revision, content=content)
    if row is None:
        raise RefusedError(
            f"the notes of {user} on {mission} are of another revision than {revision}: another tab wrote them",
            code="review_changed",
            hint="read them again, and put in what you changed",
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
