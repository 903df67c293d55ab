"""Reads an agent's last message and derives the outcome of the attempt from it; also texts of rejections.

The text of a message is kept and shown, never searched: its type and status alone decide how the attempt
continues, and a claim of success is only a claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.contract import AgentOutcome, Assignment
from chargehand.agents.tool_specs import ToolCall
from chargehand.core.errors import MessageError
from chargehand.core.events import encode_json
from chargehand.core.messages import (
    LONGEST_TEXT,
    Addressed,
    ClarificationRequest,
    Delegation,
    Denied,
    ErrorReport,
    InformationReport,
    Message,
    ProgressReport,
    TaskCompletion,
    message_of,
    read_record,
    repaired_json,
    repaired_words,
)
from chargehand.policy.actions import Judgement

UNANSWERED = "clarification_needed"
# How often a malformed message is asked for again before its attempt fails.
ASKED_AGAIN = 2
# Characters of a message's first line in the reason of an outcome.
_FIRST_LINE = 300
_USAGE = (
    "finish takes {status: success|failure|in_progress|request_clarification, summary: text, evidence: list of "
    "texts, files?: list of texts, open_points?: list of texts, notes?: texts by reader, delegate?: list of "
    "{id, text, role or needs, after?, deadline?}}; call it once, with valid JSON"
)


class _FinishArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `finish`; without a status, as in version 1, the call itself says that the work is done."""

    summary: str
    evidence: tuple[str, ...]
    status: Literal["success", "failure", "in_progress", "request_clarification"] = "success"
    files: tuple[str, ...] | None = None
    open_points: tuple[str, ...] | None = None
    notes: dict[str, str] | None = None
    delegate: tuple[Delegation, ...] | None = None


def message_address(assignment: Assignment, sender: str, number: str) -> Addressed:
    """Return the address of a message of an attempt's agent; `number` distinguishes it from its others."""
    return Addressed(
        id=f"{assignment.attempt}/{number}",
        mission=assignment.mission,
        attempt=assignment.attempt,
        sender=sender,
    )


def read_finish(calls: Sequence[ToolCall], known: Addressed) -> Message:
    """Return the message in a reply's calls of `finish`; raises `MessageError` with a text for the model.

    Two equal calls count as one; of two different calls neither is accepted.
    """
    # Some models repeat a call in one reply, which is harmless as long as they agree.
    first, *others = calls
    if any(other.arguments != first.arguments for other in others):
        raise MessageError("two calls of finish that differ in one reply", value=len(calls))
    # Text that is nearly JSON is repaired if only one meaning is possible; prose around it is not read.
    given = first.arguments
    if isinstance(given, str):
        given = repaired_json(given)
    if not isinstance(given, dict):
        raise MessageError("the arguments of finish must be an object", value=given)
    asked = read_record(repaired_words(given), _FinishArguments)
    open_points = asked.open_points or ()
    report: dict[str, object] = {
        "summary": asked.summary,
        "evidence": asked.evidence,
        "files": asked.files or (),
        "open_points": open_points,
    }
    match asked.status:
        case "success":
            more = {"notes": asked.notes or {}, "delegate": msgspec.to_builtins(asked.delegate or ())}
            kind, payload = "task_completion", report | more
        case "failure":
            kind, payload = "error_report", report
        case "in_progress":
            kind, payload = "progress_report", {"summary": asked.summary, "open_points": open_points}
        case "request_clarification":
            lines = (f"- {line}" for line in (*asked.evidence, *open_points))
            kind, payload = "clarification_request", {"question": "\n".join([asked.summary, *lines])}
    return message_of({"version": 2, "type": kind, "status": asked.status, "payload": payload}, known)


def finish_rejection(error: MessageError) -> str:
    """Return the text for a model about a malformed call of `finish`."""
    return f"finish was not understood: {error.message}. Nothing was finished. {_USAGE}"


def denial_text(judgement: Judgement) -> str:
    """Return the text for an agent about an act that the rules deny: in words, and as a message."""
    denied = Denied(action=judgement.subject[:300], rule=judgement.rule, reason=judgement.reason)
    message = {"type": "checkpoint_violation", "status": "failure", "payload": {"denied": [denied]}}
    return (
        f"not done: {judgement.subject[:300]!r} is denied by rule {judgement.rule}: {judgement.reason}. "
        "Nothing of this call was carried out. Take another way, or say in your summary what is missing.\n"
        f"{encode_json(message).decode()}"
    )


def read_document(content: bytes, known: Addressed) -> Message:
    """Read the message that an agent's program wrote; raises `MessageError`.

    Only unambiguous mistakes are repaired: a fence around it, commas before brackets, the case of status and type.
    """
    if len(content) > 4 * LONGEST_TEXT:
        raise MessageError(f"longer than {4 * LONGEST_TEXT} bytes", value=content[:60])
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"not UTF-8: {error.reason} at byte {error.start + 1}", value=content[:60]) from None
    document = repaired_json(text)
    if not isinstance(document, dict):
        raise MessageError("a message is a JSON object", value=document)
    repaired = repaired_words(document)
    if "type" in repaired:  # a writer of the first version named no type
        repaired.setdefault("version", 2)
    message = message_of(repaired, known)
    if not isinstance(message, TaskCompletion | InformationReport | ErrorReport | ClarificationRequest):
        kind = repaired.get("type")
        raise MessageError("a message of this type does not end the work", path="$.type", value=kind)
    # Work in progress cannot have ended, whatever the exit code says.
    if message.status == "in_progress":
        raise MessageError("a message in progress does not end the work", path="$.status", value=message.status)
    return message


def failure_message(known: Addressed, summary: str, code: str) -> Message:
    """Return the message of an end without success."""
    return _end_message(known, "error_report", "failure", summary, {"code": code[:100]})


def _end_message(known: Addressed, kind: str, status: str, summary: str, more: dict[str, Any]) -> Message:
    # A program's output may hold half of a surrogate pair, which cannot be stored.
    clean = summary.encode("utf-8", "replace").decode()
    payload = {"summary": clean[:LONGEST_TEXT] or "(nothing)", **more}
    return message_of({"version": 2, "type": kind, "status": status, "payload": payload}, known)


def with_message(
    outcome: AgentOutcome,
    known: Addressed,
    message: Message | MessageError | None,
    *,
    times: int = 1,
    why_not: str = "",
) -> AgentOutcome:
    """Combine a run's outcome with the agent's message into the final outcome.

    `times` is how often a malformed message was left, `why_not` why it was not asked for again. A run that ended
    badly never becomes a success; a message of failure, a question, or an unreadable message makes a failure of
    one that ended well.
    """
    # A run that ended badly stays so, whatever its message says.
    if outcome.claim != "done":
        kept = message if isinstance(message, ErrorReport | ClarificationRequest) else None
        return replace(outcome, message=kept or failure_message(known, outcome.reason, outcome.code))
    if message is None:
        said = outcome.output.decode(errors="replace").strip()
        own = _end_message(known, "task_completion", "success", said or outcome.reason, {"evidence": ()})
        return replace(outcome, message=own)
    if isinstance(message, MessageError):
        often = f"was malformed {times} times in a row" if times > 1 else "is malformed"
        often += f", and was not asked for again ({why_not})" if why_not else ""
        reason = f"the agent's message {often}: {message.message}"
        failed = replace(outcome, claim="failed", reason=reason, code="malformed_message")
        return replace(failed, message=failure_message(known, reason, "malformed_message"))
    return outcome_of_message(outcome, message)


def outcome_of_message(outcome: AgentOutcome, message: Message) -> AgentOutcome:
    """Return the outcome of a run that ended well with this well-formed last message."""
    match message:
        case TaskCompletion(status="success"):
            reason = f"the agent says it is done: {_first_line(message.payload.summary)}"
            return replace(
                outcome, claim="done", reason=reason, code="", message=message, said=message_text(message)
            )
        case InformationReport(status="success"):
            reason = f"the agent says it is done: {_first_line(message.payload.text)}"
            return replace(
                outcome, claim="done", reason=reason, code="", message=message, said=message_text(message)
            )
        case TaskCompletion() | ErrorReport():
            reason = f"the agent says it failed: {_first_line(message.payload.summary)}"
            return replace(outcome, claim="failed", reason=reason, code="agent_gave_up", message=message)
        case ClarificationRequest():
            reason = f"the agent cannot continue without an answer: {_first_line(message.payload.question)}"
            return replace(outcome, claim="failed", reason=reason, code="clarification_needed", message=message)
        case _:
            reason = f"the agent's last message does not end the work: {type(message).__name__}"
            return replace(outcome, claim="failed", reason=reason, code="malformed_message", message=message)


def message_text(message: Message) -> str:
    """Return the text of an agent's message, for people and for the next worker on it."""
    match message:
        case TaskCompletion() | ErrorReport():
            payload = message.payload
            points = (f"open: {point}" for point in payload.open_points)
            return "\n".join([payload.summary, *(f"- {line}" for line in (*payload.evidence, *points))])
        case ProgressReport():
            return message.payload.summary
        case ClarificationRequest():
            return message.payload.question
        case InformationReport():
            return message.payload.text
        case _:
            return ""


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")[:_FIRST_LINE]
