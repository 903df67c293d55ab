"""One request and the models that may answer it, asked one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from chargehand.models.contract import GatewayFault, NextModel
from chargehand.models.http.server import HttpAnswer
from chargehand.models.providers import LONGEST_SECONDS, PROBE_SECONDS, Retries, Standing
from chargehand.models.serving.admission import Desk, no_quota, quota_fault
from chargehand.models.serving.handler import JSON_HEADERS, Exchange, Order

Sleep = Callable[[float], Awaitable[object]]


class Chain:
    """Asks the models of one request in turn until one answers; `cut` breaks it off from outside.

    A model whose provider rests is left out while another one is there. One that may be back is tried out beside
    the call, by a probe, so that the client does not wait for it; where it is the only one, by the call itself.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        answer: HttpAnswer,
        desk: Desk,
        *,
        retries: Callable[[int | None], Retries],
        redact: Callable[[str], str],
        sleep: Sleep,
    ) -> None:
        self._orders = orders
        self._answer = answer
        self._desk = desk
        self._retries = retries
        self._redact = redact
        self._sleep = sleep
        self._running: Exchange | None = None
        self._cut: GatewayFault | None = None

    def cut(self, fault: GatewayFault) -> None:
        """Break off now: what the client has so far ends in an error event, or it gets an error reply."""
        self._cut = self._cut or fault
        if self._running is not None:
            self._running.cut(fault)

    async def run(self) -> None:
        """Answer the client; raises `ClientGoneError` and `CancelledError` where it is gone."""
        try:
            orders = await self._ready()
        except GatewayFault as fault:
            await self._refuse(fault)
            return
        for place, order in enumerate(orders):
            more = place + 1 < len(orders)
            try:
                await self._asked(replace(order, more=more, before=tuple(orders[:place])))
            except NextModel:
                if self._cut is not None:
                    await self._refuse(self._cut)
                    return
            except GatewayFault as fault:
                await self._refuse(fault)
                return
            else:
                return

    async def _asked(self, order: Order) -> None:
        retries = self._retries(0 if order.more else None)
        exchange = self._running = Exchange(order, self._answer, self._desk, retries=retries, redact=self._redact)
        if order.standing is None:
            await exchange.run()
            return
        trying = order.standing.try_out()
        try:
            async with order.standing.place(self._sleep):
                if not trying:
                    await self._still(order)
                await exchange.run()
        finally:
            if trying:
                order.standing.give_up()

    async def _still(self, order: Order) -> None:
        """Look again whether the provider may be asked: it may have failed while the call stood in line.

        Raises `NextModel` where another model is there, else waits; raises `GatewayFault`.
        """
        wait = _wait(order)
        if wait <= 0:
            return
        if order.more:
            raise NextModel("next_model", f"provider {order.served.provider!r} rests")
        await self._waited(order, wait)

    async def _waited(self, order: Order, wait: float) -> None:
        if wait > LONGEST_SECONDS:
            raise self._resting(order, wait)
        await self._sleep(wait)

    async def _ready(self) -> list[Order]:
        """Return who can be asked now, waiting for the first where nobody can; raises `GatewayFault`."""
        if len(self._orders) == 1 and self._orders[0].standing is None:
            return list(self._orders)
        ready = [order for order in self._orders if _wait(order) <= 0]
        certain = [order for order in ready if order.standing is None or order.standing.state == "closed"]
        if certain:
            return [order for order in ready if order in certain or not self._probed(order)]
        if ready:
            return ready
        first = min(self._orders, key=_wait)
        await self._waited(first, _wait(first))
        return [first]

    def _resting(self, order: Order, wait: float) -> GatewayFault:
        if no_quota(self._orders):
            return quota_fault(self._desk, self._orders)
        message = f"model {order.served.name!r} failed too often and is left alone for {wait:.0f} s"
        return GatewayFault("upstream_resting", message, wait=wait)

    def _probed(self, order: Order) -> bool:
        """Start a probe of a provider that may be back; return whether it can be probed at all."""
        probe = getattr(order.served.upstream, "probe", None)
        if probe is None or order.standing is None:
            return False
        if order.standing.try_out():
            self._desk.spawn(_probe(probe, order.standing))
        return True

    async def _refuse(self, fault: GatewayFault) -> None:
        rules = self._orders[0].rules
        wait = {} if fault.wait is None else {"retry-after": f"{fault.wait:.0f}", "x-should-retry": "false"}
        body = rules.error(fault.status, fault.code, fault.message)
        await self._answer.send(fault.status, {**JSON_HEADERS, **wait}, body)


def _wait(order: Order) -> float:
    return 0.0 if order.standing is None else order.standing.wait()


async def _probe(probe: Callable[[float], Awaitable[Any]], standing: Standing) -> None:
    try:
        if await probe(PROBE_SECONDS):
            standing.good()
        else:
            standing.bad()
    finally:
        standing.give_up()
