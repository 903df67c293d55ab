"""Runs one request against one model: admits it, sends it, forwards the reply, settles the call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.core.errors import UpstreamError
from chargehand.models._json import as_mapping, parse_json
from chargehand.models.contract import (
    REPLY_BYTES,
    GatewayFault,
    LostReply,
    ModelCall,
    ModelUpstream,
    NextModel,
    Operation,
    ReplyUsage,
    ServedModel,
    UpstreamReply,
)
from chargehand.models.dialects.base import UNKNOWN_USAGE, RequestFormat, StreamMeter
from chargehand.models.event_stream import EVENT_STREAM
from chargehand.models.http.server import ClientGoneError, HttpAnswer
from chargehand.models.metering import CallBound, drop_empty_counts
from chargehand.models.providers import (
    LONGEST_WAIT,
    QUIET_SECONDS,
    RETRIED_STATUS,
    ProviderHealth,
    Retries,
    await_head,
)
from chargehand.models.refusals import is_page
from chargehand.models.replay_cache import WholeReply
from chargehand.models.serving.admission import BudgetAdmission, MeteredCall, quota_refusal
from chargehand.models.serving.cached import CacheEntry
from chargehand.models.serving.forwarding import StreamForwarder
from chargehand.models.serving.headers import JSON_HEADERS, refuse, select_headers

# Statuses of a proxy that gave up waiting: the provider may still have written a reply, and charged for it.
_GAVE_UP = frozenset({408, 504, 524})
# Refusals that another model may not share: they concern the model or the account, not the request. So do all
# statuses from 500 on.
_ELSEWHERE = frozenset({401, 402, 403, 404, 408, 413, 429})
# Codes of faults of the provider.
_FAULTS = frozenset(
    {
        *("upstream_unreachable", "upstream_untrusted", "upstream_timeout", "upstream_cut", "upstream_malformed"),
        *("upstream_page", "reply_unreadable"),
    }
)
# The status in the record of a call whose client left, as in nginx.
_GONE = 499
# How long the gateway reads past the last event, so that the upstream's connection can be reused.
_TAIL_SECONDS = 1.0


class UpstreamRequest(Struct, frozen=True, kw_only=True):
    """A client's request as sent to one model.

    `more`: another model can be asked, so that this one is asked once, and probed after `quiet` seconds of
    silence. `before` are the requests to models that gave no reply. `shown` are headers for the client. `skipped`
    and `converted` go into the record, as does `bare`: it offers no tool. `bares` is the number of such requests
    before it. `left_out` names the parts of the client's request that are missing from `body`.
    """

    served: ServedModel
    rules: RequestFormat
    body: Mapping[str, Any]
    bound: CallBound
    turn: int
    seconds: float
    headers: Mapping[str, str]
    quiet: float = QUIET_SECONDS
    operation: Operation = "reply"
    upstream: ModelUpstream
    health: ProviderHealth | None = None
    more: bool = False
    before: tuple[UpstreamRequest, ...] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    entry: CacheEntry | None = None
    skipped: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    bare: bool = False
    bares: int = 0

    def to_call(self, call: MeteredCall, attempt: str) -> ModelCall:
        """Return the call for the upstream, with the granted output limit."""
        return ModelCall(
            id=call.id,
            dialect=self.rules.name,
            body=self.rules.prepare(self.body, self.served.model, call.grant.limit),
            attempt=attempt,
            turn=call.turn,
            seconds=self.seconds,
            headers=self.headers,
            operation=self.operation,
            bare=self.bares,
        )


class RequestHandler:
    """Runs one request; `cut` breaks it off from outside."""

    def __init__(
        self,
        request: UpstreamRequest,
        answer: HttpAnswer,
        admission: BudgetAdmission,
        *,
        retries: Retries,
        redact: Callable[[str], str],
    ) -> None:
        self._request = request
        self._rules = request.rules
        self._answer = answer
        self._admission = admission
        self._retries = retries
        self._redact = redact
        self._meter: StreamMeter | None = None
        self._provider_meter: Callable[[], ReplyUsage] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cut: GatewayFault | None = None

    def cut(self, fault: GatewayFault) -> None:
        """Break off now: a partial reply ends in an error event, otherwise the client gets an error reply."""
        if self._cut is None and self._task is not None:
            self._cut = fault
            self._task.cancel()

    async def run(self) -> None:
        """Answer the client; raises `ClientGoneError`, `CancelledError`, or, before any output, `NextModel`."""
        self._task = asyncio.current_task()
        try:
            await self._admit_and_send()
        except GatewayFault as fault:
            unanswered = not self._answer.begun
            if self._request.more and unanswered and fault.code in (*_FAULTS, "uncarried", "next_model"):
                raise NextModel(fault.code, fault.message) from None
            # Waiting for quota is a separate state: the mission sleeps until then, and does not fail.
            if unanswered and fault.code in _FAULTS:
                fault = self._quota_refusal() or fault
            await self._refuse(fault)
        except asyncio.CancelledError:
            if self._cut is None or self._task is None:
                raise
            self._task.uncancel()
            await self._refuse(self._cut)

    async def _refuse(self, fault: GatewayFault) -> None:
        # From here on the reply is complete: a cut would only garble it.
        self._task = None
        if not self._answer.begun:
            await refuse(self._answer, self._rules, fault)
            return
        # The 200 was sent. An error event tells the client that its partial reply is incomplete.
        await self._answer.write(self._rules.write_error_event(fault.status, fault.code, fault.message))
        await self._answer.end()

    async def _send_whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._task = None  # complete, as in `_refuse`
        await self._answer.send(status, headers, body)

    async def _admit_and_send(self) -> None:
        """Send the request under a reservation; a lost reply is retried under a new one."""
        request = self._request
        lost: LostReply | None = None
        while True:
            try:
                call = await self._admission.open(
                    request.served,
                    request.bound,
                    turn=request.turn,
                    operation=request.operation,
                    skipped=request.skipped,
                    converted=request.converted,
                    bare=request.bare,
                )
            except GatewayFault:
                if lost is not None:  # more informative than that the budget does not cover it twice
                    raise lost from None
                raise
            try:
                await self._run_call(call)
            except LostReply as fault:
                # A silent provider takes the whole time limit each time: one retry, or immediately the next model.
                silent = fault.code == "upstream_timeout" and (request.more or lost is not None)
                if silent or not await self._retries.wait_for_retry():
                    raise
                lost = fault
            else:
                return

    async def _run_call(self, call: MeteredCall) -> None:
        """Run one call to its end and settle it, whatever the outcome."""
        self._meter = self._provider_meter = None
        try:
            await self._send(call)
        except GatewayFault as fault:
            await self._settle_broken(call, fault)
            raise
        except asyncio.CancelledError:
            await self._settle_broken(call, self._cut or GatewayFault("client_gone", "the client disconnected"))
            raise
        except ClientGoneError:
            await self._settle_broken(call, GatewayFault("client_gone", "the client disconnected"))
            raise
        finally:
            # Closing a second time does nothing, so this is for our own errors, which leave the cost unknown.
            await call.close("failed", 500, reason="internal error of the gateway")

    async def _settle_broken(self, call: MeteredCall, fault: GatewayFault) -> None:
        if fault.code in _FAULTS and self._request.health is not None:
            if fault.code == "upstream_unreachable":
                self._request.health.note_unreachable()
            else:
                self._request.health.note_failure()
        begun = self._answer.begun
        status = _GONE if fault.code == "client_gone" else fault.status
        counted = f" (after {self._meter.deltas} pieces of output)" if self._meter else ""
        await call.close(
            "cut" if begun else "failed",
            200 if begun else status,
            metered=self._partial_usage(whole=fault.code == "reply_unreadable" and self._meter is None),
            reason=f"{fault.code}: {fault.message}{counted}",
        )

    async def _send(self, call: MeteredCall) -> None:
        model_call = self._request.to_call(call, self._admission.attempt)
        while True:
            reply = call.name_left_out(await self._reach(call, model_call), self._request.left_out)
            if self._request.health is not None:
                self._request.health.note_reached()
            async with reply.closing():
                if reply.is_success:
                    self._provider_meter = reply.meter
                    await self._pass_on(call, reply)
                    return
                # An error reply costs nothing, but if a proxy gave up waiting the provider may have written a
                # reply.
                call.sent = reply.status in _GAVE_UP
                headers = reply.lower_headers
                try:
                    body = self._redact((await self._read_whole(reply)).decode("utf-8", "replace")).encode()
                except GatewayFault:
                    body = b""
                if self._request.health is not None:
                    self._request.health.note_error(reply.status, self._retries.waits.read(headers, body))
            again = reply.status in RETRIED_STATUS and await self._wait_for_retry(
                call, str(reply.status), headers, body
            )
            if not again:
                await self._pass_error(call, reply.status, headers, body)
                return

    async def _reach(self, call: MeteredCall, model_call: ModelCall) -> UpstreamReply:
        """Return the reply once its head arrives; retry as long as nothing was sent."""
        request = self._request
        probe = getattr(request.served.upstream, "probe", None)
        while True:
            # Set before sending: a client that cancels in the middle of it leaves an unknown cost.
            call.sent = True
            try:
                async with asyncio.timeout(model_call.seconds):
                    sending = request.upstream.send(model_call)
                    if not request.more or probe is None:
                        return await sending
                    return await await_head(sending, probe, request.health, quiet=request.quiet)
            except TimeoutError:
                raise self._stall_fault() from None
            except UpstreamError as error:
                fault = self._convert_error(error)
                if fault.code == "upstream_untrusted":  # before anything was sent, and the same next time
                    call.sent = False
                if fault.code != "upstream_unreachable":
                    raise fault from None
                call.sent = False
                if not await self._wait_for_retry(call, "unreachable"):
                    raise fault from None
                if request.health is not None:
                    request.health.note_unreachable()

    async def _wait_for_retry(self, call: MeteredCall, after: str, *answered: Any) -> bool:
        """Wait to send a call again; a crash meanwhile books no cost, unless there may be one."""
        entry = None if call.sent else self._request.entry
        if entry is not None:
            await entry.worker.note_bound(call.id, 0.0, durable=False)
        if again := await self._retries.wait_for_retry(*answered):
            call.note_retry(after)
        if again and entry is not None:
            await entry.worker.note_bound(call.id, call.grant.usd, durable=True)
        return again

    def _partial_usage(self, *, whole: bool = False) -> ReplyUsage:
        """Return the usage of a reply that its client did not get; its output is known only if it is `whole`.

        For a translated reply the usage that the provider reported counts.
        """
        if self._provider_meter is not None and not (self._meter and self._meter.finished):
            known = self._provider_meter()
        elif self._meter is None:
            return UNKNOWN_USAGE
        elif self._meter.finished:
            return self._meter.metered
        else:
            known = self._meter.metered
        if whole:
            return known
        return ReplyUsage(usage=replace(known.usage, output=None, cost_usd=None))

    def _convert_error(self, error: UpstreamError) -> GatewayFault:
        message = self._redact(error.message)
        lost = error.code in ("upstream_cut", "upstream_malformed") and not self._answer.begun
        return (LostReply if lost else GatewayFault)(error.code, message)

    def _stall_fault(self) -> GatewayFault:
        kind = GatewayFault if self._answer.begun else LostReply
        return kind("upstream_timeout", f"the provider sent nothing for {self._request.seconds:g} seconds")

    async def _read_pieces(self, reply: UpstreamReply) -> AsyncGenerator[bytes, None]:
        """Yield the body piece by piece; raises `GatewayFault` if it stalls or breaks off."""
        pieces = aiter(reply.chunks)
        while True:
            try:
                async with asyncio.timeout(self._request.seconds):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise self._stall_fault() from None
            except UpstreamError as error:
                raise self._convert_error(error) from None
            yield piece

    async def _read_whole(self, reply: UpstreamReply) -> bytes:
        # Not `reply.read_all`: each piece has its own time limit here.
        body = bytearray()
        async with contextlib.aclosing(self._read_pieces(reply)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > REPLY_BYTES:
                    raise GatewayFault("upstream_malformed", f"the reply is larger than {REPLY_BYTES} B")
        return bytes(body)

    async def _pass_error(self, call: MeteredCall, status: int, headers: Mapping[str, str], body: bytes) -> None:
        # Redirects are not followed, so a client could not use a 3xx reply.
        if not 400 <= status < 600:
            message = f"the provider answered with HTTP {status}: is its base_url right?"
            raise GatewayFault("upstream_malformed", message)
        if is_page(body) and status not in RETRIED_STATUS:
            raise _page_fault(status)
        if not body:
            message = f"the provider answered with HTTP {status}"
            body = self._rules.write_error(status, "upstream_error", message)
            headers = {**headers, **JSON_HEADERS}
        await call.close("failed", status, reason=f"upstream_error: HTTP {status}")
        if status in _ELSEWHERE or status >= 500:
            if self._request.more:
                raise NextModel("next_model", f"HTTP {status}")
            if (resting := self._quota_refusal()) is not None:
                raise resting
        await self._send_whole(status, {**select_headers(headers, call.id), **self._request.shown}, body)

    def _quota_refusal(self) -> GatewayFault | None:
        """Return the refusal if no model gave a reply, and one of them only for lack of quota."""
        return find_quota_refusal(self._admission, (*self._request.before, self._request))

    async def _pass_on(self, call: MeteredCall, reply: UpstreamReply) -> None:
        headers = reply.lower_headers
        if headers.get("content-type", "").lower().startswith(EVENT_STREAM):
            await self._pass_stream(call, reply, {**select_headers(headers, call.id), **self._request.shown})
            return
        call.note_first_piece()
        body = await self._read_whole(reply)
        content = self._parse_whole(body)
        metered = self._rules.read_usage(content) if reply.meter is None else reply.meter()
        wrote = metered.usage.output == 0 and self._rules.has_output(content)
        metered = drop_empty_counts(metered, wrote=wrote)
        if reply.left_out is not None:
            headers = call.name_left_out(reply, reply.left_out()).lower_headers
        headers = {**select_headers({**JSON_HEADERS, **headers}, call.id), **self._request.shown}
        await self._settle_whole(call, reply, headers, body, metered)
        await self._send_whole(reply.status, headers, body)

    def _parse_whole(self, body: bytes) -> Mapping[str, Any]:
        """Decode a whole reply; raises `LostReply` if no client of the dialect can read it."""
        try:
            content = parse_json(body)
        except ValueError:
            if is_page(body):
                raise _page_fault(200) from None
            raise LostReply("upstream_malformed", "the provider's reply is not JSON") from None
        if self._request.operation == "reply":
            fault = self._rules.find_fault(content)
            if not fault and self._request.body.get("stream") is True:
                fault = "the provider was asked for a stream and sent an unstreamed reply"
            if fault:
                raise LostReply("upstream_malformed", self._redact(fault))
        return as_mapping(content)

    async def _settle_whole(
        self,
        call: MeteredCall,
        reply: UpstreamReply,
        headers: Mapping[str, str],
        body: bytes,
        metered: ReplyUsage,
    ) -> None:
        """Keep and book a whole reply; afterwards it and its reserve survive a power cut, so it can be sent.

        It is written before its call is settled, so that a process killed at any point leaves both or the reserve;
        the disk works meanwhile.
        """
        request = self._request
        on_disk = None
        if request.entry is not None:
            kept = WholeReply(
                call=call.id,
                model=request.served.name,
                upstream=request.served.model,
                status=reply.status,
                headers=headers,
                body=body,
                usage=metered.usage,
                cost_usd=call.cost(metered),
            )
            on_disk = await request.entry.worker.write(request.entry, kept)
        if request.health is not None:
            request.health.note_success()
        fault = reply.fault() if reply.fault is not None else ""
        reason = self._redact(f"model_malformed: {fault}") if fault else ""
        await call.close("ok", reply.status, metered=metered, reason=reason)
        await call.secured()
        if on_disk is not None:
            await on_disk

    async def _pass_stream(self, call: MeteredCall, reply: UpstreamReply, headers: Mapping[str, str]) -> None:
        self._meter = meter = self._rules.stream_meter(self._request.body)
        limit = call.grant.limit
        forwarder = StreamForwarder(meter, None if limit is None else limit * self._request.bound.choices)
        sent = list[bytes]()
        bounded = self._request.entry is None
        async with contextlib.aclosing(self._read_pieces(reply)) as pieces:
            async for piece in pieces:
                call.note_first_piece()
                out = forwarder.take(piece)
                sent.append(out)
                # The last event is held back until the call is settled.
                if meter.ended:
                    break
                bounded = bounded or self._note_bound(call)
                await self._forward(call, out, headers)
                # A provider that ignores the limit would spend money that was not reserved.
                self._check_events(forwarder)
            else:
                out = forwarder.finish()
                sent.append(out)
                if not meter.ended:
                    await self._forward(call, out, headers)
                    out = b""
                    self._check_events(forwarder)
                    if not (meter.finished or meter.failed):
                        kind = GatewayFault if self._answer.begun else LostReply
                        raise kind("upstream_cut", "the provider's stream ended before its reply was complete")
            # Settled before the client sees the end: its next call finds the money that this one left.
            if meter.failed:
                if self._request.health is not None:
                    self._request.health.note_failure()
                reason = f"upstream_error: {self._redact(meter.failed)}"
                await call.close("cut", reply.status, metered=self._partial_usage(), reason=reason)
            else:
                metered = meter.metered if reply.meter is None else reply.meter()
                metered = drop_empty_counts(metered, wrote=meter.deltas > 0)
                if reply.left_out is not None:
                    call.name_left_out(reply, reply.left_out())  # for the record: the head was already sent
                await self._settle_whole(call, reply, headers, b"".join(sent), metered)
            self._task = None
            await self._forward(call, out, headers)
            await self._answer.end()
            # After reading to the end, the upstream's connection can be reused.
            with contextlib.suppress(TimeoutError, GatewayFault):
                async with asyncio.timeout(_TAIL_SECONDS):
                    async for _ in pieces:
                        pass

    def _check_events(self, forwarder: StreamForwarder) -> None:
        """Raise as `check_events` does; a malformed event before any output becomes a lost reply."""
        try:
            forwarder.check_events()
        except GatewayFault as fault:
            if fault.code != "upstream_malformed" or self._answer.begun:
                raise
            raise LostReply(fault.code, fault.message) from None

    def _note_bound(self, call: MeteredCall) -> bool:
        """Record the highest cost of a stream once it is below the reserve; return whether it is."""
        most = call.most(self._partial_usage())
        entry = self._request.entry
        if entry is None or most >= call.grant.usd:
            return False
        self._admission.spawn(entry.worker.note_bound(call.id, most, durable=False))
        return True

    async def _forward(self, call: MeteredCall, out: bytes, headers: Mapping[str, str]) -> None:
        if not out:
            return
        if not self._answer.begun:
            await call.secured()
            await self._answer.begin(200, headers)
        await self._answer.write(out)


def find_quota_refusal(admission: BudgetAdmission, asked: Sequence[UpstreamRequest]) -> GatewayFault | None:
    """Return the refusal if one of these rests, at its provider's request, for longer than a client waits."""
    rests = [(one.health.resting, one.served) for one in asked if one.health is not None]
    if not any(wait > LONGEST_WAIT for wait, _ in rests):
        return None
    return quota_refusal(admission, asked[0].served.name, [rest for rest in rests if rest[0] > 0])


def _page_fault(status: int) -> GatewayFault:
    message = f"the provider's address answered with a web page (HTTP {status}): a proxy, or a wrong base_url"
    return GatewayFault("upstream_page", message)
