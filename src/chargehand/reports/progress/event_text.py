"""One line of text for each event of a mission's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

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
    SecretUsed,
    StateCaptured,
    TierChosen,
)
from chargehand.core.choices import render_reasons
from chargehand.core.events import Event, Payload, is_damaged, read_payload
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
    DeliveryChanged,
    ExportChanged,
    FeedbackGiven,
    FeedbackRetracted,
    ForecastMade,
    ForgeActed,
    HeadSigned,
    LessonsRecalled,
    MergeConflicted,
    MessageSent,
    MissionAdmitted,
    MissionAllowed,
    MissionClaimed,
    MissionContinued,
    MissionCreated,
    MissionFinished,
    MissionInterrupted,
    MissionPaused,
    MissionQueued,
    MissionReleased,
    MissionResumed,
    MissionRolledBack,
    MissionWorked,
    PromotionDone,
    PromotionFollowed,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    RetryDeclined,
    SetupDetected,
    StepFinished,
    VerdictGiven,
)
from chargehand.core.plan_events import (
    TASK_QUESTION,
    CoordinatorSlept,
    CoordinatorWoken,
    PlanMade,
    PlannerStarted,
    PlanProposed,
    PlanWanted,
    ReviewStarted,
    TaskAllowed,
    TaskDelegated,
    TaskEnded,
    TaskHeld,
    TaskMerged,
    TaskNoted,
    TaskReturned,
    TaskReviewed,
    TaskStarted,
)
from chargehand.core.ports import Spent
from chargehand.core.records import Fate, Reason
from chargehand.core.text import shown_path
from chargehand.decisions.forecast_records import describe_forecast

_FATES: Mapping[Fate, str] = {
    "merged": "is merged",
    "survived": "survived",
    "reverted": "is reverted",
    "rewritten": "is gone",
    "rolled_back": "is rolled back",
}


def describe(payload: Payload) -> str:
    """Describe an event on one line; return "" for events that a person need not see."""
    for describe_group in (
        _describe_mission,
        _describe_plan,
        _describe_planning,
        _describe_start,
        _describe_message,
        _describe_question,
        _describe_later,
        _describe_action,
        _describe_attempt,
        _describe_sandbox,
        _describe_model_use,
        _describe_result,
    ):
        text = describe_group(payload)
        if text is not None:
            return text
    return ""


def describe_event(event: Event) -> str:
    """Describe a line of the log in words."""
    payload = read_payload(event)
    if payload is None:
        if event.payload is None:
            return "(erased)"
        return "(damaged)" if is_damaged(event) else "(from a later version)"
    if isinstance(payload, CoordinatorWoken) and payload.mission == event.mission and not payload.idle_since:
        return "checks again: its time has come, or a person changed something"
    return describe(payload)


def alert_text(alert: BudgetAlert | Spent) -> str:
    """Describe how far a limit is used up."""
    names = {"day": "the day's", "user": "the user's day's"}
    whose = names.get(alert.limit, f"the {alert.limit}'s")
    return f"{alert.spent_usd:.2f} of {whose} {alert.limit_usd:.2f} USD spent or reserved"


# Each of the following functions handles one group of events and returns `None` for any other.


def _describe_mission(event: Payload) -> str | None:
    match event:
        case MissionCreated():
            at = f" at reply {event.forked_at}" if event.forked_at else ""
            fork = (
                f" ({'forked' if at else 'continued'} from {event.forked_from}{at})" if event.forked_from else ""
            )
            return f"requested: {_first_line(event.request.text)}{fork}"
        case MissionPaused():
            return f"paused by {event.identity}" + (f": {event.reason}" if event.reason else "")
        case MissionResumed():
            how = ", until its next step" if event.step else ", with no further stop" if event.to_end else ""
            return f"resumed by {event.identity}{how}"
        case MissionContinued():
            where = f" on {event.base.commit[:12]}" if event.base is not None else ""
            return f"continued by {event.identity} after attempt {event.after}{where}"
        case CancelAsked():
            return event.reason or f"cancellation requested by {event.identity}"
        case MissionQueued():
            return f"waits: {event.reason.message}"
        case MissionAllowed():
            return f"{event.identity} let it start alongside {_shorten(', '.join(event.beside))}"
        case MissionAdmitted():
            return f"started after {event.seconds:.1f} s in the queue"
        case MissionFinished():
            return f"mission {event.status}{_reasons(event.reasons)}"
    return None


# Why a task is started, by rung.
_RUNGS = {
    "first": "",
    "approach": ", another approach",
    "model": ", another model",
    "best_of": ", several in parallel",
    "returned": ", with the problems of its result",
    "loop": ", once more",
    "person": ", as a person said",
}


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _describe_plan(event: Payload) -> str | None:
    match event:
        case PlanMade():
            return f"plan of {_tasks(len(event.plan.tasks))} by {event.identity}"
        case TaskStarted():
            by = f" by {event.model}" if event.model else ""
            return f"task {event.task} started{by}{_RUNGS[event.rung]}: {event.mission}"
        case TaskHeld():
            return f"task {event.task} waits: {event.reason.message}"
        case TaskMerged():
            return f"task {event.task} merged at {event.commit[:12]}"
        case TaskReturned():
            return f"task {event.task} goes back: {event.reason.message}"
        case TaskEnded(outcome="merged"):
            return ""  # `TaskMerged` has reported it
        case TaskEnded():
            why = f": {event.reason.message}" if event.reason is not None else ""
            return f"task {event.task} {event.outcome.replace('_', ' ')}{why}"
        case CoordinatorSlept():
            tasks = f"{_tasks(len(event.tasks))}: {_shorten(', '.join(event.tasks))}"
            return f"waits for {tasks if event.tasks else 'its planner'}"
        case CoordinatorWoken():
            idle = (
                f"no worker was active since {event.idle_since[:19].replace('T', ' ')} UTC: its clock was stopped"
            )
            return idle if event.idle_since else f"news of {event.mission}"
    return None


def _describe_planning(event: Payload) -> str | None:
    match event:
        case PlanWanted():
            return "a planner makes its plan first"
        case PlannerStarted():
            return f"planner started{', once more' if event.round > 1 else ''}: {event.mission}"
        case PlanProposed():
            why = f"cannot be used: {event.reason.message}" if event.reason is not None else "can be used"
            return f"the plan of {event.mission} {why}"
        case TaskAllowed():
            return (
                f"{event.identity} let task {event.task} begin alongside {', '.join(event.beside) or 'the others'}"
            )
        case ReviewStarted():
            return f"task {event.task} is reviewed in the role {event.role}: {event.mission}"
        case TaskReviewed():
            passed = "passed" if event.decision == "accepted" else "did not pass"
            return f"task {event.task} {passed} its review: {event.why}"
        case TaskNoted():
            return f"task {event.task} leaves notes for {', '.join(event.notes)}"
        case TaskDelegated():
            if event.refused is not None:
                return f"the parts that task {event.task} hands on are refused: {event.refused.message}"
            return f"task {event.task} hands on {', '.join(event.tasks)}"
    return None


def _describe_start(event: Payload) -> str | None:
    match event:
        case MissionClaimed():
            # Every mission begins with its first claim.
            return f"claimed by {event.worker}, claim {event.epoch}" if event.epoch > 1 else ""
        case MissionReleased():
            return f"released by {event.worker} for another worker to resume" if event.worker else ""
        case MissionWorked():
            return ""
        case BaseResolved():
            return f"base {event.base.branch or event.base.revision} @ {event.base.commit[:12]}"
        case AgentSelected():
            return f"agent {event.agent} ({event.kind})"
        case RoleChosen():
            models = " then ".join(event.models)
            with_models = f" with {models}" if models else ""
            file = f"{event.digest[:12]}, {event.origin}"
            return f"role {event.role} ({file}): {event.agent}{with_models} ({event.why})"
        case TierChosen():
            return f"sandbox: {event.choice.tier} ({event.choice.reason})"
        case SetupDetected():
            return f"setup: {event.command} (the checks need it)"
        case BreakerChanged():
            who = f"{event.agent} with {event.model}" if event.model else event.agent
            why = f" after {event.failures} failures in a row: {_first_line(event.reason)}"
            state = {"closed": "works again", "open": "is disabled", "half_open": "gets one trial"}
            return f"agent {_shorten(who)} {state.get(event.state, event.state)}{why if event.failures else ''}"
    return None


def _describe_message(event: Payload) -> str | None:
    match event:
        case MessageSent(again=True):
            return f"critical message {event.message} sent again"
        case MessageSent():
            kind = "critical message" if event.critical else "message"
            return f"{kind} from {event.identity}: {_first_line(event.text)}"
        case MessageDelivered():
            return f"message {event.message} delivered to the agent"
        case MessageAcknowledged():
            return f"message {event.message} acknowledged by the agent"
        case MessageUndelivered():
            return f"message {event.message} was not delivered: {event.reason.message}"
        case MessageReceived():
            # Status and type only: the text comes with the attempt's end.
            message = event.message
            payload = message.get("payload")
            parts = payload.get("delegate") if isinstance(payload, dict) else None
            # Without a plan no one acts on it.
            more = f", and hands on: {_shorten(', '.join(str(each.get('id')) for each in parts))}" if parts else ""
            return (
                f"the agent reported {message.get('status', 'unknown')} ({message.get('type', 'message')}){more}"
            )
    return None


def _describe_question(event: Payload) -> str | None:
    match event:
        case QuestionAsked():
            if event.until:
                return event.text
            until = f" (to be answered until {event.expires[:19].replace('T', ' ')} UTC)" if event.expires else ""
            if event.attempt is not None:
                return f"the agent asks ({event.kind}): {_first_line(event.text)}{until}"
            task = event.question.removeprefix(TASK_QUESTION).rpartition("/")[0]
            whose = f"task {task} " if event.question.startswith(TASK_QUESTION) else ""
            return f"{whose}needs a person's decision{_reasons(event.reasons)}{until}"
        case QuestionExpired():
            then = f"{event.default!r} is taken as the answer" if event.default else "a person is needed"
            return f"no answer in time: {then}"
        case QuestionAnswered():
            if event.identity == CLOCK:
                what = (
                    "the disk has space again" if event.question.startswith("disk/") else "quota is expected back"
                )
                return f"{what}: resuming"
            return f"{event.identity} answers: {_first_line(event.text)}"
        case ApprovalGiven():
            return f"approved by {event.identity}" + (f": {event.reason}" if event.reason else "")
    return None


def _describe_action(event: Payload) -> str | None:
    match event:
        case ActionCreated():
            return f"{event.kind} requested by {event.identity} as {event.action}"
        case ActionQueued():
            return f"{event.action} waits: {event.reason.message}"
        case ActionAsked():
            return f"{event.action} asks: {_first_line(event.text)}"
        case ActionAnswered():
            return f"{event.identity} answered {event.action}: {'yes' if event.yes else 'no'}"
        case ActionFinished():
            return f"{event.action} {event.status} after {event.seconds:.1f} s{_reasons(event.reasons)}"
        case ActionJudged():
            # Nearly every action is simply allowed: those lines would bury the others.
            if event.effect == "allow" and not event.overridden and not event.answer:
                return ""
            aside = f", rule {', '.join(event.overridden)} overridden" if event.overridden else ""
            word = {"allow": "allowed", "deny": "denied", "ask": "needs approval"}.get(event.effect, event.effect)
            return f"{word}: {_first_line(event.subject or event.text)} (rule {event.rule}: {event.reason}{aside})"
    return None


def _describe_attempt(event: Payload) -> str | None:
    match event:
        case AttemptStarted():
            return f"attempt {event.number} by {event.agent}"
        case AttemptResumed():
            state = "kept" if event.ignored_state == "kept" else "reset, ignored files lost"
            return f"attempt resumed after an interruption (workspace {state})"
        case CheckpointMade() | CheckpointRestored():
            point = event.checkpoint
            return f"checkpoint {point.commit[:12]} ({point.trigger}, files changed: {point.changed})"
        case FilesSeen():
            # Shown by its counts and, for a single file, by its path. A rename has two changes and counts once.
            kinds = Counter(kind.removeprefix("found_") for kind, _ in event.changes if kind != "renamed_from")
            paths = {path for kind, path in event.changes if kind != "renamed_from"}
            named = f" {shown_path(next(iter(paths)))}" if len(paths) == 1 else ""
            parts = [f"{count} {'renamed' if kind == 'renamed_to' else kind}" for kind, count in kinds.items()]
            parts += [f"{count} {why}" for why, count in event.skipped.items()]
            missed = "changes may have been missed" + (f" ({', '.join(event.reasons)})" if event.reasons else "")
            counts = ", ".join(parts)
            return _shorten(
                "; ".join(
                    part for part in (missed if event.gap else "", counts and f"files: {counts}{named}") if part
                )
            )
        case StepFinished():
            return _describe_step(event)
        case ReportMade():
            return f"{event.kind} by the {event.role}: {_first_line(event.text)}"
        case StateCaptured():
            running = "1 process" if event.processes == 1 else f"{event.processes} processes"
            shown_by = f"chargehand artifact show {event.artifact[:12]}"
            return f"saved a failure snapshot ({event.why}, {running}): {shown_by}"
        case AttemptFinished():
            return f"attempt {event.status} after {event.seconds:.1f} s{_reasons(event.reasons)}"
    return None


def _describe_sandbox(event: Payload) -> str | None:
    match event:
        case MissionInterrupted():
            return f"interrupted: {event.message}; continues from the last recorded step"
        case SandboxOpened():
            return f"sandbox for {event.purpose} ({event.tier}, {event.driver})"
        case SandboxClosed():
            memory = "" if event.peak_memory is None else f", peak memory {event.peak_memory / (1 << 20):.0f} MiB"
            return f"sandbox for {event.purpose} closed after {event.seconds:.1f} s{memory}"
        case CommandFinished():
            ended = "stopped at its time limit" if event.timed_out else f"exit code {event.exit_code}"
            return f"{_shorten(' '.join(event.argv))}: {ended} after {event.seconds:.1f} s"
        case NetworkRequested():
            sizes = f"{event.bytes_out:,} bytes out, {event.bytes_in:,} in"
            if event.unlisted:
                more = f"{event.unlisted} more requests, {event.unlisted_refused} of them refused"
                return f"network: {more} ({sizes})"
            where = f"{event.method or 'request'} {event.host}:{event.port}" if event.host else "malformed request"
            if not event.allowed:
                return _shorten(f"network refused: {where}: {event.reason}")
            return _shorten(f"network: {where}{f': {event.reason}' if event.reason else ''} ({sizes})")
    return None


def _describe_model_use(event: Payload) -> str | None:
    match event:
        case RetryDeclined():
            subject = f"task {event.task}" if event.task else f"attempt {event.attempt}"
            asked = "; a person is asked" if event.action == "ask" else ""
            return f"{subject}: {render_reasons(event.reasons)}{asked}"
        case ForecastMade():
            return f"forecast: {describe_forecast(event.forecast)}"
        case LessonsRecalled():
            shown, every = sum(each.shown for each in event.lessons), len(event.lessons)
            return f"lessons from earlier missions: {shown} shown, {every - shown} withheld to compare"
        case ModelCalled():
            given, made = (
                "unknown" if tokens is None else f"{tokens:,}"
                for tokens in (event.input_tokens, event.output_tokens)
            )
            cost = f"{event.cost_usd:.4f} USD" if event.cost_usd is not None else "cost unknown"
            ended = "" if event.status == "ok" else f" {event.status}: {_first_line(event.reason)}"
            notes = [f"not {_first_line(why)}" for why in event.skipped]
            notes += [_first_line(what) for what in event.converted]
            notes += [f"left out: {_first_line(', '.join(event.left_out))}"] if event.left_out else []
            notes += [f"sent again after {_first_line(', '.join(event.retried))}"] if event.retried else []
            notes += [_first_line(event.reason)] if event.status == "ok" and event.reason else []
            return f"model {event.model or '?'}{ended} ({'; '.join([f'{given} in, {made} out, {cost}', *notes])})"
        case ReplayDiverged():
            where = f"at {event.pointer}: was {event.recorded}, is {event.sent}"
            return f"replay ended at turn {event.turn}: the agent's request differs {_first_line(where)}"
        case BudgetAlert():
            return alert_text(event)
        case SecretUsed():
            given = f"refused ({event.refused})" if event.refused else f"taken from {_first_line(event.source)}"
            return f"secret {event.secret} {given} for {_first_line(event.purpose)}, role {event.role}"
    return None


def _describe_result(event: Payload) -> str | None:
    match event:
        case ChangesReverted():
            return "reverted " + ", ".join(f"{shown_path(item.path)} ({item.rule})" for item in event.reverted)
        case VerdictGiven():
            verdict = event.verdict
            checks = "; ".join(f"{check.name}: {check.status}" for check in verdict.checks) or "no checks"
            where = {"base": "on the base", "attempt": "on the attempt's tree", "merged": "on the merged tree"}
            known = ", reused" if event.reused else ""
            unread = f"; unread: {', '.join(map(shown_path, verdict.unread[:5]))}" if verdict.unread else ""
            unread += "".join(f"; {line}" for line in verdict.tolerated)
            # Findings about a candidate are shown with the decision based on them, those about the base only here.
            told = "".join(f"; {found.message}" for found in verdict.findings if verdict.scope == "base")
            return f"{verdict.status} {where[verdict.scope]} ({checks}{known}{unread}){told}"
        case MergeConflicted():
            named = ", ".join(f"{shown_path(each.path)} ({each.kind})" for each in event.conflicts[:5])
            paths = "1 path conflicts" if event.count == 1 else f"{event.count} paths conflict"
            branch = event.branch or "later merges"
            return _shorten(f"{paths} with {branch} @ {event.commit[:12]}: {named}")
        case PromotionDone():
            return f"promoted to {event.commit[:12]}"
        case HeadSigned():
            if event.problem:
                return f"the log could not be signed: {event.problem}"
            return f"log signed up to line {event.seq}, noted on {event.commit[:12]}"
        case ExportChanged() | ApplyChanged():
            what = "export" if isinstance(event, ExportChanged) else "apply"
            reason = f": {event.export.reason}" if event.export.reason else ""
            return f"{what} {event.export.state} ({event.export.ref.removeprefix('refs/heads/')}){reason}"
        case DeliveryChanged(delivery=made):
            reason = "".join(f"{mark}{text}" for mark, text in ((": ", made.reason), ("; ", made.remedy)) if text)
            return f"{made.target} {made.state}{f' ({made.ref})' if made.ref else ''}{reason}"
        case MissionRolledBack():
            what = f"task {', '.join(event.tasks)} " if event.tasks else ""
            return f"{what}rolled back by {event.commit[:12]}"
    return None


def _describe_later(event: Payload) -> str | None:
    match event:
        case PromotionFollowed():
            where = f"from {event.branch}" if event.fate == "rewritten" else f"on {event.branch}"
            by = f" by {event.by[:12]}" if event.by else ""
            return f"promoted {event.commit[:12]} {_FATES[event.fate]} {where}{by}"
        case FeedbackGiven():
            at, note = f" at {event.place}" if event.place else "", f": {event.note}" if event.note else ""
            return _shorten(f"{event.identity}: the result is {'good' if event.good else 'bad'}{at}{note}")
        case FeedbackRetracted():
            return f"{event.identity} retracted their feedback"
        case ForgeActed():
            who = f" by {event.identity}" if event.identity else ""
            return f"at the forge: {event.key}{who}{f' ({event.url})' if event.url else ''}"
    return None


def _describe_step(event: StepFinished) -> str:
    """Describe replies and the results of their calls; other steps have their own events."""
    if "/asked-again/" in event.step and event.output is not None:
        return f"asked again for its message: {_first_line(event.output['problem'])}"
    if "/work/" not in event.step:
        return ""
    # Imported here: these modules load what runs attempts, half a second that logs without native steps save.
    from chargehand.agents.recorded import read_reply
    from chargehand.missions.transcript import parse_act

    act = parse_act(event.step)
    if act is None or act[1].kind not in ("reply", "call"):
        return ""
    step = act[1]
    if event.output is None:
        return f"{step.kind} {step.turn} kept as an artifact"
    if step.kind == "call":
        made = event.output.get("output", event.output)
        # The last lines of a command's output, and its exit code.
        lines = [line.strip() for line in made["text"].splitlines() if line.strip()]
        return f"  -> {_shorten('  '.join(lines[-2:]))}"
    reply = read_reply(event.output)
    words = [f"reply {step.turn}:", _first_line(reply.text)]
    for call in reply.calls:
        given = call.arguments if isinstance(call.arguments, dict) else {}
        subject = next((str(given[key]) for key in ("command", "path", "pattern", "question") if key in given), "")
        words.append(f"[{call.name} {_first_line(subject)}".rstrip() + "]")
    return _shorten(" ".join(word for word in words if word))


def _reasons(reasons: tuple[Reason, ...]) -> str:
    return ": " + "; ".join(reason.message for reason in reasons) if reasons else ""


def _first_line(text: str) -> str:
    return _shorten(text.strip().splitlines()[0]) if text.strip() else ""


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else text[:99] + "…"
