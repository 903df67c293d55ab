"""Reviews: the votes of a task's reviewers, and the decision on the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from chargehand.core.messages import Completion, TaskCompletion, message_of
from chargehand.core.plan_events import ReviewDecision, ReviewStarted, ReviewVote
from chargehand.core.records import Reason
from chargehand.core.state import MissionState
from chargehand.core.text import printable
from chargehand.missions.causes import FAILING_TEST

# How often objections return a result to its author before the reviewers' votes are counted.
MOST_REVISIONS = 2
# The code of `objection`.
OBJECTED = "review_objected"
_MOST_POINTS = 20
_LONGEST_POINT_CHARACTERS = 2_000


def read_vote(review: ReviewStarted, child: MissionState) -> ReviewVote:
    """Return a reviewer's vote, from the fields of its last message and never from its words.

    A message with `open_points` objects; one without them and with `evidence` approves. Any other end, such as the
    plain text of some programs, abstains. A test that was seen to fail is a proven objection.
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
    """Return the last message of a successful mission's agent, if it has the fields of a completion."""
    if child.status != "promoted" or not child.received:
        return None
    message = message_of(child.received[-1].message)
    return message.payload if isinstance(message, TaskCompletion) else None


def weigh(votes: Sequence[ReviewVote], *, revisions: int) -> tuple[ReviewDecision, str]:
    """Return the decision on a result and its reason, given the number of `revisions` so far.

    A failing test decides, whatever the votes. Other objections return the result, up to `MOST_REVISIONS` times;
    then more approvals than objections accept it, and otherwise a person decides, as if all abstained.
    """
    proven = next((vote for vote in votes if vote.proven), None)
    approvals = sum(vote.vote == "approves" for vote in votes)
    objections = sum(vote.vote == "objects" for vote in votes)
    if proven is not None:
        return "revise", f"a test shows a fault: {proven.points[0]}"
    if not objections:
        if approvals:
            return "accepted", f"no objections, {approvals} of {len(votes)} approve"
        return "disputed", "no reviewer reached a result"
    if revisions < MOST_REVISIONS:
        return "revise", f"{objections} of {len(votes)} reviewers object"
    counted = f"after {revisions} revisions {approvals} approve and {objections} object"
    return ("accepted" if approvals > objections else "disputed"), counted


def objection(why: str) -> Reason:
    """Return the reason for returning a result because of objections."""
    return Reason(code="review_objected", message=why)


def objections_report(votes: Sequence[ReviewVote]) -> str:
    """Return the objections as text for the agent that has to answer them."""
    parts = []
    for vote in votes:
        if vote.points:
            parts.append(f"{vote.role}:\n" + "\n".join(f"- {point}" for point in vote.points))
    return "\n\n".join(parts)
