"""A program's last message that cannot be read: asked for again, twice at most, in the talk that wrote it."""

from __future__ import annotations

from dataclasses import replace

from chargehand.agents._claims import ASKED_AGAIN, with_message
from chargehand.agents._contract import AttemptContext, Outcome
from chargehand.agents._ending import metered
from chargehand.agents._message_file import Found, Look, left_message, look_in
from chargehand.agents._message_forms import unread_words
from chargehand.core.errors import MessageError
from chargehand.core.messages import Addressed

ASKED = "asked-again/"
"""What the names of the recorded steps begin with by which a program was asked again."""
_RECEIVED = 1_000
"""Characters of a malformed message that the log keeps."""
_GONE = "the message that could not be read was taken away, and none is in its place"


def _name(run: int, number: int) -> str:
    return f"{ASKED}{run}/{number}"


class Repairs:
    """Counts how often the program of one attempt was asked again for its message; each time is a recorded step.

    `run` tells the runs of an attempt apart that a question ended, from 0: what was asked in earlier ones counts.
    A run that begins anew after a crash comes to the same repairs again, which are not counted twice.
    """

    def __init__(self, context: AttemptContext, known: Addressed, *, run: int = 0) -> None:
        self.asked = 0
        self._context = context
        self._known = known
        self._run = run
        numbers = range(1, ASKED_AGAIN + 1)
        self._before = sum(context.is_recorded(_name(each, n)) for each in range(run) for n in numbers)
        self._why_not = ""

    async def again(self, *, look: Look | None = None, why_not: str = "") -> str | None:
        """Return what to tell a program that ended well, `None` where there is nothing to tell.

        That is where it left no message, or one that can be read; where it was asked often enough; and where it
        cannot be asked: `why_not` says why, "" where it can. `look` finds the message where others than we run.
        """
        found = await self._found(look)
        if not isinstance(found.message, MessageError):
            return None
        if self._before + self.asked >= ASKED_AGAIN:
            return None
        self._why_not = why_not or self._unpaid()
        if self._why_not:
            return None
        self.asked += 1
        error, text = found.message, found.text

        async def noted() -> object:
            return {"problem": error.message, "received": text[:_RECEIVED]}

        await self._context.step(_name(self._run, self.asked), [self.asked], noted)
        return unread_words(error, text)

    async def ended(self, outcome: Outcome, *, why_not: str = "") -> Outcome:
        """Return the outcome of an attempt's last run together with the message that its program left.

        `why_not` says why a program of its kind is never asked again.
        """
        if outcome.claim in ("timed_out", "exhausted"):
            return with_message(outcome, self._known, None)
        if outcome.claim == "failed" and self.asked:
            outcome = replace(outcome, reason=f"asked again for a malformed message: {outcome.reason}")
        message = (await self._found()).message
        return with_message(outcome, self._known, message, times=1 + self.asked, why_not=why_not or self._why_not)

    async def _found(self, look: Look | None = None) -> Found:
        found = await left_message(look or look_in(self._context.sandbox), self._context, self._known)
        # Else the program's own end would speak, and make a success of what could not be read.
        return Found(message=MessageError(_GONE)) if found.message is None and self.asked else found

    def _unpaid(self) -> str:
        spent = metered(self._context.endpoint)
        return "no model would answer it" if spent.refused or spent.quota is not None else ""
