"""Parts that an agent delegates: the resulting plan, and its limits."""

from __future__ import annotations

from typing import Any

import pytest

from chargehand.core.errors import UsageError
from chargehand.core.messages import Delegation
from chargehand.core.plan_events import PlanMade, PlanProgress, TaskDelegated, TaskStarted
from chargehand.core.plans import MOST_TASKS, Plan, Task, TeamMember
from chargehand.missions.plan_documents import parse_plan
from chargehand.missions.planning.delegation import plan_with_delegations
from chargehand.missions.planning.loading import LARGEST_PLAN


def part(name: str, **more: Any) -> Delegation:
    return Delegation(id=name, text=f"Write {name}", **{"role": "tester", **more})


def progress(*tasks: Task, **more: Any) -> PlanProgress:
    return PlanProgress().after(PlanMade(plan=Plan(tasks=tasks, **more), identity="ada"))


def task(name: str, *after: str, **more: Any) -> Task:
    return Task(id=name, text=f"Write {name}", after=after, **more)


def test_parts_have_no_more_than_the_task_that_hands_them_on() -> None:
    whole = task(
        *("a",),
        areas=("src/**",),
        checks=("pytest",),
        attempts=2,
        seconds=60.0,
        budget_usd=3.0,
        priority=4,
        reviewers=("security",),
        agent="careful",
        models=("strong",),
        candidates=3,
    )
    made = plan_with_delegations(
        progress(whole, team=(TeamMember(role="writer", agent="quick", reviewers=("editor",)),)),
        "a",
        (part("b", deadline=30.0), part("c", role="writer")),
    )
    b, c = made.task("a.b"), made.task("a.c")
    assert b is not None
    assert c is not None
    assert (b.areas, b.checks, b.attempts, b.seconds, b.deadline) == (("src/**",), ("pytest",), 2, 60.0, 30.0)
    assert (b.budget_usd, b.priority, b.delegated_by, b.candidates) == (1.5, 4, "a", 1)
    # The part's role chooses the agent, not the task's own settings; a review cannot be avoided.
    assert (b.agent, b.models, b.reviewers) == ("", (), ("security",))
    assert (c.agent, c.reviewers) == ("quick", ("editor",))


def test_unstarted_dependents_of_a_task_also_depend_on_its_parts() -> None:
    now = progress(task("a"), task("next", "a"), task("far", "next"), task("begun", "a"), task("other"))
    begun = TaskStarted(task="begun", mission="m", round=1, rung="first", base="0" * 40, why="x")
    made = plan_with_delegations(now.after(begun), "a", (part("b"), part("c", after=("b", "other"))))
    after = {each.id: each.after for each in made.tasks}
    assert after == {
        "a": (),
        "a.b": ("a",),
        "a.c": ("a", "a.b", "other"),
        "next": ("a", "a.b", "a.c"),
        "far": ("next",),
        "begun": ("a",),
        "other": (),
    }
    # Parts of another round are added next to the first, with the same dependencies; a file could contain the
    # plan.
    told = TaskDelegated(task="a", mission="m", tasks=("a.b", "a.c"))
    again = plan_with_delegations(now.after(told).after(PlanMade(plan=made, identity="task a")), "a", (part("d"),))
    assert {each.id: each.after for each in again.tasks} == {
        **after,
        "begun": ("a", "a.d"),
        "a.d": ("a",),
        "next": ("a", "a.b", "a.c", "a.d"),
    }
    from msgspec import json

    assert parse_plan(json.encode(again), "plan.json") == again


DEEP = (task("a"), task("b", delegated_by="a"), task("c", delegated_by="b"), task("me", delegated_by="me"))
OUT_OF_BOUNDS = [
    ("a", [part(each) for each in "wxyz"], "hands on 4 parts, more than 3"),
    ("c", [part("x")], "was handed on 2 times already"),
    ("me", [part("x")], "was handed on 2 times already"),
    ("gone", [part("x")], "is not part of the plan any more"),
    ("a", [part("x", role="")], "part 'x' has neither a role nor needs"),
    ("a", [part("x", role=" ")], "part 'x' has neither a role nor needs"),
]
INVALID = [
    ([part("x", after=("y",)), part("y", after=("x",))], "circle: a.x after a.y after a.x"),
    ([part("x", after=("last",))], "in a circle"),
    ([part("x", after=("nowhere",))], "unknown task 'nowhere'"),
    ([part("x"), part("x")], "the id appears twice"),
    ([part("X!")], "the id cannot be used"),
    ([part("x" * 70)], "the id cannot be used"),
    ([part("x", role="no role!")], "is not a role name"),
    ([Delegation(id="x", text=" ", role="tester")], "'text' is empty"),
    ([Delegation(id="x", text="a\x00b", role="tester")], "control character"),
]


@pytest.mark.parametrize(("whole", "parts", "said"), OUT_OF_BOUNDS)
def test_a_delegation_beyond_the_limits_is_refused(whole: str, parts: list[Delegation], said: str) -> None:
    now = progress(*DEEP)
    with pytest.raises(UsageError, match=said) as raised:
        plan_with_delegations(now, whole, parts)
    assert raised.value.code == "delegation_refused"
    assert plan_with_delegations(now, "b", [part("x")]).task("b.x") is not None


@pytest.mark.parametrize(("parts", "said"), INVALID)
def test_a_delegation_that_makes_the_plan_invalid_is_refused(parts: list[Delegation], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        plan_with_delegations(progress(task("a"), task("last", "a")), "a", parts)
    assert raised.value.code == "plan_invalid"


def test_all_rounds_of_a_task_and_the_whole_plan_are_counted() -> None:
    told = TaskDelegated(task="a", mission="m", tasks=("a.x", "a.y"))
    with pytest.raises(UsageError, match="hands on 4 parts"):
        plan_with_delegations(progress(task("a")).after(told), "a", [part("b"), part("c")])
    full = progress(*(task(f"t{number}") for number in range(MOST_TASKS - 1)))
    assert len(plan_with_delegations(full, "t0", [part("b")]).tasks) == MOST_TASKS
    with pytest.raises(UsageError, match=f"at most {MOST_TASKS} tasks"):
        plan_with_delegations(full, "t0", [part("b"), part("c")])
    large = progress(task("a"), Task(id="large", text="x" * (LARGEST_PLAN - 600)))
    with pytest.raises(UsageError, match=f"and {LARGEST_PLAN} bytes"):
        plan_with_delegations(large, "a", [Delegation(id="b", text="y" * 1000, role="tester")])


def test_a_part_is_not_taken_for_a_task_of_its_name_that_was_begun_and_dropped() -> None:
    dropped = progress(task("a"), task("a.b"), task("a.c"))
    begun = TaskStarted(task="a.b", mission="m", round=1, rung="first", base="0" * 40, why="x")
    now = dropped.after(begun).after(PlanMade(plan=Plan(tasks=(task("a"),)), identity="ada"))
    with pytest.raises(UsageError, match=r"task 'a\.b' was started and dropped before") as raised:
        plan_with_delegations(now, "a", [part("b")])
    assert raised.value.code == "delegation_refused"
    assert plan_with_delegations(now, "a", [part("c")]).task("a.c") is not None
