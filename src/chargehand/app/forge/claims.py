"""Claims of issues: comments whose order at the forge decides who works on an issue.

A claim is a comment with a mark. The first claim of an issue holds; a later one replaces it only by naming its
id, and of several that name the same one the first counts. So the forge's order of comments decides alone, and a
holder that comes back finds its claim replaced, whatever its clock says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.text import late_pattern
from chargehand.forges.contract import Forge, ForgeComment, ForgeError

# A holder edits its claim more often than this; then another may replace it.
LEASE = timedelta(hours=1)
_MARK = late_pattern(r"<!-- chargehand:claim (\{[^<>]{1,400}\}) -->\s*\Z", re.ASCII)
ClaimState = Literal["held", "released"]


class ClaimMark(Struct, frozen=True, kw_only=True):
    """The mark of a claim: the mission that holds it, and the id of the claim that it replaces, or 0."""

    mission: str
    after: int = 0
    state: ClaimState = "held"


class Claim(Struct, frozen=True, kw_only=True):
    """The claim that holds, with its comment."""

    comment: ForgeComment
    mark: ClaimMark

    def is_over(self, now: datetime) -> bool:
        """Return whether its holder has shown no sign of life for the lease."""
        return now - self.comment.updated >= LEASE


def with_mark(text: str, mark: ClaimMark) -> str:
    """Return the text of a claiming comment."""
    return f"{text}\n\n<!-- chargehand:claim {msgspec.json.encode(mark).decode()} -->"


def read_mark(body: str) -> ClaimMark | None:
    """Return the mark of a comment, `None` without a mark."""
    found = _MARK.search(body)
    try:
        return decode_as(found[1], ClaimMark) if found else None
    except msgspec.MsgspecError:
        return None


def find_claim(comments: Sequence[ForgeComment], *, may_claim: Callable[[str], bool]) -> Claim | None:
    """Return the claim that counts; marks in comments of people who may not claim are ignored."""
    holds: Claim | None = None
    for comment in sorted(comments, key=lambda each: each.id):
        mark = read_mark(comment.body)
        expected = holds.comment.id if holds else 0
        if mark is not None and mark.after == expected and may_claim(comment.author):
            holds = Claim(comment=comment, mark=mark)
    return holds


def claim_issue(
    forge: Forge,
    repository: str,
    number: int,
    *,
    mission: str,
    text: str,
    now: datetime,
    again: bool = False,
    comments: Sequence[ForgeComment] | None = None,
) -> tuple[Claim | None, Claim | None]:
    """Claim an issue for a mission; return the claim, or `None` and the claim that holds.

    `comments` are those of the issue, if they were just read. A claim whose holder released it is replaced only
    with `again`. The lease of another is judged by the clock of the forge. Raises `ForgeError`.
    """
    may = WriteRights(forge, repository)
    before = find_claim(forge.comments(repository, number) if comments is None else comments, may_claim=may)
    if before is not None and not (again if before.mark.state == "released" else before.is_over(now)):
        return None, before
    mark = ClaimMark(mission=mission, after=before.comment.id if before else 0)
    own = _add_claim(forge, repository, number, with_mark(text, mark))
    may.add(own.author)  # it may write, or it could not push either
    holds = find_claim(forge.comments(repository, number), may_claim=may)
    lives = before is not None and before.mark.state == "held" and not before.is_over(own.created)
    if holds is None or holds.comment.id != own.id or lives:
        forge.delete_comment(repository, number, own.id)
        return None, before if lives else holds
    return holds, holds


def _add_claim(forge: Forge, repository: str, number: int, body: str) -> ForgeComment:
    """Add a comment, and find it if its reply is lost: no other process knows its mission."""
    try:
        return forge.add_comment(repository, number, body)
    except ForgeError as error:
        found = None
        if error.may_have_acted:
            mark = read_mark(body)
            made = (each for each in forge.comments(repository, number) if read_mark(each.body) == mark)
            found = next(made, None)
        if found is None:
            raise
        return found


class WriteRights:
    """Whether people may write to a repository, asked once per person."""

    def __init__(self, forge: Forge, repository: str) -> None:
        self._forge, self._repository = forge, repository
        self._known: dict[str, bool] = {}

    def add(self, login: str) -> None:
        """Note that a person has write right, without asking."""
        self._known[login] = True

    def __call__(self, login: str) -> bool:
        """Return whether a person has write right; raises `ForgeError`."""
        if login not in self._known:
            self._known[login] = self._forge.right(self._repository, login) in ("write", "admin")
        return self._known[login]
