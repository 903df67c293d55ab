"""How a running mission is steered from outside: paused, resumed, cancelled, told something."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Literal

from chargehand.core.errors import RefusedError
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    CancelAsked,
    MessageSent,
    MissionPaused,
    MissionResumed,
    QuestionAnswered,
)
from chargehand.durable.orders import Order
from chargehand.missions._acknowledge import checked_answer, is_about_message
from chargehand.missions._journal import Journal
from chargehand.sandbox.contract import Sandbox

Stop = Literal["cancel", "release", "lost"]
"""Why a mission stops here: a person cancelled it, its worker ends, or its worker was given up by the others."""


class Control:
    """The handle of one running mission; everything happens in the loop that runs it."""

    def __init__(self, task: asyncio.Task[object], journal: Journal) -> None:
        self.stopped: Stop | None = None
        self._task = task
        self._journal = journal
        self._sandboxes: list[Sandbox] = []
        self._open = asyncio.Event()
        self._open.set()
        self._limits: dict[asyncio.Timeout, float | None] = {}
        self._finishing = False
        self._standing = 0
        self._news = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return not self._open.is_set()

    def stop(self, why: Stop, *, identity: str = "") -> None:
        """End the work here and now; what it means for the mission is for whoever runs it to say.

        That a person cancelled it is noted before anything else: it holds even where this process dies meanwhile.
        """
        if self.stopped is None:
            self.stopped = why
            self._task.cancel()
            if why == "cancel":
                self._journal.note(CancelAsked(identity=identity))

    async def pause(self, identity: str, reason: str = "") -> None:
        """Freeze every sandbox of the mission and begin nothing new; returns when nothing of it runs any more.

        One that is being stopped ends by itself. Raises `RefusedError` (`promoting`) while a promotion is under
        way, which ends by itself in a moment too.
        """
        if self.paused or self.stopped is not None:
            return
        if self._finishing:
            raise RefusedError(f"mission {self._journal.mission!r} is being promoted", code="promoting")
        self._open.clear()
        self._hold_limits()
        await asyncio.gather(*(sandbox.freeze() for sandbox in self._sandboxes), return_exceptions=True)
        self._journal.note(MissionPaused(identity=identity, reason=reason))

    async def resume(self, identity: str) -> None:
        """Let it go on where it stood; the time it stood still counts for no limit.

        One that is being stopped does not go on: a person's word that it should end stands.
        """
        if not self.paused or self.stopped is not None:
            return
        self._journal.note(MissionResumed(identity=identity, in_place=True))
        self._open.set()
        self._run_limits()
        self.tell_news()
        await asyncio.gather(*(sandbox.thaw() for sandbox in self._sandboxes), return_exceptions=True)

    def tell(self, identity: str, text: str, *, critical: bool = False) -> None:
        """Keep a message to the agent; a critical one has to be acknowledged."""
        self._journal.note(
            MessageSent(identity=identity, text=text, message=new_id("message"), critical=critical),
            durable=critical,
        )
        self.tell_news()

    def answer(self, identity: str, text: str) -> None:
        """Take the answer to what is asked while the mission runs; raises `RefusedError`."""
        asked = self._journal.state.open_question
        if asked is None or not is_about_message(asked):
            raise RefusedError(f"mission {self._journal.mission!r} asks nothing now", code="no_question")
        answered = QuestionAnswered(question=asked.id, text=checked_answer(text), identity=identity)
        self._journal.note(answered, durable=True)
        self.tell_news()

    def tell_news(self) -> None:
        """Wake whoever waits in `news`."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self) -> None:
        """Wait until a message was sent or acknowledged, a question answered, or the mission let go on."""
        await self._news.wait()

    async def may_go_on(self) -> None:
        """Wait while the mission is paused."""
        await self._open.wait()

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """Count the block for no time limit: the mission stands in line."""
        self._standing += 1
        self._hold_limits()
        try:
            yield
        finally:
            self._standing -= 1
            self._run_limits()

    def hold(self, sandbox: Sandbox) -> None:
        """Let a pause freeze this sandbox until it is let go."""
        self._sandboxes.append(sandbox)

    @contextlib.asynccontextmanager
    async def finishing(self) -> AsyncIterator[None]:
        """Begin what must not be paused half-way, once the mission is not paused."""
        await self.may_go_on()
        self._finishing = True
        try:
            yield
        finally:
            self._finishing = False

    def let_go(self, sandbox: Sandbox) -> None:
        """Leave the sandbox to itself from now on: a resume must not thaw what is to stay frozen."""
        if sandbox in self._sandboxes:
            self._sandboxes.remove(sandbox)

    @contextlib.asynccontextmanager
    async def still(self, sandbox: Sandbox) -> AsyncIterator[None]:
        """Freeze a sandbox for the block; it stays frozen afterwards where the mission was paused meanwhile."""
        await sandbox.freeze()
        try:
            yield
        finally:
            if not self.paused:
                await asyncio.shield(sandbox.thaw())

    @contextlib.asynccontextmanager
    async def limited(self, seconds: float) -> AsyncIterator[None]:
        """Bound the block by `seconds`, pauses not counted; raises `TimeoutError`."""
        async with asyncio.timeout(seconds) as limit:
            self._limits[limit] = None
            if self.paused or self._standing:
                self._hold_limits()
            try:
                yield
            finally:
                del self._limits[limit]

    def _hold_limits(self) -> None:
        for limit in self._limits:
            if not limit.expired() and (when := limit.when()) is not None:
                self._limits[limit] = when - asyncio.get_running_loop().time()
                limit.reschedule(None)

    def _run_limits(self) -> None:
        if self.paused or self._standing:
            return
        for limit, left in self._limits.items():
            if left is not None:
                limit.reschedule(asyncio.get_running_loop().time() + left)
                self._limits[limit] = None


class Controls:
    """All missions that run in this process."""

    def __init__(self) -> None:
        self._running: dict[str, Control] = {}

    @contextlib.contextmanager
    def running(self, mission: str, control: Control) -> Iterator[None]:
        """Let a mission be steered while the block runs."""
        self._running[mission] = control
        try:
            yield
        finally:
            del self._running[mission]

    def stop_all(self, why: Stop, *, identity: str = "") -> bool:
        """Stop every mission; return whether there was any."""
        running = tuple(self._running.values())
        for control in running:
            control.stop(why, identity=identity)
        return bool(running)

    async def take(self, order: Order) -> Order:
        """Carry out an order that came to this process; raises `RefusedError` for one that cannot be."""
        mission = str(order.get("mission"))
        control = self._running.get(mission)
        if control is None:
            raise RefusedError(f"mission {mission!r} does not run here", code="not_running")
        identity = str(order.get("identity"))
        match order.get("order"):
            case "cancel":
                control.stop("cancel", identity=identity)
            case "pause":
                await control.pause(identity, str(order.get("reason", "")))
            case "resume":
                await control.resume(identity)
            case "send":
                control.tell(identity, str(order.get("text", "")), critical=bool(order.get("critical")))
            case "answer":
                control.answer(identity, str(order.get("text", "")))
            case other:
                raise RefusedError(f"a worker knows no order {other!r}", code="unknown_order")
        return {}
