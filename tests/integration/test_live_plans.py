"""A plan that is changed while its coordinator waits, sleeps, or is held by a worker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from command_line import shell
from msgspec.structs import replace
from test_coordinator import branch, task
from test_steering_tasks import Steered, crew
from tests.conftest import git
from tests.crash_kit import MARK, wait_until, wake

from chargehand.app.composition import App
from chargehand.app.missions import cancel_mission
from chargehand.app.requests import change_plan, start_held_task
from chargehand.app.worker import Worker
from chargehand.core.errors import NotFoundError, RefusedError
from chargehand.core.plan_events import PlanMade, PlanProgress, TaskAllowed, TaskEnded, TaskMerged, TaskStarted
from chargehand.core.plans import Plan, Task, task_digest
from chargehand.core.state import MissionState

__all__ = ["crew"]
pytestmark = pytest.mark.needs_bwrap
SLOW = shell("sleep 60; echo x > sub/slow.txt")


def plan_file(crew: Steered, name: str, *tasks: dict[str, Any], **more: Any) -> str:
    file = crew.place / f"{name}.json"
    file.write_text(json.dumps({"tasks": tasks, **more}))
    return str(file)


def meanwhile(
    crew: Steered, mission: str, when: Callable[[App], bool], *, do: Callable[[App], object]
) -> MissionState:
    """Work, and call `do` once `when` is true; return the mission's state when nothing is left to do."""

    async def work() -> MissionState:
        with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as app:
            working = asyncio.create_task(Worker(app, slots=4).work(until_idle=True))
            while not await asyncio.to_thread(when, app):
                assert not working.done()
                await asyncio.sleep(0.05)
            with App.open(environ=crew.environ, cwd=crew.repo) as other:
                await asyncio.to_thread(do, other)
            await working
            return app.mission_reader.state(mission)

    return asyncio.run(work())


def test_a_sleeping_coordinator_resumes_with_the_changed_plan(crew: Steered) -> None:
    """The new plan adds a task, drops a running task, and changes a waiting task."""
    late = task("late", after=["slow"])
    mission = crew.record([task("a"), task("slow", SLOW), late])
    new = plan_file(crew, "new", task("more", after=["a"]), task("a"), task("late", shell("echo y > sub/y.txt")))

    def works(app: App) -> bool:
        state = app.mission_reader.state(mission)
        assert state.plan is not None
        return state.asleep and state.plan.tasks["a"].end is not None

    state = meanwhile(crew, mission, works, do=lambda app: change_plan(app, mission, new))
    assert state.status == "promoted", state.reasons
    assert {each.task: each.outcome for each in crew.events(mission, TaskEnded)} == dict.fromkeys(
        ("a", "more", "late"), "merged"
    )
    assert crew.children(mission)["slow"] == "cancelled"
    names = set(git(crew.repo, "ls-tree", "-r", "--name-only", branch(crew, state)).split())
    assert {"sub/a.txt", "sub/more.txt", "sub/y.txt"} <= names
    assert not {"sub/slow.txt", "sub/late.txt"} & names
    made = crew.events(mission, PlanMade)
    assert [len(each.plan.tasks) for each in made] == [3, 3]
    assert made[1].identity.startswith("os:")
    assert state.tasks is not None
    assert (state.tasks.total, state.tasks.merged) == (3, 3)
    crew.refused("not_plannable", "mission", "plan", mission, "--set", new)


def test_a_running_coordinator_takes_the_changed_plan_by_order(crew: Steered) -> None:
    """Its worker evaluates a condition for seconds: the task in hand stays, all others may change."""
    looks = task("looks", done_when=f"sleep {MARK}; false")
    mission = crew.record([looks, task("b", after=["looks"])])
    new = plan_file(crew, "new", looks, task("c", after=["looks"]), task("d"))
    busy: list[str] = []

    def held(app: App) -> bool:
        return app.controls._running.get(mission) is not None and app.controls._running[mission].in_hand == "looks"

    def change(app: App) -> None:
        row = app.store.log.get(mission)
        assert row.owner is not None
        with pytest.raises(RefusedError) as error:
            app.order(mission, "plan", plan=json.dumps({"tasks": [task("b")]}))
        busy.append(error.value.code)
        change_plan(app, mission, new)
        assert app.store.log.get(mission).epoch == row.epoch, "nobody else claimed it"
        wait_until(wake)

    state = meanwhile(crew, mission, held, do=change)
    assert busy == ["task_busy"]
    assert state.status == "promoted", state.reasons
    assert sorted(each.task for each in crew.events(mission, TaskMerged)) == ["c", "d", "looks"]
    assert [each.task for each in crew.events(mission, TaskStarted)].count("looks") == 1


def test_started_tasks_of_a_plan_cannot_be_changed(crew: Steered) -> None:
    mission = crew.record(
        [task("a"), task("bad", shell("exit 3")), task("idle", done_when="true"), task("c", after=["bad"])]
    )
    assert crew.work(mission).status == "waiting"

    def refused(code: str, *tasks: dict[str, Any]) -> str:
        file = plan_file(crew, "bad", *tasks)
        return crew.refused(code, "mission", "plan", mission, "--set", file)["message"]

    a, bad, idle, c = (
        task("a"),
        task("bad", shell("exit 3")),
        task("idle", done_when="true"),
        task("c", after=["bad"]),
    )
    assert "'a'" in refused("plan_fixed", bad, idle, c)
    assert "'a'" in refused("plan_fixed", {**a, "text": "Write another"}, bad, idle, c)
    assert "'idle'" in refused("plan_fixed", a, bad, c)
    assert "'bad'" in refused("plan_fixed", a, {**bad, "text": "Write better"}, idle, c)
    assert "nobody" in refused("plan_invalid", a, bad, idle, task("c", after=["nobody"]))
    assert "circle" in refused("plan_invalid", a, bad, idle, task("c", after=["d"]), task("d", after=["c"]))
    crew.refused(
        "not_found",
        "mission",
        "plan",
        mission,
        "--set",
        plan_file(crew, "x", a, bad, idle, {**c, "agent": "none"}),
    )
    assert len(crew.events(mission, PlanMade)) == 1
    # The task that a person is asked about may be dropped, and its question with it.
    file = plan_file(crew, "good", idle, a, task("d"), task("c"))
    change = crew.say("mission", "plan", mission, "--set", file)
    assert (change["added"], change["dropped"], change["changed"]) == (["d"], ["bad"], ["c"])
    assert crew.say("mission", "show", mission)["question"] is None
    assert "'bad'" in refused("plan_fixed", idle, a, task("d"), task("c"), bad)
    state = crew.work(mission)
    assert (state.status, state.tasks and state.tasks.ended) == ("promoted", 4)
    assert crew.say("mission", "plan", mission)["plan"]["tasks"][0]["id"] == "idle"


def test_a_changed_plan_keeps_the_pause_and_asks_its_new_ambiguity(crew: Steered) -> None:
    mission = crew.record([task("a"), task("b")])
    crew.run("mission", "pause", mission)
    open_point = [{"id": "way", "question": "Which way?"}]
    crew.say(
        "mission", "plan", mission, "--set", plan_file(crew, "new", task("a"), task("c"), ambiguities=open_point)
    )
    assert crew.work(mission).status == "paused"
    crew.run("mission", "resume", mission)
    asked = crew.work(mission).open_question
    assert asked is not None
    assert (asked.text, crew.children(mission)) == ("Which way?", {})
    crew.say("mission", "plan", mission, "--set", plan_file(crew, "newer", task("a"), task("c")))
    assert crew.work(mission).status == "promoted"
    assert set(crew.children(mission)) == {"a", "c"}


def test_each_of_several_concurrent_plan_changes_is_recorded(crew: Steered) -> None:
    mission = crew.record([task("a"), task("b")])
    files = [plan_file(crew, f"n{number}", task("a"), task(f"n{number}")) for number in range(4)]
    changes = []

    def change(file: str) -> None:
        with App.open(environ=crew.environ, cwd=crew.repo) as app:
            changes.append(change_plan(app, mission, file))

    with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as worker:
        assert worker.member.id
        people = [threading.Thread(target=change, args=(file,)) for file in files]
        for person in people:
            person.start()
        for person in people:
            person.join()
    made = crew.events(mission, PlanMade)
    assert len(made) == 5
    # Each answer names the tasks that the plan added to and dropped from its predecessor.
    assert {each.added + each.dropped for each in changes} == {
        (new.plan.tasks[1].id, old.plan.tasks[1].id) for old, new in pairwise(made)
    }
    assert crew.work(mission).status == "promoted"
    assert set(crew.children(mission)) == {"a", made[-1].plan.tasks[1].id}


def held_by(app: App, mission: str, name: str) -> bool:
    plan = app.mission_reader.state(mission).plan
    return plan is not None and plan.tasks[name].held is not None


def test_a_person_can_start_a_held_task_despite_its_collision(crew: Steered) -> None:
    a = task("a", shell(f"sleep {MARK}; echo x > sub/log-a.txt"), change=["sub/log.txt"])
    b = task("b", shell("echo x > sub/log-b.txt"), change=["sub/log.txt"])
    mission = crew.record([a, b])

    def start(app: App) -> None:
        start_held_task(app, mission, "b")
        wait_until(lambda: "b" in [each.task for each in crew.events(mission, TaskStarted)])
        wait_until(wake)

    state = meanwhile(crew, mission, lambda app: held_by(app, mission, "b"), do=start)
    assert state.status == "promoted"
    [allowed] = crew.events(mission, TaskAllowed)
    assert (allowed.task, tuple(allowed.beside)) == ("b", ("a",))
    order = [(type(event), event.task) for event in crew.events(mission, TaskStarted, TaskEnded)]
    assert order.index((TaskStarted, "b")) < order.index((TaskEnded, "a")), "it began while the other one worked"


def test_a_permission_is_void_after_a_change_of_either_task() -> None:
    a, b = (Task(id=name, text=name, change=("f",)) for name in ("a", "b"))
    progress = PlanProgress().after(PlanMade(plan=Plan(tasks=(a, b)), identity="ada"))
    assert not progress.is_allowed(b, a)
    allowed = TaskAllowed(task="b", identity="ada", digest=task_digest(b), beside={"a": task_digest(a)})
    progress = progress.after(allowed)
    assert progress.is_allowed(b, a)
    assert progress.is_allowed(a, b), "whichever begins first"
    for other in (replace(a, text="more"), replace(a, change=("f", "g"))):
        assert not progress.is_allowed(b, other)
    assert not progress.is_allowed(replace(b, priority=1), a)
    assert not progress.is_allowed(b, Task(id="c", text="c", change=("f",))), "another one was not meant"


def test_only_a_held_task_can_be_started_by_a_person(crew: Steered) -> None:
    mission = crew.record([task("a", SLOW, change=["sub/log.txt"]), task("b", after=["a"])])

    def try_all(app: App) -> None:
        with pytest.raises(RefusedError) as begun:
            start_held_task(app, mission, "a")
        assert (begun.value.code, "was begun" in begun.value.message) == ("not_held", True)
        with pytest.raises(RefusedError) as waits:
            start_held_task(app, mission, "b")
        assert (waits.value.code, "no collision" in waits.value.message) == ("not_held", True)
        with pytest.raises(NotFoundError):
            start_held_task(app, mission, "c")
        cancel_mission(app, mission)

    meanwhile(crew, mission, lambda app: bool(crew.events(mission, TaskStarted)), do=try_all)
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        with pytest.raises(RefusedError) as ended:
            start_held_task(app, mission, "b")
        assert ended.value.code == "not_plannable"
    assert not crew.events(mission, TaskAllowed)
