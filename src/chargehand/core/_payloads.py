"""The payloads of a mission's events: adding a field needs a default, so that older logs still load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chargehand.core._conflicts import Conflict
from chargehand.core._events import Payload, event
from chargehand.core._records import (
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

    `forked_from` and `forked_at` name the mission and the step whose log up to there was taken over.
    """

    project: str
    repository: str
    request: MissionRequest
    config: dict[str, Any] = field(default_factory=dict)
    forked_from: str | None = None
    forked_at: str = ""


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
    """A person told the agent something; one that cannot listen gets it with its next attempt."""

    identity: str
    text: str


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


@event("sandbox.opened")
@dataclass(frozen=True, kw_only=True)
class SandboxOpened(Payload):
    """A sandbox was opened for an attempt, a check or setup, with the limits that really bind."""

    sandbox: str
    purpose: str
    tier: str
    driver: str
    limits: dict[str, str] = field(default_factory=dict)


@event("sandbox.closed")
@dataclass(frozen=True, kw_only=True)
class SandboxClosed(Payload):
    """A sandbox is gone, and what it took: `None` stands for what nobody counted.

    `ready_seconds` passed until its workspace was made and it ran; `freezes` are the seconds until each freeze
    held. `written_files` and `written_bytes` count what an agent wrote into its workspace, ignored files included.
    """

    sandbox: str
    purpose: str
    ready_seconds: float
    seconds: float
    peak_memory: int | None = None
    freezes: tuple[float, ...] = ()
    written_files: int | None = None
    written_bytes: int | None = None


@event("command.finished")
@dataclass(frozen=True, kw_only=True)
class CommandFinished(Payload):
    """A command ended in a sandbox; `artifact` holds its output."""

    sandbox: str
    argv: tuple[str, ...]
    exit_code: int
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    artifact: str | None = None


@event("network.requested")
@dataclass(frozen=True, kw_only=True)
class NetworkRequested(Payload):
    """A request of a sandbox to a host ended, or was refused; paths, queries, headers and bodies are not kept.

    `attempt` is `None` outside of one; `entry` is the rule that the host fits, `reason` why it was refused or cut,
    `address` where it went, "" for nowhere. Bytes are those to (`bytes_out`) and from the host. A line with
    `unlisted` is a mark of a gap: so many requests are not listed, `unlisted_refused` of them were refused; its
    bytes and seconds are theirs together.
    """

    purpose: str
    attempt: str | None
    method: str = ""
    host: str = ""
    port: int = 0
    status: int = 0
    allowed: bool = False
    entry: str = ""
    reason: str = ""
    address: str = ""
    bytes_out: int = 0
    bytes_in: int = 0
    seconds: float = 0.0
    unlisted: int = 0
    unlisted_refused: int = 0


@event("model.called")
@dataclass(frozen=True, kw_only=True)
class ModelCalled(Payload):
    """A call to a model ended, however it did; `cost_usd` is `None` where it is not known.

    `status` is `ok`, `failed` (no reply came), `cut` (a reply began and did not end), `refused` (the budget) or
    `lost` (its worker died). `booked_usd` is what the limits count: the cost, or the reserve where it is unknown.
    """

    call: str
    attempt: str
    turn: int
    model: str
    upstream: str
    status: str
    http_status: int
    seconds: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    cost_known: bool = False
    booked_usd: float = 0.0
    reason: str = ""


@event("budget.alert")
@dataclass(frozen=True, kw_only=True)
class BudgetAlert(Payload):
    """Four fifths of a limit are spent or reserved; `limit` is `attempt`, `mission` or `day`."""

    limit: str
    limit_usd: float
    spent_usd: float


@event("attempt.started")
@dataclass(frozen=True, kw_only=True)
class AttemptStarted(Payload):
    """An agent begins on a workspace at `tree`."""

    attempt: str
    number: int
    agent: str
    workspace: str
    tree: str


@event("attempt.resumed")
@dataclass(frozen=True, kw_only=True)
class AttemptResumed(Payload):
    """An attempt whose worker was lost begins anew at `tree`.

    `ignored_state` is `kept` where the workspace was found as the attempt must begin (ignored files included),
    `lost` where it had to be set back.
    """

    attempt: str
    workspace: str
    tree: str
    ignored_state: str


@event("action.judged")
@dataclass(frozen=True, kw_only=True)
class ActionJudged(Payload):
    """An agent's action was judged before it happened: `effect` is `allow`, `ask` or `deny`, by `rule`.

    `kind` is `shell`, `command`, `read`, `write`, `delete`, `network` or another's name; `text` is the action and
    `subject` what of it the rule is about, both shortened and without known secrets; it was judged in `parts`.
    `overridden` are the rules that the person's own set aside, `answer` is what a person said where one was asked,
    `rules` tells the rules that were in force from others.
    """

    attempt: str
    kind: str
    text: str
    effect: str
    rule: str
    reason: str
    subject: str = ""
    parts: int = 1
    overridden: tuple[str, ...] = ()
    answer: str = ""
    rules: str = ""


@event("state.captured")
@dataclass(frozen=True, kw_only=True)
class StateCaptured(Payload):
    """What was going on in an attempt's sandbox when it ended badly lies in an artifact (JSON).

    `why` is `timeout`, `sandbox_died` or `failed`; `processes` is how many still ran.
    """

    attempt: str
    why: str
    processes: int
    artifact: str


@event("breaker.changed")
@dataclass(frozen=True, kw_only=True)
class BreakerChanged(Payload):
    """An agent with its model is let work (`closed`), is not (`open`), or may show that it works (`half_open`).

    `failures` came in a row; `until` is when a probe may begin, "" where that is not awaited.
    """

    agent: str
    model: str | None
    state: str
    failures: int = 0
    until: str = ""
    reason: str = ""


@event("checkpoint.made")
@dataclass(frozen=True, kw_only=True)
class CheckpointMade(Payload):
    """A tree of the attempt was kept in the depot; `seconds` says how long reading and keeping it took."""

    attempt: str
    checkpoint: Checkpoint
    seconds: float | None = None


@event("files.seen")
@dataclass(frozen=True, kw_only=True)
class FilesSeen(Payload):
    """What an agent did to its files, as it was watched: `changes` are (kind, path) in the order they happened.

    Kinds: `created`, `modified`, `touched`, `deleted`, `renamed_from` with `renamed_to` after it; with `found_`
    before it where it was found by looking and not seen. A path that ends in "/" is a directory with all it holds.
    `gap`: before these changes others may have been missed, `reasons` say why. `skipped` counts what is not
    listed: `ignored` (paths outside the tree), `unlisted` (more than a log should hold). A large batch is several
    lines.
    """

    attempt: str
    changes: tuple[tuple[str, str], ...] = ()
    gap: bool = False
    reasons: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)


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

    `tree` is what the question is bound to; `options` are proposals, never the only answers.
    """

    question: str
    tree: str
    reasons: tuple[Reason, ...]
    text: str = ""
    options: tuple[str, ...] = ()
    attempt: str | None = None


@event("question.answered")
@dataclass(frozen=True, kw_only=True)
class QuestionAnswered(Payload):
    """A person answered a question, once; the mission may go on."""

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
