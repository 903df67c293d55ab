"""While one result of a plan is merged, the next result's checks run ahead and count only for that exact tree."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from command_line import repository, shell
from tests import forked
from tests.conftest import git
from tests.crash_kit import MARK, sleepers, wait_until, wake
from tests.integration.test_coordinator import Crew, branch, task
from tests.integration.test_slots_attempts import LIMIT, until

from chargehand.app.composition import App
from chargehand.app.missions import pause_mission, resume_mission
from chargehand.app.worker import Worker
from chargehand.core.attempt_events import SandboxClosed, SandboxOpened
from chargehand.core.errors import RefusedError
from chargehand.core.mission_events import VerdictGiven
from chargehand.core.plan_events import TaskMerged, TaskReturned
from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "place").mkdir()
    made = Crew(tmp_path / "place", repository(tmp_path / "repo"))
    made.environ["CHARGEHAND_ENGINE_CHECKS_AT_ONCE"] = "3"
    return made


def queued_up(crew: Crew, tasks: list[dict[str, Any]], check: str) -> str:
    """Record a plan and run its tasks; no result is merged before all tasks are done."""
    mission = crew.record(tasks, check)

    def pause(app: App) -> None:
        pause_mission(app, mission, reason="")
        # Pausing a coordinator pauses its tasks. Resume the unfinished tasks, but not the coordinator.
        for row in app.store.log.children(mission):
            with contextlib.suppress(RefusedError):
                resume_mission(app, row.id)

    async def work(app: App) -> None:
        working = asyncio.create_task(Worker(app, slots=4).work(until_idle=True))
        await until(lambda: app.mission_reader.state(mission).asleep)
        await asyncio.to_thread(pause, app)
        await asyncio.wait_for(working, LIMIT)

    with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as app:
        asyncio.run(work(app))
    assert crew.work(mission).status == "paused"
    assert set(crew.children(mission).values()) == {"promoted"}
    assert not crew.events(mission, TaskMerged)
    with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as app:
        resume_mission(app, mission)
    return mission


def runs_and_merges(crew: Crew, mission: str) -> str:
    """Return the order of the coordinator's check runs (r), merges (m) and returned results (b)."""
    events = crew.events(mission, SandboxOpened, TaskMerged, TaskReturned)
    letters = {SandboxOpened: "r", TaskMerged: "m", TaskReturned: "b"}
    return "".join(letters[type(each)] for each in events).lstrip("r")


def left_over(crew: Crew) -> list[Path]:
    return list((crew.place / "state").glob("projects/*/workspaces/*ahead*"))


def judged(crew: Crew, mission: str) -> list[VerdictGiven]:
    given: list[VerdictGiven] = crew.events(mission, VerdictGiven)
    return [each for each in given if each.verdict.scope == "merged"]


def finished(crew: Crew, mission: str) -> MissionState:
    state = crew.work(mission)
    assert state.status == "promoted", state.reasons
    assert left_over(crew) == []
    return state


def test_each_merged_tree_is_checked_once_and_the_next_result_ahead(crew: Crew) -> None:
    mission = queued_up(crew, [task(name) for name in "abcd"], "cat sub/* > /dev/null")
    state = finished(crew, mission)
    # The first result needs no run: it is on the base already. Each other has one, two of them ahead of turn.
    order = runs_and_merges(crew, mission)
    assert (order[:3], order.count("r"), order.count("m")) == ("mrr", 3, 4), order
    verdicts = judged(crew, mission)
    assert [each.verdict.status for each in verdicts] == ["green"] * 3
    merged = [each.tree for each in crew.events(mission, TaskMerged)]
    assert [each.verdict.tree for each in verdicts] == merged[1:], "each verdict is of the tree that was merged"
    assert merged[-1] == git(crew.repo, "rev-parse", f"{branch(crew, state)}^{{tree}}")
    assert all(check.status == "passed" for each in verdicts for check in each.verdict.checks)


def test_checks_ahead_on_a_returned_result_are_ignored(crew: Crew) -> None:
    """The second is red together with the first, so a run of the third on both is not a run of the merged tree."""
    bad = "echo bad > sub/{0}.txt; if test -e sub/a.txt -a -e sub/b.txt; then echo x > sub/b.txt; fi"
    tasks = [task("a", shell(bad.format("a"))), task("b", shell(bad.format("b"))), task("c")]
    mission = queued_up(crew, tasks, "test $(cat sub/* | grep -c bad) -lt 2")
    state = finished(crew, mission)
    assert [each.task for each in crew.events(mission, TaskReturned)] == ["b"]
    assert [each.task for each in crew.events(mission, TaskMerged)] == ["a", "c", "b"]
    verdicts = judged(crew, mission)
    assert [each.verdict.status for each in verdicts] == ["red", "green", "green"][: len(verdicts)]
    made = branch(crew, state)
    assert git(crew.repo, "show", f"{made}:sub/c.txt") == "x"
    assert git(crew.repo, "show", f"{made}:sub/a.txt") == "bad"


def test_the_checks_of_the_next_task_itself_run_ahead_too(crew: Crew) -> None:
    """The third task passes alone and fails together with the second: a run ahead must include its checks."""
    own = "test $(ls sub | grep -c ^[bc]) -lt 2"
    tasks = [task("a"), task("b"), task("c") | {"checks": [own]}]
    mission = queued_up(crew, tasks, "cat sub/* > /dev/null")
    crew.work(mission)
    assert "rrm" in runs_and_merges(crew, mission), "the third was run while the second was merged"
    assert [each.task for each in crew.events(mission, TaskMerged)] == ["a", "b"]
    assert "c" in [each.task for each in crew.events(mission, TaskReturned)]
    on_three = judged(crew, mission)[1].verdict
    assert {check.name: check.status for check in on_three.checks if not check.base_tests} == {
        "cat sub/* > /dev/null": "passed",
        own: "failed",
    }


def test_no_checks_run_ahead_if_disabled(crew: Crew) -> None:
    crew.environ["CHARGEHAND_ENGINE_CHECKS_AHEAD"] = "false"
    mission = queued_up(crew, [task(each) for each in "abc"], "cat sub/* > /dev/null")
    finished(crew, mission)
    assert runs_and_merges(crew, mission) == "mrmrm"


def test_a_result_that_comes_while_another_is_judged_runs_ahead_too(crew: Crew) -> None:
    late = task("c", shell("sleep 1.5; echo x > sub/c.txt"))
    mission = crew.record([task("a"), task("b"), late], "cat sub/* > /dev/null; sleep 3")
    finished(crew, mission)
    assert runs_and_merges(crew, mission) == "mrrmm"


def test_one_check_slot_allows_no_concurrent_checks(crew: Crew) -> None:
    crew.environ["CHARGEHAND_ENGINE_CHECKS_AT_ONCE"] = "1"
    mission = queued_up(crew, [task(each) for each in "abc"], "cat sub/* > /dev/null")
    finished(crew, mission)
    # If the slot is free again before a result is merged, the next result's checks may take it.
    turns = [type(each) for each in crew.events(mission, SandboxOpened, SandboxClosed)]
    assert turns == [SandboxOpened, SandboxClosed] * (len(turns) // 2)


def test_a_pause_or_crash_during_checks_ahead_does_not_change_the_result(crew: Crew) -> None:
    # Once two results are merged, the check waits to be woken; meanwhile it runs ahead on all three.
    waits = f"cat sub/* > /dev/null; if test $(ls sub | grep -c '^[abc].txt') -gt 1; then sleep {MARK} || true; fi"
    mission = queued_up(crew, [task(name) for name in "abc"], waits)

    def worker() -> forked.ForkedProcess:
        words = ("worker", "--until-idle")
        return forked.ForkedProcess(words, cwd=crew.repo, environ=crew.environ, session=True)

    killed = worker()
    try:
        wait_until(lambda: len(sleepers()) == 2)
        with crew.opened() as app:
            pause_mission(app, mission, reason="")
            frozen = sleepers()
            wake()  # a frozen process notices once it resumes
            assert app.mission_reader.state(mission).status == "paused"
            assert sleepers() == frozen
    finally:
        killed.kill()
        killed.wait(LIMIT)
    wait_until(lambda: not sleepers())
    with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as app:
        resume_mission(app, mission)
    last = worker()
    wait_until(lambda: (wake(), last.poll())[1] is not None)
    state = finished(crew, mission)
    assert [each.task for each in crew.events(mission, TaskMerged)] == ["a", "b", "c"]
    assert crew.events(mission, TaskMerged)[-1].tree == git(
        crew.repo, "rev-parse", f"{branch(crew, state)}^{{tree}}"
    )
    assert [each.verdict.status for each in judged(crew, mission)] == ["green"] * 2
