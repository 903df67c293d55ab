"""Simulated plans against exact values, and the limits of the process that runs them."""

from __future__ import annotations

import heapq
import math
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.app.wiring.simulation import simulate_capped
from chargehand.core.errors import InfrastructureError
from chargehand.decisions.forecast_records import LogNormal, PlanForecast, PlanProspect, TaskProspect
from chargehand.decisions.plan_simulation import simulate_plan

# The part of the variance of costs and times that all attempts on a task share.
TASK_SHARE = 0.45

SURE = 60.0


def task(name: str, seconds: float, *after: str, skill: float = SURE, usd: float = 1.0) -> TaskProspect:
    """Return a task of a fixed time and cost that succeeds by its skill alone."""
    return TaskProspect(
        id=name,
        arm=name,
        after=after,
        skill=skill,
        weight=0.0,
        cost=LogNormal(mean=math.log(usd)),
        time=LogNormal(mean=math.log(seconds)),
    )


def simulate(*tasks: TaskProspect, places: int = 9, samples: int = 4096, **limits: float) -> PlanForecast:
    return simulate_plan(PlanProspect(tasks=tasks, places=places, **limits), seed=1, samples=samples)


def length(*tasks: TaskProspect, places: int = 9) -> float:
    made = simulate(*tasks, places=places)
    assert made.seconds is not None
    assert made.seconds.low == made.seconds.high
    return made.seconds.middle


def test_times_of_small_plans_are_exact() -> None:
    a, b, c = task("a", 30), task("b", 50, "a"), task("c", 20)
    assert length(a, b, c) == pytest.approx(80, rel=1e-5)
    assert length(a, b, c, places=1) == pytest.approx(100, rel=1e-5)
    assert length(a, replace(b, after=()), c, places=2) == pytest.approx(50, rel=1e-5)
    # The free place takes the task that can start, not the next in order.
    assert length(task("a", 30), task("b", 10, "a"), task("c", 25), task("d", 5), places=2) == pytest.approx(
        40, rel=1e-5
    )


def test_the_critical_tasks_are_those_of_the_longest_path() -> None:
    made = simulate(task("a", 30), task("b", 50, "a"), task("c", 20))
    assert {each.task: each.share for each in made.critical} == {"a": 1.0, "b": 1.0}
    alone = simulate(task("a", 30), task("b", 50, "a"), task("c", 20), places=1)
    assert {each.task: each.share for each in alone.critical} == {"a": 1.0, "b": 1.0, "c": 1.0}


def run_slowly(tasks: Sequence[TaskProspect], seconds: Mapping[str, float], places: int) -> float:
    """Return when the last task ends if each free place takes the first task that can start."""
    running, ended, waiting, now = list[tuple[float, str]](), set[str](), list(tasks), 0.0
    while waiting or running:
        ready = [each for each in waiting if ended.issuperset(each.after)]
        if ready and len(running) < places:
            waiting.remove(ready[0])
            heapq.heappush(running, (now + seconds[ready[0].id], ready[0].id))
            continue
        now, done = heapq.heappop(running)
        ended.add(done)
        while running and running[0][0] == now:  # all that ends now, before a place is taken
            ended.add(heapq.heappop(running)[1])
    return now


def plan_of(drawn: random.Random, count: int) -> list[TaskProspect]:
    """Return tasks in an order in which a task may precede its predecessors."""
    names = [f"t{number}" for number in range(count)]
    tasks = [
        task(name, drawn.randint(1, 40), *drawn.sample(names[:number], min(number, drawn.randint(0, 3))))
        for number, name in enumerate(names)
    ]
    drawn.shuffle(tasks)
    return tasks


@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_times_and_critical_tasks_are_those_of_a_slow_reference(seed: int, count: int, places: int) -> None:
    tasks = plan_of(random.Random(seed), count)
    seconds = {each.id: math.exp(each.time.mean) if each.time else 0.0 for each in tasks}
    exact = run_slowly(tasks, {name: round(value) for name, value in seconds.items()}, places)
    made = simulate(*tasks, places=places, samples=3)
    assert made.seconds is not None
    assert made.seconds.middle == pytest.approx(exact, rel=1e-5)
    # The longest path is a chain without gaps, from the begin to the end.
    assert {each.share for each in made.critical} == {1.0}
    assert sum(seconds[each.task] for each in made.critical) == pytest.approx(exact, rel=1e-5)


def test_samples_agree_with_a_slow_reference() -> None:
    """A plan with all that is random, against the same model in plain Python, sample after sample."""
    shape = (("a", "x", ()), ("b", "x", ("a",)), ("c", "y", ("a",)), ("d", "y", ("b", "c")), ("e", "x", ()))
    tasks = [
        TaskProspect(
            id=name, arm=arm, after=after, skill=0.9, skill_variance=0.2, weight=0.5, difficulty=-0.1,
            difficulty_variance=0.8, cost=LogNormal(mean=-1.0, variance=0.1, spread=0.5),
            time=LogNormal(mean=4.0, variance=0.2, spread=0.6), attempts=3,
        )
        for name, arm, after in shape
    ]  # fmt: skip
    drawn, count = random.Random(3), 6000
    good, spent, lasted = 0, list[float](), list[float]()
    for _ in range(count):
        arms = {arm: [drawn.gauss() for _ in range(3)] for arm in ("x", "y")}
        common, done, seconds, total = drawn.gauss(), set[str](), dict[str, float](), 0.0
        for each in tasks:
            skill, cost, length = arms[each.arm]
            hard = math.sqrt(0.3) * common + math.sqrt(0.7) * drawn.gauss()
            base = 0.9 + math.sqrt(0.2) * skill + math.sqrt(0.5) * (math.sqrt(0.8) * hard - 0.1)
            own, used = drawn.gauss(), 0.0
            for _ in range(3 if done.issuperset(each.after) else 0):
                noise = drawn.gauss()
                shared, rest = math.sqrt(TASK_SHARE) * own, math.sqrt(1 - TASK_SHARE) * noise
                total += math.exp(-1.0 + math.sqrt(0.1) * cost + math.sqrt(0.5) * (shared + rest))
                used += math.exp(4.0 + math.sqrt(0.2) * length + math.sqrt(0.6) * (shared + rest))
                if base + math.sqrt(0.5) * drawn.gauss() > 0:
                    done.add(each.id)
                    break
            seconds[each.id] = used
        good += len(done) == len(tasks)
        spent.append(total)
        lasted.append(run_slowly(tasks, seconds, 2))
    made = simulate(*tasks, places=2, samples=100_000)
    assert made.chance == pytest.approx(good / count, abs=0.025)
    for band, values in ((made.cost_usd, spent), (made.seconds, lasted)):
        low, *_, high = statistics.quantiles(values, n=10)
        assert band is not None
        expected = (low, statistics.median(values), high)
        assert (band.low, band.middle, band.high) == pytest.approx(expected, rel=0.06)


def test_a_huge_time_or_cost_is_bounded() -> None:
    huge = replace(task("a", 1), time=LogNormal(mean=500.0), cost=LogNormal(mean=500.0))
    made = simulate(huge, task("b", 10, "a"), task("c", 10), places=1)
    assert made.seconds is not None
    assert made.cost_usd is not None
    assert (made.seconds.high, made.cost_usd.high) == (
        pytest.approx(1e12, rel=1e-3),
        pytest.approx(1e12, rel=1e-3),
    )


@given(st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=3))
@settings(max_examples=15, deadline=None)
def test_chances_and_costs_of_a_chain_are_those_of_all_outcomes(skills: list[float]) -> None:
    names = [f"t{number}" for number in range(len(skills))]
    tasks = [
        task(name, 10, *([names[number - 1]] if number else []), skill=skill, usd=2.0**number)
        for number, (name, skill) in enumerate(zip(names, skills, strict=True))
    ]
    chances = [0.5 * math.erfc(-skill / math.sqrt(2)) for skill in skills]
    exact, spent = 0.0, dict[float, float]()
    for ends in product((True, False), repeat=len(skills)):
        weight = math.prod(p if good else 1 - p for p, good in zip(chances, ends, strict=True))
        exact += weight * all(ends)
        ran = ends.index(False) + 1 if False in ends else len(ends)  # nothing starts after a failure
        spent[2.0**ran - 1] = spent.get(2.0**ran - 1, 0.0) + weight
    made = simulate(*tasks, samples=40_000)
    assert made.chance == pytest.approx(exact, abs=0.02)
    for least in spent:
        within = simulate(*tasks, samples=40_000, money_left=least + 0.01).chance
        assert within == pytest.approx(exact if least == 2.0 ** len(skills) - 1 else 0.0, abs=0.02)
    assert made.cost_usd is not None
    for bound, share in ((made.cost_usd.low, 0.1), (made.cost_usd.high, 0.9)):
        below = sum(weight for usd, weight in spent.items() if usd < bound - 0.01)
        up_to = sum(weight for usd, weight in spent.items() if usd < bound + 0.01)
        assert below - 0.02 <= share <= up_to + 0.02


def test_a_shared_difficulty_makes_all_or_nothing_more_likely() -> None:
    single = [replace(task(str(number), 10, skill=0.0), weight=0.0) for number in range(4)]
    hard = [replace(each, weight=0.9) for each in single]
    assert simulate(*single, samples=40_000).chance == pytest.approx(1 / 16, abs=0.01)
    assert simulate(*hard, samples=40_000).chance > 0.1


def test_limits_of_money_and_time_end_a_plan() -> None:
    tasks = (task("a", 30), task("b", 50, "a"))
    assert simulate(*tasks).chance == 1
    assert simulate(*tasks, money_left=1.5).chance == 0
    late = simulate(*tasks, seconds_left=60.0)
    assert late.chance == 0
    assert late.seconds is not None
    assert late.seconds.high == 60


def test_what_a_running_task_has_used_is_not_needed_again() -> None:
    begun = replace(task("a", 30, usd=2.0), elapsed=20.0, spent=1.5)
    made = simulate(begun)
    assert made.seconds is not None
    assert made.cost_usd is not None
    assert (made.seconds.middle, made.cost_usd.middle) == (
        pytest.approx(10, rel=1e-4),
        pytest.approx(0.5, rel=1e-4),
    )


def test_an_unknown_cost_of_one_task_makes_the_plan_s_unknown() -> None:
    made = simulate(task("a", 30), replace(task("b", 5), cost=None))
    assert made.cost_usd is None
    assert made.seconds is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"skill": math.nan},
        {"skill": math.inf},
        {"spent": -1.0},
        {"time": LogNormal(mean=math.nan)},
        {"weight": 1.0},
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="'a'"):
        simulate(replace(task("a", 30), **changes))


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        simulate(task("a", 1, "b"), task("b", 1, "a"))
    for tasks, places in (
        ((), 1),
        ((task("a", 1, "z"),), 1),
        ((task("a", 1), task("a", 1)), 1),
        ((task("a", 1),), 0),
    ):
        with pytest.raises(ValueError, match="a plan has"):
            simulate(*tasks, places=places)


PROSPECT = PlanProspect(tasks=(task("a", 30, skill=0.0), task("b", 50, "a")), places=2)


def test_the_process_gives_the_same_as_the_function() -> None:
    assert simulate_capped(PROSPECT, seed=7) == simulate_plan(PROSPECT, seed=7)


def children() -> set[str]:
    """Return the processes of this process's threads."""
    found = set[str]()
    for each in Path("/proc/self/task").iterdir():
        found |= set((each / "children").read_text().split())
    return found


def test_a_simulation_that_takes_too_long_is_killed() -> None:
    before = children()
    with pytest.raises(InfrastructureError, match="took longer than") as caught:
        simulate_capped(PROSPECT, seed=1, seconds=0.01)
    assert caught.value.code == "forecast_failed"
    assert children() == before


def wait_for_simulation(before: set[str]) -> int:
    """Return the process of a simulation once it simulates, and has loaded numpy for that."""
    while True:
        for each in (Path("/proc", name) for name in children() - before):
            # Before it runs its program it is a copy of this process, with numpy.
            if "wiring.simulation" in (each / "cmdline").read_text() and "numpy" in (each / "maps").read_text():
                return int(each.name)
        time.sleep(0.002)


def test_an_interrupted_simulation_leaves_no_process() -> None:
    before, first = children(), list[int]()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def watch() -> None:
        pid = wait_for_simulation(before)
        group = Path(f"/proc/{pid}/autogroup")
        first.append(os.getpriority(os.PRIO_PROCESS, pid))
        while os.getpriority(os.PRIO_PROCESS, pid) < 19 or (group.exists() and "nice 19" not in group.read_text()):
            time.sleep(0.002)  # a long simulation gets the lowest priority
        os.kill(os.getpid(), signal.SIGALRM)

    kept = signal.signal(signal.SIGALRM, interrupt)
    watcher = threading.Thread(target=watch)
    try:
        watcher.start()
        with pytest.raises(KeyboardInterrupt):
            simulate_capped(PROSPECT, seed=1, samples=100_000_000)
    finally:
        watcher.join()
        signal.signal(signal.SIGALRM, kept)
    assert children() == before
    assert first == [10]


def test_a_failed_simulation_says_why() -> None:
    refused = replace(PROSPECT, tasks=(replace(PROSPECT.tasks[0], skill=1e20),))
    with pytest.raises(InfrastructureError, match="not finite"):
        simulate_capped(refused, seed=1)
