"""Event payloads of an attempt: its sandboxes, model calls, network, checkpoints, messages, role and report."""

from __future__ import annotations

from typing import Any

from msgspec import field

from chargehand.core.events import Payload, event
from chargehand.core.records import Checkpoint, Reason, TierChoice


@event("message.delivered")
class MessageDelivered(Payload, frozen=True, kw_only=True):
    """A message lies before the agent of an attempt; that it was taken into its work is another event's word.

    One to a coordinator lies before the agents of the tasks that begin from then on: `attempt` is the mission of
    the first.
    """

    message: str
    attempt: str


@event("message.acknowledged")
class MessageAcknowledged(Payload, frozen=True, kw_only=True):
    """A message is in an agent's work: in its recorded conversation, or its turn with it began."""

    message: str
    attempt: str


@event("message.undelivered")
class MessageUndelivered(Payload, frozen=True, kw_only=True):
    """A message reached no agent before its mission came to its end."""

    message: str
    reason: Reason


@event("message.received")
class MessageReceived(Payload, frozen=True, kw_only=True):
    """An agent's end of an attempt as a message; a claim, whatever its status."""

    attempt: str
    # A document and no `Message`: messages have versions of their own, and a log is read for ever.
    message: dict[str, Any] = field(default_factory=dict)


@event("role.chosen")
class RoleChosen(Payload, frozen=True, kw_only=True):
    """The role that work is done in, with who works in it and why.

    `digest` is the hex SHA-256 of the role's file as it was read, `artifact` holds that text, `origin` says where
    it was read. `models` is the chain of models that may be called, the first one to begin with.
    """

    role: str
    digest: str
    # The text itself is kept: the file may change while the mission lasts.
    artifact: str
    origin: str
    agent: str
    models: tuple[str, ...]
    writes: bool
    why: str


@event("report.made")
class ReportMade(Payload, frozen=True, kw_only=True):
    """An attempt in a role that changes nothing ended with what it was for.

    `kind` is `report` or `plan`; `text` is its beginning, at most 4,000 characters, `artifact` holds all of it.
    """

    attempt: str
    role: str
    kind: str
    artifact: str
    text: str


@event("sandbox.opened")
class SandboxOpened(Payload, frozen=True, kw_only=True):
    """A sandbox was opened for an attempt, a check or setup, with the limits that really bind.

    `attempt` is `None` outside of one; `egress` says that it had a way to hosts.
    """

    sandbox: str
    purpose: str
    tier: str
    driver: str
    limits: dict[str, str] = field(default_factory=dict)
    attempt: str | None = None
    egress: bool = False


@event("tier.chosen")
class TierChosen(Payload, frozen=True, kw_only=True):
    """The tier of all sandboxes of the mission was settled: from which facts, among what, and why."""

    choice: TierChoice


@event("sandbox.closed")
class SandboxClosed(Payload, frozen=True, kw_only=True):
    """A sandbox is gone, and what it took: `None` stands for what nobody counted.

    `ready_seconds` passed until its workspace was made and it ran; `freezes` are the seconds until each freeze
    held. `written_files` and `written_bytes` count what an agent wrote into its workspace, ignored files included.
    `peak_memory` in bytes and `peak_processes` are the most at once (with `sampled` the most that was seen),
    `cpu_seconds` is processor time, `disk_written` the bytes on their way to a disk, `output` the bytes that
    commands wrote to their streams. `attempt` is `None` outside of one.
    """

    sandbox: str
    purpose: str
    ready_seconds: float
    seconds: float
    peak_memory: int | None = None
    freezes: tuple[float, ...] = ()
    written_files: int | None = None
    written_bytes: int | None = None
    attempt: str | None = None
    cpu_seconds: float | None = None
    peak_processes: int | None = None
    disk_written: int | None = None
    output: int | None = None
    sampled: bool = False


@event("command.finished")
class CommandFinished(Payload, frozen=True, kw_only=True):
    """A command ended in a sandbox; `artifact` holds its output, `limit` names the limit that ended it."""

    sandbox: str
    argv: tuple[str, ...]
    exit_code: int
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    artifact: str | None = None
    limit: str | None = None


@event("network.requested")
class NetworkRequested(Payload, frozen=True, kw_only=True):
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
class ModelCalled(Payload, frozen=True, kw_only=True):
    """A call to a model ended, however it did; `cost_usd` is `None` where it is not known.

    `status` is `ok`, `failed` (no reply came), `cut` (a reply began and did not end), `refused` (the budget),
    `lost` (its worker died) or `replayed` (the attempt had the reply to `call` before, and gets it for nothing).
    `booked_usd` is what the limits count: the cost, or the reserve where it is unknown. `reported_usd` is the cost
    by the provider's own word, which counts, `computed_usd` that by tokens and price. `provider` is the address
    that was asked, `operation` `reply` or `embed`, `first_seconds` the time until the reply began; `skipped` who
    before it did not take the request and why, `converted` what of that has another form than it was given,
    `left_out` which fields of it the model was not sent, told once for each model; `bare` a request that offered
    no tool, as those for a title do; of `cache_write_tokens`, `hour_write_tokens` are kept for an hour; `retried`
    after which answers it was sent again, as an HTTP status or `unreachable`. Older lines have none of these.
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
    reported_usd: float | None = None
    computed_usd: float | None = None
    provider: str = ""
    operation: str = "reply"
    first_seconds: float | None = None
    skipped: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    bare: bool = False
    cache_write_tokens: int | None = None
    hour_write_tokens: int | None = None
    retried: tuple[str, ...] = ()


@event("budget.alert")
class BudgetAlert(Payload, frozen=True, kw_only=True):
    """Four fifths of a limit are spent or reserved; `limit` is `attempt`, `task`, `mission`, `user` or `day`."""

    limit: str
    limit_usd: float
    spent_usd: float


@event("replay.diverged")
class ReplayDiverged(Payload, frozen=True, kw_only=True):
    """An attempt that began anew asked for something else than before: from `turn` on its model is asked.

    `pointer` is the JSON pointer of the first difference, with what stood there (`recorded`) and stands (`sent`).
    """

    attempt: str
    turn: int
    pointer: str
    recorded: str
    sent: str


@event("attempt.started")
class AttemptStarted(Payload, frozen=True, kw_only=True):
    """An agent begins on a workspace at `tree`."""

    attempt: str
    number: int
    agent: str
    workspace: str
    tree: str


@event("attempt.resumed")
class AttemptResumed(Payload, frozen=True, kw_only=True):
    """An attempt whose worker was lost begins anew at `tree`.

    `ignored_state` is `kept` where the workspace was found as the attempt must begin (ignored files included),
    `lost` where it had to be set back.
    """

    attempt: str
    workspace: str
    tree: str
    # Kept only where a lock shows that nobody writes there any more, which a lease never does.
    ignored_state: str


@event("action.judged")
class ActionJudged(Payload, frozen=True, kw_only=True):
    """An agent's action was judged before it happened: `effect` is `allow`, `ask` or `deny`, by `rule`.

    `kind` is `shell`, `command`, `read`, `write`, `delete`, `network` or another's name; `text` is the action and
    `subject` what of it the rule is about, both shortened and without known secrets; it was judged in `parts`.
    `overridden` are the rules that the person's own set aside, `answer` is what a person said where one was asked,
    `rules` tells the rules that were in force from others. Where `action` is set, it is a person's action of that
    id, and `attempt` is "".
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
    action: str = ""


@event("state.captured")
class StateCaptured(Payload, frozen=True, kw_only=True):
    """What was going on in an attempt's sandbox when it ended badly lies in an artifact (JSON).

    `why` is `timeout`, `sandbox_died` or `failed`; `processes` is how many still ran.
    """

    attempt: str
    why: str
    processes: int
    artifact: str


@event("breaker.changed")
class BreakerChanged(Payload, frozen=True, kw_only=True):
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
class CheckpointMade(Payload, frozen=True, kw_only=True):
    """A tree of the attempt was kept in the depot; `seconds` says how long reading and keeping it took."""

    attempt: str
    checkpoint: Checkpoint
    seconds: float | None = None


@event("files.seen")
class FilesSeen(Payload, frozen=True, kw_only=True):
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
