"""The handles of the missions that run in this process: pausing, stopping, time limits, messages."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from chargehand.core.codec import decode_as
from chargehand.core.errors import ChargehandError, FencedError, RefusedError
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    CancelAsked,
    MessageSent,
    MissionPaused,
    MissionResumed,
    QuestionAnswered,
)
from chargehand.core.plan_events import PlanMade
from chargehand.core.plans import Plan
from chargehand.missions._questions import check_answer, is_about_message, require_question
from chargehand.missions.journal import Journal
from chargehand.missions.planning.replanning import events_of_new_plan, events_of_permission

if TYPE_CHECKING:
    from chargehand.durable.admission import Place
    from chargehand.durable.orders import Order
    from chargehand.sandbox.contract import Sandbox

# Why a mission stops here: a person cancelled it, its worker ends, or other workers gave its worker up.
Stop = Literal["cancel", "release", "lost"]
_T = TypeVar("_T")
# An agent is stopped at the mission's time limit. Its last changes are still checkpointed within this time.
GRACE_SECONDS = 15.0


class Control:
    """The handle of one running mission; everything happens in the loop that runs it."""

    def __init__(self, task: asyncio.Task[object], journal: Journal) -> None:
        self.stopped: Stop | None = None
        # Number of changes by a person to a coordinator's inputs; it decides again if this number changed
        # meanwhile.
        self.changes = 0
        # The task that a coordinator is starting or merging, and whether the coordinator has begun to end.
        self.in_hand = ""
        self.ends = False
        self._task = task
        self._journal = journal
        self._sandboxes: list[Sandbox] = []
        # Functions that checkpoint a frozen agent's work so far.
        self._keepers: list[Callable[[], Awaitable[None]]] = []
        # Places released during a pause, in the order they were taken, each with the function that takes it again.
        self._places: dict[Place, Callable[[], Awaitable[None]]] = {}
        self._taking_again: asyncio.Task[None] | None = None
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._limits: dict[asyncio.Timeout, float | None] = {}  # seconds left while the limit is suspended
        self._finishing = False
        self._queued = 0
        self._news = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether the mission is paused, or resumed but still without the places it released."""
        return not self._unpaused.is_set()

    def stop(self, why: Stop, *, identity: str = "", reason: str = "") -> None:
        """Stop the work here and now; the caller that runs the mission decides what that means for it.

        A person's cancellation is recorded before anything else: it holds even if this process dies next.
        """
        if self.stopped is None:
            self.stopped = why
            self.stop_taking_again()
            # Cancelling only schedules: the task sees it at its next await, after the line below is in the log.
            self._task.cancel()
            if why == "cancel":
                self._journal.record(CancelAsked(identity=identity, reason=reason))
        elif self.stopped == "release" and why == "cancel":  # a person's order counts even while the worker ends
            self.stopped = why
            self._journal.record(CancelAsked(identity=identity, reason=reason))

    async def pause(self, identity: str, reason: str = "") -> None:
        """Freeze every sandbox of the mission and start nothing new; return once nothing of it runs.

        Other missions may take its turn at a branch and its place for checks meanwhile. A mission that is being
        stopped ends by itself. Raises `RefusedError` (`promoting`) during a promotion, which also ends by itself
        in a moment.
        """
        if self.stopped is not None or (self.paused and self._taking_again is None):
            return
        if self._finishing:
            raise RefusedError(
                f"mission {self._journal.mission!r} is being promoted", code="promoting", hint="wait a moment"
            )
        self._unpaused.clear()
        self._suspend_limits()
        self.stop_taking_again()
        # A sandbox that has died cannot be frozen, and need not be.
        await asyncio.gather(*(sandbox.freeze() for sandbox in self._sandboxes), return_exceptions=True)
        for place in self._places:
            place.give_up()
        for keep in tuple(self._keepers):
            await keep()
        self._journal.record(MissionPaused(identity=identity, reason=reason))

    async def resume(self, identity: str, *, step: bool = False, to_end: bool = False) -> None:
        """Resume the mission from the point of its pause, once it has taken back the places it released.

        The time until then counts towards no limit. If the mission already runs, only its stops change: with
        `step` it stops before its next step, with `to_end` no more. A mission that is being stopped does not
        resume: a person's order to end it holds.
        """
        goes_on = not self.paused or self._taking_again is not None
        if self.stopped is not None or (goes_on and not (step or to_end)):
            return
        self._journal.record(MissionResumed(identity=identity, in_place=True, step=step, to_end=to_end))
        if goes_on:
            return
        if self._places:  # the caller does not wait for other missions to end
            self._taking_again = asyncio.create_task(self._take_places())
        else:
            await self._go_on()

    async def _take_places(self) -> None:
        try:
            for take in tuple(self._places.values()):
                await take()
        except ChargehandError as error:  # e.g. no space for a lock: stay paused until a person resumes it again
            self._taking_again = None
            if not isinstance(error, FencedError):
                self._journal.record(MissionPaused(identity="chargehand", reason=error.message))
            return
        self._taking_again = None
        await self._go_on()

    def stop_taking_again(self) -> None:
        """Stop taking back places that a pause released."""
        if self._taking_again is not None:
            self._taking_again.cancel()
            self._taking_again = None

    async def _go_on(self) -> None:
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

    def answer(self, identity: str, text: str, question: str = "") -> None:
        """Record the answer to a question while the mission runs; raises `RefusedError`."""
        asked = require_question(self._journal.state, question)
        # A coordinator takes answers while it works, any other mission once it rests.
        if not is_about_message(asked) and self._journal.state.plan is None:
            raise RefusedError(
                f"mission {self._journal.mission!r} works just now",
                code="mission_held",
                hint="try again in a moment",
            )
        answered = QuestionAnswered(question=asked.id, text=check_answer(asked, text), identity=identity)
        self._journal.record(answered, durable=True)
        self.changes += 1
        self.wake_waiters()

    def change_plan(self, identity: str, plan: Plan) -> None:
        """Continue a coordinator with another plan; raises `RefusedError`."""
        if self.ends:
            message = f"mission {self._journal.mission!r} is about to end"
            raise RefusedError(message, code="not_plannable", hint="start another mission for the remaining work")
        made = PlanMade(plan=plan, identity=identity)
        events = events_of_new_plan(self._journal.state, made, in_hand=self.in_hand)
        self._journal.record(*events, durable=True)
        self.changes += 1

    def allow_task(self, identity: str, task: str) -> None:
        """Let a coordinator start a held task; raises `RefusedError`, `NotFoundError`."""
        self._journal.record(*events_of_permission(self._journal.state, task, identity=identity), durable=True)
        self.changes += 1

    def wake_waiters(self) -> None:
        """Wake all callers of `wait_for_news`."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait_for_news(self) -> None:
        """Wait until a message was sent or acknowledged, a question answered, or the mission resumed."""
        await self._news.wait()

    async def may_go_on(self) -> None:
        """Wait while the mission is paused."""
        await self._unpaused.wait()

    async def unpaused(self, look: Callable[[], Awaitable[_T]]) -> _T:
        """Call `look` while the mission is not paused; no pause can come between its return and the next step."""
        while True:
            await self.may_go_on()
            seen = await look()
            if not self.paused:
                return seen

    @contextlib.contextmanager
    def queued(self) -> Iterator[None]:
        """Exclude the block from time limits: the mission waits for a slot."""
        self._queued += 1
        self._suspend_limits()
        try:
            yield
        finally:
            self._queued -= 1
            self._resume_limits()

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that must complete: not while the mission is paused, but then even through a cancellation."""
        if self.stopped is None:
            await self.may_go_on()
        self._finishing = True
        try:
            await complete(work)
        finally:
            self._finishing = False

    @contextlib.contextmanager
    def lending(self, place: Place, take: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """Release a place while the mission is paused within the block; `take` takes it again."""
        self._places[place] = take
        try:
            yield
        finally:
            del self._places[place]

    def attach(self, sandbox: Sandbox) -> None:
        """Let a pause freeze this sandbox until it is detached."""
        self._sandboxes.append(sandbox)

    @contextlib.contextmanager
    def keeping(self, keep: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """Call `keep` at each pause during the block, once every sandbox is frozen; `keep` raises nothing."""
        self._keepers.append(keep)
        try:
            yield
        finally:
            self._keepers.remove(keep)

    def detach(self, sandbox: Sandbox) -> None:
        """Stop controlling the sandbox: a resume must not thaw a sandbox that has to stay frozen."""
        if sandbox in self._sandboxes:
            self._sandboxes.remove(sandbox)

    @contextlib.asynccontextmanager
    async def frozen(self, sandbox: Sandbox) -> AsyncIterator[None]:
        """Freeze a sandbox for the block; it stays frozen afterwards if the mission was paused meanwhile."""
        await sandbox.freeze()
        try:
            yield
        finally:
            if not self.paused:
                await asyncio.shield(sandbox.thaw())

    @contextlib.asynccontextmanager
    async def limited(self, seconds: float) -> AsyncIterator[None]:
        """Limit the block to `seconds`, excluding pauses and queues; raises `TimeoutError`."""
        async with asyncio.timeout(seconds) as limit:
            self._limits[limit] = None
            if self.paused or self._queued:
                self._suspend_limits()
            try:
                yield
            finally:
                del self._limits[limit]

    def seconds_left(self) -> float:
        """Return the time left of the outermost limit, that of the mission."""
        for limit, left in self._limits.items():
            if left is not None:  # it is suspended
                return left
            when = limit.when()
            return math.inf if when is None else when - asyncio.get_running_loop().time()
        return math.inf

    def _suspend_limits(self) -> None:
        # `when()` is None for an already suspended limit: its remaining seconds must not be overwritten.
        for limit in self._limits:
            if not limit.expired() and (when := limit.when()) is not None:
                self._limits[limit] = when - asyncio.get_running_loop().time()
                limit.reschedule(None)

    def _resume_limits(self) -> None:
        if self.paused or self._queued:  # two parts of a mission may wait at once, and it may also be paused
            return
        for limit, left in self._limits.items():
            if left is not None:
                limit.reschedule(asyncio.get_running_loop().time() + left)
                self._limits[limit] = None


async def complete(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(task)
        raise


class Controls:
    """All missions that run in this process."""

    def __init__(self) -> None:
        self._running: dict[str, Control] = {}

    @contextlib.contextmanager
    def running(self, mission: str, control: Control) -> Iterator[None]:
        """Let a mission receive orders while the block runs."""
        self._running[mission] = control
        try:
            yield
        finally:
            del self._running[mission]
            control.stop_taking_again()

    def stop_all(self, why: Stop, *, identity: str = "") -> bool:
        """Stop every mission; return whether there was any."""
        running = tuple(self._running.values())
        for control in running:
            control.stop(why, identity=identity)
        return bool(running)

    async def take(self, order: Order) -> Order:
        """Carry out an order that came to this process; raises `RefusedError` if that is impossible."""
        mission = str(order.get("mission"))
        control = self._running.get(mission)
        if control is None:
            raise RefusedError(f"mission {mission!r} does not run here", code="not_running")
        identity = str(order.get("identity"))
        match order.get("order"):
            case "cancel":
                control.stop("cancel", identity=identity, reason=str(order.get("reason", "")))
            case "pause":
                await control.pause(identity, str(order.get("reason", "")))
            case "resume":
                await control.resume(identity, step=bool(order.get("step")), to_end=bool(order.get("to_end")))
            case "send":
                control.send(identity, str(order.get("text", "")), critical=bool(order.get("critical")))
            case "answer":
                control.answer(identity, str(order.get("text", "")), str(order.get("question", "")))
            case "plan":
                control.change_plan(identity, decode_as(str(order.get("plan", "")).encode(), Plan))
            case "allow":
                control.allow_task(identity, str(order.get("task", "")))
            case other:
                raise RefusedError(f"unknown order {other!r}", code="unknown_order")
        return {}
