"""Steering missions: `Control` for those that run in this process, `Steering` for those at rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from chargehand.core.errors import RefusedError
from chargehand.core.events import Payload
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    CLOCK,
    CancelAsked,
    MessageSent,
    MissionFinished,
    MissionPaused,
    MissionResumed,
    QuestionAnswered,
)
from chargehand.core.records import MissionStatus, Reason
from chargehand.core.state import MissionState
from chargehand.missions._attempt_log import archive_replies, cancel_open_attempts, restore_replies
from chargehand.missions._messages import (
    CANCEL,
    GO_ON,
    check_answer,
    events_of_mission_end,
    is_about_message,
    wake_time,
)
from chargehand.missions.causes import mission_cause
from chargehand.missions.journal import Journal, claim_mission
from chargehand.missions.reading import MissionReader, is_rolled_back
from chargehand.store.store import Store

if TYPE_CHECKING:
    from chargehand.durable.orders import Order
    from chargehand.sandbox.contract import Sandbox

# Why a mission stops here: a person cancelled it, its worker ends, or its worker was given up by the others.
Stop = Literal["cancel", "release", "lost"]


class Control:
    """The handle of one running mission; everything happens in the loop that runs it."""

    def __init__(self, task: asyncio.Task[object], journal: Journal) -> None:
        self.stopped: Stop | None = None
        self._task = task
        self._journal = journal
        self._sandboxes: list[Sandbox] = []
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._limits: dict[asyncio.Timeout, float | None] = {}  # seconds left while the limit is suspended
        self._finishing = False
        self._queued = 0
        self._news = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether the mission is paused."""
        return not self._unpaused.is_set()

    def stop(self, why: Stop, *, identity: str = "") -> None:
        """End the work here and now; what it means for the mission is for whoever runs it to say.

        That a person cancelled it is recorded before anything else: it holds even where this process dies next.
        """
        if self.stopped is None:
            self.stopped = why
            # Cancelling only schedules: the task sees it at its next await, after the line below is in the log.
            self._task.cancel()
            if why == "cancel":
                self._journal.record(CancelAsked(identity=identity))

    async def pause(self, identity: str, reason: str = "") -> None:
        """Freeze every sandbox of the mission and begin nothing new; returns when nothing of it runs any more.

        One that is being stopped ends by itself. Raises `RefusedError` (`promoting`) while a promotion is under
        way, which ends by itself in a moment too.
        """
        if self.paused or self.stopped is not None:
            return
        if self._finishing:
            raise RefusedError(f"mission {self._journal.mission!r} is being promoted", code="promoting")
        self._unpaused.clear()
        self._suspend_limits()
        # A sandbox that died meanwhile cannot be frozen, and need not be.
        await asyncio.gather(*(sandbox.freeze() for sandbox in self._sandboxes), return_exceptions=True)
        self._journal.record(MissionPaused(identity=identity, reason=reason))

    async def resume(self, identity: str) -> None:
        """Let it go on where it stood; the time it was paused counts for no limit.

        One that is being stopped does not go on: a person's word that it should end stands.
        """
        if not self.paused or self.stopped is not None:
            return
        self._journal.record(MissionResumed(identity=identity, in_place=True))
        self._unpaused.set()
        self._resume_limits()
        self.wake_waiters()
        await asyncio.gather(*(sandbox.thaw() for sandbox in self._sandboxes), return_exceptions=True)

    def send(self, identity: str, text: str, *, critical: bool = False) -> None:
        """Record a message to the agent; a critical one has to be acknowledged."""
        self._journal.record(
            MessageSent(identity=identity, text=text, message=new_id("message"), critical=critical),
            durable=critical,
        )
        self.wake_waiters()

    def answer(self, identity: str, text: str) -> None:
        """Take the answer to what is asked while the mission runs; raises `RefusedError`."""
        asked = self._journal.state.open_question
        if asked is None or not is_about_message(asked):
            raise RefusedError(f"mission {self._journal.mission!r} asks nothing now", code="no_question")
        answered = QuestionAnswered(question=asked.id, text=check_answer(text), identity=identity)
        self._journal.record(answered, durable=True)
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake whoever waits in `wait_for_news`."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait_for_news(self) -> None:
        """Wait until a message was sent or acknowledged, a question answered, or the mission resumed."""
        await self._news.wait()

    async def may_go_on(self) -> None:
        """Wait while the mission is paused."""
        await self._unpaused.wait()

    @contextlib.contextmanager
    def queued(self) -> Iterator[None]:
        """Count the block for no time limit: the mission waits for a slot."""
        self._queued += 1
        self._suspend_limits()
        try:
            yield
        finally:
            self._queued -= 1
            self._resume_limits()

    @contextlib.asynccontextmanager
    async def finishing(self) -> AsyncIterator[None]:
        """Begin what must not be paused half-way, once the mission is not paused."""
        await self.may_go_on()
        self._finishing = True
        try:
            yield
        finally:
            self._finishing = False

    def attach(self, sandbox: Sandbox) -> None:
        """Let a pause freeze this sandbox until it is detached."""
        self._sandboxes.append(sandbox)

    def detach(self, sandbox: Sandbox) -> None:
        """Leave the sandbox to itself from now on: a resume must not thaw what is to stay frozen."""
        if sandbox in self._sandboxes:
            self._sandboxes.remove(sandbox)

    @contextlib.asynccontextmanager
    async def frozen(self, sandbox: Sandbox) -> AsyncIterator[None]:
        """Freeze a sandbox for the block; it stays frozen afterwards where the mission was paused meanwhile."""
        await sandbox.freeze()
        try:
            yield
        finally:
            if not self.paused:
                await asyncio.shield(sandbox.thaw())

    @contextlib.asynccontextmanager
    async def limited(self, seconds: float) -> AsyncIterator[None]:
        """Bound the block by `seconds`, pauses and queues not counted; raises `TimeoutError`."""
        async with asyncio.timeout(seconds) as limit:
            self._limits[limit] = None
            if self.paused or self._queued:
                self._suspend_limits()
            try:
                yield
            finally:
                del self._limits[limit]

    def _suspend_limits(self) -> None:
        # `when()` is None for a limit that is suspended already: its seconds left must not be overwritten.
        for limit in self._limits:
            if not limit.expired() and (when := limit.when()) is not None:
                self._limits[limit] = when - asyncio.get_running_loop().time()
                limit.reschedule(None)

    def _resume_limits(self) -> None:
        if self.paused or self._queued:  # two parts of a mission may wait at once, and be paused besides
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
                control.send(identity, str(order.get("text", "")), critical=bool(order.get("critical")))
            case "answer":
                control.answer(identity, str(order.get("text", "")))
            case other:
                raise RefusedError(f"unknown order {other!r}", code="unknown_order")
        return {}


_UNDONE = "chargehand mission promote {mission} promotes it again"
_HINTS: dict[MissionStatus, str] = {
    "promoted": "roll it back first: chargehand mission rollback {mission}",
    "waiting": "chargehand mission answer {mission} TEXT, or promote or discard it",
    "running": "chargehand mission cancel {mission} stops it",
    "failed": "chargehand mission fork {mission} goes another way from one of its replies",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """What a person does to a mission at rest; needs neither its repository nor a sandbox.

    Every method holds the mission for the moment it takes, and raises `RefusedError`: `mission_held` where a
    worker has it, else with the status that forbids it.
    """

    store: Store
    look: MissionReader
    worker: str
    identity: str

    def pause(self, mission: str, reason: str = "") -> MissionState:
        """Keep a mission that waits for a worker from being taken."""
        paused = MissionPaused(identity=self.identity, reason=reason)
        return self._record(mission, paused, among=("planned", "paused"), verb="pause", code="not_pausable")

    def resume(self, mission: str) -> MissionState:
        """Let a worker take a mission that is paused, was cancelled, or failed by no fault of its work.

        It goes on from its last recorded step. One that waits for a worker already is left as it is.
        """
        before = self.look.state(mission)
        if before.status == "planned" or self.store.log.get(mission).runnable:
            return before
        cause = mission_cause(before)
        among: tuple[MissionStatus, ...] = ("paused", "cancelled")
        if cause is not None and cause.kind in ("engine", "provider"):
            among += ("failed",)
        if before.status in among and before.attempts:
            # First, for a worker may take it at once: what was paid for is not asked for again.
            restore_replies(self.store, mission, before.attempts[-1].id)
        resumed = MissionResumed(identity=self.identity)
        return self._record(mission, resumed, among=among, verb="resume", code="not_resumable")

    def cancel(self, mission: str) -> MissionState:
        """End a mission that has not come to its end."""
        reason = Reason(code="cancelled", message="a person cancelled the mission")
        finished = MissionFinished(status="cancelled", reasons=(reason,))
        among: tuple[MissionStatus, ...] = ("planned", "paused", "waiting")
        return self._settle(mission, finished, among=among, verb="cancel", code="not_cancellable")

    def discard(self, mission: str) -> MissionState:
        """Settle a mission as not wanted; its checkpoints stay until `gc`."""
        if self.look.state(mission).status == "discarded":
            return self.look.state(mission)
        reason = Reason(code="discarded", message="a person discarded the mission")
        finished = MissionFinished(status="discarded", reasons=(reason,))
        among: tuple[MissionStatus, ...] = (
            *("planned", "paused", "waiting"),
            *("refused", "failed", "exhausted", "cancelled"),
        )
        return self._settle(mission, finished, among=among, verb="discard", code="not_discardable")

    def send(self, mission: str, text: str, *, critical: bool = False) -> MissionState:
        """Record a message for the agent's next attempt."""
        message = MessageSent(identity=self.identity, text=text, message=new_id("message"), critical=critical)
        return self._record(mission, message, among=("planned", "paused"), verb="send to", code="not_sendable")

    def answer(self, mission: str, text: str) -> MissionState:
        """Answer what the agent of a mission asked, as far as nobody did; a worker may then resume it.

        Raises `RefusedError` (`no_question`) where nothing is asked.
        """
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            asked = self.look.at_rest(mission).open_question
            if asked is None:
                raise RefusedError(
                    f"mission {mission!r} asks nothing",
                    code="no_question",
                    hint=f"chargehand mission show {mission}; `mission promote` or `discard` decide on a result",
                )
            about_message = is_about_message(asked)
            answer = check_answer(text) if about_message else text
            events: list[Payload] = [QuestionAnswered(question=asked.id, text=answer, identity=self.identity)]
            # The question about a critical message paused the mission too: answering has to lift that.
            if about_message and answer != CANCEL:
                events.append(MissionResumed(identity=self.identity))
            self.store.log.append(mission, *events, epoch=epoch, durable=True)
        return self.cancel(mission) if about_message and answer == CANCEL else self.look.state(mission)

    def wake(self, mission: str, *, now: datetime) -> bool:
        """Resume a mission whose quota is back by now; `False` where it sleeps on, or does not sleep any more."""
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            asked = self.look.at_rest(mission).waits_for_quota
            if asked is None or wake_time(mission, asked.until) > now:
                return False
            # As the clock's answer: a wait that the clock ended in vain makes the next one longer, a person's does
            # not.
            answered = QuestionAnswered(question=asked.id, text=GO_ON, identity=CLOCK)
            self.store.log.append(mission, answered, epoch=epoch, durable=True)
        return True

    def give_up(self, mission: str, reason: Reason) -> MissionState:
        """End a mission that a worker should resume and cannot, unless it came to rest meanwhile."""
        finished = MissionFinished(status="failed", reasons=(reason,))
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            if self.store.log.get(mission).runnable:
                events = events_of_mission_end(self.look.at_rest(mission), finished)
                self.store.log.append(mission, *events, epoch=epoch, durable=True)
        return self.look.state(mission)

    def _settle(
        self, mission: str, finished: MissionFinished, *, among: tuple[MissionStatus, ...], verb: str, code: str
    ) -> MissionState:
        """End a mission, and the attempts that would have gone on."""
        before = self.look.at_rest(mission)
        ended = cancel_open_attempts(before, finished.reasons[0])
        events = (*ended, *events_of_mission_end(before, finished))
        state = self._record(mission, *events, among=among, verb=verb, code=code)
        # Only now: until the attempts' end is on the disk, a worker could resume them and need the replies.
        archive_replies(self.store, mission, *(each.attempt for each in ended))
        return state

    def _record(
        self, mission: str, *payloads: Payload, among: tuple[MissionStatus, ...], verb: str, code: str
    ) -> MissionState:
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            # Read as at rest: with the claim just made it would look as if somebody ran it.
            state = self.look.at_rest(mission)
            if state.status not in among:
                undone = is_rolled_back(state)
                status = "rolled back" if undone else state.status
                hint = _HINTS.get(state.status, "chargehand mission show {mission}")
                raise RefusedError(
                    f"mission {mission!r} is {status}: there is nothing to {verb}",
                    code=code,
                    hint=(_UNDONE if undone else hint).format(mission=mission),
                )
            self.store.log.append(mission, *payloads, epoch=epoch, durable=True)
        return self.look.state(mission)
