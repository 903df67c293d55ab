"""Forecasts of a mission: the facts that one is made from, its numbers, and the sentence that states them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from chargehand.core.records import FEW_OUTCOMES, Band, MissionForecast


class ForecastFacts(Struct, frozen=True, kw_only=True):
    """The facts about a mission that its forecast follows from; money in USD, time in seconds.

    `agent` and `model` are as in `Candidate`, `kind` is as in `ChoiceContext`, `served` the provider's name of the
    model if it has another. `attempts` and the limits count from the end of the last finished attempt; a limit is
    `None` if there is none. `spent_usd` (`None`: unknown) and `seconds` are those of finished attempts,
    `running_usd` and `running_seconds` those of the running one so far. `attempt_usd` bounds each attempt.
    """

    mission: str
    kind: str
    agent: str
    model: str | None = None
    served: str = ""
    attempts: int = 1
    money_left: float | None = None
    attempt_usd: float | None = None
    seconds_left: float | None = None
    spent_usd: float | None = 0.0
    seconds: float = 0.0
    running_usd: float = 0.0
    running_seconds: float = 0.0


class ForecastDraw(Struct, frozen=True, kw_only=True):
    """The beliefs about one agent with its model and about one mission, from which its forecast was sampled.

    Rows of lists belong to the three weights of the shared difficulty. `skills`, `skill_variances` and
    `log_weights` are as in `KindBelief`, `difficulty` and `family` as in `TaskBelief` (`None`: nothing is known of
    the family's part). `costs` counts the known costs of the arm, `squares` and `count` give the spread of its log
    price, `arm_squares` that of its own. `task_price` is the part of the log price that belongs to the task.
    """

    policy: str
    facts: ForecastFacts
    outcomes: int
    log_weights: tuple[float, ...]
    skills: tuple[float, ...]
    skill_variances: tuple[float, ...]
    difficulty: tuple[tuple[float, ...], ...]
    family: tuple[tuple[tuple[float, ...], ...], ...] | None
    price: float
    price_variance: float
    squares: float
    count: float
    arm_squares: float
    costs: int
    task_price: float
    task_price_variance: float | None
    time: LogNormal | None


class LogNormal(Struct, frozen=True, kw_only=True):
    """The log of a positive quantity: mean, the variance of the mean, and the variance between attempts."""

    mean: float
    variance: float = 0.0
    spread: float = 0.0


class TaskProspect(Struct, frozen=True, kw_only=True):
    """The prospects of an unfinished task of a plan: it starts after other unfinished tasks.

    Skill and difficulty are in probits with their variances, `weight` is the variance share of the difficulty.
    Tasks of one `arm` share the uncertainty of its skill, cost (USD) and time (seconds), `None` if unknown.
    `attempts` bounds the tries before a person is asked. `elapsed` and `spent` are those of a running task.
    """

    id: str
    arm: str
    after: tuple[str, ...] = ()
    skill: float = 0.0
    skill_variance: float = 0.0
    weight: float = 0.5
    difficulty: float = 0.0
    difficulty_variance: float = 1.0
    cost: LogNormal | None = None
    time: LogNormal | None = None
    attempts: int = 1
    elapsed: float = 0.0
    spent: float = 0.0


class PlanProspect(Struct, frozen=True, kw_only=True):
    """The unfinished tasks in the order in which free places take them, and the plan's limits.

    `places` bounds the tasks at the same time; `money_left` in USD and `seconds_left` are `None` without a limit.
    """

    tasks: tuple[TaskProspect, ...]
    places: int
    money_left: float | None = None
    seconds_left: float | None = None


class CriticalTask(Struct, frozen=True, kw_only=True):
    """The share of samples in which a task is on the longest path: a delay of it delays the plan."""

    task: str
    share: float


class PlanForecast(Struct, frozen=True, kw_only=True):
    """The chance that all unfinished tasks get done within the limits, with further cost (USD) and time (seconds).

    The time ends when all is done or nothing more can start; a quantity is `None` if it is unknown of any task.
    `critical` is ordered by share. `outcomes` counts the attempts of the project that it was made from.
    """

    chance: float
    cost_usd: Band | None
    seconds: Band | None
    critical: tuple[CriticalTask, ...]
    samples: int
    outcomes: int = 0


class TaskFacts(Struct, frozen=True, kw_only=True):
    """An unfinished task of a plan, the unfinished tasks that it waits for, and the facts about its attempts."""

    task: str
    after: tuple[str, ...]
    facts: ForecastFacts


class PlanFacts(Struct, frozen=True, kw_only=True):
    """The facts that the forecast of a plan follows from: its unfinished tasks and its limits.

    `kind` is as in `ChoiceContext`, the limits as in `PlanProspect`. `spent_usd` (`None`: unknown) and `seconds`
    are those of the plan so far.
    """

    kind: str
    tasks: tuple[TaskFacts, ...]
    places: int
    money_left: float | None = None
    seconds_left: float | None = None
    spent_usd: float | None = 0.0
    seconds: float = 0.0


class PlanDraw(Struct, frozen=True, kw_only=True):
    """The prospects from which the forecast of a plan was sampled; the rest is as in `PlanFacts`.

    `outcomes` counts the attempts of the project that they were learned from.
    """

    policy: str
    prospect: PlanProspect
    spent_usd: float | None
    seconds: float
    outcomes: int


def describe_forecast(made: MissionForecast) -> str:
    """Return a forecast as one sentence without its end."""
    cost = describe_band(made.cost_usd, "cost unknown", lambda usd: f"{usd:.2f} USD")
    time = describe_band(made.seconds, "time unknown", format_span)
    hope = "chance to be promoted"
    if made.tasks:
        hope = (
            "chance that its task gets done" if made.tasks == 1 else f"chance that all {made.tasks} tasks get done"
        )
    return f"{made.chance:.0%} {hope}, {cost}, {time}; {describe_outcomes(made.outcomes)}"


def describe_outcomes(count: int) -> str:
    """Return the number of outcomes in words."""
    few = f"a guess: fewer than {FEW_OUTCOMES} outcomes known"
    return few if count < FEW_OUTCOMES else f"from {count} attempts"


def describe_band(band: Band | None, unknown: str, form: Callable[[float], str]) -> str:
    """Return a quantity with its band, each number in this form, or the words for an unknown one."""
    if band is None:
        return unknown
    return f"{form(band.middle)} ({form(band.low)} to {form(band.high)})"


def format_span(seconds: float) -> str:
    """Return a time for a person, to two digits: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
