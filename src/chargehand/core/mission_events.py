"""The payloads of a mission's events: adding a field needs a default, so that older logs still load."""

from __future__ import annotations

from typing import Any

from msgspec import field

from chargehand.core.events import Payload, event
from chargehand.core.records import (
    AttemptStatus,
    Base,
    Checkpoint,
    Conflict,
    Export,
    MissionRequest,
    MissionStatus,
    QuestionKind,
    Reason,
    Reverted,
    Verdict,
)


@event("mission.created")
class MissionCreated(Payload, frozen=True, kw_only=True):
    """A person asked for something in a project; `config` is what was in force.

    `forked_from` and `forked_at` name the mission and the step whose log up to there was taken over; `user` is who
    pays for it, "" in logs from before users were known. `parent` is the mission whose `task` this one does, ""
    for what a person asked for.
    """

    project: str
    repository: str
    request: MissionRequest
    config: dict[str, Any] = field(default_factory=dict)
    forked_from: str | None = None
    forked_at: str = ""
    # The word of whoever started it, no login.
    user: str = ""
    parent: str = ""
    task: str = ""


@event("mission.claimed")
class MissionClaimed(Payload, frozen=True, kw_only=True):
    """A worker took the mission: from here on only what carries this epoch counts."""

    worker: str
    role: str
    epoch: int
    version: str


@event("mission.released")
class MissionReleased(Payload, frozen=True, kw_only=True):
    """A worker that ends let go of the mission in good order; another one goes on with it."""

    worker: str


@event("mission.worked")
class MissionWorked(Payload, frozen=True, kw_only=True):
    """The mission has used so many `seconds` of its time limit, pauses and queues not counted.

    Written from time to time and where a worker ends: a step that was broken off has no recorded duration.
    """

    seconds: float


@event("mission.interrupted")
class MissionInterrupted(Payload, frozen=True, kw_only=True):
    """A sandbox, or what starts them, ended under the mission: its worker goes on from the last recorded step."""

    code: str
    message: str


@event("mission.paused")
class MissionPaused(Payload, frozen=True, kw_only=True):
    """A person, or a `breakpoint`, stopped the mission where it was; nothing of it runs until it is resumed."""

    identity: str
    reason: str = ""
    breakpoint: str = ""


@event("mission.resumed")
class MissionResumed(Payload, frozen=True, kw_only=True):
    """A person let a paused mission go on, or stop otherwise from here on.

    `in_place` says that its worker held it all the time.
    `step`: until the next recorded step; `to_end`: breakpoints count no more.
    """

    identity: str
    in_place: bool = False
    step: bool = False
    to_end: bool = False


@event("mission.continued")
class MissionContinued(Payload, frozen=True, kw_only=True):
    """A person wants more of a mission that had come to its end: another attempt follows attempt `after`.

    It begins on what that attempt left, or on `base`: what was promoted meanwhile, with `tree` in the workspace
    where that is another one. `attempts`, `seconds` and, where set, `budget_usd` and `plan_seconds` bound the
    whole mission from now on.
    """

    identity: str
    after: int
    attempts: int
    seconds: float
    budget_usd: float | None = None
    base: Base | None = None
    tree: str = ""
    plan_seconds: float | None = None


@event("setup.detected")
class SetupDetected(Payload, frozen=True, kw_only=True):
    """The base's files suggest `command`: no setup is configured, and its checks do not pass without one."""

    command: str


# What a mission waits for that has not begun, while an earlier one works on the same.
MISSIONS = "missions"


@event("mission.queued")
class MissionQueued(Payload, frozen=True, kw_only=True):
    """The mission waits until one of `places` is free and goes on by itself; `before` stand in line before it.

    `waits_for` is `attempts` (runs of an agent), `checks`, `merges` (with the branch that it is applied to), or
    `missions`: no worker holds it, and it has not begun. It waits for `mission` then, whose log was looked at up
    to line `seen`.
    """

    waits_for: str
    before: int
    places: int
    reason: Reason
    mission: str = ""
    seen: int = 0


@event("mission.admitted")
class MissionAdmitted(Payload, frozen=True, kw_only=True):
    """A place became free for a mission that waited `seconds`; they count for no limit."""

    waits_for: str
    seconds: float


@event("mission.allowed")
class MissionAllowed(Payload, frozen=True, kw_only=True):
    """A person lets a mission begin beside earlier ones that work on the same.

    `digest` is that of its plan as it is now, `beside` has those of the others by id: what a person said counts
    for these plans alone, not for what one of them becomes.
    """

    identity: str
    digest: str
    beside: dict[str, str]


@event("mission.cancel_asked")
class CancelAsked(Payload, frozen=True, kw_only=True):
    """A person wants a running mission to end: from here on nobody goes on with it, even if its worker dies.

    With a `reason` it is its coordinator that wants it.
    """

    identity: str
    reason: str = ""


@event("message.sent")
class MessageSent(Payload, frozen=True, kw_only=True):
    """A person, or Chargehand, told the agent something; one that cannot listen gets it with its next attempt.

    A `critical` one has to be acknowledged; `again` marks that the `message` of that id was sent once more.
    """

    identity: str
    text: str
    message: str = ""
    critical: bool = False
    again: bool = False


@event("base.resolved")
class BaseResolved(Payload, frozen=True, kw_only=True):
    """The commit the mission starts from."""

    # Told again where the branch moved on: the merged tree then stands on its new commit, unless nothing `begins`
    # before.
    base: Base
    begins: bool = False


@event("step.finished")
class StepFinished(Payload, frozen=True, kw_only=True):
    """A recorded step: on a rerun with the same input its output is taken from here instead of doing it again.

    `input` is a digest; an output over 8 kB lies in `artifact`, and `output` is then `None`.
    """

    step: str
    input: str
    output: Any
    seconds: float
    artifact: str | None = None


@event("agent.selected")
class AgentSelected(Payload, frozen=True, kw_only=True):
    """Which agent works, and why."""

    agent: str
    kind: str
    reason: str


@event("changes.reverted")
class ChangesReverted(Payload, frozen=True, kw_only=True):
    """Inspection set paths back; the tree that remains is a checkpoint of its own."""

    attempt: str
    reverted: tuple[Reverted, ...]


@event("verdict.given")
class VerdictGiven(Payload, frozen=True, kw_only=True):
    """Inspection and checks of one exact tree."""

    verdict: Verdict
    attempt: str | None = None
    reused: bool = False


@event("attempt.finished")
class AttemptFinished(Payload, frozen=True, kw_only=True):
    """An attempt ended; money is `None` where it is not known."""

    attempt: str
    status: AttemptStatus
    seconds: float
    reasons: tuple[Reason, ...] = ()
    cost_usd: float | None = None
    cost_known: bool = False


# The question whether to let a tree in; it is answered by promoting or discarding the mission.
PROMOTE = "promote"


@event("question.asked")
class QuestionAsked(Payload, frozen=True, kw_only=True):
    """A person is asked: `promote` whether to let this tree in, any other id something an agent wants to know.

    `tree` is what the question is bound to; `options` are proposals, and the only answers where it is `closed`.
    After `expires` (ISO 8601, UTC; "" for never) no answer is taken: `default` counts then, or where that is ""
    the mission needs a person. With `until` nobody need answer: `provider` has no quota before then, and a worker
    lets the mission go on then.
    """

    question: str
    tree: str
    reasons: tuple[Reason, ...]
    text: str = ""
    options: tuple[str, ...] = ()
    attempt: str | None = None
    # Waiting for quota is a question too, so that an older program that reads the log sees one.
    until: str = ""
    provider: str = ""
    kind: QuestionKind = "clarification"
    closed: bool = False
    expires: str = ""
    default: str = ""


# Who answers a question whose moment has come.
CLOCK = "clock"


@event("question.answered")
class QuestionAnswered(Payload, frozen=True, kw_only=True):
    """A person, or the clock, answered a question, once; the mission may go on."""

    question: str
    text: str
    identity: str


@event("question.expired")
class QuestionExpired(Payload, frozen=True, kw_only=True):
    """Nobody answered in time: `default` counts as the answer, "" where there is none."""

    question: str
    default: str = ""


@event("approval.given")
class ApprovalGiven(Payload, frozen=True, kw_only=True):
    """A person let one exact tree in."""

    tree: str
    identity: str
    reason: str = ""


@event("promotion.prepared")
class PromotionPrepared(Payload, frozen=True, kw_only=True):
    """The journal's entry before the swap: enough to finish or to forget it after a crash."""

    ref: str
    # After a crash the branch itself tells: at `new` the swap happened, anywhere else it did not.
    old: str
    new: str
    tree: str
    # Those that a roll-back of single tasks takes back.
    tasks: tuple[str, ...] = ()
    # The task, and the child mission that did it, whose result a coordinator merges by this.
    task: str = ""
    mission: str = ""


@event("promotion.done")
class PromotionDone(Payload, frozen=True, kw_only=True):
    """The mission branch in the depot points at the validated tree."""

    ref: str
    commit: str
    tree: str


@event("merge.conflicted")
class MergeConflicted(Payload, frozen=True, kw_only=True):
    """A tree could not be merged with `commit`, where a branch is now; `count` paths are in conflict.

    `conflicts` tells of them what fits into a line of the log; where that is not all, `artifact` holds what is
    known (JSON). `attempt` made the tree, `None` where a person had it promoted. `branch` is `None` where a task's
    result conflicts with those that its coordinator merged before.
    """

    branch: str | None
    commit: str
    tree: str
    count: int
    conflicts: tuple[Conflict, ...] = ()
    artifact: str | None = None
    attempt: str | None = None


@event("head.signed")
class HeadSigned(Payload, frozen=True, kw_only=True):
    """The log up to line `seq` was signed and noted on a commit; `problem` says why not, "" where it was."""

    commit: str
    seq: int = 0
    key: str = ""
    problem: str = ""


@event("export.changed")
class ExportChanged(Payload, frozen=True, kw_only=True):
    """The state of the branch in the user's repository."""

    export: Export
    commit: str


@event("apply.changed")
class ApplyChanged(Payload, frozen=True, kw_only=True):
    """The state of the fast-forward of the user's own branch."""

    export: Export
    commit: str


@event("mission.finished")
class MissionFinished(Payload, frozen=True, kw_only=True):
    """The mission came to a status that stays until a person acts.

    Where it is `waiting`, a worker looks at it again at `wakes` (ISO 8601, UTC): a question expires then.
    """

    status: MissionStatus
    reasons: tuple[Reason, ...] = ()
    reverted: tuple[Reverted, ...] = ()
    wakes: str = ""


@event("mission.rolled_back")
class MissionRolledBack(Payload, frozen=True, kw_only=True):
    """A reverting commit was put on top of the mission branch; with `tasks` it takes back only those."""

    ref: str
    commit: str
    tree: str
    tasks: tuple[str, ...] = ()


@event("checkpoint.restored")
class CheckpointRestored(Payload, frozen=True, kw_only=True):
    """A person set the mission's workspace to a checkpoint (itself a checkpoint, so undoable)."""

    workspace: str
    checkpoint: Checkpoint
