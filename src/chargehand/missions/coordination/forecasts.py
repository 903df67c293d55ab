"""Forecasts of a plan: recorded before its first task, and again when tasks were added."""

from __future__ import annotations

import asyncio

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.mission_events import ForecastMade
from chargehand.core.state import MissionState
from chargehand.decisions.forecast_records import PlanDraw
from chargehand.missions.forecasting import gather_plan_facts, is_ended
from chargehand.missions.journal import Journal
from chargehand.missions.reading import MissionReader
from chargehand.missions.services import Services


async def note_plan_forecast(services: Services, journal: Journal, look: MissionReader) -> None:
    """Record the forecast of a plan, once for each set of its tasks; nothing if decisions are not learned."""
    state = journal.state
    assert state.plan is not None
    tasks = {each.id for each in state.plan.plan.tasks}
    ended = {each for each in tasks if is_ended(state.plan, each)}
    if services.decider.plan_forecaster is None or ended == tasks or tasks <= _list_known(state) | ended:
        return
    facts = await asyncio.to_thread(gather_plan_facts, state, look, services.attempts_at_once)
    made = await asyncio.to_thread(services.decider.forecast_plan, facts)
    if made is not None:
        journal.record(ForecastMade(after=len(ended), forecast=made))


def _list_known(state: MissionState) -> set[str]:
    """Return the tasks of the last recorded forecast."""
    made = state.forecasts[-1].forecast if state.forecasts else None
    if made is None or not made.tasks:
        return set()
    try:
        draw = decode_as(made.evidence.encode(), PlanDraw)
    except msgspec.DecodeError:
        return set()
    return {each.id for each in draw.prospect.tasks}
