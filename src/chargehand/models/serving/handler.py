"""One request of a client: admitted, sent to its upstream, passed back as it comes, settled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import (
    Call,
    GatewayFault,
    LostReply,
    Meter,
    NextModel,
    Operation,
    ServedModel,
    Upstream,
    UpstreamReply,
)
from chargehand.models.dialects.base import (
    EVENT_STREAM,
    DialectRules,
    Metered,
    Tally,
    document,
    mapping,
)
from chargehand.models.http.server import ClientGoneError, HttpAnswer
from chargehand.models.metering import Bound
from chargehand.models.providers import AGAIN, QUIET_SECONDS, Retries, Standing, asked_wait, head_or_gone
from chargehand.models.serving.admission import Bill, Desk, Noted, no_quota, quota_fault
from chargehand.models.serving.cached import Reply, Tape
from chargehand.models.serving.streams import Forward, closing, kept_headers, lower, so_far

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
_GAVE_UP = frozenset({408, 504, 524})
_ELSEWHERE = frozenset({401, 402, 403, 404, 408, 413, 429})
"""Refusals that say something of the model or of the account and not of the request, as all from 500 on do."""
_FAULTS = frozenset({"upstream_unreachable", "upstream_timeout", "upstream_cut", "upstream_malformed"})
_BODY_BYTES = 64 * 1_048_576
_GONE = 499
_BUSY_SECONDS = 1.0
_TAIL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a client asks for: of which model, with what body, bounded how.

    `more`: another model can be asked, so that this one is asked once, and probed after `quiet` seconds of
    silence; `before` are those that were asked and gave no reply; `shown` goes to the client as headers; `skipped`
    and `converted` go into the record, as does whether it is `bare`: offers no tool. `bares` came before it.
    """

    served: ServedModel
    rules: DialectRules
    body: Mapping[str, Any]
    bound: Bound
    turn: int
    seconds: float
    headers: Mapping[str, str]
    quiet: float = QUIET_SECONDS
    operation: Operation = "reply"
    upstream: Upstream
    standing: Standing | None = None
    more: bool = False
    before: tuple[Order, ...] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    tape: Tape | None = None
    skipped: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    bare: bool = False
    bares: int = 0


class Exchange:
    """Runs one order; `cut` breaks it off from outside."""

    def __init__(
        self,
        order: Order,
        answer: HttpAnswer,
        desk: Desk,
        *,
        retries: Retries,
        redact: Callable[[str], str],
    ) -> None:
        self._order = order
        self._rules = order.rules
        self._answer = answer
        self._desk = desk
        self._retries = retries
        self._redact = redact
        self._tally: Tally | None = None
        self._meter: Meter | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cut: GatewayFault | None = None

    def cut(self, fault: GatewayFault) -> None:
        """Break off now: what the client has so far ends in an error event, or it gets an error reply."""
        if self._cut is None and self._task is not None:
            self._cut = fault
            self._task.cancel()

    async def run(self) -> None:
        """Answer the client; raises `ClientGoneError` and `CancelledError` where it is gone.

        Raises `NextModel` where another model is to be asked, and the client has nothing yet.
        """
        self._task = asyncio.current_task()
        try:
            await self._answered()
        except GatewayFault as fault:
            if self._order.more and not self._answer.begun and fault.code in (*_FAULTS, "uncarried", "next_model"):
                raise NextModel(fault.code, fault.message) from None
            no_reply = fault.code in _FAULTS and not self._answer.begun
            await self._refuse(self._for_quota() or fault if no_reply else fault)
        except asyncio.CancelledError:
            if self._cut is None or self._task is None:
                raise
            self._task.uncancel()
            await self._refuse(self._cut)

    async def _refuse(self, fault: GatewayFault) -> None:
        if self._answer.begun:
            self._task = None
            await self._answer.write(self._rules.error_event(fault.status, fault.code, fault.message))
            await self._answer.end()
            return
        body = self._rules.error(fault.status, fault.code, fault.message)
        # The clients' own retries would only repeat what waiting alone can mend.
        wait = {} if fault.wait is None else {"retry-after": f"{fault.wait:.0f}", "x-should-retry": "false"}
        await self._sent(fault.status, {**JSON_HEADERS, **wait}, body)

    async def _sent(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        # From here on the reply is complete: a cut would only garble it.
        self._task = None
        await self._answer.send(status, headers, body)

    async def _answered(self) -> None:
        lost: LostReply | None = None
        while True:
            try:
                order = self._order
                noted = Noted(
                    operation=order.operation,
                    skipped=order.skipped,
                    converted=order.converted,
                    bare=order.bare,
                )
                bill = await self._desk.open(order.served, order.bound, turn=order.turn, noted=noted)
            except GatewayFault:
                if lost is not None:
                    raise lost from None
                raise
            try:
                await self._billed(bill)
            except LostReply as fault:
                if not await self._retries.again():
                    raise
                lost = fault
            else:
                return

    async def _billed(self, bill: Bill) -> None:
        """Run one call to its end, whatever that is; the bill is closed after it."""
        self._tally = self._meter = None
        try:
            await self._called(bill)
        except GatewayFault as fault:
            await self._broken(bill, fault)
            raise
        except asyncio.CancelledError:
            await self._broken(bill, self._cut or GatewayFault("client_gone", "the client went away"))
            raise
        except ClientGoneError:
            await self._broken(bill, GatewayFault("client_gone", "the client went away"))
            raise
        finally:
            # An error of our own leaves the cost unknown.
            await bill.close("failed", 500, reason="internal error of the gateway")

    async def _broken(self, bill: Bill, fault: GatewayFault) -> None:
        if fault.code in _FAULTS and self._order.standing is not None:
            self._order.standing.bad()
        begun = self._answer.begun
        status = _GONE if fault.code == "client_gone" else fault.status
        counted = f" (after {self._tally.deltas} pieces of output)" if self._tally else ""
        await bill.close(
            "cut" if begun else "failed",
            200 if begun else status,
            metered=self._partial(),
            reason=f"{fault.code}: {fault.message}{counted}",
        )

    async def _called(self, bill: Bill) -> None:
        body = self._rules.prepared(self._order.body, self._order.served.model, bill.grant.limit)
        call = Call(
            id=bill.id,
            dialect=self._rules.name,
            body=body,
            attempt=self._desk.attempt,
            turn=bill.turn,
            seconds=self._order.seconds,
            headers=self._order.headers,
            operation=self._order.operation,
            bare=self._order.bares,
        )
        while True:
            reply = await self._reached(bill, call)
            async with closing(reply.chunks):
                if 200 <= reply.status < 300:
                    self._meter = reply.meter
                    await self._passed(bill, reply)
                    return
                # An error reply costs nothing, but where a proxy gave up waiting the provider may have written.
                bill.sent = reply.status in _GAVE_UP
                headers = lower(reply.headers)
                body_bytes = await self._error_body(reply)
                self._note(reply.status, headers, body_bytes)
            if reply.status not in AGAIN or not await self._retries.again(headers, body_bytes):
                await self._error_passed(bill, reply.status, headers, body_bytes)
                return

    async def _reached(self, bill: Bill, call: Call) -> UpstreamReply:
        while True:
            bill.sent = True
            try:
                async with asyncio.timeout(call.seconds):
                    return await self._head(call)
            except TimeoutError:
                raise self._stalled() from None
            except UpstreamError as error:
                fault = self._fault(error)
                if fault.code != "upstream_unreachable":
                    raise fault from None
                bill.sent = False
                if not await self._retries.again():
                    raise fault from None
                if self._order.standing is not None:
                    self._order.standing.bad()

    async def _head(self, call: Call) -> UpstreamReply:
        order = self._order
        probe = getattr(order.served.upstream, "probe", None)
        if not order.more or probe is None:
            return await order.upstream.send(call)
        return await head_or_gone(order.upstream.send(call), probe, order.standing, quiet=order.quiet)

    def _partial(self) -> Metered:
        """Return the usage of a reply that is not whole, by its provider's own word where it is translated."""
        if self._meter is None or (self._tally is not None and self._tally.finished):
            return so_far(self._tally)
        return Metered(usage=replace(self._meter.used()[0], output=None, cost_usd=None))

    def _note(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Remember what an error reply says of its provider."""
        standing = self._order.standing
        if standing is None:
            return
        wait = asked_wait(headers, self._desk.clock, body)
        if status in (429, 503, 529) and wait is not None:
            standing.rest(wait)
        elif status == 429:
            standing.rest(_BUSY_SECONDS)
        elif status >= 500:
            standing.bad()
        else:
            standing.good()

    def _fault(self, error: UpstreamError) -> GatewayFault:
        message = self._redact(error.message)
        if error.code in ("upstream_cut", "upstream_malformed") and not self._answer.begun:
            return LostReply(error.code, message)
        return GatewayFault(error.code, message)

    def _stalled(self) -> GatewayFault:
        return GatewayFault("upstream_timeout", f"the provider sent nothing for {self._order.seconds:g} seconds")

    async def _pieces(self, reply: UpstreamReply) -> AsyncGenerator[bytes, None]:
        """Yield the body piece by piece; raises `GatewayFault` where it stalls or breaks off."""
        pieces = aiter(reply.chunks)
        while True:
            try:
                async with asyncio.timeout(self._order.seconds):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise self._stalled() from None
            except UpstreamError as error:
                raise self._fault(error) from None
            yield piece

    async def _error_body(self, reply: UpstreamReply) -> bytes:
        try:
            body = await self._whole(reply)
        except GatewayFault:
            return b""
        return self._redact(body.decode("utf-8", "replace")).encode()

    async def _error_passed(self, bill: Bill, status: int, headers: Mapping[str, str], body: bytes) -> None:
        if not 400 <= status < 600:
            raise GatewayFault(
                "upstream_malformed", f"the provider answered with HTTP {status}: is its base_url right?"
            )
        if not body:
            body = self._rules.error(status, "upstream_error", f"the provider answered with HTTP {status}")
            headers = {**headers, **JSON_HEADERS}
        await bill.close("failed", status, reason=f"upstream_error: HTTP {status}")
        if self._order.more and (status in _ELSEWHERE or status >= 500):
            raise NextModel("next_model", f"HTTP {status}")
        if status in _ELSEWHERE or status >= 500:
            resting = self._for_quota()
            if resting is not None:
                raise resting
        await self._sent(status, kept_headers(headers, bill.id), body)

    def _for_quota(self) -> GatewayFault | None:
        """Return the refusal where nobody gave a reply, and one of them only for want of quota."""
        asked = (*self._order.before, self._order)
        return quota_fault(self._desk, asked) if no_quota(asked) else None

    async def _passed(self, bill: Bill, reply: UpstreamReply) -> None:
        headers = lower(reply.headers)
        if headers.get("content-type", "").lower().startswith(EVENT_STREAM):
            await self._streamed(bill, reply, self._heads(headers, bill))
            return
        bill.begun()
        body = await self._whole(reply)
        try:
            content = mapping(document(body))
        except ValueError:
            raise LostReply("upstream_malformed", "the provider's reply is not JSON") from None
        metered = _used(reply) or self._rules.metered(content)
        await self._booked(bill, reply, {**JSON_HEADERS, **headers}, [body], metered)
        await self._sent(reply.status, self._heads({**JSON_HEADERS, **headers}, bill), body)

    async def _booked(
        self, bill: Bill, reply: UpstreamReply, headers: Mapping[str, str], sent: list[bytes], metered: Metered
    ) -> None:
        """Keep and book a whole reply; then no power cut takes it or its reserve, and its client may have its end.

        It is written before its call is settled, so that whoever ends this process finds both or the reserve; the
        disk works meanwhile.
        """
        order, on_disk = self._order, None
        if order.tape is not None:
            kept = Reply(
                served=order.served,
                call=bill.id,
                status=reply.status,
                headers=headers,
                body=b"".join(sent),
                usage=metered.usage,
            )
            on_disk = await order.tape.shelf.keep(order.tape, kept)
        if order.standing is not None:
            order.standing.good()
        await bill.close("ok", reply.status, metered=metered)
        await bill.secured()
        if on_disk is not None:
            await on_disk

    def _heads(self, headers: Mapping[str, str], bill: Bill) -> dict[str, str]:
        return {**kept_headers(headers, bill.id), **self._order.shown}

    async def _whole(self, reply: UpstreamReply) -> bytes:
        collected = []
        size = 0
        async with contextlib.aclosing(self._pieces(reply)) as pieces:
            async for piece in pieces:
                collected.append(piece)
                size += len(piece)
                if size > _BODY_BYTES:
                    raise GatewayFault("upstream_malformed", f"the reply is larger than {_BODY_BYTES} B")
        return b"".join(collected)

    async def _streamed(self, bill: Bill, reply: UpstreamReply, headers: Mapping[str, str]) -> None:
        self._tally = tally = self._rules.tally(self._order.body)
        forward, sent = Forward(tally, self._limit(bill)), list[bytes]()
        async with contextlib.aclosing(self._pieces(reply)) as pieces:
            async for piece in pieces:
                bill.begun()
                out = forward.take(piece)
                sent.append(out)
                if tally.ended:
                    break
                await self._forwarded(bill, out, headers)
                forward.check()
            else:
                out = forward.finish()
                sent.append(out)
                if not tally.ended:
                    await self._forwarded(bill, out, headers)
                    out = b""
                    forward.check()
                    self._check_end(tally)
            await self._settled(bill, reply, headers, sent, tally)
            self._task = None
            await self._forwarded(bill, out, headers)
            await self._answer.end()
            # Read to its end, the upstream's connection can be used again.
            with contextlib.suppress(TimeoutError, GatewayFault):
                async with asyncio.timeout(_TAIL_SECONDS):
                    async for _ in pieces:
                        pass

    async def _settled(
        self, bill: Bill, reply: UpstreamReply, headers: Mapping[str, str], sent: list[bytes], tally: Tally
    ) -> None:
        """Close the bill before the client sees the end: its next call finds the money that this one left."""
        if tally.failed:
            reason = f"upstream_error: {self._redact(tally.failed)}"
            await bill.close("cut", reply.status, metered=self._partial(), reason=reason)
        else:
            await self._booked(bill, reply, headers, sent, _used(reply) or tally.metered())

    async def _forwarded(self, bill: Bill, out: bytes, headers: Mapping[str, str]) -> None:
        if not out:
            return
        if not self._answer.begun:
            await bill.secured()
            await self._answer.begin(200, headers)
        await self._answer.write(out)

    def _limit(self, bill: Bill) -> int | None:
        return None if bill.grant.limit is None else bill.grant.limit * self._order.bound.choices

    def _check_end(self, tally: Tally) -> None:
        if tally.finished or tally.failed:
            return
        kind = GatewayFault if self._answer.begun else LostReply
        raise kind("upstream_cut", "the provider's stream ended before its reply was whole")


def _used(reply: UpstreamReply) -> Metered | None:
    """Return what a translated reply used by its provider's own word."""
    if reply.meter is None:
        return None
    usage, hour_writes = reply.meter.used()
    return Metered(usage=usage, hour_writes=hour_writes)
