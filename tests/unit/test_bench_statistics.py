"""Statistics of benchmarks: against published values, by enumeration, and by simulated runs."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.bench.comparison import compare_runs, find_front, summarize
from chargehand.bench.records import Arm, BenchResult, RunHeader, Validation
from chargehand.bench.statistics import (
    comparison_power,
    holm,
    mcnemar_exact,
    needed_problems,
    paired_bootstrap,
    pareto_front,
    pass_at_k,
    sign_flip_exact,
    sign_flip_sampled,
    wilson,
)
from chargehand.core.errors import UsageError


def header(name: str, problems: int, samples: int = 1) -> RunHeader:
    return RunHeader(
        id=name,
        created="2026-01-01T00:00:00.000+00:00",
        suite="/suite",
        name="suite",
        form="directory",
        digest="d",
        arm=Arm(agent=name),
        samples=samples,
        seed=0,
        problems=tuple(f"p{number}" for number in range(problems)),
        invalid=(),
        version="0",
        machine="m",
    )


def result(problem: int, solved: bool, *, sample: int = 0, **changes: object) -> BenchResult:
    fields: dict[str, object] = {
        "problem": f"p{problem}",
        "sample": sample,
        "seed": 0,
        "outcome": "solved" if solved else "false_green",
        "status": "promoted",
        "reasons": (),
        "cheating": (),
        "validation": Validation(judgement="passed" if solved else "failed"),
        "tree": "",
        "attempts": 1,
        "agent": "a",
        "model": None,
        "cost_usd": 0.5,
        "seconds": 2.0,
        "overhead": 0.1,
    }
    return BenchResult(**{**fields, **changes})  # type: ignore[arg-type]


def test_wilson_is_as_published() -> None:
    # Newcombe 1998, table I, method 3.
    published = ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611))
    for successes, trials, low, high in published:
        found = wilson(successes, trials)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert wilson(29, 29).low == pytest.approx(0.8830, abs=5e-5)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


@given(samples=st.integers(1, 9), data=st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(samples: int, data: st.DataObject) -> None:
    successes, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    tries = [True] * successes + [False] * (samples - successes)
    subsets = [any(each) for each in itertools.combinations(tries, k)]
    assert pass_at_k(samples, successes, k) == pytest.approx(sum(subsets) / len(subsets))


def test_pass_at_more_than_the_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="k = 3 of 2"):
        pass_at_k(2, 1, 3)


def test_mcnemar_is_the_binomial_test() -> None:
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(5, 5) == 1.0
    assert mcnemar_exact(1, 8) == pytest.approx(2 * (1 + 9) / 512)
    assert mcnemar_exact(59, 6) < 1e-10


@given(st.lists(st.integers(-3, 3), max_size=9))
def test_the_exact_test_counts_all_flips_of_signs(differences: list[int]) -> None:
    sums = [
        abs(sum(sign * each for sign, each in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    expected = sum(each >= abs(sum(differences)) for each in sums) / len(sums)
    assert sign_flip_exact(differences) == pytest.approx(expected)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 20))
def test_with_one_sample_the_exact_test_is_mcnemars(lost: int, gained: int, equal: int) -> None:
    differences = [-1] * lost + [1] * gained + [0] * equal
    assert sign_flip_exact(differences) == pytest.approx(mcnemar_exact(lost, gained))


def test_random_flips_estimate_the_exact_test() -> None:
    source = random.Random(7)
    for _ in range(5):
        differences = [source.randint(-9, 11) for _ in range(40)]
        exact = sign_flip_exact(differences)
        estimate = sign_flip_sampled(differences, seed=1)
        assert estimate == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000) + 1e-4)
    assert sign_flip_sampled([1] * 200, seed=1) > 0


def test_runs_with_many_different_numbers_of_samples_are_compared() -> None:
    # The common multiple of 17 to 20 is 58,140, too large to count all flips.
    def results(rate: float, seed: int) -> list[BenchResult]:
        source = random.Random(seed)
        return [
            result(number, source.random() < rate, sample=sample)
            for number in range(60)
            for sample in range(17 + number % 4)
        ]

    runs = [(header(name, 60, 20), results(rate, 3)) for name, rate in (("a", 0.4), ("b", 0.6))]
    (found,) = compare_runs(runs)
    assert (found.exact, found.differs) == (False, True)
    (same,) = compare_runs([runs[0], (header("c", 60, 20), results(0.4, 4))])
    assert same.p > 0.05


def test_holm_is_as_in_its_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_the_bootstrap_covers_the_mean_and_is_repeatable() -> None:
    differences = [1.0] * 30 + [0.0] * 60 + [-1.0] * 10
    found = paired_bootstrap(differences, seed=3)
    assert found == paired_bootstrap(differences, seed=3)
    error = math.sqrt((0.4 - 0.04) / 100)
    assert (found.low, found.high) == pytest.approx((0.2 - 1.96 * error, 0.2 + 1.96 * error), abs=0.03)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_only_points_that_another_one_beats_are_left_out_of_the_front(points: list[tuple[int, int]]) -> None:
    front = pareto_front(points)
    for index, (cost, rate) in enumerate(points):
        beaten = any(c <= cost and r >= rate and (c, r) != (cost, rate) for c, r in points)
        assert (index in front) == (not beaten)


def test_the_power_is_that_of_the_exact_test() -> None:
    # All outcomes of six pairs: gained with 0.3, lost with 0.1.
    chances = {1: 0.3, -1: 0.1, 0: 0.6}
    power = sum(
        math.prod(chances[each] for each in outcome)
        for outcome in itertools.product(chances, repeat=6)
        if sign_flip_exact(outcome) <= 0.05
    )
    assert comparison_power(6, 0.2, 0.4) == pytest.approx(power)
    assert comparison_power(6, 0.0, 0.0) == 0.0
    with pytest.raises(ValueError, match="discordance"):
        comparison_power(6, 0.3, 0.2)


@pytest.mark.parametrize("discordance", [0.05, 0.1, 0.3])
def test_as_many_problems_as_needed_have_the_power(discordance: float) -> None:
    needed = needed_problems(0.05, discordance)
    assert needed is not None
    assert comparison_power(needed, 0.05, discordance) >= 0.8
    assert comparison_power(int(needed * 0.9), 0.05, discordance) < 0.8
    assert needed_problems(0.0, discordance) is None
    assert needed_problems(0.0001, discordance) is None


def _simulated(source: random.Random, problems: int, gained: float, lost: float) -> bool:
    """Return whether a comparison of two simulated runs says that they differ."""
    first, second = [], []
    for number in range(problems):
        change = source.choices((1, -1, 0), (gained, lost, 1 - gained - lost))[0]
        one = change < 0 or (change == 0 and source.random() < 0.5)
        first.append(result(number, one))
        second.append(result(number, change > 0 or (change == 0 and one)))
    runs = [(header("a", problems), first), (header("b", problems), second)]
    return compare_runs(runs, resamples=10)[0].differs


def test_a_planted_difference_is_found_at_the_stated_power_and_no_other() -> None:
    problems = needed_problems(0.05, 0.1)
    assert problems is not None
    source = random.Random(7)
    assert sum(_simulated(source, problems, 0.075, 0.025) for _ in range(100)) >= 72  # 80 expected, deviation 4
    assert sum(_simulated(source, problems, 0.05, 0.05) for _ in range(100)) <= 5


def test_a_comparison_names_what_changed_and_corrects_for_all_pairs() -> None:
    arms = {"a": range(12), "b": range(6, 30), "c": range(12)}
    runs = [
        (header(name, 40), [result(number, number in solved) for number in range(40)])
        for name, solved in arms.items()
    ]
    one, equal, other = compare_runs(runs)
    assert (one.first, one.second, one.problems) == ("a", "b", 40)
    assert one.difference == pytest.approx(0.3)
    assert one.mcnemar == one.p == pytest.approx(mcnemar_exact(6, 18))
    assert one.adjusted == pytest.approx(min(1.0, 3 * one.p))
    assert (equal.difference, equal.p, equal.differs, equal.power) == (0.0, 1.0, False, None)
    assert one.lost[0] == "p0"
    assert other.difference == pytest.approx(-0.3)
    with pytest.raises(UsageError, match="share no judged problem"):
        compare_runs([runs[0], (header("d", 40), [])])


def test_runs_of_different_suites_are_not_compared() -> None:
    other = replace(header("b", 1), digest="other")
    with pytest.raises(UsageError, match="different suites"):
        compare_runs([(header("a", 1), [result(0, True)]), (other, [result(0, True)])])


def test_samples_of_one_problem_count_as_one_observation() -> None:
    first = [result(number, False, sample=sample) for number in range(4) for sample in range(50)]
    second = [result(number, True, sample=sample) for number in range(4) for sample in range(50)]
    (found,) = compare_runs([(header("a", 4, 50), first), (header("b", 4, 50), second)])
    assert (found.p, found.differs, found.mcnemar) == (0.125, False, None)


def test_a_summary_counts_every_outcome_and_shows_unknown_costs() -> None:
    validation = Validation(judgement="passed")
    results = [
        result(0, True),
        result(1, False),
        result(2, False, outcome="not_promoted", status="waiting", cheating=("check_surface",)),
        result(3, False, outcome="not_promoted", status="refused", validation=validation),
        result(4, False, outcome="unvalidated", validation=Validation(judgement="none")),
        result(5, False, outcome="error", cost_usd=9.0),
    ]
    found = summarize(header("a", 6), results)
    assert (found.judged, found.solved, found.false_green, found.not_promoted) == (4, 1, 1, 2)
    assert (found.passed_unpromoted, found.unvalidated, found.errors, found.cheating) == (1, 1, 1, 1)
    assert (found.rate, found.cost_usd, found.cost_per_solved) == (0.25, 11.5, 11.5)
    assert found.pass_at == {"1": 0.25}
    unknown = summarize(header("a", 6), [*results, result(6, True, outcome="error", cost_usd=None)])
    assert (unknown.cost_usd, unknown.cost_per_solved) == (None, None)
    assert find_front([found, unknown]) == {"a"}
    empty = summarize(header("a", 6), [])
    assert (empty.rate, empty.interval.low, empty.interval.high) == (None, 0.0, 1.0)
