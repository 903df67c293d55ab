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
from chargehand.core.plan_events import PlanProgress
from chargehand.core.plans import Task
from chargehand.core.records import Band, MissionForecast, MissionRequest
from chargehand.core.state import ENDED, MissionState, total_cost
from chargehand.decisions.forecast_records import (
    PlanForecast,
    PlanProspect,
    TaskProspect,
    describe_band,
    describe_forecast,
    describe_outcomes,
    format_span,
)
from chargehand.missions.forecasting import gather_facts
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader

_SHOWN_TASKS = 5
# Agents that take no advice get one round of a task, others a second one with another approach.
_ONE_ROUND = ("command", "patch")


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
        plan = _forecast_plan(reader, state, state.request, history())
    else:
        from chargehand.decisions import forecasts

        request = _request_now(state, state.request)
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


def _request_now(state: MissionState, request: MissionRequest) -> MissionRequest:
    """Return the request with the agent and model of the last attempt."""
    last = state.attempts[-1] if state.attempts else None
    return request if last is None else replace(request, agent=last.agent, model=last.model or request.model)


def _forecast_plan(
    reader: StateReader, state: MissionState, request: MissionRequest, history: ChoiceHistory
) -> PlanForecast | None:
    progress, config = state.plan, state.config or Config()
    if progress is None or not progress.plan.tasks:
        raise RefusedError(
            f"mission {state.id!r} has no plan yet",
            code="no_plan",
            hint=f"chargehand mission watch {state.id} shows when its planner is done",
        )
    left = [each for each in progress.plan.tasks if not _is_ended(progress, each.id)]
    if not left:
        return None
    ordered = sorted(left, key=lambda task: -task.priority)
    tasks = tuple(_foresee(reader, state, request, task, history) for task in ordered)
    limit = request.plan_seconds
    prospect = PlanProspect(
        tasks=tasks,
        places=progress.plan.at_once or reader.engine.attempts_at_once,
        money_left=max(0.0, config.limits.budget_usd - reader.store.spending.total(mission=state.id).booked_usd),
        seconds_left=None if limit is None else max(0.0, limit - state.plan_elapsed),
    )
    made = simulate_capped(prospect, seed=zlib.crc32(state.id.encode()))
    return replace(made, outcomes=sum(each.kind == state.project for each in history.outcomes))


def _foresee(
    reader: StateReader, state: MissionState, request: MissionRequest, task: Task, history: ChoiceHistory
) -> TaskProspect:
    from chargehand.decisions.forecasts import foresee_task

    assert state.plan is not None
    progress, config = state.plan, state.config or Config()
    runs = progress.tasks[task.id].current if task.id in progress.tasks else ()
    child = reader.mission_reader.state(runs[-1].mission) if runs else None
    agent, model = task.agent or request.agent, next(iter(task.models), request.model)
    asked = replace(request, agent=agent, model=model, attempts=task.attempts or request.attempts)
    if child is not None and child.request is not None and child.status not in ENDED:
        facts = gather_facts(child, config, _request_now(child, child.request))
    else:
        facts = gather_facts(MissionState(id=f"{state.id}/{task.id}", project=state.project), config, asked)
    entry = config.agents.get(agent)
    kind = entry.kind if entry is not None else agent.partition(":")[0]
    rounds = 1 if kind in _ONE_ROUND or progress.tasks[task.id].round > 1 else 2
    facts = replace(facts, attempts=max(1, facts.attempts) + (rounds - 1) * asked.attempts)
    after = tuple(each for each in task.after if not _is_ended(progress, each))
    return foresee_task(task.id, after, facts, history)


def _is_ended(progress: PlanProgress, task: str) -> bool:
    return task in progress.tasks and progress.tasks[task].end is not None


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
