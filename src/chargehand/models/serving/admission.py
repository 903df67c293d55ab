"""Budget admission: each call is reserved in the ledger before it is sent, settled and recorded once after."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.clock import Clock
from chargehand.core.errors import ExhaustedError
from chargehand.core.ids import new_id
from chargehand.core.ports import Ledger, Spent
from chargehand.models.contract import (
    CallListeners,
    CallRecord,
    CallStatus,
    GatewayFault,
    Operation,
    Price,
    QuotaRest,
    ReplyUsage,
    ServedModel,
    UpstreamReply,
    Usage,
)
from chargehand.models.dialects.left_out import LEFT_OUT, join_left_out
from chargehand.models.metering import (
    LEAST_OUTPUT,
    CallBound,
    affordable_output,
    bounded_usd,
    computed_usd,
    input_usd,
    output_usd,
)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
# The work, and the future of its outcome, or, if no caller waits, the log message for a failure.
_Job = tuple[Callable[[], Any], "asyncio.Future[Any] | str"]
_UNKNOWN = ReplyUsage(usage=Usage())
# How long a call waits for money that other calls hold in reserve.
RESERVE_SECONDS = 60.0
# How often a waiting call checks whether another process settled one of its calls.
_LOOK_SECONDS = 0.25
# A call that could get fewer output tokens than this waits until calls under way are settled.
_GOOD_OUTPUT = 4_096
_MOST_REFUSED = 20
# USD: more than any limit that a person sets.
_PLENTY = 1e9
_MOST_NOTES = 8
_LONGEST_NOTE = 200  # characters
_UNKNOWN_PRICE = (
    "the price of model {name!r} is not known, and money is limited here: set price, or price_in and price_out, "
    "in [models.{name}], or limits.assume_usd_per_mtok"
)


class SerialExecutor:
    """Runs blocking work in sequence in its own thread, from the first submission to `close`.

    The executor of the event loop takes twice as long to hand work over and back, and its threads would only wait
    for each other: a database takes one writer at a time.
    """

    def __init__(self, name: str = "gateway-books") -> None:
        self._name = name
        self._submitted = self._done = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Return the outcome of `work`, which runs even if no caller waits for it."""
        outcome: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._put(work, outcome)
        return outcome

    @property
    def idle(self) -> bool:
        """Whether all submitted work is done."""
        # Each counter is changed by one thread only.
        return self._submitted == self._done

    def start(self, work: Callable[[], object], *, failure: str) -> None:
        """Run work without waiting and without waking the event loop; log `failure` if it fails."""
        self._put(work, failure)

    def _put(self, work: Callable[[], Any], outcome: asyncio.Future[Any] | str) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._submitted += 1
        self._jobs.put((work, outcome))

    def close(self) -> None:
        """End the thread once it has done the submitted work. Idempotent."""
        thread = self._thread
        self._thread = None
        if thread is not None:
            self._jobs.put(None)

    def _run(self) -> None:
        def settle(outcome: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
            if outcome.done():  # the caller that waited for it was cancelled
                return
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)

        while (job := self._jobs.get()) is not None:
            work, outcome = job
            result = None
            failure = None
            try:
                result = work()
            except BaseException as error:  # of any kind: it is for the caller who submitted the work
                failure = error
            self._done += 1
            if isinstance(outcome, str):
                if failure is not None:
                    _log.error("%s: %s", outcome, failure)
                continue
            outcome.get_loop().call_soon_threadsafe(settle, outcome, result, failure)


class BudgetGrant(Struct, frozen=True, kw_only=True):
    """The ledger's grant: the output limit to send (`None`: no limit) and the USD reserved."""

    limit: int | None
    usd: float
    alerts: tuple[Spent, ...] = ()


class BudgetAdmission:
    """Admits the calls of one gateway against its ledger.

    The ledger is asked in a thread, one question at a time, and `on_call` and `on_alert` are called there too.
    With the listeners' `on_loop`, all of that happens on the event loop, except waiting for the disk.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        attempt: str,
        listeners: CallListeners,
        reserve_seconds: float = RESERVE_SECONDS,
    ) -> None:
        self.clock = clock
        self._reserve_seconds = reserve_seconds
        self._freed = asyncio.Event()
        self.attempt = attempt
        self.listeners = listeners
        self._ledger = ledger
        self._refused = 0
        self._limited = False
        self._named = set[tuple[str, str]]()
        self._executor = SerialExecutor()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(
        self,
        served: ServedModel,
        bound: CallBound,
        *,
        turn: int,
        operation: Operation = "reply",
        skipped: tuple[str, ...] = (),
        converted: tuple[str, ...] = (),
        bare: bool = False,
    ) -> MeteredCall:
        """Reserve for one call; `skipped`, `converted` and `bare` are for its record.

        Raises `GatewayFault` (`budget_exhausted`, `price_unknown`), and records the call as refused then.
        """
        record = CallRecord(
            call=new_id("call"),
            attempt=self.attempt,
            turn=turn,
            model=served.name,
            upstream=served.model,
            provider=served.provider,
            operation=operation,
            status="failed",
            http_status=0,
            seconds=0.0,
            usage=_UNKNOWN.usage,
            cost_usd=None,
            booked_usd=0.0,
            skipped=_shorten(skipped),
            converted=_shorten(converted),
            bare=bare,
        )
        call = MeteredCall(self, served.price, record, bound)
        await self._admit(call, served, bound)
        if call.grant.alerts:
            # In its own task: a failing listener must not keep the call from being settled.
            self.spawn(
                self._notify([functools.partial(self.listeners.on_alert, one) for one in call.grant.alerts])
            )
        return call

    async def _admit(self, call: MeteredCall, served: ServedModel, bound: CallBound) -> None:
        """Reserve the cost bound of a call; if it does not fit, wait for a while for the calls under way."""
        reserved: list[float] = []

        def admit(patient: bool) -> BudgetGrant:
            grant = self._grant(call.id, served, bound, patient=patient)
            reserved.append(grant.usd)
            return grant

        def secure() -> None:
            if any(reserved):  # a refused or free call has no reserve that a power cut could take
                self._ledger.secure()

        loop = asyncio.get_running_loop()
        until = loop.time() + self._reserve_seconds
        while True:
            patient = loop.time() < until
            admission = self._ask(functools.partial(admit, patient))
            # Queued next, so that no other call of this gateway is sent before this one is on disk. This call
            # itself does not wait for it: its provider works while the disk does.
            call.on_disk = self._executor.submit(secure)
            # Marks a failure as seen if no code waits for it: the call that it belongs to has failed then.
            call.on_disk.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                call.grant = await asyncio.shield(admission)
                return
            except GatewayFault as fault:
                if not (patient and fault.code == "budget_reserved"):
                    await call.close("refused", fault.status, reason=f"{fault.code}: {fault.message}")
                    raise
            except asyncio.CancelledError:
                # The ledger's thread continues, and its reserve must be returned.
                self.spawn(_return_grant(call, admission))
                raise
            # Until a call under way is settled here, or for a moment: other processes do not notify.
            self._freed.clear()
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._freed.wait()
            except asyncio.CancelledError:
                self.spawn(
                    call.close("refused", 499, reason="client_gone: it left while it waited for its budget")
                )
                raise

    def _ask(self, question: Callable[[], _T]) -> asyncio.Future[_T]:
        """Ask the ledger: in its thread, or directly with `on_loop`."""
        if not self.listeners.on_loop:
            return self._executor.submit(question)
        answered: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        try:
            answered.set_result(question())
        except GatewayFault as fault:
            answered.set_exception(fault)
        return answered

    def _grant(self, call: str, served: ServedModel, bound: CallBound, *, patient: bool) -> BudgetGrant:
        """Reserve for a call; reserve less output if all of it cannot be paid for.

        Raises `GatewayFault`: `budget_reserved` if calls under way hold the missing money. With `patient` that is
        also raised if the call could have a short reply now, and a longer one later.
        """
        if self._limited and served.price is not None:
            # Mostly everything is affordable, so the rest of the budget is not queried, which saves a query.
            with contextlib.suppress(ExhaustedError):
                return self._reserve(call, served, bound, _PLENTY)
        if patient:
            # Refused if more output would be affordable once the calls under way are settled.
            price = served.price
            left = self._read_left(served)
            if price is not None and left is not None:
                now = affordable_output(price, bound, left)
                wanted = min(bound.output, _GOOD_OUTPUT)
                if now < wanted and affordable_output(price, bound, self._ledger.left(settled=True) or 0.0) > now:
                    raise GatewayFault("budget_reserved", "the rest of the budget is reserved by calls under way")
        with contextlib.suppress(ExhaustedError):  # another attempt reserved in between: less may still fit
            return self._reserve(call, served, bound, self._read_left(served))
        try:
            return self._reserve(call, served, bound, self._read_left(served))
        except ExhaustedError as error:
            hint = f"; {error.hint}" if error.hint else ""
            code = "budget_reserved" if error.code == "budget_reserved" else "budget_exhausted"
            raise GatewayFault(code, error.message + hint) from None

    def _read_left(self, served: ServedModel) -> float | None:
        left = self._ledger.left()
        self._limited = left is not None
        if served.price is None and left is not None:
            raise GatewayFault("price_unknown", _UNKNOWN_PRICE.format(name=served.name))
        return left

    def _reserve(self, call: str, served: ServedModel, bound: CallBound, left: float | None) -> BudgetGrant:
        """Reserve for the output that `left` USD pay for, `None` for no limit; raises `ExhaustedError`."""
        price = served.price
        limit = bound.output if bound.asked else None
        usd = 0.0
        if price is not None and left is None:
            usd = input_usd(price, bound) + output_usd(price, bound, bound.output)
        elif price is not None and left is not None:
            # If not even that is affordable, reserving it fails, and the ledger says which limit it is.
            most = max(affordable_output(price, bound, left), min(LEAST_OUTPUT, bound.output))
            usd = input_usd(price, bound) + output_usd(price, bound, most)
            # Free output spends nothing, so a limit that nobody named is not added.
            limit = limit if price.output == 0 and not bound.asked else most
        return BudgetGrant(limit=limit, usd=usd, alerts=self._ledger.reserve(call, usd))

    def name_once(self, model: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of left-out fields that no record of this attempt has for the model yet."""
        new = tuple(name for name in names if (model, name) not in self._named)
        self._named.update((model, name) for name in new)
        return new

    async def settle(self, usd: float | None, record: CallRecord) -> None:
        """Book and report a call; `usd` is its cost, `None` if unknown."""
        report = functools.partial(self.listeners.on_call, record)
        if record.status == "refused":
            # A refusal costs nothing, so an agent may repeat it endlessly: only the first ones are reported.
            self._refused += 1
            if self._refused <= _MOST_REFUSED:
                await self._notify([report])
            return
        # Booked before it is reported: a cost in the log is already in the ledger.
        book = functools.partial(self._ledger.settle, record.call, usd, most=record.booked_usd)
        if self.listeners.on_loop:
            # Not in the thread, which may be waiting for the disk.
            book()
            report()
        else:
            await self._executor.submit(functools.partial(_run_each, [book, report]))
        self._freed.set()

    async def report(self, record: CallRecord) -> None:
        """Report a call that costs nothing and reserved nothing."""
        await self._notify([functools.partial(self.listeners.on_call, record)])

    async def _notify(self, listeners: Sequence[Callable[[], None]]) -> None:
        if self.listeners.on_loop:
            _run_each(listeners)
        else:
            await self._executor.submit(functools.partial(_run_each, listeners))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that must finish even if its call is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait until every call is settled; raises the errors of the ledger or a listener."""
        try:
            while self._tasks:
                await asyncio.gather(*self._tasks)
        finally:
            self._executor.close()


class MeteredCall:
    """One call that may cost money; `sent` once its provider may charge for it.

    Its record is started when the call is admitted, and completed once, when the call is closed.
    """

    def __init__(
        self, admission: BudgetAdmission, price: Price | None, record: CallRecord, bound: CallBound
    ) -> None:
        self.id = record.call
        self.turn = record.turn
        self.grant = BudgetGrant(limit=None, usd=0.0)
        self.sent = False
        self.on_disk: asyncio.Future[None] | None = None
        self._admission = admission
        self._price = price
        self._bound = bound
        self._record = record
        self._first: float | None = None
        self._started = admission.clock.monotonic()
        self._closing: asyncio.Task[None] | None = None

    def note_first_piece(self) -> None:
        """Note that the reply begins now; only the first call counts."""
        if self._first is None:
            self._first = self._admission.clock.monotonic() - self._started

    def note_retry(self, after: str) -> None:
        """Note that the call is sent again, and after which answer."""
        self._record = replace(self._record, retried=(*self._record.retried, after))

    def name_left_out(self, reply: UpstreamReply, screened: tuple[str, ...]) -> UpstreamReply:
        """Return a reply whose header names all fields not sent to its provider; also add them to the record."""
        names = join_left_out(screened, reply.lower_headers.get(LEFT_OUT, ""))
        if not names:
            return reply
        new = self._admission.name_once(self._record.upstream, names)
        self._record = replace(self._record, left_out=self._record.left_out + new)
        return replace(reply, headers={**reply.lower_headers, LEFT_OUT: ", ".join(names)})

    async def secured(self) -> None:
        """Return once a power cut cannot take the reserve; raises the ledger's error."""
        if self.on_disk is not None:
            await asyncio.shield(self.on_disk)

    def cost(self, metered: ReplyUsage) -> float | None:
        """Return the cost of a call with this usage, in USD: as its provider reports, else by tokens and price."""
        reported = metered.usage.cost_usd
        return self._price_tokens(metered) if reported is None else reported

    def most(self, metered: ReplyUsage) -> float:
        """Return the call's highest possible cost in USD, given its known usage: its reserve or less."""
        limit = self._bound.output if self.grant.limit is None else self.grant.limit
        known = bounded_usd(self._price, metered, limit * self._bound.choices, hour_cache=self._bound.hour_cache)
        return self.grant.usd if known is None else min(known, self.grant.usd)

    def _price_tokens(self, metered: ReplyUsage) -> float | None:
        return computed_usd(self._price, metered, hour_cache=self._bound.hour_cache)

    async def close(
        self, status: CallStatus, http_status: int, *, metered: ReplyUsage = _UNKNOWN, reason: str = ""
    ) -> None:
        """Settle and record the call; only the first call counts, and it finishes even if cancelled.

        If the cost is unknown, its highest possible value stays booked, unless the call never reached its
        provider.
        """
        if self._closing is None:
            if metered.usage.input and self._bound.on_counted is not None:
                self._bound.on_counted(metered.usage.input)
            cost = self.cost(metered) if self.sent else 0.0
            record = replace(
                self._record,
                status=status,
                http_status=http_status,
                seconds=self._admission.clock.monotonic() - self._started,
                usage=metered.usage,
                cost_usd=cost,
                booked_usd=self.most(metered) if cost is None else cost,
                reason=reason,
                reported_usd=metered.usage.cost_usd if self.sent else None,
                computed_usd=self._price_tokens(metered) if self.sent else None,
                hour_writes=metered.hour_writes,
                first_seconds=self._first,
            )
            self._closing = self._admission.spawn(self._admission.settle(cost, record))
        await asyncio.shield(self._closing)


def _run_each(parts: Sequence[Callable[[], None]]) -> None:
    for part in parts:
        part()


def _shorten(notes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the notes that fit into a record: clients and other providers write some of them."""
    return tuple(text[:_LONGEST_NOTE] for text in notes[:_MOST_NOTES])


async def _return_grant(call: MeteredCall, admission: asyncio.Future[BudgetGrant]) -> None:
    """Settle a call whose client left while it waited for its reserve."""
    try:
        call.grant = await admission
    except GatewayFault as fault:
        await call.close("refused", fault.status, reason=f"{fault.code}: {fault.message}")
    else:
        await call.close("failed", 499, reason="client_gone: the call was given up before it was sent")


def quota_refusal(
    admission: BudgetAdmission, model: str, rests: Sequence[tuple[float, ServedModel]]
) -> GatewayFault:
    """Return the refusal of a call to `model` that no provider answers, and notify the listener.

    `rests` are the seconds that providers asked for, with their models. Pauses that we impose after failures do
    not count: such a provider may be down for good, and would be asked again and again.
    """
    wait, served = min(rests, key=lambda rest: rest[0])
    until = admission.clock.now() + timedelta(seconds=wait)
    admission.listeners.on_quota(QuotaRest(model=model, provider=served.provider, until=until))
    return GatewayFault(
        "quota_exhausted",
        f"model {served.name!r} has no quota left for {wait:.0f} s: its provider ({served.provider}) says so",
        wait=wait,
    )
