"""The money side of a call: admitted against the ledger before it is sent, settled and recorded once after."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from chargehand.core.clock import Clock
from chargehand.core.errors import ExhaustedError
from chargehand.core.ids import new_id
from chargehand.core.ports import Ledger, Spent
from chargehand.models.contract import (
    CallRecord,
    CallStatus,
    GatewayFault,
    Operation,
    Price,
    QuotaRest,
    ServedModel,
    Usage,
)
from chargehand.models.dialects.base import Metered
from chargehand.models.metering import (
    LEAST_OUTPUT,
    Bound,
    affordable,
    computed_usd,
    cost_usd,
    input_usd,
    output_usd,
)
from chargehand.models.providers import LONGEST_SECONDS, Standing

_T = TypeVar("_T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Clerk:
    """Does one thing after the other in a thread of its own, which is there from the first of them to `close`.

    The executor of the event loop takes twice as long to hand something over and back, and several threads of it
    would only wait for each other: a database takes one writer at a time.
    """

    def __init__(self, name: str = "gateway-books") -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Return the outcome of `work`, which is done also where nobody waits for it."""
        outcome: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put((work, outcome))
        return outcome

    def close(self) -> None:
        """End the thread once it has done what it was asked. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, outcome = job
            try:
                done = work()
            except BaseException as error:  # whatever it is belongs to who asked
                outcome.get_loop().call_soon_threadsafe(_failed, outcome, error)
            else:
                outcome.get_loop().call_soon_threadsafe(_done, outcome, done)


def _done(outcome: asyncio.Future[_T], result: _T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _failed(outcome: asyncio.Future[Any], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)


UNKNOWN = Metered(usage=Usage())
_MOST_REFUSED = 20
_PLENTY = 1e9
_MOST_NOTES, _LONGEST_NOTE = 8, 200
_UNKNOWN_PRICE = (
    "nobody knows the price of model {name!r}, and money is limited here: set price, or price_in and price_out, "
    "in [models.{name}], or limits.assume_usd_per_mtok"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the ledger gave: the output limit to send (`None`: none) and the USD reserved."""

    limit: int | None
    usd: float
    alerts: tuple[Spent, ...] = ()


def _nobody(_: QuotaRest) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What the record of a call says beside its money; see `CallRecord`."""

    operation: Operation = "reply"
    skipped: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    bare: bool = False


class Desk:
    """Where the calls of one gateway get their money.

    The ledger is asked in a thread, one question at a time; listeners are called there too, or on the loop.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        attempt: str,
        on_call: Callable[[CallRecord], None],
        on_alert: Callable[[Spent], None],
        on_quota: Callable[[QuotaRest], None] = _nobody,
        on_loop: bool = False,
    ) -> None:
        self.on_quota = on_quota
        self.ledger = ledger
        self.clock = clock
        self.attempt = attempt
        self._on_call = on_call
        self._refused = 0
        self._limited = False
        self._on_alert = on_alert
        self._on_loop = on_loop
        self._clerk = Clerk()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, served: ServedModel, bound: Bound, *, turn: int, noted: Noted | None = None) -> Bill:
        """Reserve for one call.

        Raises `GatewayFault` (`budget_exhausted`, `price_unknown`), and records the call as refused then.
        """
        bill = Bill(self, served, turn=turn, noted=noted or Noted())
        reserved: list[float] = []
        admission = self._clerk.ask(functools.partial(self._admit, bill.id, served, bound, reserved))
        # Right behind it in line, so that no other call of this gateway is sent before this one is on the disk.
        bill.on_disk = self._clerk.ask(functools.partial(self._secure, reserved))
        bill.on_disk.add_done_callback(_heard)
        try:
            bill.grant = await asyncio.shield(admission)
        except GatewayFault as fault:
            await bill.close("refused", fault.status, reason=f"{fault.code}: {fault.message}")
            raise
        except asyncio.CancelledError:
            self.spawn(_given_back(bill, admission))
            raise
        if bill.grant.alerts:
            # On its own: a listener that fails must not keep the call from being settled.
            self.spawn(self._told([functools.partial(self._on_alert, one) for one in bill.grant.alerts]))
        return bill

    def _admit(self, call: str, served: ServedModel, bound: Bound, reserved: list[float]) -> Grant:
        grant = self._granted(call, served, bound)
        reserved.append(grant.usd)
        return grant

    def _secure(self, reserved: list[float]) -> None:
        if any(reserved):  # what is refused or free leaves nothing that a power cut could take
            self.ledger.secure()

    def _granted(self, call: str, served: ServedModel, bound: Bound) -> Grant:
        if self._limited and served.price is not None:
            # Mostly all of it can be had, and what is left need not be asked for: that is a query of its own.
            with contextlib.suppress(ExhaustedError):
                return self._reserved(call, served, bound, _PLENTY)
        with contextlib.suppress(ExhaustedError):  # another attempt reserved in between: less may still do
            return self._reserved(call, served, bound, self._left(served))
        try:
            return self._reserved(call, served, bound, self._left(served))
        except ExhaustedError as error:
            hint = f"; {error.hint}" if error.hint else ""
            raise GatewayFault("budget_exhausted", error.message + hint) from None

    def _left(self, served: ServedModel) -> float | None:
        left = self.ledger.left()
        self._limited = left is not None
        if served.price is None and left is not None:
            raise GatewayFault("price_unknown", _UNKNOWN_PRICE.format(name=served.name))
        return left

    def _reserved(self, call: str, served: ServedModel, bound: Bound, left: float | None) -> Grant:
        grant = _grant(served.price, bound, left)
        return replace(grant, alerts=self.ledger.reserve(call, grant.usd))

    async def settle(self, call: str, usd: float | None, record: CallRecord) -> None:
        """Book and report a call."""
        if record.status == "refused":
            if not self._is_flood():
                await self._told([functools.partial(self._on_call, record)])
            return
        booked = functools.partial(self.ledger.settle, call, usd)
        if self._on_loop:
            await self._clerk.ask(booked)
            self._on_call(record)
        else:
            await self._clerk.ask(functools.partial(_each, [booked, functools.partial(self._on_call, record)]))

    async def _told(self, words: Sequence[Callable[[], None]]) -> None:
        if self._on_loop:
            _each(words)
        else:
            await self._clerk.ask(functools.partial(_each, words))

    async def tell(self, record: CallRecord) -> None:
        """Report a call that costs nothing and reserved nothing."""
        await self._told([functools.partial(self._on_call, record)])

    def _is_flood(self) -> bool:
        """Tell whether so many calls were refused that one more is no news: whoever asks pays nothing for it."""
        self._refused += 1
        return self._refused > _MOST_REFUSED

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what has to end also when the call it belongs to is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait until every call is settled; raises what a ledger or a listener raised."""
        try:
            while self._tasks:
                await asyncio.gather(*self._tasks)
        finally:
            self._clerk.close()


class Bill:
    """One call that may cost money; `sent` from the moment on that its provider may charge for it."""

    def __init__(self, desk: Desk, served: ServedModel, *, turn: int, noted: Noted) -> None:
        self.id = new_id("call")
        self.turn = turn
        self.grant = Grant(limit=None, usd=0.0)
        self.sent = False
        self.on_disk: asyncio.Future[None] | None = None
        self._desk = desk
        self._served = served
        self._noted = noted
        self._first: float | None = None
        self._started = desk.clock.monotonic()
        self._closing: asyncio.Task[None] | None = None

    def begun(self) -> None:
        """Note that the reply begins now; only the first time counts."""
        if self._first is None:
            self._first = self._desk.clock.monotonic() - self._started

    async def secured(self) -> None:
        """Return once a power cut cannot take the reserve; raises what the ledger raised."""
        if self.on_disk is not None:
            await asyncio.shield(self.on_disk)

    async def close(
        self, status: CallStatus, http_status: int, *, metered: Metered = UNKNOWN, reason: str = ""
    ) -> None:
        """Settle and record the call; only the first time counts, and it happens also if this is cancelled.

        A cost that is not known leaves the reserve booked, unless the call never reached its provider.
        """
        if self._closing is None:
            cost = cost_usd(self._served.price, metered) if self.sent else 0.0
            record = CallRecord(
                call=self.id,
                attempt=self._desk.attempt,
                turn=self.turn,
                model=self._served.name,
                upstream=self._served.model,
                status=status,
                http_status=http_status,
                seconds=self._desk.clock.monotonic() - self._started,
                usage=metered.usage,
                cost_usd=cost,
                booked_usd=self.grant.usd if cost is None else cost,
                reason=reason,
                reported_usd=metered.usage.cost_usd if self.sent else None,
                computed_usd=computed_usd(self._served.price, metered) if self.sent else None,
                provider=self._served.provider,
                operation=self._noted.operation,
                first_seconds=self._first,
                skipped=_bounded(self._noted.skipped),
                converted=_bounded(self._noted.converted),
                bare=self._noted.bare,
            )
            self._closing = self._desk.spawn(self._desk.settle(self.id, cost, record))
        await asyncio.shield(self._closing)


def _heard(outcome: asyncio.Future[None]) -> None:
    """Take note of a failure that nobody may be there to hear of: the call that it belongs to has failed then."""
    if not outcome.cancelled():
        outcome.exception()


def _each(parts: Sequence[Callable[[], None]]) -> None:
    for part in parts:
        part()


def _bounded(said: tuple[str, ...]) -> tuple[str, ...]:
    """Return what fits into a record: clients and other providers write some of these words."""
    return tuple(text[:_LONGEST_NOTE] for text in said[:_MOST_NOTES])


def _grant(price: Price | None, bound: Bound, left: float | None) -> Grant:
    if price is None:
        return Grant(limit=bound.output if bound.asked else None, usd=0.0)
    if left is None:
        usd = input_usd(price, bound) + output_usd(price, bound, bound.output)
        return Grant(limit=bound.output if bound.asked else None, usd=usd)
    # Where less than that can be paid for, reserving it fails, and the ledger says which limit it is.
    limit = max(affordable(price, bound, left), min(LEAST_OUTPUT, bound.output))
    free = price.output == 0 and not bound.asked
    usd = input_usd(price, bound) + output_usd(price, bound, limit)
    return Grant(limit=None if free else limit, usd=usd)


async def _given_back(bill: Bill, admission: asyncio.Future[Grant]) -> None:
    try:
        bill.grant = await admission
    except GatewayFault as fault:
        await bill.close("refused", fault.status, reason=f"{fault.code}: {fault.message}")
    else:
        await bill.close("failed", 499, reason="client_gone: the call was given up before it was sent")


class Asked(Protocol):
    """A model that was, or would be, asked."""

    @property
    def served(self) -> ServedModel:
        """The model."""
        ...

    @property
    def standing(self) -> Standing | None:
        """How its provider does, where that is known."""
        ...


def no_quota(asked: Sequence[Asked]) -> bool:
    """Tell whether any of these rests, by its provider's own word, for longer than a client waits."""
    return any(one.standing is not None and one.standing.resting > LONGEST_SECONDS for one in asked)


def quota_fault(desk: Desk, asked: Sequence[Asked]) -> GatewayFault:
    """Return the refusal of a call that none of these answers, and tell the desk of it.

    What their providers asked for counts, not how long we leave one alone that failed: that one may be down for
    good, and would be asked again and again.
    """
    waits = [(one.standing.resting, one.served) for one in asked if one.standing is not None]
    wait, served = min((found for found in waits if found[0] > 0), key=lambda found: found[0])
    until = desk.clock.now() + timedelta(seconds=wait)
    desk.on_quota(QuotaRest(model=asked[0].served.name, provider=served.provider, until=until))
    return GatewayFault(
        "quota_exhausted",
        f"model {served.name!r} has no quota left for {wait:.0f} s: its provider ({served.provider}) says so",
        wait=wait,
    )
