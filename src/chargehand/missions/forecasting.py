"""Forecasts of a running mission: recorded before its attempts; a budget that will not do is a question.

Also the facts from which missions and plans are forecast.
"""

from __future__ import annotations

import asyncio
import math

from msgspec.structs import replace

from chargehand.core.choices import task_work
from chargehand.core.config import Config
from chargehand.core.errors import RefusedError, WaitingError
from chargehand.core.mission_events import ForecastMade, QuestionAsked
from chargehand.core.plan_events import PlanProgress
from chargehand.core.plans import Task
from chargehand.core.records import MissionForecast, MissionRequest, Reason
from chargehand.core.state import ENDED, MissionState
from chargehand.decisions.forecast_records import ForecastFacts, PlanFacts, TaskFacts
from chargehand.missions.journal import Journal
from chargehand.missions.reading import MissionReader
from chargehand.missions.services import Services

BUDGET_QUESTION = "forecast/budget"
_GO_ON, _STOP = "go on anyway", "stop"
# Agents that take no advice get one round of a task, others a second one with another approach.
_ONE_ROUND = ("command", "patch")
# A mission is put to a person if it passes within its budget with less than this chance, and more money would add
# at least as much again as the second number.
_UNLIKELY, _GAIN = 0.2, 0.1


def gather_facts(state: MissionState, config: Config, request: MissionRequest) -> ForecastFacts:
    """Return the facts of a mission for its forecast; `request` has its agent and model."""
    ended = [each for each in state.attempts if each.status != "running" and not each.copied]
    costs = [each.cost_so_far for each in ended]
    known = [cost for cost in costs if cost is not None]
    running = next((each for each in state.attempts if each.status == "running"), None)
    running_seconds = 0.0
    if running is not None:
        begun = state.seconds_of(f"attempt/{running.number}/")
        running_seconds = begun + max(0.0, state.worked_seconds - state.seconds_of())
    seconds = max(0.0, state.seconds_used - running_seconds)
    entry = config.models.get(request.model or "")
    limits = config.limits
    asked = state.request or request
    return ForecastFacts(
        mission=task_work(state.parent or state.id, state.task),
        kind=state.project,
        agent=request.agent,
        model=request.model,
        served=entry.model or "" if entry is not None else "",
        attempts=max(0, asked.attempts - max((each.number for each in ended), default=0)),
        money_left=max(0.0, limits.budget_usd - sum(each.booked_usd for each in ended)),
        attempt_usd=limits.attempt_usd,
        seconds_left=max(0.0, asked.seconds - seconds),
        spent_usd=sum(known) if len(known) == len(costs) else None,
        seconds=seconds,
        running_usd=running.booked_usd if running is not None else 0.0,
        running_seconds=running_seconds,
    )


def gather_plan_facts(state: MissionState, look: MissionReader, places: int) -> PlanFacts:
    """Return the facts of the unfinished tasks of a plan; `places` is the limit of the installation.

    Raises `StoreError`.
    """
    assert state.plan is not None
    assert state.request is not None
    progress, config, limit = state.plan, state.config or Config(), state.request.plan_seconds
    left = [each for each in progress.plan.tasks if not is_ended(progress, each.id)]
    booked = look.store.spending.total(mission=state.id).booked_usd
    known = state.tasks is None or state.tasks.cost_usd is not None
    return PlanFacts(
        kind=state.project,
        # Free places take tasks in this order.
        tasks=tuple(
            TaskFacts(
                task=task.id,
                after=tuple(each for each in task.after if not is_ended(progress, each)),
                facts=_gather_task(state, progress, task, look),
            )
            for task in sorted(left, key=lambda task: -task.priority)
        ),
        places=progress.plan.at_once or places,
        money_left=max(0.0, config.limits.budget_usd - booked),
        seconds_left=None if limit is None else max(0.0, limit - state.plan_elapsed),
        spent_usd=booked if known else None,
        seconds=state.plan_elapsed,
    )


def is_ended(progress: PlanProgress, task: str) -> bool:
    """Return whether a task of a plan needs no more work."""
    return task in progress.tasks and progress.tasks[task].end is not None


def request_now(state: MissionState, request: MissionRequest) -> MissionRequest:
    """Return the request with the agent and model of the last attempt."""
    last = state.attempts[-1] if state.attempts else None
    return request if last is None else replace(request, agent=last.agent, model=last.model or request.model)


def _gather_task(state: MissionState, progress: PlanProgress, task: Task, look: MissionReader) -> ForecastFacts:
    assert state.request is not None
    config, request = state.config or Config(), state.request
    runs = progress.tasks[task.id].current if task.id in progress.tasks else ()
    child = look.state(runs[-1].mission) if runs else None
    agent, model = task.agent or request.agent, next(iter(task.models), request.model)
    asked = replace(request, agent=agent, model=model, attempts=task.attempts or request.attempts)
    if child is not None and child.request is not None and child.status not in ENDED:
        facts = gather_facts(child, config, request_now(child, child.request))
    else:
        facts = gather_facts(MissionState(id=f"{state.id}/{task.id}", project=state.project), config, asked)
    entry = config.agents.get(agent)
    kind = entry.kind if entry is not None else agent.partition(":")[0]
    again = task.id in progress.tasks and progress.tasks[task.id].round > 1
    rounds = 1 if kind in _ONE_ROUND or again else 2
    return replace(facts, attempts=max(1, facts.attempts) + (rounds - 1) * asked.attempts)


async def note_forecast(
    services: Services, journal: Journal, request: MissionRequest, after: int
) -> MissionForecast | None:
    """Record the forecast after so many attempts, once; `None` if decisions are not learned."""
    known = next((each for each in journal.state.forecasts if each.after == after), None)
    if known is not None:
        return known.forecast
    facts = gather_facts(journal.state, services.config, request)
    # A person may have asked for one more than the request allows.
    facts = replace(facts, attempts=max(1, facts.attempts))
    made = await asyncio.to_thread(services.decider.forecast, facts)
    if made is not None:
        journal.record(ForecastMade(after=after, forecast=made))
    return made


async def heed_forecast(services: Services, journal: Journal, request: MissionRequest) -> None:
    """Record the forecast before the first attempt, and ask a person if the budget will probably not do.

    A guess asks nothing. Raises `WaitingError` while a person is asked, `RefusedError` if they stop the mission
    (`budget_unlikely`).
    """
    state = journal.state
    if state.attempts:
        return
    made = await note_forecast(services, journal, request, 0)
    asked = state.questions.get(BUDGET_QUESTION)
    if asked is None or asked.lapsed:
        if made is None or state.parent or not _can_raise(services, journal, made):
            return
        message = _describe(services, made)
        raised = f"raise the budget to {raised_budget(made):g} USD"
        meanings = {
            _GO_ON: f"keep the budget of {services.config.limits.budget_usd:g} USD",
            raised: f"{made.unlimited:.0%} chance at most; it is spent only as far as it is needed",
            _STOP: "end the mission; no agent has started, and nothing has been spent",
        }
        question = QuestionAsked(
            question=BUDGET_QUESTION,
            tree=state.base.tree if state.base is not None else "",
            reasons=(Reason(code="budget_unlikely", message=message),),
            text=message,
            options=tuple(meanings),
            meanings=tuple(meanings.values()),
            kind="risk",
            closed=True,
        )
        journal.record(journal.limited(question), durable=True)
        raise WaitingError(message, code="budget_unlikely")
    if asked.answer is None:
        raise WaitingError(asked.text, code="budget_unlikely")
    if asked.answer == _STOP:
        raise RefusedError(asked.text, code="budget_unlikely", hint="give it more money with --budget")


def find_raised_budget(state: MissionState, question: str, answer: str) -> float | None:
    """Return the budget that an answer asks for in USD, `None` if it asks for none."""
    if question != BUDGET_QUESTION or not state.forecasts or answer != state.questions[question].options[1]:
        return None
    return raised_budget(state.forecasts[0].forecast)


def raised_budget(made: MissionForecast) -> float:
    """Return the budget that is enough by a forecast, rounded up to two digits."""
    enough = max(made.enough_usd or 0.0, 0.01)
    step = 10.0 ** (math.floor(math.log10(enough)) - 1)
    return round(math.ceil(enough / step - 1e-9) * step, 6)


def _can_raise(services: Services, journal: Journal, made: MissionForecast) -> bool:
    """Return whether the mission will probably not end within its budget, and a larger one is possible."""
    limits, spending = services.config.limits, services.store.spending
    if made.is_guess or made.cost_usd is None or made.enough_usd is None:
        return False
    if made.chance >= _UNLIKELY or made.unlimited < made.chance + _GAIN:
        return False
    budget, today = raised_budget(made), services.clock.now().date().isoformat()
    user = journal.state.user
    of_user = (
        math.inf if limits.user_usd is None else limits.user_usd - spending.total(day=today, user=user).booked_usd
    )
    of_day = math.inf if limits.day_usd is None else limits.day_usd - spending.booked_on(today)
    return limits.budget_usd < budget <= min(of_user, of_day)


def _describe(services: Services, made: MissionForecast) -> str:
    return (
        f"it will probably not end within its budget of {services.config.limits.budget_usd:g} USD: "
        f"{made.chance:.0%} chance, but {made.unlimited:.0%} with enough money (from {made.outcomes} attempts)"
    )
