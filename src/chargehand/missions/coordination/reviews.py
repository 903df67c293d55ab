"""Reviews: what the reviewers of a task's result said, and what becomes of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from chargehand.core.messages import Completion, TaskCompletion, message_of
from chargehand.core.plan_events import ReviewDecision, ReviewStarted, ReviewVote
from chargehand.core.records import Reason
from chargehand.core.state import MissionState
from chargehand.core.text import printable
from chargehand.missions.causes import FAILING_TEST

# How often objections send a result back to who made it, before the reviewers' votes are counted.
MOST_REVISIONS = 2
# The code of `objection`.
OBJECTED = "review_objected"
_MOST_POINTS = 20
_LONGEST_POINT_CHARACTERS = 2_000


def read_vote(review: ReviewStarted, child: MissionState) -> ReviewVote:
    """Return what a reviewer said, by the fields of its last message and never by its words.

    Who ends with `open_points` objects, who ends without any and with `evidence` of what it looked at approves.
    Any other end, such as the plain text of some programs, is neither. A test that was seen to fail is an
    objection that is proven.
    """
    tests = [reason.message for reason in child.reasons if reason.code == FAILING_TEST]
    if tests:
        return ReviewVote(mission=child.id, role=review.role, vote="objects", points=tuple(tests), proven=True)
    said = last_completion(child)
    vote: Literal["approves", "objects", "abstained"] = "abstained"
    points: tuple[str, ...] = ()
    if said is not None:
        points = tuple(printable(each)[:_LONGEST_POINT_CHARACTERS] for each in said.open_points if each.strip())
        vote = "objects" if points else "approves" if any(said.evidence) else "abstained"
    return ReviewVote(mission=child.id, role=review.role, vote=vote, points=points[:_MOST_POINTS])


def last_completion(child: MissionState) -> Completion | None:
    """Return what the agent of a mission that came to a good end said last, if it used the fields for it."""
    if child.status != "promoted" or not child.received:
        return None
    message = message_of(child.received[-1].message)
    return message.payload if isinstance(message, TaskCompletion) else None


def weigh(votes: Sequence[ReviewVote], *, revisions: int) -> tuple[ReviewDecision, str]:
    """Return what becomes of a result and why, as its `revisions` have been up to now.

    A test that fails decides, whatever the votes. Other objections send it back, `MOST_REVISIONS` times; then more
    approvals than objections let it in, and else a person decides, as where nobody said anything.
    """
    proven = next((vote for vote in votes if vote.proven), None)
    approvals = sum(vote.vote == "approves" for vote in votes)
    objections = sum(vote.vote == "objects" for vote in votes)
    if proven is not None:
        return "revise", f"a test shows what is wrong: {proven.points[0]}"
    if not objections:
        if approvals:
            return "accepted", f"nobody objects, {approvals} of {len(votes)} approve"
        return "disputed", "no reviewer came to a result"
    if revisions < MOST_REVISIONS:
        return "revise", f"{objections} of {len(votes)} reviewers object"
    counted = f"after {revisions} revisions {approvals} approve and {objections} object"
    return ("accepted" if approvals > objections else "disputed"), counted


def objection(why: str) -> Reason:
    """Return the reason for which a result goes back that reviewers object to."""
    return Reason(code="review_objected", message=why)


def objections_report(votes: Sequence[ReviewVote]) -> str:
    """Return the objections as whoever has to answer them reads them."""
    parts = []
    for vote in votes:
        if vote.points:
            parts.append(f"{vote.role}:\n" + "\n".join(f"- {point}" for point in vote.points))
    return "\n\n".join(parts)
