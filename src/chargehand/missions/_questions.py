"""Questions to people: open questions, valid answers, and expiry."""

from __future__ import annotations

from datetime import datetime

from chargehand.core.errors import RefusedError
from chargehand.core.events import Payload
from chargehand.core.mission_events import PROMOTE, MissionFinished, QuestionExpired
from chargehand.core.records import Reason
from chargehand.core.state import ENDED, MissionState, MissionSummary, Question

_ABOUT_MESSAGE = "acknowledge/"


def require_question(state: MissionState, question: str = "") -> Question:
    """Return a mission's open question: `question` if given, otherwise the first.

    Raises `RefusedError`: `question_answered` if another answer came first, `question_expired` if the time for an
    answer is over, else `no_question`.
    """
    asked = state.questions.get(question) if question else state.open_question
    if asked is not None and asked.open and state.status not in ENDED:
        return asked
    look = f"chargehand mission show {state.id}"
    last = asked or next((each for each in reversed(state.questions.values()) if each.id != PROMOTE), None)
    if last is not None and last.expired:
        taken = f"; {last.default!r} was taken as the answer" if last.answer is not None else ""
        raise RefusedError(
            f"the question of mission {state.id!r} could be answered until {last.expires}{taken}",
            code="question_expired",
            hint=look if taken else f"chargehand mission resume {state.id} asks it again",
        )
    if last is not None and last.answer is not None:
        raise RefusedError(
            f"mission {state.id!r} was answered already: {last.answer[:100]!r}, by {last.identity}",
            code="question_answered",
            hint=f"{look}; use `mission send` to add something, `promote` or `discard` to decide on a result",
        )
    raise RefusedError(
        f"mission {state.id!r} has no open question",
        code="no_question",
        hint=f"{look}; `mission promote` or `discard` decide on a result",
    )


def check_answer(asked: Question, text: str) -> str:
    """Return a valid answer; raises `RefusedError` (`answer_unknown`) if only the options are allowed."""
    # Also by its id: old logs contain questions about messages without the `closed` flag.
    if (asked.closed or is_about_message(asked)) and text not in asked.options:
        known = ", ".join(map(repr, asked.options))
        raise RefusedError(
            f"the answer must be one of {known}, got {text[:100]!r}",
            code="answer_unknown",
            hint="give one of them, or its number",
        )
    return text


def question_about(attempt: str, message: str) -> str:
    """Return the id of the question about a critical message that an attempt's agent did not acknowledge."""
    return f"{_ABOUT_MESSAGE}{attempt}/{message}"


def is_about_message(asked: Question) -> bool:
    """Return whether a question is about a critical message that an agent did not acknowledge."""
    return asked.id.startswith(_ABOUT_MESSAGE)


def answer_about(state: MissionState, attempt: str, message: str) -> str | None:
    """Return a person's answer about an unacknowledged message, `None` without one."""
    asked = state.questions.get(question_about(attempt, message))
    return asked.answer if asked is not None else None


def rest_for_person(state: MissionState, *reasons: Reason) -> MissionFinished:
    """Return the event with which a mission waits for a person, and its wake time."""
    return MissionFinished(status="waiting", reasons=reasons, wakes=next_expiry(state))


def next_expiry(state: MissionState) -> str:
    """Return when the next open question expires (ISO 8601, UTC), "" for never."""
    return next((asked.expires for asked in state.expiring), "")


def expire_questions(state: MissionSummary, now: datetime) -> tuple[Payload, ...]:
    """Return the events of expired questions: each takes its default, or a person is needed.

    Only the mission's holder records them: until then no reader treats a question as expired.
    """
    over = [each for each in state.expiring if datetime.fromisoformat(each.expires) <= now]
    events: list[Payload] = [QuestionExpired(question=each.id, default=each.default) for each in over]
    without = [each for each in over if not each.default]
    # A sleeping coordinator continues its other tasks, and waits once they are done.
    if without and state.status == "waiting":
        message = (
            f"no answer came before {without[0].expires}: {without[0].text.strip().partition(chr(10))[0][:200]}"
        )
        reason = Reason(code="needs_human", message=message)
        events.append(MissionFinished(status="waiting", reasons=(reason,)))
    return tuple(events)
