"""Event payloads of a mission; a new field needs a default, so that older logs still load."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from chargehand.core.events import Payload, event
from chargehand.core.records import (
    AttemptStatus,
    Base,
    Checkpoint,
    ChoiceReason,
    Conflict,
    Export,
    Fate,
    MissionForecast,
    MissionRequest,
    MissionStatus,
    QuestionKind,
    Reason,
    Reverted,
    TargetDelivery,
    Verdict,
)


@event("mission.created")
class MissionCreated(Payload, frozen=True, kw_only=True):
    """A person requested a mission in a project; `config` is the configuration in force.

    `forked_from` and `forked_at` name the mission whose log was copied, and the step up to which; `user` is who
    pays for it, "" in logs from before users were recorded. `parent` is the coordinator whose `task` this mission
    does, "" if a person requested it. `chosen` are the reasons for agent and model, empty in older logs.
    """

    project: str
    repository: str
    request: MissionRequest
    config: dict[str, Any] = field(default_factory=dict)
    forked_from: str | None = None
    forked_at: str = ""
    # As the caller states it; not authenticated.
    user: str = ""
    parent: str = ""
    task: str = ""
    chosen: tuple[ChoiceReason, ...] = ()


@event("mission.claimed")
class MissionClaimed(Payload, frozen=True, kw_only=True):
    """A worker claimed the mission: from here on only writes with this epoch count."""

    worker: str
    role: str
    epoch: int
    version: str


@event("mission.released")
class MissionReleased(Payload, frozen=True, kw_only=True):
    """A worker that is shutting down released the mission; another worker continues it."""

    worker: str


@event("mission.worked")
class MissionWorked(Payload, frozen=True, kw_only=True):
    """The mission has used this many `seconds` of its time limit, not counting pauses and queues.

    Written periodically and when a worker ends, since an interrupted step has no recorded duration.
    """

    seconds: float


@event("mission.interrupted")
class MissionInterrupted(Payload, frozen=True, kw_only=True):
    """A sandbox or its launcher ended unexpectedly: the worker continues from the last recorded step."""

    code: str
    message: str


@event("mission.paused")
class MissionPaused(Payload, frozen=True, kw_only=True):
    """A person, or a `breakpoint`, paused the mission; nothing of it runs until it is resumed."""

    identity: str
    reason: str = ""
    breakpoint: str = ""


@event("mission.resumed")
class MissionResumed(Payload, frozen=True, kw_only=True):
    """A person resumed a paused mission, or changed where a running one stops next.

    `in_place` says that its worker held it all the time. `step`: run until the next recorded step; `to_end`:
    ignore breakpoints.
    """

    identity: str
    in_place: bool = False
    step: bool = False
    to_end: bool = False


@event("mission.continued")
class MissionContinued(Payload, frozen=True, kw_only=True):
    """A person continues a mission that had ended: another attempt follows attempt `after`.

    It begins on that attempt's tree, or on `base` (promoted meanwhile), with `tree` in the workspace if that
    differs. `attempts`, `seconds` and, if set, `budget_usd` and `plan_seconds` bound the whole mission from now
    on.
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
    """The base's files suggest `command`: no setup is configured, and the base's checks fail without one."""

    command: str


# The `waits_for` of a mission that has not begun because an earlier one works on the same.
MISSIONS = "missions"


@event("mission.queued")
class MissionQueued(Payload, frozen=True, kw_only=True):
    """The mission waits until one of `places` is free, then continues by itself; `before` others are ahead of it.

    `waits_for` is `attempts` (runs of an agent), `checks`, `merges` (with the branch that it is applied to), or
    `missions`: no worker holds it, and it has not begun. It then waits for `mission`, whose log was read up to
    line `seen`.
    """

    waits_for: str
    before: int
    places: int
    reason: Reason
    mission: str = ""
    seen: int = 0


@event("mission.admitted")
class MissionAdmitted(Payload, frozen=True, kw_only=True):
    """A mission got a place after waiting `seconds`, which count toward no limit."""

    waits_for: str
    seconds: float


@event("mission.allowed")
class MissionAllowed(Payload, frozen=True, kw_only=True):
    """A person allows a mission to begin although earlier ones work on the same.

    `digest` is that of its current plan, `beside` has those of the other missions by id: the permission is valid
    for these plans only, not for later ones.
    """

    identity: str
    digest: str
    beside: dict[str, str]


@event("mission.cancel_asked")
class CancelAsked(Payload, frozen=True, kw_only=True):
    """A person cancelled a running mission: no worker continues it, even if its own worker dies.

    With a `reason`, its coordinator cancelled it.
    """

    identity: str
    reason: str = ""


@event("message.sent")
class MessageSent(Payload, frozen=True, kw_only=True):
    """A person, or Chargehand, sent the agent a message; if it cannot listen, it gets it with its next attempt.

    A `critical` message has to be acknowledged; `again` marks that `message` was sent once more.
    """

    identity: str
    text: str
    message: str = ""
    critical: bool = False
    again: bool = False


@event("base.resolved")
class BaseResolved(Payload, frozen=True, kw_only=True):
    """The commit the mission starts from."""

    # Recorded again if the branch moved: the merged tree is then based on its new commit. With `begins` the
    # mission was held until now and begins on this commit.
    base: Base
    begins: bool = False


@event("step.finished")
class StepFinished(Payload, frozen=True, kw_only=True):
    """A recorded step: a rerun with the same input takes the output from here instead of repeating the step.

    `input` is a digest; an output over 8 kB is stored in `artifact`, and `output` is then `None`.
    """

    step: str
    input: str
    output: Any
    seconds: float
    artifact: str | None = None


@event("agent.selected")
class AgentSelected(Payload, frozen=True, kw_only=True):
    """The agent was selected, with the reason in words and as data (empty in older logs)."""

    agent: str
    kind: str
    reason: str
    reasons: tuple[ChoiceReason, ...] = ()


@event("retry.declined")
class RetryDeclined(Payload, frozen=True, kw_only=True):
    """After a failed attempt, or a failed round of a plan's `task`, another is not worth it.

    `ask`: a person is asked first. `attempt` is the number that it would have had, 0 for a task.
    """

    action: Literal["ask", "stop"]
    reasons: tuple[ChoiceReason, ...]
    attempt: int = 0
    task: str = ""


@event("forecast.made")
class ForecastMade(Payload, frozen=True, kw_only=True):
    """The expectations of the mission after so many attempts (of a plan: ended tasks), 0 before the first one."""

    after: int
    forecast: MissionForecast


class RecalledLesson(Struct, frozen=True, kw_only=True):
    """A lesson recalled for a mission; `text` is what its agents are shown, "" if it is withheld to compare."""

    lesson: str
    shown: bool
    text: str = ""


@event("lessons.recalled")
class LessonsRecalled(Payload, frozen=True, kw_only=True):
    """Lessons from earlier missions fit this one; recalled once, before the first attempt, for all attempts."""

    lessons: tuple[RecalledLesson, ...]


@event("changes.reverted")
class ChangesReverted(Payload, frozen=True, kw_only=True):
    """Inspection reverted paths; the remaining tree is a new checkpoint."""

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
    """An attempt ended; `cost_usd` is `None` if unknown."""

    attempt: str
    status: AttemptStatus
    seconds: float
    reasons: tuple[Reason, ...] = ()
    cost_usd: float | None = None
    cost_known: bool = False


# The question whether to promote a tree; it is answered by promoting or discarding the mission.
PROMOTE = "promote"


@event("question.asked")
class QuestionAsked(Payload, frozen=True, kw_only=True):
    """A person is asked: `promote` whether to promote this tree, any other id is a question of an agent.

    `tree` is the tree that the question is bound to; `options` are proposals, and the only answers if it is
    `closed`; `meanings` explains each option, or is empty. After `expires` (ISO 8601, UTC; "" for never) no answer
    is taken: `default` then counts as the answer, or if that is "" the mission needs a person. With `until` no
    answer is needed: `provider` has no quota before then, and a worker lets the mission continue at that time.
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
    meanings: tuple[str, ...] = ()


# The identity that answers a question whose time has come.
CLOCK = "clock"


@event("question.answered")
class QuestionAnswered(Payload, frozen=True, kw_only=True):
    """A person, or the clock, answered a question, once; the mission may continue."""

    question: str
    text: str
    identity: str


@event("question.expired")
class QuestionExpired(Payload, frozen=True, kw_only=True):
    """The time to answer expired: `default` counts as the answer, "" if there is no default."""

    question: str
    default: str = ""


@event("approval.given")
class ApprovalGiven(Payload, frozen=True, kw_only=True):
    """A person approved one exact tree."""

    tree: str
    identity: str
    reason: str = ""


@event("promotion.prepared")
class PromotionPrepared(Payload, frozen=True, kw_only=True):
    """The journal entry before the swap: enough to finish or discard the promotion after a crash."""

    ref: str
    # After a crash the branch decides: if it is at `new`, the swap happened, otherwise it did not.
    old: str
    new: str
    tree: str
    # The tasks that a roll-back of single tasks reverts.
    tasks: tuple[str, ...] = ()
    # The task, and the child mission that did it, whose result a coordinator merges with this entry.
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
    """A tree could not be merged with `commit`, the branch's current commit; `count` paths are in conflict.

    `conflicts` lists as many as fit into a line of the log; if some are left out, `artifact` holds all that is
    known (JSON). `attempt` made the tree, `None` if a person promoted it. `branch` is `None` if a task's result
    conflicts with results that its coordinator merged before.
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
    """The log up to line `seq` was signed and noted on a commit; `problem` says why that failed, else ""."""

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


@event("delivery.changed")
class DeliveryChanged(Payload, frozen=True, kw_only=True):
    """The state of delivering a commit to a target other than signature, export and the user's branch."""

    delivery: TargetDelivery


@event("forge.acted")
class ForgeActed(Payload, frozen=True, kw_only=True):
    """Chargehand did something at the forge of the mission's issue, or found that a person did.

    `key` names the act, which is done once: `progress`, `asked/QUESTION`, `answered/COMMENT`, `stopped/COMMENT`,
    `round/NUMBER`, `replied/REMARK`, `merged`, `closed`, `lost`. `number` is that of the issue or request,
    `comment` the id of a comment, `identity` the person whose word caused it.
    """

    key: str
    number: int = 0
    comment: int = 0
    url: str = ""
    commit: str = ""
    identity: str = ""


@event("mission.finished")
class MissionFinished(Payload, frozen=True, kw_only=True):
    """The mission reached a status that stays until a person acts.

    If it is `waiting`, a worker looks at it again at `wakes` (ISO 8601, UTC), when a question expires.
    """

    status: MissionStatus
    reasons: tuple[Reason, ...] = ()
    reverted: tuple[Reverted, ...] = ()
    wakes: str = ""


@event("mission.rolled_back")
class MissionRolledBack(Payload, frozen=True, kw_only=True):
    """A reverting commit was added to the mission branch; with `tasks` it reverts only those."""

    ref: str
    commit: str
    tree: str
    tasks: tuple[str, ...] = ()


@event("promotion.followed")
class PromotionFollowed(Payload, frozen=True, kw_only=True):
    """A look at `branch` found the fate of a promoted `commit`; the commit `by` shows it, "" without a single one.

    After `merged` there is one more, with the final fate; the first final fate of a commit counts.
    """

    commit: str
    fate: Fate
    branch: str
    by: str = ""


@event("feedback.given")
class FeedbackGiven(Payload, frozen=True, kw_only=True):
    """A person judged an attempt, or the `place` (`PATH:LINE`) of its change; replaces their word on the same."""

    identity: str
    attempt: str
    good: bool
    place: str = ""
    note: str = ""


@event("feedback.retracted")
class FeedbackRetracted(Payload, frozen=True, kw_only=True):
    """A person retracted all their feedback on an attempt, or on the whole mission (""), as if never given."""

    identity: str
    attempt: str = ""


@event("checkpoint.restored")
class CheckpointRestored(Payload, frozen=True, kw_only=True):
    """A person restored a checkpoint in the workspace; this is itself a checkpoint, so it can be undone."""

    workspace: str
    checkpoint: Checkpoint
