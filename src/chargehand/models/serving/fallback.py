"""Asks the models that may answer a request in order, until one does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from chargehand.models.contract import GatewayFault, NextModel
from chargehand.models.http.server import HttpAnswer
from chargehand.models.providers import LONGEST_WAIT, PROBE_SECONDS, Retries
from chargehand.models.serving.admission import BudgetAdmission
from chargehand.models.serving.handler import RequestHandler, UpstreamRequest, find_quota_refusal
from chargehand.models.serving.headers import refuse

Sleep = Callable[[float], Awaitable[object]]
# Longer than a probe in parallel to a call: without another model, no reply can come meanwhile anyway.
_PATIENT_SECONDS = 10.0


class FallbackChain:
    """Asks the models of one request in turn until one answers; `cut` breaks it off from outside.

    A model whose provider rests is skipped while another one is available. If a model may be back, a probe in
    parallel to the call finds out, so that the client does not wait; if it is the only one, the call itself does.
    `retries` makes the retries of one request from their number, `None` for the gateway's own.
    """

    def __init__(
        self,
        requests: Sequence[UpstreamRequest],
        answer: HttpAnswer,
        admission: BudgetAdmission,
        *,
        retries: Callable[[int | None], Retries],
        redact: Callable[[str], str],
        sleep: Sleep,
    ) -> None:
        self._requests = requests
        self._answer = answer
        self._admission = admission
        self._retries = retries
        self._redact = redact
        self._sleep = sleep
        self._running: RequestHandler | None = None
        self._cut: GatewayFault | None = None

    def cut(self, fault: GatewayFault) -> None:
        """Break off now: a partial reply ends in an error event, otherwise the client gets an error reply."""
        self._cut = self._cut or fault
        if self._running is not None:
            self._running.cut(fault)

    async def run(self) -> None:
        """Answer the client; raises `ClientGoneError` and `CancelledError` if it left."""
        try:
            requests = await self._select_ready()
            for place, request in enumerate(requests):
                more = place + 1 < len(requests)
                try:
                    await self._ask(replace(request, more=more, before=tuple(requests[:place])))
                except NextModel:
                    if self._cut is not None:
                        raise self._cut from None
                else:
                    return
        except GatewayFault as fault:
            if fault.code.startswith("upstream_"):
                self._admission.listeners.on_fault(f"{fault.code}: {fault.message}")
            await refuse(self._answer, self._requests[0].rules, fault)

    async def _ask(self, request: UpstreamRequest) -> None:
        """Ask one model once it is its turn at the provider; raises `NextModel` and `GatewayFault`."""
        # Another model answers sooner than a retry: every model but the last is asked once.
        retries = self._retries(0 if request.more else None)
        handler = self._running = RequestHandler(
            request, self._answer, self._admission, retries=retries, redact=self._redact
        )
        health = request.health
        if health is None:
            await handler.run()
            return
        probing = health.begin_probe()
        try:
            # A probe costs nothing, so it precedes a call that may cost money.
            probe = getattr(request.served.upstream, "probe", None) if probing else None
            suspected = health.address.breaker.state != "closed"
            if probe is not None and suspected and not await probe(_PATIENT_SECONDS):
                health.note_unreachable()
                message = f"provider {request.served.provider!r} still does not answer"
                raise (NextModel if request.more else GatewayFault)("upstream_unreachable", message)
            async with health.address.hold_slot(self._sleep):
                # The provider may have failed while the call was queued.
                if not probing and (wait := health.wait()) > 0:
                    if request.more:
                        raise NextModel(
                            "next_model", f"provider {request.served.provider!r} is paused after failures"
                        )
                    await self._wait(request, wait)
                await handler.run()
        finally:
            if probing:
                health.end_probe()

    async def _wait(self, request: UpstreamRequest, wait: float) -> None:
        """Wait for a provider; raises `GatewayFault` if that takes longer than a client waits."""
        message = f"model {request.served.name!r} failed too often and is not asked for another {wait:.0f} s"
        if wait <= LONGEST_WAIT:
            # Reported now, since the client may give up while it waits; a call sent later withdraws the report.
            self._admission.listeners.on_fault(f"upstream_resting: {message}")
            await self._sleep(wait)
            return
        refusal = find_quota_refusal(self._admission, self._requests)
        raise refusal or GatewayFault("upstream_resting", message, wait=wait)

    async def _select_ready(self) -> list[UpstreamRequest]:
        """Return the models that can be asked now, waiting for the first if necessary; raises `GatewayFault`."""
        if len(self._requests) == 1 and self._requests[0].health is None:
            return list(self._requests)
        ready = [request for request in self._requests if _wait_for(request) <= 0]
        certain = [one for one in ready if one.health is None or one.health.state == "closed"]
        if certain:
            # A model whose provider cannot be probed stays in the chain: only a call can find out.
            return [request for request in ready if request in certain or not self._probe(request)]
        if ready:
            return ready
        first = min(self._requests, key=_wait_for)
        await self._wait(first, _wait_for(first))
        return [first]

    def _probe(self, request: UpstreamRequest) -> bool:
        """Start a probe of an address that may be back; return whether a probe can settle the question.

        A probe says nothing about a model that failed by itself: only a call finds that out.
        """
        probe = getattr(request.served.upstream, "probe", None)
        if probe is None or request.health is None or request.health.address.breaker.state == "closed":
            return False
        address = request.health.address.breaker

        async def find_out() -> None:
            try:
                if await probe(PROBE_SECONDS):
                    address.note_success()
                else:
                    address.note_failure()
            finally:
                address.end_probe()

        if address.begin_probe():
            # The admission's task, since it may outlive this request and must end with the gateway.
            self._admission.spawn(find_out())
        return True


def _wait_for(request: UpstreamRequest) -> float:
    return 0.0 if request.health is None else request.health.wait()
