"""Forecasts of one mission: they follow outcomes, widen with less history, and refuse impossible numbers."""

from __future__ import annotations

import math
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.core.choices import Candidate, ChoiceHistory, ChoiceOutcome
from chargehand.core.codec import decode_as
from chargehand.core.records import MissionForecast
from chargehand.decisions.decider import Decider
from chargehand.decisions.explanation import check_forecast
from chargehand.decisions.forecast_records import ForecastDraw, ForecastFacts, describe_forecast
from chargehand.decisions.forecasts import forecast_mission

ARM = Candidate(agent="native", model="one")
FACTS = ForecastFacts(mission="m", kind="p", agent="native", model="one", attempts=2)


def outcome(
    number: int, *, good: bool, cost: float | None = 0.5, seconds: float | None = 120.0, work: str = ""
) -> ChoiceOutcome:
    return ChoiceOutcome(
        candidate=ARM,
        is_good=good,
        cost_usd=cost,
        kind="p",
        work=work or f"w{number}",
        seconds=seconds,
    )


def history(count: int, *, spread: float = 0.5, good: int = 2) -> ChoiceHistory:
    """Return outcomes of which every third is red; costs and times lie alternately above and below the middle."""
    made = []
    for number in range(count):
        factor = math.exp(spread if number % 2 else -spread)
        made.append(outcome(number, good=number % 3 < good, cost=0.5 * factor, seconds=120 * factor))
    return ChoiceHistory(outcomes=tuple(made))


def width(made: MissionForecast) -> tuple[float, float]:
    assert made.cost_usd is not None
    assert made.seconds is not None
    return made.cost_usd.high / made.cost_usd.low, made.seconds.high / made.seconds.low


def test_without_history_a_forecast_is_a_guess_of_unknown_cost_and_time() -> None:
    made = forecast_mission(FACTS, ChoiceHistory())
    assert 0.3 < made.chance < 0.95
    assert (made.cost_usd, made.seconds, made.person_seconds, made.enough_usd) == (None, None, None, None)
    assert made.unlimited == made.chance
    told = describe_forecast(made)
    assert "cost unknown, time unknown" in told
    assert told.endswith("a guess: fewer than 20 outcomes known")


def test_equal_arguments_give_equal_forecasts() -> None:
    assert forecast_mission(FACTS, history(30)) == forecast_mission(FACTS, history(30))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.integers(1, 3), st.none() | st.floats(0, 3), st.booleans())
def test_recorded_beliefs_and_seed_give_a_forecast_again(
    count: int, attempts: int, money: float | None, failed: bool
) -> None:
    known = history(count)
    if failed:  # then something is known of the task and of the family's part of its difficulty
        known = known.after(outcome(99, good=False, cost=1.0, work="m"))
    made = forecast_mission(replace(FACTS, attempts=attempts, money_left=money), known)
    assert check_forecast(decode_as(msgspec.json.encode(made), MissionForecast)) is True
    assert (made.seed, made.samples) == (zlib.crc32(msgspec.json.encode(draw_of(made).facts)), 8000)
    assert len(made.evidence) < 8000


def draw_of(made: MissionForecast) -> ForecastDraw:
    return decode_as(made.evidence.encode(), ForecastDraw)


def test_a_forecast_that_its_record_does_not_give_is_found() -> None:
    made = forecast_mission(FACTS, history(30))
    assert made.seed is not None
    draw = draw_of(made)
    changes = (
        replace(made, seed=made.seed + 1),
        replace(made, chance=made.chance + 0.01),
        replace(made, cost_usd=None),
        replace(made, samples=made.samples // 2),
        replace(made, evidence=encode(replace(draw, skills=(9.0, 9.0, 9.0)))),
        replace(made, evidence=encode(replace(draw, facts=replace(draw.facts, money_left=-1.0)))),
    )
    assert [check_forecast(each) for each in changes] == [False] * len(changes)
    unknown = (
        replace(made, evidence="{}"),
        replace(made, evidence=encode(replace(draw, policy="forecast-0"))),
        replace(made, seed=None, samples=0, evidence=""),
    )
    assert [check_forecast(each) for each in unknown] == [None] * len(unknown)


def encode(draw: ForecastDraw) -> str:
    return msgspec.json.encode(draw).decode()


def test_a_forecast_of_an_earlier_version_is_read() -> None:
    old = (
        b'{"chance":0.6,"cost_usd":null,"seconds":null,"person_seconds":null,"unlimited":0.6,"enough_usd":null,'
        b'"outcomes":3}'
    )
    made = decode_as(old, MissionForecast)
    assert (made.seed, made.samples, made.evidence, check_forecast(made)) == (None, 0, "", None)


def test_bands_widen_with_less_history() -> None:
    one = replace(FACTS, attempts=1)
    widths = [width(forecast_mission(one, history(count))) for count in (4, 40, 400)]
    assert widths[0][0] > widths[1][0] > widths[2][0]
    assert widths[0][1] > widths[1][1] > widths[2][1]


def test_costs_and_times_of_much_history_are_those_seen() -> None:
    made = forecast_mission(replace(FACTS, attempts=1), history(300, spread=0.3, good=3))
    assert made.cost_usd is not None
    assert made.seconds is not None
    assert made.cost_usd.middle == pytest.approx(0.5, rel=0.2)
    assert made.seconds.middle == pytest.approx(120, rel=0.2)
    assert made.chance > 0.85
    assert describe_forecast(made).endswith("from 300 attempts")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.none() | st.floats(0.01, 20)), max_size=40))
def test_after_a_failed_attempt_the_chance_is_lower(ends: list[tuple[bool, float | None]]) -> None:
    before = ChoiceHistory(outcomes=tuple(outcome(n, good=good, cost=cost) for n, (good, cost) in enumerate(ends)))
    one = replace(FACTS, attempts=1)
    failed = before.after(outcome(99, good=False, cost=1.0, work="m"))
    elsewhere = before.after(outcome(99, good=False, cost=1.0, work="another"))
    chance = forecast_mission(one, before).chance
    # The samples of both are different draws: two percent is far above their noise.
    assert forecast_mission(one, failed).chance < chance + 0.02
    assert forecast_mission(one, failed).chance < forecast_mission(one, elsewhere).chance + 0.02


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 4),
    st.none() | st.floats(0, 3),
    st.none() | st.floats(0, 900),
    st.floats(0, 2),
    st.floats(0, 300),
)
def test_limits_hold_and_numbers_are_ordered(
    attempts: int, money: float | None, time: float | None, spent: float, seconds: float
) -> None:
    facts = replace(
        FACTS, attempts=attempts, money_left=money, seconds_left=time, spent_usd=spent, seconds=seconds
    )
    made = forecast_mission(facts, history(30))
    assert made.cost_usd is not None
    assert made.seconds is not None
    for band, least, limit in ((made.cost_usd, spent, money), (made.seconds, seconds, time)):
        assert least <= band.low <= band.middle <= band.high
        assert limit is None or band.high <= least + limit + 1e-6
    assert 0 <= made.chance <= made.unlimited <= 1
    assert attempts > 0 or made.chance == 0


def test_a_budget_below_the_usual_price_leaves_little_chance_and_names_enough_money() -> None:
    tight = forecast_mission(replace(FACTS, money_left=0.05), history(60))
    assert tight.chance < 0.05
    assert tight.unlimited > 0.6
    assert tight.enough_usd is not None
    enough = forecast_mission(replace(FACTS, money_left=tight.enough_usd), history(60))
    assert enough.chance == pytest.approx(0.8 * tight.unlimited, abs=0.05)


def test_an_unknown_cost_so_far_makes_the_total_unknown() -> None:
    made = forecast_mission(replace(FACTS, spent_usd=None), history(30))
    assert made.cost_usd is None
    assert made.enough_usd is None


@pytest.mark.parametrize(
    "name", ["money_left", "attempt_usd", "seconds_left", "spent_usd", "seconds", "running_usd"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_impossible_numbers_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="numbers from 0"):
        forecast_mission(replace(FACTS, **{name: value}), history(3))


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_impossible_costs_and_times_of_earlier_attempts_count_as_unknown(value: float) -> None:
    odd = ChoiceHistory(outcomes=(outcome(0, good=True, cost=value, seconds=value),))
    made = forecast_mission(FACTS, odd)
    assert (made.cost_usd, made.seconds) == (None, None)


def test_without_learned_decisions_there_is_no_forecast() -> None:
    assert Decider().forecast(FACTS) is None
