"""Watching over critical messages: who does not acknowledge one in time is frozen until a person has decided."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from chargehand.core.mission_events import MessageSent, QuestionAnswered, QuestionAsked
from chargehand.core.records import Reason
from chargehand.missions._acknowledge import ACKNOWLEDGE_SECONDS, CANCEL, GO_ON, OPTIONS, answer_to, question_of
from chargehand.missions._control import Control
from chargehand.missions._journal import Journal

_TRIES = 2
_SYSTEM = "chargehand"


class Acknowledging:
    """Watches over the critical messages of one attempt.

    `able` says that its agent acknowledges; for one that cannot, a message that comes while it works stops it at
    once. `before` is how many messages the attempt began with. What is still open follows from the log: a worker
    that takes the mission over asks again only what nobody answered.
    """

    def __init__(
        self,
        journal: Journal,
        control: Control,
        *,
        attempt: str,
        tree: str,
        able: bool,
        before: int,
        seconds: float = ACKNOWLEDGE_SECONDS,
    ) -> None:
        self._journal = journal
        self._control = control
        self._attempt = attempt
        self._tree = tree
        self._able = able
        self._before = before
        self._seconds = seconds

    async def follow(self) -> None:
        """See to one critical message after the other, for as long as the attempt runs."""
        while True:
            message = self._open()
            if message is None:
                await self._control.news()
            elif not self._able or not await self._acknowledged(message):
                await self._decide(message)

    def _open(self) -> MessageSent | None:
        """Return the first critical message that is neither acknowledged nor decided about."""
        state = self._journal.state
        fresh = state.messages if self._able else state.messages[self._before :]
        return next((each for each in fresh if each.critical and not self._settled(each)), None)

    def _settled(self, message: MessageSent) -> bool:
        state = self._journal.state
        answered = answer_to(state, self._attempt, message.message) is not None
        return answered or message.message in state.acknowledged

    async def _acknowledged(self, message: MessageSent) -> bool:
        """Wait for the acknowledgement; in the middle of the time the message is sent once more."""
        if question_of(self._attempt, message.message) in self._journal.state.questions:
            return False  # a worker before asked already
        for number in range(1, _TRIES + 1):
            with contextlib.suppress(TimeoutError):
                async with self._control.limited(self._seconds / _TRIES):
                    async for _ in self._changes():
                        if self._settled(message):
                            return True
            if number < _TRIES:
                again = MessageSent(
                    identity=message.identity, text="", message=message.message, critical=True, again=True
                )
                self._journal.note(again)
        return self._settled(message)

    async def _changes(self) -> AsyncIterator[None]:
        while True:
            yield
            await self._control.news()

    async def _decide(self, message: MessageSent) -> None:
        """Freeze what runs and let a person say how to go on."""
        name = question_of(self._attempt, message.message)
        why = (
            f"the agent did not acknowledge a critical message within {self._seconds:.0f} s"
            if self._able
            else "there is a critical message, and the agent cannot hear it while it works"
        )
        await self._control.may_go_on()
        await self._control.pause(_SYSTEM, why)
        if not self._control.paused:  # it is being stopped
            await self._control.news()
            return
        if name not in self._journal.state.questions:
            self._ask(name, why, message)
        async for _ in self._changes():
            answer = answer_to(self._journal.state, self._attempt, message.message)
            if answer is not None:
                break
            if not self._control.paused:  # a person let it go on without a word
                self._journal.note(QuestionAnswered(question=name, text=GO_ON, identity=_SYSTEM))
                return
        if answer == CANCEL:
            self._control.stop("cancel", identity=_SYSTEM)
        else:
            await self._control.resume(_SYSTEM)

    def _ask(self, name: str, why: str, message: MessageSent) -> None:
        text = f"{why}: {message.text}\nWhat now?"
        asked = QuestionAsked(
            question=name,
            tree=self._tree,
            reasons=(Reason(code="not_acknowledged", message=why),),
            text=text,
            options=OPTIONS,
            attempt=None,
        )
        self._journal.note(asked, durable=True)
