"""The forecast of a plan: its chance, cost and time from the beliefs about the agents and models of its tasks."""

from __future__ import annotations

import zlib

import msgspec
from msgspec.structs import replace

from chargehand.core.choices import ChoiceHistory
from chargehand.core.records import Band, MissionForecast
from chargehand.decisions.forecast_records import PlanDraw, PlanFacts, PlanProspect
from chargehand.decisions.forecasting.plan import simulate_plan
from chargehand.decisions.forecasts import foresee_task

PLAN_POLICY = "plan-forecast-1"
# Fewer than for a person who asks: the chance is exact to about half a point, and is computed again in each list.
_SAMPLES = 8000


def foresee_plan(facts: PlanFacts, history: ChoiceHistory) -> PlanProspect:
    """Return the prospects of a plan, for a simulation; raises as `learn_arm`."""
    return PlanProspect(
        tasks=tuple(foresee_task(each.task, each.after, each.facts, history) for each in facts.tasks),
        places=facts.places,
        money_left=facts.money_left,
        seconds_left=facts.seconds_left,
    )


def forecast_plan(facts: PlanFacts, history: ChoiceHistory) -> MissionForecast:
    """Return the forecast of a plan, the same for equal arguments; raises as `learn_arm` and `simulate_plan`."""
    draw = PlanDraw(
        policy=PLAN_POLICY,
        prospect=foresee_plan(facts, history),
        spent_usd=facts.spent_usd,
        seconds=facts.seconds,
        outcomes=sum(each.kind == facts.kind for each in history.outcomes),
    )
    return sample_plan(draw, zlib.crc32(msgspec.json.encode(facts)), _SAMPLES)


def sample_plan(draw: PlanDraw, seed: int, samples: int) -> MissionForecast:
    """Return the forecast that prospects give with a seed, and record these with it; raises as `simulate_plan`."""
    made = simulate_plan(draw.prospect, seed, samples)
    free = made
    if draw.prospect.money_left is not None:
        free = simulate_plan(replace(draw.prospect, money_left=None), seed, samples)
    return MissionForecast(
        chance=made.chance,
        cost_usd=None if draw.spent_usd is None else _raise_band(made.cost_usd, draw.spent_usd),
        seconds=_raise_band(made.seconds, draw.seconds),
        person_seconds=None,
        unlimited=free.chance,
        enough_usd=None,
        outcomes=draw.outcomes,
        seed=seed,
        samples=samples,
        evidence=msgspec.json.encode(draw).decode(),
        tasks=len(draw.prospect.tasks),
    )


def _raise_band(band: Band | None, by: float) -> Band | None:
    return None if band is None else Band(middle=band.middle + by, low=band.low + by, high=band.high + by)
