"""Predictions against outcomes: which attempt a chance is about, what is open, and the numbers of a tenth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.server_kit import environment

from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.events import Payload
from chargehand.core.mission_events import (
    AgentSelected,
    AttemptFinished,
    FeedbackGiven,
    ForecastMade,
    MissionCreated,
    MissionFinished,
)
from chargehand.core.plan_events import PlanMade, TaskEnded, TaskOutcome
from chargehand.core.plans import Plan, Task
from chargehand.core.records import (
    AttemptStatus,
    ChoiceReason,
    MissionForecast,
    MissionRequest,
    MissionStatus,
    Reason,
)
from chargehand.decisions.routing.next_steps import ASK
from chargehand.decisions.routing.records import StepChoice, StepDraw, ValuedStep
from chargehand.reports.predictions import Reliability, list_forecasts, measure_reliability
from chargehand.reports.reading import StateReader


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StateReader]:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as made:
        yield made


def choice(chance: float, chosen: str = "native with one") -> ChoiceReason:
    """Return the reason of a learned choice whose chosen step has a chance."""
    draw = StepDraw(
        rho=0.5, worth=1.0, person_price=None, person_chance=0.9, mendable="0x1p0", difficulty=(), families={}
    )
    made = StepChoice(
        policy="p", chosen=chosen, steps=(), draw=draw, causes={}, outcomes=3, guess=True,
        valued=(ValuedStep(name=chosen, strategy="", chance=chance, price=1.0, value=1.0),),
    )  # fmt: skip
    return ChoiceReason("learned", chosen, "", msgspec.json.encode(made).decode())


def forecast(chance: float, after: int = 0) -> ForecastMade:
    made = MissionForecast(
        chance=chance,
        cost_usd=None,
        seconds=None,
        person_seconds=None,
        unlimited=chance,
        enough_usd=None,
        outcomes=9,
    )
    return ForecastMade(after=after, forecast=made)


def attempt(
    number: int, status: AttemptStatus, code: str = "no_change", cost: float | None = 0.5
) -> list[Payload]:
    reasons = () if status == "succeeded" else (Reason(code=code, message="it failed"),)
    return [
        AttemptStarted(attempt=f"a-{number}", number=number, agent="native", workspace="w", tree="t"),
        AttemptFinished(
            attempt=f"a-{number}",
            status=status,
            seconds=2.0,
            reasons=reasons,
            cost_usd=cost,
            cost_known=cost is not None,
        ),
    ]


def again(*reasons: ChoiceReason) -> AgentSelected:
    return AgentSelected(agent="native", kind="native", reason="", reasons=reasons)


def record(
    reader: StateReader, *lines: Payload, ended: MissionStatus | None = None, chosen: float | None = None
) -> None:
    project = reader.store.projects.register(reader.cwd)
    request = MissionRequest(text="mend it", agent="native", command=(), slug="m")
    reasons = () if chosen is None else (choice(chosen),)
    number = len(reader.store.log.summaries())
    end = () if ended is None else (MissionFinished(status=ended, reasons=()),)
    created = MissionCreated(project=project.id, repository="/r", request=request, chosen=reasons)
    reader.store.log.append(f"m-{number:03}", created, *lines, *end)


def counted(measured: Reliability) -> list[tuple[float, int, int]]:
    return [(each.low, each.count, each.good) for each in measured.bins]


def test_a_chance_is_about_the_next_attempt_only(reader: StateReader) -> None:
    # The second attempt keeps the choice for its mission, the third has another.
    lines = [again(choice(0.65)), *attempt(1, "refused"), again(choice(0.65)), *attempt(2, "refused")]
    record(reader, *lines, again(choice(0.25)), *attempt(3, "succeeded"), ended="promoted", chosen=0.65)
    measured = measure_reliability(reader, limit=9).choices
    assert (counted(measured), measured.open) == ([(0.2, 1, 1), (0.6, 1, 0)], 0)
    assert measured.brier == pytest.approx((0.65**2 + 0.75**2) / 2)
    assert measured.rate_brier == pytest.approx(0.25)


def test_what_says_nothing_of_a_choice_is_open_and_a_later_word_counts(reader: StateReader) -> None:
    record(reader, *attempt(1, "failed", "provider_unavailable"), chosen=0.55)
    record(reader, *attempt(1, "succeeded")[:1], chosen=0.55)  # still running
    word = FeedbackGiven(identity="os:ada", attempt="a-1", good=False, place="", note="")
    record(reader, *attempt(1, "succeeded"), word, ended="promoted", chosen=0.55)
    record(reader, again(choice(0.9, ASK)), *attempt(1, "succeeded"), ended="promoted")
    record(reader, again(ChoiceReason("learned", "x", "", "{}")), *attempt(1, "succeeded"), ended="promoted")
    measured = measure_reliability(reader, limit=9).choices
    assert (counted(measured), measured.open) == ([(0.5, 1, 0)], 2)


def test_a_forecast_is_about_the_attempts_after_it(reader: StateReader) -> None:
    record(
        reader,
        forecast(0.8),
        *attempt(1, "refused"),
        forecast(0.35, 1),
        *attempt(2, "succeeded"),
        ended="promoted",
    )
    record(reader, forecast(0.8), *attempt(1, "refused"), ended="refused")
    record(reader, forecast(0.8), *attempt(1, "refused"), ended="cancelled")
    record(reader, forecast(0.8))
    measured = measure_reliability(reader, limit=9).forecasts
    assert (counted(measured), measured.open) == ([(0.3, 1, 1), (0.8, 2, 1)], 2)
    assert measure_reliability(reader, limit=1).missions == 1
    listed = list_forecasts(reader, limit=9).forecasts
    assert [(each.mission, each.after, each.is_good) for each in listed] == [
        ("m-003", 0, None),
        ("m-002", 0, None),
        ("m-001", 0, False),
        ("m-000", 1, True),
        ("m-000", 0, True),
    ]
    assert [(each.seed, each.samples, each.reproduced) for each in listed] == [(None, 0, None)] * 5
    assert [(each.spent_usd, each.used_seconds) for each in listed[2:4]] == [(0.5, 2.0), (1.0, 4.0)]


@pytest.mark.parametrize(
    ("outcomes", "ended", "is_good"),
    [
        (("merged", "done"), None, True),
        (("merged", "failed"), None, False),
        (("merged", "left_out"), "promoted", False),
        (("merged",), None, None),
        (("merged",), "cancelled", None),
        (("merged",), "exhausted", False),
    ],
)
def test_the_forecast_of_a_plan_comes_true_if_all_its_tasks_get_done(
    reader: StateReader, outcomes: tuple[TaskOutcome, ...], ended: MissionStatus | None, is_good: bool | None
) -> None:
    made = forecast(0.7)
    ends = [
        TaskEnded(task=name, outcome=outcome, cost_usd=0.25)
        for name, outcome in zip(("one", "two"), outcomes, strict=False)
    ]
    plan = Plan(tasks=(Task(id="one", text="a"), Task(id="two", text="b")))
    record(
        reader,
        PlanMade(plan=plan, identity="me"),
        replace(made, forecast=replace(made.forecast, tasks=2)),
        *ends,
        ended=ended,
    )
    (listed,) = list_forecasts(reader, limit=1).forecasts
    assert (listed.tasks, listed.is_good, listed.used_seconds) == (2, is_good, None)
    assert listed.spent_usd == 0  # that of its child missions, and there are none


def test_an_unknown_cost_makes_the_sum_unknown(reader: StateReader) -> None:
    record(reader, forecast(0.8), *attempt(1, "refused"), *attempt(2, "succeeded", cost=None), ended="promoted")
    (listed,) = list_forecasts(reader, limit=1).forecasts
    assert (listed.spent_usd, listed.used_seconds) == (None, 4.0)


def test_a_tenth_has_mean_rate_and_wilson_s_interval(reader: StateReader) -> None:
    for number in range(10):
        record(
            reader,
            *attempt(1, "succeeded" if number < 7 else "refused"),
            ended="refused",
            chosen=0.7 + number / 100,
        )
    (found,) = measure_reliability(reader, limit=20).choices.bins
    assert (found.low, found.high, found.count, found.good, found.rate) == (0.7, 0.8, 10, 7, 0.7)
    assert found.predicted == pytest.approx(0.745)
    for bound in (found.rate_low, found.rate_high):  # where the score test is at its limit
        score = (0.7 - bound) / math.sqrt(bound * (1 - bound) / 10)
        assert abs(score) == pytest.approx(1.2815515655446004, rel=1e-9)
    record(reader, *attempt(1, "succeeded"), ended="promoted", chosen=1.0)
    assert counted(measure_reliability(reader, limit=20).choices)[-1] == (0.9, 1, 1)


def test_without_history_there_is_nothing_and_no_error(reader: StateReader) -> None:
    found = measure_reliability(reader, limit=20)
    assert (found.missions, found.learns, found.choices) == (0, False, found.forecasts)
    assert (found.choices.bins, found.choices.count, found.choices.brier) == ((), 0, None)
    assert list_forecasts(reader, limit=20).forecasts == ()
