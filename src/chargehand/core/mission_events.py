"""The payloads of a mission's events: adding a field needs a default, so that older logs still load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chargehand.core.conflicts import Conflict
from chargehand.core.events import Payload, event
from chargehand.core.records import (
    AttemptStatus,
    Base,
    Checkpoint,
    Export,
    MissionRequest,
    MissionStatus,
    Reason,
    Reverted,
    Verdict,
)


@event("mission.created")
@dataclass(frozen=True, kw_only=True)
class MissionCreated(Payload):
    """A person asked for something in a project; `config` is what was in force.

    `forked_from` and `forked_at` name the mission and the step whose log up to there was taken over; `user` is who
    pays for it, "" in logs from before users were known.
    """

    project: str
    repository: str
    request: MissionRequest
    config: dict[str, Any] = field(default_factory=dict)
    forked_from: str | None = None
    forked_at: str = ""
    user: str = ""


@event("mission.claimed")
@dataclass(frozen=True, kw_only=True)
class MissionClaimed(Payload):
    """A worker took the mission: from here on only what carries this epoch counts."""

    worker: str
    role: str
    epoch: int
    version: str


@event("mission.released")
@dataclass(frozen=True, kw_only=True)
class MissionReleased(Payload):
    """A worker that ends let go of the mission in good order; another one goes on with it."""

    worker: str


@event("mission.paused")
@dataclass(frozen=True, kw_only=True)
class MissionPaused(Payload):
    """A person stopped the mission where it was; nothing of it runs until it is resumed."""

    identity: str
    reason: str = ""


@event("mission.resumed")
@dataclass(frozen=True, kw_only=True)
class MissionResumed(Payload):
    """A person let a paused mission go on; `in_place` says that its worker held it all the time."""

    identity: str
    in_place: bool = False


@event("mission.queued")
@dataclass(frozen=True, kw_only=True)
class MissionQueued(Payload):
    """The mission waits until one of `places` is free and goes on by itself; `before` stand in line before it.

    `waits_for` is `attempts` (runs of an agent) or `checks`.
    """

    waits_for: str
    before: int
    places: int
    reason: Reason


@event("mission.admitted")
@dataclass(frozen=True, kw_only=True)
class MissionAdmitted(Payload):
    """A place became free for a mission that waited `seconds`; they count for no limit."""

    waits_for: str
    seconds: float


@event("mission.cancel_asked")
@dataclass(frozen=True, kw_only=True)
class CancelAsked(Payload):
    """A person wants a running mission to end: from here on nobody goes on with it, even if its worker dies."""

    identity: str


@event("message.sent")
@dataclass(frozen=True, kw_only=True)
class MessageSent(Payload):
    """A person, or Chargehand, told the agent something; one that cannot listen gets it with its next attempt.

    A `critical` one has to be acknowledged; `again` marks that the `message` of that id was sent once more.
    """

    identity: str
    text: str
    message: str = ""
    critical: bool = False
    again: bool = False


@event("base.resolved")
@dataclass(frozen=True, kw_only=True)
class BaseResolved(Payload):
    """The commit the mission starts from."""

    base: Base


@event("step.finished")
@dataclass(frozen=True, kw_only=True)
class StepFinished(Payload):
    """A recorded step: on a rerun with the same input its output is taken from here instead of doing it again.

    `input` is a digest; an output over 8 kB lies in `artifact`, and `output` is then `None`.
    """

    step: str
    input: str
    output: Any
    seconds: float
    artifact: str | None = None


@event("agent.selected")
@dataclass(frozen=True, kw_only=True)
class AgentSelected(Payload):
    """Which agent works, and why."""

    agent: str
    kind: str
    reason: str


@event("changes.reverted")
@dataclass(frozen=True, kw_only=True)
class ChangesReverted(Payload):
    """Inspection set paths back; the tree that remains is a checkpoint of its own."""

    attempt: str
    reverted: tuple[Reverted, ...]


@event("verdict.given")
@dataclass(frozen=True, kw_only=True)
class VerdictGiven(Payload):
    """Inspection and checks of one exact tree."""

    verdict: Verdict
    attempt: str | None = None
    reused: bool = False


@event("attempt.finished")
@dataclass(frozen=True, kw_only=True)
class AttemptFinished(Payload):
    """An attempt ended; money is `None` where it is not known."""

    attempt: str
    status: AttemptStatus
    seconds: float
    reasons: tuple[Reason, ...] = ()
    cost_usd: float | None = None
    cost_known: bool = False


PROMOTE = "promote"
"""The question whether to let a tree in; it is answered by promoting or discarding the mission."""


@event("question.asked")
@dataclass(frozen=True, kw_only=True)
class QuestionAsked(Payload):
    """A person is asked: `promote` whether to let this tree in, any other id something an agent wants to know.

    `tree` is what the question is bound to; `options` are proposals, never the only answers. With `until` (ISO
    8601, UTC) nobody need answer: `provider` has no quota before then, and a worker lets the mission go on then.
    """

    question: str
    tree: str
    reasons: tuple[Reason, ...]
    text: str = ""
    options: tuple[str, ...] = ()
    attempt: str | None = None
    until: str = ""
    provider: str = ""


CLOCK = "clock"
"""Who answers a question whose moment has come."""


@event("question.answered")
@dataclass(frozen=True, kw_only=True)
class QuestionAnswered(Payload):
    """A person, or the clock, answered a question, once; the mission may go on."""

    question: str
    text: str
    identity: str


@event("approval.given")
@dataclass(frozen=True, kw_only=True)
class ApprovalGiven(Payload):
    """A person let one exact tree in."""

    tree: str
    identity: str
    reason: str = ""


@event("promotion.prepared")
@dataclass(frozen=True, kw_only=True)
class PromotionPrepared(Payload):
    """The journal's entry before the swap: enough to finish or to forget it after a crash."""

    ref: str
    old: str
    new: str
    tree: str


@event("promotion.done")
@dataclass(frozen=True, kw_only=True)
class PromotionDone(Payload):
    """The mission branch in the depot points at the validated tree."""

    ref: str
    commit: str
    tree: str


@event("merge.conflicted")
@dataclass(frozen=True, kw_only=True)
class MergeConflicted(Payload):
    """A tree could not be merged with `commit`, where a branch is now; `count` paths are in conflict.

    `conflicts` tells of them what fits into a line of the log; where that is not all, `artifact` holds what is
    known (JSON). `attempt` made the tree, `None` where a person had it promoted.
    """

    branch: str
    commit: str
    tree: str
    count: int
    conflicts: tuple[Conflict, ...] = ()
    artifact: str | None = None
    attempt: str | None = None


@event("head.signed")
@dataclass(frozen=True, kw_only=True)
class HeadSigned(Payload):
    """The log up to line `seq` was signed and noted on a commit; `problem` says why not, "" where it was."""

    commit: str
    seq: int = 0
    key: str = ""
    problem: str = ""


@event("export.changed")
@dataclass(frozen=True, kw_only=True)
class ExportChanged(Payload):
    """The state of the branch in the user's repository."""

    export: Export
    commit: str


@event("apply.changed")
@dataclass(frozen=True, kw_only=True)
class ApplyChanged(Payload):
    """The state of the fast-forward of the user's own branch."""

    export: Export
    commit: str


@event("mission.finished")
@dataclass(frozen=True, kw_only=True)
class MissionFinished(Payload):
    """The mission came to a status that stays until a person acts."""

    status: MissionStatus
    reasons: tuple[Reason, ...] = ()
    reverted: tuple[Reverted, ...] = ()


@event("mission.rolled_back")
@dataclass(frozen=True, kw_only=True)
class MissionRolledBack(Payload):
    """A reverting commit was put on top of the mission branch."""

    ref: str
    commit: str
    tree: str


@event("checkpoint.restored")
@dataclass(frozen=True, kw_only=True)
class CheckpointRestored(Payload):
    """A person set the mission's workspace to a checkpoint (itself a checkpoint, so undoable)."""

    workspace: str
    checkpoint: Checkpoint
