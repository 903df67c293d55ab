"""Simulated plans against exact values, and the limits of the process that runs them."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import traceback
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


def test_an_interrupted_simulation_leaves_no_process() -> None:
    before = children()
    main = threading.get_ident()
    ended = threading.Event()

    def interrupt_waiting() -> None:
        """Interrupt the caller as soon as it waits for the process."""
        while not ended.wait(0.001):
            frames = traceback.walk_stack(sys._current_frames()[main])
            if any(frame.f_code is subprocess.Popen.communicate.__code__ for frame, _ in frames):
                signal.pthread_kill(main, signal.SIGALRM)
                return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    kept = signal.signal(signal.SIGALRM, interrupt)
    interrupting = threading.Thread(target=interrupt_waiting)
    try:
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            simulate_capped(PROSPECT, seed=1)
    finally:
        ended.set()
        interrupting.join()
        signal.signal(signal.SIGALRM, kept)
    assert children() == before


def test_a_failed_simulation_says_why() -> None:
    refused = replace(PROSPECT, tasks=(replace(PROSPECT.tasks[0], skill=1e20),))
    with pytest.raises(InfrastructureError, match="not finite"):
        simulate_capped(refused, seed=1)
