"""Event payloads of an attempt: its sandboxes, model calls, network, checkpoints, messages, role and report."""

from __future__ import annotations

from typing import Any

from msgspec import field

from chargehand.core.events import Payload, event
from chargehand.core.records import Checkpoint, Reason, TierChoice


@event("message.delivered")
class MessageDelivered(Payload, frozen=True, kw_only=True):
    """A message was put before the agent of an attempt; another event says that the agent took it into its work.

    A message to a coordinator goes to the agents of the tasks that begin after it: `attempt` is the mission of the
    first of them.
    """

    message: str
    attempt: str


@event("message.acknowledged")
class MessageAcknowledged(Payload, frozen=True, kw_only=True):
    """A message reached an agent's work: it is in the recorded conversation, or the agent's turn with it began."""

    message: str
    attempt: str


@event("message.undelivered")
class MessageUndelivered(Payload, frozen=True, kw_only=True):
    """A message reached no agent before its mission ended."""

    message: str
    reason: Reason


@event("message.received")
class MessageReceived(Payload, frozen=True, kw_only=True):
    """An agent's final message of an attempt; a claim, whatever its status."""

    attempt: str
    # A document, not a `Message`: messages have their own versions, and a log must stay readable for ever.
    message: dict[str, Any] = field(default_factory=dict)


@event("role.chosen")
class RoleChosen(Payload, frozen=True, kw_only=True):
    """The role that the work is done in, with its agent and models and the reason.

    `digest` is the hex SHA-256 of the role's file as read, `artifact` holds that text, `origin` says where it was
    read. `models` is the chain of models that may be called, in order.
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
    """An attempt in a role that changes no files ended with its result.

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

    `attempt` is `None` outside an attempt; `egress` says whether it could reach hosts.
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
    """The tier of all sandboxes of the mission was chosen: the facts, the candidates and the reason."""

    choice: TierChoice


@event("sandbox.closed")
class SandboxClosed(Payload, frozen=True, kw_only=True):
    """A sandbox was closed, with its resource use; `None` means not measured.

    `ready_seconds` passed until its workspace was made and it ran; `freezes` are the seconds until each freeze
    held. `written_files` and `written_bytes` count the agent's writes to its workspace, ignored files included.
    `peak_memory` in bytes and `peak_processes` are the highest values (with `sampled` the highest observed),
    `cpu_seconds` is processor time, `disk_written` the bytes sent to a disk, `output` the bytes that commands
    wrote to their streams. `attempt` is `None` outside an attempt.
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
    """A request of a sandbox to a host ended or was refused; paths, queries, headers and bodies are not kept.

    `attempt` is `None` outside an attempt; `entry` is the rule that the host matches, `reason` why it was refused
    or cut, `address` the address connected to, "" if none. `bytes_out` went to the host, `bytes_in` came from it.
    A line with `unlisted` summarises that many unlisted requests, of which `unlisted_refused` were refused; its
    bytes and seconds are their totals.
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
    """A call to a model ended, successfully or not; `cost_usd` is `None` if unknown.

    `status` is `ok`, `failed` (no reply came), `cut` (a reply began and did not end), `refused` (the budget),
    `lost` (its worker died) or `replayed` (the attempt already has the reply to `call` and gets it free of
    charge). `booked_usd` is counted against the limits: the cost, or the reserve if the cost is unknown.
    `reported_usd` is the cost that the provider reports, which takes precedence; `computed_usd` is derived from
    tokens and price. `provider` is the address called, `operation` is `reply` or `embed`, `first_seconds` the time
    until the reply began. `skipped` lists the providers tried before it, with the reason; `converted` the parts of
    the request that were sent in another form; `left_out` the fields that were not sent to the model, recorded
    once for each model. `bare` marks a request that offered no tools, such as one for a title. Of
    `cache_write_tokens`, `hour_write_tokens` are cached for an hour. `retried` lists the answers after which it
    was sent again: an HTTP status or `unreachable`. Older lines lack these fields.
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


@event("secret.used")
class SecretUsed(Payload, frozen=True, kw_only=True):
    """An attempt was given a secret for the first time, or was refused it; its value is nowhere in the log.

    `source` is the source that it came from, `purpose` its provider; `refused` is the code of a refusal, else "".
    """

    attempt: str
    secret: str
    source: str
    purpose: str
    role: str = ""
    refused: str = ""


@event("replay.diverged")
class ReplayDiverged(Payload, frozen=True, kw_only=True):
    """A restarted attempt sent a different request than before: from `turn` on, the model is called.

    `pointer` is the JSON pointer of the first difference, with the old value (`recorded`) and the new one
    (`sent`).
    """

    attempt: str
    turn: int
    pointer: str
    recorded: str
    sent: str


@event("attempt.started")
class AttemptStarted(Payload, frozen=True, kw_only=True):
    """An agent begins to work on a workspace at `tree`."""

    attempt: str
    number: int
    agent: str
    workspace: str
    tree: str


@event("attempt.resumed")
class AttemptResumed(Payload, frozen=True, kw_only=True):
    """An attempt whose worker was lost restarts at `tree`.

    `ignored_state` is `kept` if the workspace was already in the attempt's initial state (ignored files included),
    `lost` if it had to be reset.
    """

    attempt: str
    workspace: str
    tree: str
    # Kept only if a lock proves that nothing writes there any more; a lease never proves that.
    ignored_state: str


@event("action.judged")
class ActionJudged(Payload, frozen=True, kw_only=True):
    """An agent's action was judged before it happened: `effect` is `allow`, `ask` or `deny`, by `rule`.

    `kind` is `shell`, `command`, `read`, `write`, `delete`, `network` or another name; `text` is the action and
    `subject` the part that the rule matched, both shortened and without known secrets; it was judged in `parts`.
    `overridden` lists the rules that the person's own rules override, `answer` is a person's answer if one was
    asked, `rules` identifies the rules in force. If `action` is set, it is the id of a person's action, and
    `attempt` is "".
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
    """A failure snapshot of an attempt's sandbox: processes, limits, disk and output, as an artifact (JSON).

    `why` is `timeout`, `sandbox_died` or `failed`; `processes` is how many still ran.
    """

    attempt: str
    why: str
    processes: int
    artifact: str


@event("breaker.changed")
class BreakerChanged(Payload, frozen=True, kw_only=True):
    """The breaker of an agent and its model is `closed` (works), `open` (stopped) or `half_open` (one probe).

    There were `failures` in a row; `until` is when a probe may begin, "" if none is due.
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
    """File changes by an agent, as the watcher saw them: `changes` are (kind, path) in the order they happened.

    Kinds: `created`, `modified`, `touched`, `deleted`, `renamed_from` followed by `renamed_to`; the prefix
    `found_` marks a change found by a scan, not observed. A path that ends in "/" is a directory with its
    contents. `gap`: changes before these may have been missed, for `reasons`. `skipped` counts unlisted changes:
    `ignored` (paths outside the tree) and `unlisted` (more than a log should hold). A large batch takes several
    lines.
    """

    attempt: str
    changes: tuple[tuple[str, str], ...] = ()
    gap: bool = False
    reasons: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
