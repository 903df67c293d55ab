"""What a person is asked where an agent did not acknowledge a critical message, and what the answers mean."""

from __future__ import annotations

from chargehand.core.errors import RefusedError
from chargehand.core.state import MissionState, Question

ACKNOWLEDGE_SECONDS = 10.0
"""Until a critical message must be acknowledged; pauses do not count."""
_PREFIX = "acknowledge/"
GO_ON, CANCEL, NEXT = "go on", "cancel", "deliver with the next attempt"
OPTIONS = (GO_ON, CANCEL, NEXT)


def question_of(attempt: str, message: str) -> str:
    """Return the id of the question about a message that an attempt's agent did not acknowledge."""
    return f"{_PREFIX}{attempt}/{message}"


def is_about_message(asked: Question) -> bool:
    """Tell whether a question is about a message that was not acknowledged."""
    return asked.id.startswith(_PREFIX)


def checked_answer(text: str) -> str:
    """Return an answer to such a question; raises `RefusedError` (`answer_unknown`) for any other words."""
    if text not in OPTIONS:
        known = ", ".join(map(repr, OPTIONS))
        raise RefusedError(f"the answer {text[:100]!r} is none of {known}", code="answer_unknown")
    return text


def answer_to(state: MissionState, attempt: str, message: str) -> str | None:
    """Return what a person said about a message that was not acknowledged, `None` where nobody did."""
    asked = state.questions.get(question_of(attempt, message))
    return asked.answer if asked is not None else None
