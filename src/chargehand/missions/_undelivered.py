"""Messages that wait for an agent's next attempt: owed one more, or told as undelivered where none comes."""

from __future__ import annotations

from chargehand.core.attempt_events import MessageUndelivered
from chargehand.core.events import Payload
from chargehand.core.mission_events import MessageSent, MissionFinished
from chargehand.core.records import Reason
from chargehand.core.state import MissionState
from chargehand.missions._acknowledge import NEXT, answer_to


def owes_attempt(state: MissionState, number: int) -> bool:
    """Tell whether a person said of a message to that attempt that it is to be delivered with the next one.

    Nothing that happens after the attempt changes it: a worker that takes the mission over comes to the same.
    """
    attempt = state.attempt(number)
    return attempt is not None and any(
        answer_to(state, attempt.id, each.message) == NEXT for each in state.messages
    )


def with_undelivered(state: MissionState, finished: MissionFinished) -> tuple[Payload, ...]:
    """Return the events of a mission's end: which messages reached no agent, and the end itself."""
    what = {"promoted": "it was promoted", "waiting": "it waits for a person to decide about its result"}
    why = what.get(finished.status, f"it ended as {finished.status}")
    reason = Reason(code="not_delivered", message=f"{why}, and there is no further attempt to tell it to")
    told = (
        MessageUndelivered(message=each.message, reason=reason)
        for each in state.messages
        if each.message not in state.undelivered and not _reached(state, each)
    )
    return (*told, finished)


def _reached(state: MissionState, message: MessageSent) -> bool:
    last = state.attempts[-1].id if state.attempts else ""
    if answer_to(state, last, message.message) == NEXT:
        return message.message in state.acknowledged
    return message.message in state.delivered
