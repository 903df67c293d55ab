"""The ledger equals the invoices of scripted providers, for any concurrency and any ends of calls."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.gateway_kit import SSE, Reply, Scripted, event, gateway, message

from chargehand.core.clock import SteppedClock
from chargehand.models.contract import (
    CallListeners,
    CallRecord,
    GatewayFault,
    ModelCall,
    Price,
    PriceTier,
    ReplyUsage,
    ServedModel,
    Usage,
)
from chargehand.models.metering import CallBound
from chargehand.models.serving.admission import BudgetAdmission
from chargehand.store.ledger import SpendingLimits
from chargehand.store.store import Store, open_store

PRICE = Price(input=1.0, output=10.0)
MISSIONS = {"a-1": "m-1", "a-2": "m-1", "a-3": "m-2"}
USERS = {"m-1": "ann", "m-2": "ann"}


@dataclass(frozen=True)
class Scene:
    """A call as its provider sees it: the usage, the price that it reports, and whether it reports usage."""

    attempt: str
    asked: int
    used: float
    word: float | None
    tells: bool
    turns: int

    @property
    def tokens(self) -> tuple[int, int]:
        """Return the tokens read and written, within the limit given."""
        return 1_000, int(self.asked * self.used)

    @property
    def invoice(self) -> float:
        """Return the provider's charge."""
        read, wrote = self.tokens
        return self.word if self.word is not None else (read * 1.0 + wrote * 10.0) / 1e6


SCENES = st.lists(
    st.builds(
        Scene,
        attempt=st.sampled_from(sorted(MISSIONS)),
        asked=st.integers(16, 40_000),
        used=st.floats(0, 1),
        # The cost that a provider reports may exceed that of its tokens: the call is booked at the reported cost.
        word=st.none() | st.floats(0, 0.5).map(lambda usd: round(usd, 6)),
        tells=st.booleans(),
        turns=st.integers(0, 5),
    ),
    min_size=1,
    max_size=14,
)
LIMITS = st.none() | st.integers(1, 12).map(lambda part: part / 10)


async def play(store: Store, clock: SteppedClock, scenes: list[Scene], limits: SpendingLimits) -> list[CallRecord]:
    """Make all calls at once; each gateway has its own client, and all share one ledger."""
    records: list[CallRecord] = []
    served = ServedModel(name="m", dialect="openai", model="up", upstream=Scripted(), price=PRICE)
    gateways = {}
    for attempt, mission in MISSIONS.items():
        money = store.spending.ledger(mission=mission, attempt=attempt, limits=limits, user=USERS[mission])
        gateways[attempt] = BudgetAdmission(
            money,
            clock,
            attempt=attempt,
            listeners=CallListeners(on_call=records.append, on_alert=lambda spent: told.append(spent.limit)),
        )
    told: list[str] = []

    async def call(scene: Scene) -> None:
        bound = CallBound(input=1_000, output=scene.asked, asked=True)
        try:
            bill = await gateways[scene.attempt].open(served, bound, turn=1)
        except GatewayFault as fault:
            refused.add(fault.code)
            return
        bill.sent = True
        for _ in range(scene.turns):
            await asyncio.sleep(0)
        read, wrote = scene.tokens
        wrote = min(wrote, bill.grant.limit or wrote)
        usage = Usage(input=read, output=wrote, cost_usd=scene.word) if scene.tells else Usage()
        invoices[bill.id] = scene.word if scene.word is not None else (read + wrote * 10.0) / 1e6
        tells[bill.id] = scene.tells
        await bill.close("ok", 200, metered=ReplyUsage(usage=usage))

    refused: set[str] = set()
    invoices: dict[str, float] = {}
    tells: dict[str, bool] = {}
    await asyncio.gather(*map(call, scenes))
    for running in gateways.values():
        await running.close()
    assert refused <= {"budget_exhausted"}
    made = {record.call: record for record in records if record.status != "refused"}
    assert made.keys() == invoices.keys()
    for name, record in made.items():
        if tells[name]:
            assert record.cost_usd == pytest.approx(invoices[name], abs=1e-6)
            assert record.computed_usd is not None
            assert record.reported_usd is None or record.reported_usd == record.cost_usd
        else:
            assert (record.cost_usd, record.reported_usd, record.computed_usd) == (None, None, None)
            assert record.booked_usd * 1e6 >= 1_000, "what nobody tells stays booked at its reserve"
    known = sum(usd for name, usd in invoices.items() if tells[name])
    assert store.spending.total().known_usd == pytest.approx(known, abs=1e-6 * len(scenes))
    booked = sum(record.booked_usd for record in made.values())
    assert store.spending.total().booked_usd == pytest.approx(booked, abs=1e-6 * len(scenes))
    subjects = {"attempt": len(MISSIONS), "mission": len(USERS), "user": 1}
    assert all(told.count(limit) <= subjects[limit] for limit in told), "once for each"
    return list(made.values())


@settings(max_examples=examples(25), deadline=None)
@given(scenes=SCENES, attempt=LIMITS, mission=LIMITS, user=LIMITS)
def test_the_ledger_equals_the_invoices_and_limits_hold_up_to_excess_costs(
    scenes: list[Scene], attempt: float | None, mission: float | None, user: float | None
) -> None:
    limits = SpendingLimits(attempt_usd=attempt, mission_usd=mission, user_usd=user)
    clock = SteppedClock()
    with tempfile.TemporaryDirectory() as home, open_store(Path(home, "home"), clock=clock) as store:
        records = asyncio.run(play(store, clock, scenes, limits))
        # Priced by tokens, nothing passes a limit; a cost reported by the provider may pass it by the difference.
        for limit, ours in (
            (attempt, [[r for r in records if r.attempt == name] for name in MISSIONS]),
            (mission, [[r for r in records if MISSIONS[r.attempt] == name] for name in USERS]),
            (user, [records]),
        ):
            for calls in ours:
                above = sum(max(0.0, (r.reported_usd or 0.0) - (r.computed_usd or 0.0)) for r in calls)
                assert limit is None or sum(r.booked_usd for r in calls) <= limit + above + 1e-6


SHORT = PriceTier(input=3.0, output=15.0, cached=0.3, cache_write=3.75, hour_write=6.0)
LONG = PriceTier(input=6.0, output=22.5, cached=0.6, cache_write=7.5, hour_write=12.0, start=200_000)
TIERED = Price(input=6.0, output=22.5, cached=0.6, cache_write=7.5, hour_write=12.0, tiers=(SHORT, LONG))


class InvoicingProvider:
    """A provider that answers with random usage of every kind, and keeps its own invoice in exact numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.invoice = Decimal(0)

    def answer(self, call: ModelCall) -> Reply:
        draw = self._random.choice([lambda: 0, lambda: self._random.randrange(3_000), self._large])
        plain, cached, minutes, hours = 1 + draw(), draw(), draw(), draw()
        output = self._random.randrange(1, int(call.body["max_tokens"]))
        rates = LONG if plain + cached + minutes + hours > LONG.start else SHORT
        charged = (
            (plain, rates.input),
            (cached, rates.cached),
            (minutes, rates.cache_write),
            (hours, rates.hour_write),
            (output, rates.output),
        )
        self.invoice += sum(tokens * Decimal(str(rate)) for tokens, rate in charged) / 1_000_000
        usage = {
            "input_tokens": plain,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": minutes + hours,
            "cache_creation": {"ephemeral_5m_input_tokens": minutes, "ephemeral_1h_input_tokens": hours},
        }
        if not call.stream:
            whole = message([{"type": "text", "text": "x"}], usage={**usage, "output_tokens": output})
            return Reply(pieces=[json.dumps(whole).encode()])
        stop = {"stop_reason": "end_turn", "stop_sequence": None}
        begun = message([], stop_reason=None, usage={**usage, "output_tokens": 1})
        pieces = (
            event("message_start", message=begun),
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"}),
            event("message_delta", delta=stop, usage={"output_tokens": output}),
            event("message_stop"),
        )
        return Reply(headers=SSE, pieces=pieces)

    def _large(self) -> int:
        return self._random.randrange(150_000)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("calls", [200, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_bookings_equal_the_providers_invoice_to_the_cent(tmp_path: Path, calls: int) -> None:
    provider, clock = InvoicingProvider(seed=calls), SteppedClock()
    with open_store(tmp_path / "home", clock=clock) as store:
        ledger = store.spending.ledger(mission="m-1", attempt="a-1", limits=SpendingLimits(mission_usd=1e6))
        async with gateway(tmp_path, provider.answer, price=TIERED, dialect="anthropic", ledger=ledger) as running:
            ask: dict[str, Any] = {"model": "m", "max_tokens": 4_000, "messages": []}

            async def take(numbers: Iterator[int]) -> None:
                for number in numbers:
                    reply = await running.post({**ask, "stream": number % 2 == 0}, "/v1/messages")
                    assert reply.status_code == 200

            left = iter(range(calls))
            await asyncio.gather(*(take(left) for _ in range(20)))
        booked = store.spending.total()
    assert abs(Decimal(str(booked.known_usd)) - provider.invoice) < Decimal("0.005")
    assert booked.known_usd == booked.booked_usd
    assert sum(record.cost_usd or 0.0 for record in running.records) == pytest.approx(float(provider.invoice))
    assert len(running.records) == calls
