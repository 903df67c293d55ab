"""The remarks on a request that the next round works on: of people with write right, and of red checks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct

from chargehand.app.forge.request_delivery import STATUS, remark_prefix
from chargehand.app.forge.texts import Remark, answered_remarks, is_ours, read_command
from chargehand.core.records import IssueLink
from chargehand.forges.contract import CommitStatus, Forge, ForgeComment, ForgeRequest, ForgeReview, ReviewComment

_LARGEST_LOG = 12_000


class RemarkReader(Struct, frozen=True, kw_only=True):
    """Reads the remarks that were not answered yet; `stack` are the requests of earlier tasks.

    `may` returns whether a person has write right: other people are not heard.
    """

    forge: Forge
    link: IssueLink
    may: Callable[[str], bool]
    stack: Sequence[int]

    def read(
        self, request: ForgeRequest, statuses: Sequence[CommitStatus], quiet_since: datetime
    ) -> list[Remark] | None:
        """Return the remarks to work on, `None` if a comment on a line is younger than `quiet_since`."""
        found: list[Remark] = []
        newest: list[datetime] = []
        done: set[str] = set()
        for number in (request.number, *self.stack):
            self._read_request(number, request.number, found, newest, done)
        if newest and max(newest) > quiet_since:
            return None
        return found + self._red_checks(request, statuses, done)

    def _read_request(
        self, number: int, main: int, found: list[Remark], newest: list[datetime], done: set[str]
    ) -> None:
        """Add the remarks on one request of a stack, the times of those on lines, and the keys of answered ones.

        The request `main` comes first: those that are not on lines are answered there.
        """
        link, forge, prefix = self.link, self.forge, remark_prefix(number, main)
        reviews = forge.reviews(link.repository, number)
        lines = forge.review_comments(link.repository, number)
        talk = forge.comments(link.repository, number, is_request=True)
        done |= answered_remarks(self._own_words((*lines, *talk, *reviews)))
        for line in lines:
            key = f"line/{prefix}{line.id}"
            if key not in done and not line.resolved and not is_ours(line.body) and self.may(line.author):
                place = f"{line.path}:{line.line}" if line.line else line.path
                remark = Remark(key=key, author=line.author, text=line.body, place=place, thread=line.thread)
                found.append(remark)
                newest.append(line.created)
        for review in reviews:
            key = f"review/{prefix}{review.id}"
            wanted = review.state == "changes" or (review.state == "commented" and review.body.strip())
            wanted = wanted and bool(review.body.strip()) and not is_ours(review.body)
            if wanted and key not in done and self.may(review.author):
                found.append(Remark(key=key, author=review.author, text=review.body))
        for comment in talk:
            key, command = f"comment/{prefix}{comment.id}", read_command(comment.body)
            if command and command.name == "revise" and key not in done and self.may(comment.author):
                found.append(Remark(key=key, author=comment.author, text=command.text))

    def _own_words(self, comments: Sequence[ForgeComment | ForgeReview | ReviewComment]) -> str:
        """Return the texts of Chargehand: anyone can copy a mark, but not with the rights of its accounts."""
        return "\n".join(each.body for each in comments if is_ours(each.body) and self.may(each.author))

    def _red_checks(self, request: ForgeRequest, statuses: Sequence[CommitStatus], done: set[str]) -> list[Remark]:
        statuses = [each for each in statuses if each.context != STATUS]
        if any(each.state == "pending" for each in statuses):
            return []
        found = []
        for each in statuses:
            name = hashlib.sha256(each.context.encode()).hexdigest()[:12]  # it may contain anything
            key = f"check/{name}/{request.head_commit[:12]}"
            if each.state in ("failure", "error") and key not in done:
                log = self.forge.read_log(self.link.repository, each, most=_LARGEST_LOG)
                text = f"The check {each.context} is red: {each.description}\n{log}".strip()
                found.append(Remark(key=key, author="the forge's checks", text=text))
        return found
