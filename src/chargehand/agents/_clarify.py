"""Questions with which an agent ends its run: put to a person, and its next run begins with the answers."""

from __future__ import annotations

from chargehand.agents._contract import AttemptContext
from chargehand.core.messages import ClarificationRequest


def _name(number: int) -> str:
    return f"clarification/{number}"


async def answered_before(context: AttemptContext) -> tuple[str, ...]:
    """Return what the agent asked in earlier runs of its attempt, each with the person's answer.

    Raises `WaitingError` while one of them has none.
    """
    texts: list[str] = []
    while context.is_recorded(_name(len(texts) + 1)):
        texts.append(await _answer(context, len(texts) + 1, None))
    return tuple(texts)


async def ask_person(context: AttemptContext, number: int, message: ClarificationRequest) -> str:
    """Put a question to a person, recorded; return it with the answer. Raises `WaitingError`."""
    return await _answer(context, number, message)


async def _answer(context: AttemptContext, number: int, message: ClarificationRequest | None) -> str:
    async def asked() -> object:
        assert message is not None
        return {"question": message.payload.question, "options": list(message.payload.options)}

    said = await context.step(_name(number), [number], asked)
    answer = await context.ask(_name(number), said["question"], said["options"])
    return f"You asked: {said['question']}\n\nThe answer: {answer}"
