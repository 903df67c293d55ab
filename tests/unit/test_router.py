"""The router: its beliefs follow from outcomes exactly, its choices maximise what they say, and they replay."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.decisions.routing.records import (
    AttemptEnds,
    HistoryRecord,
    RouterBudget,
    RouterCandidate,
    RouterChoice,
    TaskBegins,
    TruthFound,
    find_family,
)
from chargehand.decisions.routing.router import (
    PriorRow,
    choose,
    choose_from,
    fold_history,
    forecast,
    prepare,
    replay,
)
from chargehand.decisions.routing.state import RouterState
from chargehand.decisions.routing.value import DIFFICULTY, FAMILY, Stakes, solve_chances, value_arms

ARMS = tuple(
    RouterCandidate(id=name, agent="native", model=name)
    for name in ("claude-one", "claude-two", "gpt-one", "gpt-two", "qwen")
)
BUDGET = RouterBudget(worth=10.0)


def attempts(*ends: tuple[str, bool, float | None], kind: str = "k") -> list[HistoryRecord]:
    """Return a history in which each attempt is a task of its own."""
    found: list[HistoryRecord] = []
    for arm, green, cost in ends:
        found += [
            TaskBegins(features={"kind": kind}),
            AttemptEnds(arm=arm, verdict="green" if green else "red", cost=cost),
        ]
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[HistoryRecord]:
    """Draw tasks that overlap, with attempts of known and unknown arms, costs and later truths."""
    records: list[HistoryRecord] = []
    for _ in range(draw(st.integers(0, 12))):
        task = draw(st.sampled_from(["", "a", "b"]))
        name = draw(st.sampled_from([*(each.id for each in ARMS), "gone"]))
        cost = draw(st.sampled_from([None, 0.0, 0.01, 0.5, 40.0]))
        records.append(
            draw(
                st.sampled_from(
                    [
                        TaskBegins(features={"kind": draw(st.sampled_from(["k", "l"]))}, task=task),
                        AttemptEnds(
                            arm=name, verdict=draw(st.sampled_from(["green", "red"])), cost=cost, task=task
                        ),
                        TruthFound(arm=name, is_right=draw(st.booleans()), kind="k"),
                    ]
                )
            )
        )
    return records


def budgets() -> st.SearchStrategy[RouterBudget]:
    """Return budgets that are possible."""
    money = st.sampled_from([0.0, 0.1, 5.0, 300.0])
    return st.builds(
        RouterBudget,
        worth=money,
        wrong_price=st.none() | money,
        check_price=st.sampled_from([0.0, 0.2]),
        false_green=st.sampled_from([0.0, 0.1]),
        false_red=st.sampled_from([0.0, 0.05]),
        attempts=st.integers(0, 5),
        money_left=st.none() | money,
        per_task=st.none() | st.just(0.5),
        explores=st.booleans(),
    )


@settings(max_examples=60, deadline=None)
@given(histories(), budgets(), st.integers(0, 2**32))
def test_a_choice_replays_bit_by_bit_and_keeps_its_promises(
    history: list[HistoryRecord], budget: RouterBudget, seed: int
) -> None:
    found = choose(history, ARMS, budget, seed)
    assert replay(found) == found
    earlier = replace(found, policy="shared-difficulty-1")
    assert replay(earlier) == earlier
    assert choose(history, ARMS, budget, seed) == found
    compared, excluded = [each.id for each in found.considered], [each.id for each in found.excluded]
    if budget.attempts > len(fold_history(history, ARMS, budget).task.tried):
        assert sorted([*compared, *excluded]) == sorted(each.id for each in ARMS)
    values = [each.value for each in found.considered]
    assert values == sorted(values, reverse=True)
    if found.chosen is None:
        assert all(value <= 0 for value in values)
    else:
        assert found.chosen == compared[0]
        assert values[0] > 0
        assert found.gain >= 0
    assert all(0 <= each.chance <= 1 and each.price > 0 for each in found.considered)
    if budget.money_left is not None:
        assert all(each.price <= budget.money_left for each in found.considered)


@settings(max_examples=40, deadline=None)
@given(histories(), st.data())
def test_records_are_folded_alike_at_once_and_in_pieces(history: list[HistoryRecord], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history)))
    whole = RouterState().fold(history, ARMS)
    first = RouterState().fold(history[:cut], ARMS)
    before = [(kind.skills[0].copy(), kind.prices.copy()) for kind in first.kinds.values()]
    pieces = first.fold(history[cut:], ARMS)
    for kind, belief in whole.kinds.items():
        for number in range(len(belief.skills)):
            np.testing.assert_allclose(belief.skills[number], pieces.kinds[kind].skills[number], atol=1e-9)
        np.testing.assert_allclose(belief.prices, pieces.kinds[kind].prices, atol=1e-9)
        assert (np.linalg.eigvalsh(belief.skill_covariances[1]) > 0).all()
        assert (np.linalg.eigvalsh(belief.price_covariance) > 0).all()
    # Nothing of the earlier state changed.
    for (skills, prices), kind in zip(before, first.kinds.values(), strict=True):
        assert (kind.skills[0] == skills).all()
        assert (kind.prices == prices).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(0.01, 3), st.sampled_from("xyz")), min_size=1, max_size=4),
    st.floats(0.1, 30),
    st.floats(0, 20),
    st.sampled_from([(0.0, 0.0), (0.1, 0.05)]),
    st.integers(1, 4),
)
def test_the_value_is_that_of_the_best_order_by_enumeration(
    arms: list[tuple[float, float, str]],
    worth: float,
    wrong: float,
    rates: tuple[float, float],
    most: int,
) -> None:
    rho = 0.55
    families = [family for _, _, family in arms]
    grids = [solve_chances(skill, rho) for skill, _, _ in arms]
    weights = [weight for _, weight in DIFFICULTY]
    parts = {family: [[weight for _, weight in FAMILY]] * len(DIFFICULTY) for family in families}
    stakes = Stakes(worth, wrong, 0.05, *rates)
    found, _ = value_arms(grids, [price for _, price, _ in arms], families, (weights, parts), stakes, most)

    def chance_of_red(tried: Sequence[int]) -> float:
        """Return the chance that all are red, over each combination of the families' parts one by one."""
        total, names = 0.0, sorted({families[arm] for arm in tried})
        for g, weight in enumerate(weights):
            for combination in np.ndindex(*[len(FAMILY)] * len(names)):
                where = dict(zip(names, combination, strict=True))
                share = weight * math.prod(FAMILY[place][1] for place in combination)
                for arm in tried:
                    p = grids[arm][g][where[families[arm]]]
                    share *= 1 - (rates[0] + (1 - sum(rates)) * p)
                total += share
        return total

    def value(tried: tuple[int, ...], arm: int) -> float:
        reached, after = chance_of_red(tried), chance_of_red((*tried, arm))
        solved = (reached - after - rates[0] * reached) / (1 - sum(rates))
        own = worth * (1 - rates[1]) * solved - wrong * rates[0] * (reached - solved)
        return own - (arms[arm][1] + 0.05) * reached + best((*tried, arm))

    def best(tried: tuple[int, ...]) -> float:
        if len(tried) >= most:
            return 0.0
        return max([0.0, *(value(tried, arm) for arm in range(len(arms)) if arm not in tried)])

    np.testing.assert_allclose(found, [value((), arm) for arm in range(len(arms))], atol=1e-9 * (worth + wrong))


def test_a_verdict_moves_the_belief_to_the_mean_of_the_exact_posterior() -> None:
    state = RouterState().fold(attempts(("claude-one", True, None)), ARMS)
    kind = state.kinds["k"]
    for number, rho in enumerate((0.4, 0.55, 0.72)):
        start = RouterState().belief("k", ARMS)
        mean, variance = start.skills[number][1], start.skill_covariances[number][1, 1]
        skill = np.linspace(mean - 6, mean + 6, 4001)
        points = np.array([[solve_chances(float(x), rho)] for x in skill[::40]])
        weights = np.outer([w for _, w in DIFFICULTY], [w for _, w in FAMILY])
        likely = np.interp(skill, skill[::40], (points[:, 0] * weights).sum(axis=(1, 2)))
        posterior = np.exp(-((skill - mean) ** 2) / (2 * variance)) * likely
        posterior /= posterior.sum()
        exact = (skill * posterior).sum()
        assert kind.skills[number][kind.index["claude-one"]] == pytest.approx(exact, abs=2e-3)


def test_outcomes_of_one_arm_say_less_of_the_others_and_nothing_of_another_kind() -> None:
    state = RouterState().fold(attempts(*[("claude-one", False, 1.0)] * 10), ARMS)
    kind, start = state.belief("k", ARMS), RouterState().belief("k", ARMS)
    moved = start.skills[1] - kind.skills[1]
    assert moved[1] > 2 * moved[2] > 0
    assert (state.belief("l", ARMS).skills[1] == start.skills[1]).all()


def test_models_of_one_family_are_expected_to_fail_together() -> None:
    history = [TaskBegins(features={"kind": "k"}), AttemptEnds(arm="claude-one", verdict="red")]
    found = {
        each.id: each.chance
        for each in choose(history, ARMS, RouterBudget(worth=100, explores=False), 1).considered
    }
    assert found["claude-two"] < found["gpt-one"]
    assert found["gpt-one"] == pytest.approx(found["gpt-two"])
    assert "claude-one" not in found


@pytest.mark.parametrize("cost", [None, 0.0, -1.0, math.inf])
def test_an_unknown_cost_changes_no_price(cost: float | None) -> None:
    state = RouterState().fold(attempts(("qwen", True, cost)), ARMS)
    assert (state.belief("k", ARMS).prices == RouterState().belief("k", ARMS).prices).all()
    assert state.spent > 0  # it was not free


def simulate(
    rates: dict[str, float], prices: dict[str, float], budget: RouterBudget, tasks: int, seed: int
) -> list[RouterChoice]:
    """Run tasks whose first attempts solve at these rates; return the choices of first attempts."""
    drawn, state, found = random.Random(seed), RouterState(budget.false_green, budget.false_red), []
    for number in range(tasks):
        state = state.fold([TaskBegins(features={"kind": "k"})], ARMS)
        choice = choose_from(state, state.task, ARMS, budget, number)
        found.append(choice)
        if choice.chosen is not None:
            green = drawn.random() < rates[choice.chosen]
            end = AttemptEnds(arm=choice.chosen, verdict="green" if green else "red", cost=prices[choice.chosen])
            state = state.fold([end], ARMS)
    return found


RATES = {"claude-one": 0.3, "claude-two": 0.85, "gpt-one": 0.4, "gpt-two": 0.5, "qwen": 0.2}


def share(choices: Sequence[RouterChoice], arm: str) -> float:
    return sum(each.chosen == arm for each in choices) / len(choices)


def test_the_best_arm_is_found_and_a_fallen_arm_is_left() -> None:
    budget, prices = RouterBudget(worth=5.0, attempts=1), dict.fromkeys(RATES, 0.5)
    found = simulate(RATES, prices, budget, 200, 1)
    assert share(found[-100:], "claude-two") > 0.8
    state = RouterState()
    drawn = random.Random(2)
    chosen = []
    for number in range(250):
        state = state.fold([TaskBegins(features={"kind": "k"})], ARMS)
        arm = choose_from(state, state.task, ARMS, budget, number).chosen
        assert arm is not None
        rate = 0.3 if arm == "claude-two" and number >= 150 else {**RATES, "gpt-two": 0.75}[arm]
        chosen.append(arm)
        end = AttemptEnds(arm=arm, verdict="green" if drawn.random() < rate else "red", cost=0.5)
        state = state.fold([end], ARMS)
    assert chosen[100:150].count("claude-two") > 25
    assert chosen[200:].count("claude-two") < 13


def test_cheap_arms_come_first_and_a_wrong_promotion_has_a_price() -> None:
    prices = dict.fromkeys(RATES, 0.05) | {"claude-two": 1.0}
    cheap = simulate(RATES, prices, RouterBudget(worth=5.0), 150, 3)
    assert share(cheap[-50:], "claude-two") < 0.2
    careful = RouterBudget(worth=20.0, wrong_price=60.0, false_green=0.2)
    assert share(simulate(RATES, prices, careful, 150, 3)[-50:], "claude-two") > 0.8


def test_draws_come_closer_to_the_means_with_the_outcomes_of_the_kind() -> None:
    kind = RouterState().fold(attempts(*[(each.id, True, 0.5) for each in ARMS]), ARMS).kinds["k"]
    means = {each.id: kind.skills[:, kind.index[each.id]] for each in ARMS}

    def deviations(outcomes: int, *, explores: bool = True) -> dict[str, float]:
        state, found = RouterState(kinds={"k": replace(kind, outcomes=outcomes)}), {}
        state = state.fold([TaskBegins(features={"kind": "k"})], ARMS)
        for seed in range(8):
            choice = choose_from(state, state.task, ARMS, RouterBudget(worth=1000.0, explores=explores), seed)
            for each in choice.considered:
                number = (0.4, 0.55, 0.72).index(choice.draw.rho)
                found[f"{each.id} {seed}"] = float.fromhex(each.skill) - float(means[each.id][number])
        return found

    first, later = deviations(0), deviations(120)  # 1 + 120 / 40 is 4, whose root is 2
    both = first.keys() & later.keys()  # which arms are compared follows from the draws
    assert len(both) > 8
    assert {key: later[key] for key in both} == pytest.approx({key: first[key] / 2 for key in both})
    assert max(map(abs, first.values())) > 0.1
    assert set(deviations(0, explores=False).values()) == {0.0}


def test_nothing_is_tried_that_is_not_worth_its_price() -> None:
    history = attempts(*[(each.id, False, 3.0) for each in ARMS] * 6)
    found = choose([*history, TaskBegins(features={"kind": "k"})], ARMS, RouterBudget(worth=0.5), 1)
    assert found.chosen is None
    assert found.gain >= 0
    broke = choose([TaskBegins()], ARMS, RouterBudget(money_left=0.0), 1)
    assert broke.chosen is None
    assert {each.reason for each in broke.excluded} == {"no_money"}


def test_an_arm_too_dear_to_find_out_is_left_until_enough_was_spent() -> None:
    prices = dict.fromkeys((each.id for each in ARMS), 0.1) | {"qwen": 60.0}
    rows = [
        PriorRow(kind="other", agent="native", model=model, solved=True, cost=cost)
        for model, cost in prices.items()
        for _ in range(8)
    ]
    arms = prepare(rows, ARMS)
    found = choose([TaskBegins(features={"kind": "k"})], arms, RouterBudget(worth=1.0), 1)
    assert [each.id for each in found.excluded if each.reason == "price_unknown"] == ["qwen"]
    spent = attempts(*[("gpt-one", True, 60.0)] * 40)
    later = choose([*spent, TaskBegins(features={"kind": "k"})], arms, RouterBudget(worth=1.0), 1)
    assert "price_unknown" not in {each.reason for each in later.excluded}


def test_the_worth_is_paced_to_the_money_per_task() -> None:
    dear, cheap = (attempts(*[("qwen", True, cost)] * 40) for cost in (5.0, 0.01))
    budget = RouterBudget(worth=2.0, per_task=0.5)
    worths = [choose([*h, TaskBegins(features={"kind": "k"})], ARMS, budget, 1).draw.worth for h in (dear, cheap)]
    assert worths[0] < 2.0 < worths[1]


def test_a_prior_ranks_arms_before_their_first_outcome() -> None:
    rows = [
        PriorRow(kind=kind, agent="native", model=model, solved=number < good, cost=0.2)
        for kind in ("one", "two")
        for model, good in (("claude-one", 18), ("gpt-one", 4))
        for number in range(20)
    ]
    new = RouterCandidate(id="new", agent="native", model="claude-three")
    elsewhere = RouterCandidate(id="else", agent="acp", model="gpt-one")
    found = {each.id: each.prior for each in prepare(rows, [*ARMS, new, elsewhere])}
    assert all(found.values())
    skill = {name: prior.skill for name, prior in found.items() if prior}
    assert skill["claude-one"] > skill["new"] > skill["qwen"] > skill["else"] > skill["gpt-one"] - 1e-9
    assert skill["new"] == pytest.approx(skill["claude-one"] / 2)
    assert prepare([], ARMS) == ARMS


def test_later_truth_counts_and_can_be_left_out_again() -> None:
    good = attempts(*[("qwen", True, 0.1)] * 5)
    wrong = [TruthFound(arm="qwen", is_right=False, kind="k")] * 5
    before, after = (RouterState().fold(each, ARMS).belief("k", ARMS) for each in (good, [*good, *wrong]))
    row = before.index["qwen"]
    assert after.skills[1][row] < before.skills[1][row] - 0.3
    again = fold_history(good, ARMS, BUDGET)  # a retraction leaves the record out
    assert again.belief("k", ARMS).skills[1][row] == before.skills[1][row]


@pytest.mark.parametrize(
    ("candidates", "budget", "said"),
    [
        ((), BUDGET, "there are no candidates"),
        ((ARMS[0], ARMS[0]), BUDGET, "claude-one"),
        (ARMS, RouterBudget(worth=-1.0), "-1.0"),
        (ARMS, RouterBudget(worth=math.nan), "nan"),
        (ARMS, RouterBudget(per_task=math.inf), "inf"),
        (ARMS, RouterBudget(false_green=0.7, false_red=0.5), "less than 1"),
        (ARMS, RouterBudget(false_green=-0.1), "-0.1"),
    ],
)
def test_an_impossible_call_is_refused(
    candidates: Sequence[RouterCandidate], budget: RouterBudget, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        choose([], candidates, budget, 1)


def test_a_history_without_a_task_is_a_guess_about_a_new_kind() -> None:
    found = choose([], ARMS, BUDGET, 1)
    assert found.guess
    assert found.chosen
    assert not choose(attempts(*[("qwen", True, 0.1)] * 20), ARMS, BUDGET, 1).guess


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("claude-opus-4-6", "claude"),
        ("anthropic/Claude-X", "claude"),
        ("GPT-5.4", "gpt"),
        ("qwen3:8b", "qwen"),
        ("4o", "4o"),
    ],
)
def test_the_family_of_a_model(model: str, family: str) -> None:
    assert find_family(model) == family


def test_the_band_of_a_sum_covers_what_it_says() -> None:
    drawn, covered, single = random.Random(5), 0, 0
    for _ in range(400):
        costs = [drawn.lognormvariate(-1, 1) for _ in range(80)]
        history = attempts(*[("qwen", True, cost) for cost in costs[:60]])
        found = forecast(history, 20, 0.8)
        covered += found.low <= sum(costs[60:]) <= found.high
        single += found.single_low <= costs[60] <= found.single_high
    assert 300 < covered < 350
    assert 300 < single < 350


def test_a_forecast_states_what_it_knows() -> None:
    history = attempts(*[("qwen", number % 4 > 0, 0.4 + number % 2 / 5) for number in range(40)])
    found = forecast(history, 10)
    assert (found.cost, found.guess) == (pytest.approx(5.0), False)
    assert found.low <= 5.0 <= found.high
    assert found.chance == pytest.approx(31 / 42)
    assert found.solved_low < found.solved < found.solved_high <= 10
    unknown = forecast(attempts(("qwen", True, None)), 3)
    assert unknown.guess
    assert forecast([], 3).guess
    other = forecast([*history, *attempts(("qwen", True, 9.0), kind="l")], 1)
    assert other.cost == pytest.approx(9.0)
    for n, level in ((0, 0.8), (3, 0.0), (3, 1.0), (3, math.nan)):
        with pytest.raises(ValueError, match="at least 1"):
            forecast(history, n, level)


def test_a_list_that_grows_gives_the_same_choices_as_a_new_one() -> None:
    ends = [AttemptEnds(arm=ARMS[number % 2].id, verdict="red", cost=0.5) for number in range(8)]
    growing: list[HistoryRecord] = []
    for number, end in enumerate(ends):
        growing += [TaskBegins(features={"kind": "k"}), end]
        again = choose(tuple(growing), ARMS, RouterBudget(), number)
        assert choose(growing, ARMS, RouterBudget(), number) == again
    shorter = growing[:4]
    assert choose(shorter, ARMS, RouterBudget(), 1) == choose(tuple(shorter), ARMS, RouterBudget(), 1)
    assert choose(growing, ARMS, RouterBudget(), 1) == choose(tuple(growing), ARMS, RouterBudget(), 1)
