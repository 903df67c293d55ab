"""One request of a client: admitted, sent to its upstream, passed back as it comes, settled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from chargehand.core import UpstreamError
from chargehand.models._contract import Call, ServedModel, UpstreamReply
from chargehand.models._gateway_bill import Bill, Desk
from chargehand.models._gateway_dialect import (
    EVENT_STREAM,
    DialectRules,
    Tally,
    document,
    mapping,
)
from chargehand.models._gateway_fault import GatewayFault, LostReply
from chargehand.models._gateway_retry import AGAIN, Retries
from chargehand.models._gateway_stream import Forward, closing, kept_headers, lower, so_far
from chargehand.models._http import ClientGoneError, HttpAnswer
from chargehand.models._meter import Bound

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
_GAVE_UP = frozenset({408, 504, 524})
_BODY_BYTES = 64 * 1_048_576
_GONE = 499
_TAIL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a client asks for: of which model, with what body, bounded how."""

    served: ServedModel
    rules: DialectRules
    body: Mapping[str, Any]
    bound: Bound
    turn: int
    seconds: float
    headers: Mapping[str, str]


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
        self._task: asyncio.Task[Any] | None = None
        self._cut: GatewayFault | None = None

    def cut(self, fault: GatewayFault) -> None:
        """Break off now: what the client has so far ends in an error event, or it gets an error reply."""
        if self._cut is None and self._task is not None:
            self._cut = fault
            self._task.cancel()

    async def run(self) -> None:
        """Answer the client; raises `ClientGoneError` and `CancelledError` where it is gone."""
        self._task = asyncio.current_task()
        try:
            await self._answered()
        except GatewayFault as fault:
            await self._refuse(fault)
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
        await self._sent(fault.status, JSON_HEADERS, body)

    async def _sent(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        # From here on the reply is complete: a cut would only garble it.
        self._task = None
        await self._answer.send(status, headers, body)

    async def _answered(self) -> None:
        lost: LostReply | None = None
        while True:
            try:
                bill = await self._desk.open(self._order.served, self._order.bound, turn=self._order.turn)
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
        self._tally = None
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
        begun = self._answer.begun
        status = _GONE if fault.code == "client_gone" else fault.status
        counted = f" (after {self._tally.deltas} pieces of output)" if self._tally else ""
        await bill.close(
            "cut" if begun else "failed",
            200 if begun else status,
            metered=so_far(self._tally),
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
        )
        while True:
            reply = await self._reached(bill, call)
            async with closing(reply.chunks):
                if 200 <= reply.status < 300:
                    await self._passed(bill, reply)
                    return
                # An error reply costs nothing, but where a proxy gave up waiting the provider may have written.
                bill.sent = reply.status in _GAVE_UP
                headers = lower(reply.headers)
                body_bytes = await self._error_body(reply)
            if reply.status not in AGAIN or not await self._retries.again(headers):
                await self._error_passed(bill, reply.status, headers, body_bytes)
                return

    async def _reached(self, bill: Bill, call: Call) -> UpstreamReply:
        while True:
            bill.sent = True
            try:
                async with asyncio.timeout(call.seconds):
                    return await self._order.served.upstream.send(call)
            except TimeoutError:
                raise self._stalled() from None
            except UpstreamError as error:
                fault = self._fault(error)
                if fault.code != "upstream_unreachable":
                    raise fault from None
                bill.sent = False
                if not await self._retries.again():
                    raise fault from None

    def _fault(self, error: UpstreamError) -> GatewayFault:
        message = self._redact(error.message)
        if error.code == "upstream_cut" and not self._answer.begun:
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
        await self._sent(status, kept_headers(headers, bill.id), body)

    async def _passed(self, bill: Bill, reply: UpstreamReply) -> None:
        headers = lower(reply.headers)
        if headers.get("content-type", "").lower().startswith(EVENT_STREAM):
            await self._streamed(bill, reply, kept_headers(headers, bill.id))
            return
        body = await self._whole(reply)
        try:
            content = mapping(document(body))
        except ValueError:
            raise LostReply("upstream_malformed", "the provider's reply is not JSON") from None
        await bill.close("ok", reply.status, metered=self._rules.metered(content))
        await self._sent(reply.status, kept_headers({**JSON_HEADERS, **headers}, bill.id), body)

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
        forward = Forward(tally, self._limit(bill))
        async with contextlib.aclosing(self._pieces(reply)) as pieces:
            async for piece in pieces:
                out = forward.take(piece)
                if tally.ended:
                    break
                await self._forwarded(out, headers)
                forward.check()
            else:
                out = forward.finish()
                if not tally.ended:
                    await self._forwarded(out, headers)
                    out = b""
                    forward.check()
                    self._check_end(tally)
            await self._settled(bill, reply.status, tally)
            self._task = None
            await self._forwarded(out, headers)
            await self._answer.end()
            # Read to its end, the upstream's connection can be used again.
            with contextlib.suppress(TimeoutError, GatewayFault):
                async with asyncio.timeout(_TAIL_SECONDS):
                    async for _ in pieces:
                        pass

    async def _settled(self, bill: Bill, status: int, tally: Tally) -> None:
        """Close the bill before the client sees the end: its next call finds the money that this one left."""
        if tally.failed:
            reason = f"upstream_error: {self._redact(tally.failed)}"
            await bill.close("cut", status, metered=so_far(tally), reason=reason)
        else:
            await bill.close("ok", status, metered=tally.metered())

    async def _forwarded(self, out: bytes, headers: Mapping[str, str]) -> None:
        if not out:
            return
        if not self._answer.begun:
            await self._answer.begin(200, headers)
        await self._answer.write(out)

    def _limit(self, bill: Bill) -> int | None:
        return None if bill.grant.limit is None else bill.grant.limit * self._order.bound.choices

    def _check_end(self, tally: Tally) -> None:
        if tally.finished or tally.failed:
            return
        kind = GatewayFault if self._answer.begun else LostReply
        raise kind("upstream_cut", "the provider's stream ended before its reply was whole")
