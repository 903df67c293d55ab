"""One line of text for each event of a mission's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chargehand.app.documents import event_payload
from chargehand.core.actions import ActionAnswered, ActionAsked, ActionCreated, ActionFinished, ActionQueued
from chargehand.core.attempt_events import (
    ActionJudged,
    AttemptResumed,
    AttemptStarted,
    BreakerChanged,
    BudgetAlert,
    CheckpointMade,
    CommandFinished,
    FilesSeen,
    MessageAcknowledged,
    MessageDelivered,
    MessageReceived,
    MessageUndelivered,
    ModelCalled,
    NetworkRequested,
    ReplayDiverged,
    ReportMade,
    RoleChosen,
    SandboxClosed,
    SandboxOpened,
    StateCaptured,
    TierChosen,
)
from chargehand.core.events import Event, Payload
from chargehand.core.mission_events import (
    CLOCK,
    AgentSelected,
    ApplyChanged,
    ApprovalGiven,
    AttemptFinished,
    BaseResolved,
    CancelAsked,
    ChangesReverted,
    CheckpointRestored,
    ExportChanged,
    HeadSigned,
    MergeConflicted,
    MessageSent,
    MissionAdmitted,
    MissionClaimed,
    MissionCreated,
    MissionFinished,
    MissionPaused,
    MissionQueued,
    MissionReleased,
    MissionResumed,
    MissionRolledBack,
    PromotionDone,
    QuestionAnswered,
    QuestionAsked,
    StepFinished,
    VerdictGiven,
)
from chargehand.core.ports import Spent
from chargehand.core.records import Reason
from chargehand.core.text import shown_path

if TYPE_CHECKING:
    from chargehand.agents.tool_specs import ToolCall


def describe(payload: Payload) -> str:
    """Return what happened on one line, "" for what a person need not see."""
    describe_payload = _DESCRIPTIONS.get(type(payload))
    return describe_payload(payload) if describe_payload is not None else ""


def describe_event(event: Event) -> str:
    """Return a line of the log in words."""
    payload = event_payload(event)
    if payload is None:
        return "(erased)" if event.payload is None else "(from a later version)"
    return describe(payload)


def _created(event: MissionCreated) -> str:
    fork = f" (forked from {event.forked_from} at reply {event.forked_at})" if event.forked_from else ""
    return f"requested: {_first_line(event.request.text)}{fork}"


def _claimed(event: MissionClaimed) -> str:
    return f"claimed by {event.worker}, claim {event.epoch}" if event.epoch > 1 else ""


def _released(event: MissionReleased) -> str:
    return f"released by {event.worker} for another worker to resume" if event.worker else ""


def _paused(event: MissionPaused) -> str:
    return f"paused by {event.identity}" + (f": {event.reason}" if event.reason else "")


def _resumed(event: MissionResumed) -> str:
    return f"resumed by {event.identity}"


def _queued(event: MissionQueued) -> str:
    return f"waits: {event.reason.message}"


def _admitted(event: MissionAdmitted) -> str:
    return f"started after {event.seconds:.1f} s in the queue"


def _captured(event: StateCaptured) -> str:
    running = "1 process" if event.processes == 1 else f"{event.processes} processes"
    shown_by = f"chargehand artifact show {event.artifact[:12]}"
    return f"saved a failure snapshot ({event.why}, {running}): {shown_by}"


def _action_created(event: ActionCreated) -> str:
    return f"{event.kind} requested by {event.identity} as {event.action}"


def _action_queued(event: ActionQueued) -> str:
    return f"{event.action} waits: {event.reason.message}"


def _action_asked(event: ActionAsked) -> str:
    return f"{event.action} asks: {_first_line(event.text)}"


def _action_answered(event: ActionAnswered) -> str:
    return f"{event.identity} answered {event.action}: {'yes' if event.yes else 'no'}"


def _action_finished(event: ActionFinished) -> str:
    return f"{event.action} {event.status} after {event.seconds:.1f} s{_reasons(event.reasons)}"


def _judged(event: ActionJudged) -> str:
    """Describe what was not simply allowed."""
    if event.effect == "allow" and not event.overridden and not event.answer:
        return ""
    aside = f", rule {', '.join(event.overridden)} overridden" if event.overridden else ""
    word = {"allow": "allowed", "deny": "denied", "ask": "needs approval"}.get(event.effect, event.effect)
    return f"{word}: {_first_line(event.subject or event.text)} (rule {event.rule}: {event.reason}{aside})"


def _breaker(event: BreakerChanged) -> str:
    who = f"{event.agent} with {event.model}" if event.model else event.agent
    why = f" after {event.failures} failures in a row: {_first_line(event.reason)}" if event.failures else ""
    state = {"closed": "works again", "open": "is disabled", "half_open": "gets one trial"}
    return f"agent {_short(who)} {state.get(event.state, event.state)}{why}"


def _cancel_asked(event: CancelAsked) -> str:
    return f"cancellation requested by {event.identity}"


def _message(event: MessageSent) -> str:
    if event.again:
        return f"critical message {event.message} sent again"
    return (
        f"{'critical message' if event.critical else 'message'} from {event.identity}: {_first_line(event.text)}"
    )


def _delivered(event: MessageDelivered) -> str:
    return f"message {event.message} delivered to the agent"


def _acknowledged(event: MessageAcknowledged) -> str:
    return f"message {event.message} acknowledged by the agent"


def _received(event: MessageReceived) -> str:
    """Return status and type; the text comes with the attempt's end."""
    message = event.message
    return f"the agent reported {message.get('status', 'unknown')} ({message.get('type', 'message')})"


def _undelivered(event: MessageUndelivered) -> str:
    return f"message {event.message} was not delivered: {event.reason.message}"


def _attempt_resumed(event: AttemptResumed) -> str:
    state = "kept" if event.ignored_state == "kept" else "reset, ignored files lost"
    return f"attempt resumed after an interruption (workspace {state})"


def _base(event: BaseResolved) -> str:
    return f"base {event.base.branch or event.base.revision} @ {event.base.commit[:12]}"


def _agent(event: AgentSelected) -> str:
    return f"agent {event.agent} ({event.kind})"


def _role(event: RoleChosen) -> str:
    models = " then ".join(event.models)
    with_models = f" with {models}" if models else ""
    return f"role {event.role} ({event.digest[:12]}, {event.origin}): {event.agent}{with_models} ({event.why})"


def _report_made(event: ReportMade) -> str:
    return f"{event.kind} by the {event.role}: {_first_line(event.text)}"


def _tier(event: TierChosen) -> str:
    return f"sandbox tier {event.choice.tier}: {event.choice.reason}"


def _sandbox(event: SandboxOpened) -> str:
    return f"sandbox for {event.purpose} ({event.tier}, {event.driver})"


def _network(event: NetworkRequested) -> str:
    sizes = f"{event.bytes_out:,} bytes out, {event.bytes_in:,} in"
    if event.unlisted:
        return f"network: {event.unlisted} more requests, {event.unlisted_refused} of them refused ({sizes})"
    where = f"{event.method or 'request'} {event.host}:{event.port}" if event.host else "malformed request"
    if not event.allowed:
        return _short(f"network refused: {where}: {event.reason}")
    return _short(f"network: {where}{f': {event.reason}' if event.reason else ''} ({sizes})")


def _sandbox_closed(event: SandboxClosed) -> str:
    memory = "" if event.peak_memory is None else f", peak memory {event.peak_memory / (1 << 20):.0f} MiB"
    return f"sandbox for {event.purpose} closed after {event.seconds:.1f} s{memory}"


def _command(event: CommandFinished) -> str:
    ended = "stopped at its time limit" if event.timed_out else f"exit code {event.exit_code}"
    return f"{_short(' '.join(event.argv))}: {ended} after {event.seconds:.1f} s"


def _attempt(event: AttemptStarted) -> str:
    return f"attempt {event.number} by {event.agent}"


def _checkpoint(event: CheckpointMade | CheckpointRestored) -> str:
    point = event.checkpoint
    return f"checkpoint {point.commit[:12]} ({point.trigger}, {point.changed} changed)"


def _files(event: FilesSeen) -> str:
    """Describe a batch by its counts and, where it is one file, by its path."""
    kinds = Counter(kind.removeprefix("found_") for kind, _ in event.changes if kind != "renamed_from")
    paths = {path for kind, path in event.changes if kind != "renamed_from"}
    named = f" {shown_path(next(iter(paths)))}" if len(paths) == 1 else ""
    parts = [f"{count} {'renamed' if kind == 'renamed_to' else kind}" for kind, count in kinds.items()]
    parts += [f"{count} {why}" for why, count in event.skipped.items()]
    missed = "changes may have been missed" + (f" ({', '.join(event.reasons)})" if event.reasons else "")
    counts = ", ".join(parts)
    return _short(
        "; ".join(part for part in (missed if event.gap else "", counts and f"files: {counts}{named}") if part)
    )


def _reverted(event: ChangesReverted) -> str:
    return "set back " + ", ".join(f"{shown_path(item.path)} ({item.rule})" for item in event.reverted)


def _verdict(event: VerdictGiven) -> str:
    verdict = event.verdict
    checks = "; ".join(f"{check.name}: {check.status}" for check in verdict.checks) or "no checks"
    where = {"base": "on the base", "attempt": "on the attempt's tree", "merged": "on the merged tree"}
    known = ", reused" if event.reused else ""
    return f"{verdict.status} {where[verdict.scope]} ({checks}{known})"


def _attempt_finished(event: AttemptFinished) -> str:
    return f"attempt {event.status} after {event.seconds:.1f} s{_reasons(event.reasons)}"


def _called(event: ModelCalled) -> str:
    tokens = f"{_count(event.input_tokens)} in, {_count(event.output_tokens)} out"
    cost = f"{event.cost_usd:.4f} USD" if event.cost_usd is not None else "cost unknown"
    ended = "" if event.status == "ok" else f" {event.status}: {_first_line(event.reason)}"
    notes = [f"not {_first_line(why)}" for why in event.skipped] + [_first_line(what) for what in event.converted]
    return f"model {event.model or '?'}{ended} ({'; '.join([f'{tokens}, {cost}', *notes])})"


def _diverged(event: ReplayDiverged) -> str:
    where = f"at {event.pointer}: was {event.recorded}, is {event.sent}"
    return f"replay ended at turn {event.turn}: the agent's request differs {_first_line(where)}"


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


def alert_text(alert: BudgetAlert | Spent) -> str:
    """Return how far a limit is used up."""
    names = {"day": "the day's", "user": "the user's day's"}
    whose = names.get(alert.limit, f"the {alert.limit}'s")
    return f"{alert.spent_usd:.2f} of {whose} {alert.limit_usd:.2f} USD spent or reserved"


def _step(event: StepFinished) -> str:
    """Describe replies and the results of their calls; other steps have events of their own."""
    if "/asked-again/" in event.step and event.output is not None:
        return f"asked again for its message: {_short(_first_line(event.output['problem']))}"
    if "/work/" not in event.step:
        return ""
    # Only here, for it imports what runs attempts: half a second that a log without native steps need not cost.
    from chargehand.agents.recorded import read_reply
    from chargehand.missions.transcript import parse_act

    act = parse_act(event.step)
    if act is None or act[1].kind not in ("reply", "call"):
        return ""
    step = act[1]
    if event.output is None:
        return f"{step.kind} {step.turn} kept as an artifact"
    if step.kind == "reply":
        reply = read_reply(event.output)
        words = [f"reply {step.turn}:", _first_line(reply.text), *map(_tool, reply.calls)]
        return _short(" ".join(word for word in words if word))
    made = event.output.get("output", event.output)
    return f"  -> {_end_of(made['text'])}"


def _tool(call: ToolCall) -> str:
    """Return a call in words: the tool and what it is about."""
    found = call.arguments if isinstance(call.arguments, dict) else {}
    subject = next((str(found[key]) for key in ("command", "path", "pattern", "question") if key in found), "")
    return f"[{call.name} {_first_line(subject)}".rstrip() + "]"


def _asked(event: QuestionAsked) -> str:
    if event.until:
        return event.text
    if event.attempt is not None:
        return f"the agent asks: {_first_line(event.text)}"
    return f"needs a person's decision{_reasons(event.reasons)}"


def _answered(event: QuestionAnswered) -> str:
    if event.identity == CLOCK:
        return "quota is expected back: resuming"
    return f"{event.identity} answers: {_first_line(event.text)}"


def _approved(event: ApprovalGiven) -> str:
    return f"approved by {event.identity}" + (f": {event.reason}" if event.reason else "")


def _conflicted(event: MergeConflicted) -> str:
    named = ", ".join(f"{shown_path(each.path)} ({each.kind})" for each in event.conflicts[:5])
    paths = "1 path conflicts" if event.count == 1 else f"{event.count} paths conflict"
    return _short(f"{paths} with {event.branch} @ {event.commit[:12]}: {named}")


def _promoted(event: PromotionDone) -> str:
    return f"promoted to {event.commit[:12]}"


def _signed(event: HeadSigned) -> str:
    if event.problem:
        return f"the log could not be signed: {event.problem}"
    return f"log signed up to line {event.seq}, noted on {event.commit[:12]}"


def _export(event: ExportChanged | ApplyChanged) -> str:
    what = "export" if isinstance(event, ExportChanged) else "apply"
    reason = f": {event.export.reason}" if event.export.reason else ""
    return f"{what} {event.export.state} ({event.export.ref.removeprefix('refs/heads/')}){reason}"


def _finished(event: MissionFinished) -> str:
    return f"mission {event.status}{_reasons(event.reasons)}"


def _rolled_back(event: MissionRolledBack) -> str:
    return f"rolled back by {event.commit[:12]}"


def _reasons(reasons: tuple[Reason, ...]) -> str:
    return ": " + "; ".join(reason.message for reason in reasons) if reasons else ""


def _end_of(text: str) -> str:
    """Return the last two lines of a result: what a command said last, and how it ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _short("  ".join(lines[-2:]))


def _first_line(text: str) -> str:
    return _short(text.strip().splitlines()[0]) if text.strip() else ""


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:99] + "…"


_DESCRIPTIONS: dict[type[Payload], Callable[[Any], str]] = {
    MissionCreated: _created,
    MissionClaimed: _claimed,
    MissionReleased: _released,
    MissionPaused: _paused,
    MissionResumed: _resumed,
    CancelAsked: _cancel_asked,
    MissionQueued: _queued,
    MissionAdmitted: _admitted,
    StateCaptured: _captured,
    BreakerChanged: _breaker,
    ActionJudged: _judged,
    ActionCreated: _action_created,
    ActionQueued: _action_queued,
    ActionAsked: _action_asked,
    ActionAnswered: _action_answered,
    ActionFinished: _action_finished,
    MessageSent: _message,
    MessageDelivered: _delivered,
    MessageAcknowledged: _acknowledged,
    MessageReceived: _received,
    MessageUndelivered: _undelivered,
    AttemptResumed: _attempt_resumed,
    BaseResolved: _base,
    AgentSelected: _agent,
    TierChosen: _tier,
    RoleChosen: _role,
    ReportMade: _report_made,
    SandboxOpened: _sandbox,
    SandboxClosed: _sandbox_closed,
    NetworkRequested: _network,
    CommandFinished: _command,
    AttemptStarted: _attempt,
    CheckpointMade: _checkpoint,
    CheckpointRestored: _checkpoint,
    FilesSeen: _files,
    ChangesReverted: _reverted,
    VerdictGiven: _verdict,
    AttemptFinished: _attempt_finished,
    ModelCalled: _called,
    ReplayDiverged: _diverged,
    BudgetAlert: alert_text,
    StepFinished: _step,
    QuestionAsked: _asked,
    QuestionAnswered: _answered,
    ApprovalGiven: _approved,
    MergeConflicted: _conflicted,
    PromotionDone: _promoted,
    HeadSigned: _signed,
    ExportChanged: _export,
    ApplyChanged: _export,
    MissionFinished: _finished,
    MissionRolledBack: _rolled_back,
}
