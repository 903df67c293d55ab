"""Forecasts of a mission for a person: of what is left to do, of a whole plan, or against what happened."""

from __future__ import annotations

import zlib

from msgspec.structs import replace

from chargehand.app.selection.deciders import make_decider
from chargehand.app.wiring.simulation import simulate_capped
from chargehand.configuration.extras import require_extra
from chargehand.core.choices import ChoiceHistory
from chargehand.core.config import Config
from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.records import Band, MissionForecast
from chargehand.core.state import ENDED, MissionState, total_cost
from chargehand.decisions.forecast_records import (
    PlanForecast,
    describe_band,
    describe_forecast,
    describe_outcomes,
    format_span,
)
from chargehand.missions.forecasting import gather_facts, gather_plan_facts, request_now
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader

_SHOWN_TASKS = 5


class ForecastDocument(Document, frozen=True):
    """`mission forecast`: `forecast` of a mission, or `plan` of its unfinished tasks, unless it has ended.

    `at_start` is the forecast before its first attempt, if one was recorded. `cost_usd` (`None`: unknown) and
    `seconds` are those so far. `summary` says it in words. Forecasts are without their evidence.
    """

    mission: str
    status: str
    forecast: MissionForecast | None
    plan: PlanForecast | None
    at_start: MissionForecast | None
    cost_usd: float | None
    seconds: float
    summary: tuple[str, ...]


def forecast_mission(reader: StateReader, name: str) -> ForecastDocument:
    """Return the forecast of a mission.

    Raises `UsageError` if decisions are not learned or numpy is missing, `NotFoundError`, `StoreError`,
    `RefusedError` (`no_plan`) while a planner still makes its plan, `InfrastructureError` (`forecast_failed`).
    """
    config = reader.user_configuration().config
    if not config.decisions.learned:
        raise UsageError(
            "forecasts are made from outcomes, and decisions are not learned",
            hint="chargehand config set decisions.learned true",
        )
    require_extra("decisions")
    state = reader.mission_state(name)
    history = make_decider(config, lambda: reader.store).history
    forecast, plan = None, None
    if state.status in ENDED or state.request is None:
        pass
    elif state.plan is not None or state.tasks is not None:
        plan = _forecast_plan(reader, state, history())
    else:
        from chargehand.decisions import forecasts

        request = request_now(state, state.request)
        facts = gather_facts(state, state.config or Config(), request)
        forecast = replace(forecasts.forecast_mission(facts, history()), evidence="")
    cost = total_cost([state]) if state.tasks is None else state.tasks.cost_usd
    seconds = state.seconds_used if state.plan is None else state.plan_elapsed
    at_start = replace(state.forecasts[0].forecast, evidence="") if state.forecasts else None
    return ForecastDocument(
        mission=state.id,
        status=state.status,
        forecast=forecast,
        plan=plan,
        at_start=at_start,
        cost_usd=cost,
        seconds=seconds,
        summary=_describe(state, forecast, plan, cost, seconds),
    )


def _forecast_plan(reader: StateReader, state: MissionState, history: ChoiceHistory) -> PlanForecast | None:
    if state.plan is None or not state.plan.plan.tasks:
        raise RefusedError(
            f"mission {state.id!r} has no plan yet",
            code="no_plan",
            hint=f"chargehand mission watch {state.id} shows when its planner is done",
        )
    facts = gather_plan_facts(state, reader.mission_reader, reader.engine.attempts_at_once)
    if not facts.tasks:
        return None
    from chargehand.decisions.plan_forecasts import foresee_plan

    made = simulate_capped(foresee_plan(facts, history), seed=zlib.crc32(state.id.encode()))
    return replace(made, outcomes=sum(each.kind == state.project for each in history.outcomes))


def _describe(
    state: MissionState,
    made: MissionForecast | None,
    plan: PlanForecast | None,
    cost: float | None,
    seconds: float,
) -> tuple[str, ...]:
    so_far = f"{'cost unknown' if cost is None else f'{cost:.2f} USD'}, {format_span(seconds)}"
    lines = []
    if state.status == "waiting" and state.waits_for_quota is None:
        lines.append("It waits for a person now.")
    if made is not None:
        lines += [f"{describe_forecast(made)}.", f"These are totals; so far: {so_far}."]
        if made.person_seconds is not None:
            after = format_span(made.person_seconds)
            lines.append(
                f"With {1 - made.chance:.0%} chance a person is needed, then after about {after} of work."
            )
    if plan is not None:
        cost_words = describe_band(plan.cost_usd, "cost unknown", lambda usd: f"{usd:.2f} USD")
        time_words = describe_band(plan.seconds, "time unknown", format_span)
        base = describe_outcomes(plan.outcomes)
        lines.append(
            f"{plan.chance:.0%} chance that all tasks get done, further {cost_words}, {time_words}; {base}."
        )
        lines.append(f"So far: {so_far}.")
        if plan.critical:
            most = ", ".join(f"{each.task} {each.share:.0%}" for each in plan.critical[:_SHOWN_TASKS])
            lines.append(f"On the longest path: {most}.")
    if state.status in ENDED:
        if not state.forecasts:
            lines.append("No forecast was recorded when it began.")
        else:
            begun = state.forecasts[0].forecast
            lines.append(f"When it began: {describe_forecast(begun)}.")
            lines += [
                f"Its {name} was {_place(value, band)} the 80% band."
                for name, value, band in (("cost", cost, begun.cost_usd), ("time", seconds, begun.seconds))
                if band is not None and value is not None
            ]
        lines.append(f"It ended {state.status}: {so_far}.")
    return tuple(lines)


def _place(value: float, band: Band) -> str:
    return "below" if value < band.low else "above" if value > band.high else "within"
