"""Markov chains: closed forms, simulation, and counts that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.records import MissionStatus
from chargehand.decisions.mission_states import forecast_end, forecast_person, learn_mission_chain
from chargehand.decisions.processes.markov import (
    HoldingTime,
    StateChain,
    absorption_probabilities,
    forecast_reaching,
    learn_chain,
)


def ruin(stake: int, goal: int, win: float) -> StateChain:
    """The gambler's ruin: each round wins or loses 1, until 0 or `goal`."""
    matrix = np.zeros((goal + 1, goal + 1))
    for money in range(1, goal):
        matrix[money, money + 1], matrix[money, money - 1] = win, 1 - win
    return StateChain(states=tuple(map(str, range(goal + 1))), matrix=matrix)


@pytest.mark.parametrize("win", [0.5, 0.4, 0.7])
@pytest.mark.parametrize("stake", [1, 4, 9])
def test_the_gamblers_ruin_has_its_closed_form(stake: int, win: float) -> None:
    goal, ratio = 10, (1 - win) / win
    reach = stake / goal if win == 0.5 else (1 - ratio**stake) / (1 - ratio**goal)
    chain = ruin(stake, goal, win)
    ends = absorption_probabilities(chain, str(stake))
    assert ends == {"0": pytest.approx(1 - reach), str(goal): pytest.approx(reach)}
    over = forecast_reaching(chain, ["0", str(goal)])[str(stake)]
    steps = stake * (goal - stake) if win == 0.5 else (stake - goal * reach) / (1 - 2 * win)
    assert (over.probability, over.steps_mean) == (pytest.approx(1), pytest.approx(steps))
    if win == 0.5:  # the duration's variance, and that given a win (Stern 1975)
        assert over.steps_variance == pytest.approx(steps * (stake**2 + (goal - stake) ** 2 - 2) / 3)
        won = forecast_reaching(chain, [str(goal)])[str(stake)]
        assert won.steps_mean == pytest.approx((goal**2 - stake**2) / 3)


def test_a_geometric_time_with_holding_times() -> None:
    """Tries of mean 10 and variance 4 until one succeeds with 1/4: the sum of a geometric number of them."""
    chain = learn_chain(
        {"try": ("try", "done")},
        {("try", "try"): 749.5, ("try", "done"): 249.5},
        holding={"try": HoldingTime(10, 4)},
    )
    found = forecast_reaching(chain, ["done"])["try"]
    assert (found.steps_mean, found.steps_variance) == (pytest.approx(4), pytest.approx(0.75 / 0.25**2))
    assert found.seconds_mean == pytest.approx(40)
    assert found.seconds_variance == pytest.approx(4 * 4 + 12 * 100)


def test_smoothing_is_half_a_count_for_each_possible_transition() -> None:
    chain = learn_chain({"a": ("b", "c"), "b": ("c",)}, {("a", "b"): 3})
    assert chain.states == ("a", "b", "c")
    assert chain.matrix.tolist() == [[0, 3.5 / 4, 0.5 / 4], [0, 0, 1], [0, 0, 0]]
    assert absorption_probabilities(chain, "a") == {"c": pytest.approx(1)}


def test_states_that_never_reach_the_target() -> None:
    """From `a` the chain is lost to the loop of `c` and `d` with 1/2; the time is that of the other half."""
    chain = learn_chain({"a": ("b", "c"), "c": ("d",), "d": ("c",)}, {}, holding={"a": HoldingTime(5)})
    found = forecast_reaching(chain, ["b"])
    assert found["a"].probability == pytest.approx(0.5)
    assert (found["a"].steps_mean, found["a"].seconds_mean) == (pytest.approx(1), pytest.approx(5))
    assert (found["b"].probability, found["b"].seconds_mean) == (1, 0)
    assert found["c"].probability == found["d"].probability == 0
    assert math.isnan(found["c"].steps_mean)


def test_an_unknown_holding_time_leaves_only_the_times_through_it_unknown() -> None:
    holding = {"a": HoldingTime(1), "c": HoldingTime(2)}
    chain = learn_chain({"a": ("b",), "b": ("c",), "c": ("d",)}, {}, holding=holding)
    found = forecast_reaching(chain, ["d"])
    assert (found["a"].seconds_mean, found["b"].seconds_variance) == (None, None)
    assert (found["a"].steps_mean, found["c"].seconds_mean) == (3, 2)


def test_forecasts_equal_a_simulation() -> None:
    generator = np.random.default_rng(7)
    counts: dict[tuple[MissionStatus, MissionStatus], float] = {
        ("planned", "running"): 90,
        ("planned", "cancelled"): 4,
        ("running", "waiting"): 40,
    }
    counts |= {("running", "promoted"): 50, ("running", "refused"): 20, ("running", "paused"): 5}
    counts |= {("waiting", "running"): 30, ("waiting", "promoted"): 8, ("paused", "running"): 5}
    holding: dict[MissionStatus, HoldingTime] = {
        "planned": HoldingTime(5, 9),
        "running": HoldingTime(600, 250_000),
        "waiting": HoldingTime(3000, 4_000_000),
        "paused": HoldingTime(1000, 1000),
    }
    chain = learn_mission_chain(counts, holding)
    person, end = forecast_person(chain, "planned"), forecast_end(chain, "planned")
    runs = 20_000
    places = np.full(runs, chain.index("planned"))
    steps, seconds = np.zeros(runs), np.zeros(runs)
    asked, asked_steps, asked_seconds = np.zeros(runs, bool), np.zeros(runs), np.zeros(runs)
    cumulative = chain.matrix.cumsum(axis=1)
    alive = chain.matrix.any(axis=1)
    while (moving := np.nonzero(alive[places])[0]).size:
        before = places[moving]
        for state in np.unique(before):
            here = moving[before == state]
            time = holding[chain.states[state]]
            # A gamma distribution has any mean and variance, and no negative time.
            seconds[here] += generator.gamma(time.mean**2 / time.variance, time.variance / time.mean, here.size)
            steps[here] += 1
            places[here] = (generator.random(here.size)[:, None] >= cumulative[state] - 1e-12).sum(axis=1)
        new = (places == chain.index("waiting")) & ~asked
        asked |= new
        asked_steps[new], asked_seconds[new] = steps[new], seconds[new]
    assert end.probability == pytest.approx(1)
    assert steps.mean() == pytest.approx(end.steps_mean, rel=0.03)
    assert steps.var() == pytest.approx(end.steps_variance, rel=0.1)
    assert seconds.mean() == pytest.approx(end.seconds_mean, rel=0.03)
    assert seconds.var() == pytest.approx(end.seconds_variance, rel=0.1)
    assert asked.mean() == pytest.approx(person.probability, abs=0.015)
    assert asked_steps[asked].mean() == pytest.approx(person.steps_mean, rel=0.03)
    assert asked_seconds[asked].mean() == pytest.approx(person.seconds_mean, rel=0.03)
    assert asked_seconds[asked].var() == pytest.approx(person.seconds_variance, rel=0.1)


def test_without_counts_a_mission_can_still_be_forecast() -> None:
    chain = learn_mission_chain({})
    assert 0 < forecast_person(chain, "running").probability < 1
    assert forecast_person(chain, "waiting").probability == 1
    assert forecast_person(chain, "promoted").probability == 0
    assert forecast_person(chain, "running").seconds_mean is None


@pytest.mark.parametrize("count", [-1.0, math.nan, math.inf])
def test_wrong_counts_are_refused(count: float) -> None:
    with pytest.raises(UsageError, match="not a number from 0 on"):
        learn_chain({"a": ("b",)}, {("a", "b"): count})


def test_impossible_transitions_and_unknown_states_are_refused() -> None:
    with pytest.raises(UsageError, match="'b' to 'a' was counted, which is impossible"):
        learn_chain({"a": ("b",)}, {("b", "a"): 1})
    with pytest.raises(UsageError, match="'promoted' to 'running' was counted"):
        learn_mission_chain({("promoted", "running"): 1})
    chain = learn_chain({"a": ("b",)}, {})
    for wrong in (HoldingTime(-1), HoldingTime(1, -1), HoldingTime(math.nan)):
        with pytest.raises(UsageError, match="holding time"):
            learn_chain({"a": ("b",)}, {}, holding={"a": wrong})
    with pytest.raises(NotFoundError, match="no state 'c'"):
        forecast_reaching(chain, ["c"])
    with pytest.raises(NotFoundError, match="no state 'c'"):
        absorption_probabilities(chain, "c")
    with pytest.raises(UsageError, match="no target"):
        forecast_reaching(chain, [])
