"""The checks of each merged task hold on every tree that its coordinator merges, delivers or leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from command_line import repository, shell
from test_coordinator import Crew
from tests.conftest import git

from chargehand.app.checkpoints import roll_back_task
from chargehand.app.requests import FollowUp, follow_up_mission
from chargehand.core.events import read_payload
from chargehand.core.mission_events import VerdictGiven
from chargehand.core.plan_events import TaskMerged, TaskReturned

pytestmark = pytest.mark.needs_bwrap

# Passes unless both have changed.
OWN = "import sys\nsys.exit(open('a.txt').read() != 'a\\n' and open('b.txt').read() != 'b\\n')\n"
# Passes if the file of that letter holds the word. A check that names the file would run on the base's file too.
HAS = "import sys\nsys.exit(open(sys.argv[1] + '.txt').read() != sys.argv[2] + '\\n')\n"
FILES = {"a.txt": "a\n", "b.txt": "b\n", "c.txt": "c\n", "own.py": OWN, "has.py": HAS}
READS = "cat *.txt > /dev/null"


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path, repository(tmp_path / "repo", FILES))


def task(name: str, script: str, *checks: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "text": f"change {name}", "agent": shell(script), "checks": list(checks), **more}


def returned(crew: Crew, mission: str) -> list[TaskReturned]:
    with crew.opened() as app:
        events = map(read_payload, app.store.log.read(mission, types=(TaskReturned.type,)))
        return [event for event in events if isinstance(event, TaskReturned)]


def test_two_tasks_whose_checks_fail_together_are_not_both_merged(crew: Crew) -> None:
    tasks = [task(name, f"echo new > {name}.txt", "python3 own.py") for name in "ab"]
    mission = crew.record(tasks, READS, attempts=1)
    state = crew.work(mission)
    (back, *_) = returned(crew, mission)
    assert back.reason.code == "merged_red"
    assert "own.py" in back.reason.message
    assert state.status == "waiting"


def checked(crew: Crew, mission: str) -> list[tuple[str, frozenset[str]]]:
    """Return scope and passed checks of each verdict in a mission's log."""
    return [
        (event.verdict.scope, frozenset(c.name for c in event.verdict.checks if c.status == "passed"))
        for event in crew.events(mission, VerdictGiven)
    ]


def test_a_later_task_must_pass_the_checks_of_earlier_tasks(crew: Crew) -> None:
    tasks = [
        task("a", "echo new > a.txt", "python3 has.py a new"),
        task("b", "echo old > a.txt; echo new > b.txt", "python3 has.py b new", after=["a"]),
    ]
    mission = crew.record(tasks, READS, attempts=1)
    state = crew.work(mission)
    # Its own mission refuses it already, so its agent can react.
    assert crew.children(mission) == {"a": "promoted", "b": "refused"}
    assert state.status == "waiting"
    with crew.opened() as app:
        verdict = app.mission_reader.state(crew.mission_of(mission, "b")).verdicts[-1]
    assert {c.name for c in verdict.checks if c.status == "failed"} == {"python3 has.py a new"}


def test_all_checks_hold_to_the_end_and_those_of_a_rolled_back_task_no_longer_count(crew: Crew) -> None:
    tasks = [
        task("a", "echo new > a.txt", "python3 has.py a new"),
        task("b", "echo new > b.txt", "python3 has.py b new"),
        task("c", "echo new > c.txt", after=["a", "b"]),
    ]
    mission = crew.record(tasks, READS)
    state = crew.work(mission)
    assert state.status == "promoted"
    own = {check for each in tasks for check in each["checks"]}
    # `c` started on the result of both others: its own mission ran all checks.
    assert own < checked(crew, crew.mission_of(mission, "c"))[-1][1]
    merged = [names for scope, names in checked(crew, mission) if names >= own]
    assert merged
    with crew.opened() as app:
        asyncio.run(roll_back_task(app, mission, "a", with_dependents=True))
    names = checked(crew, mission)[-1][1]
    assert not names & {*tasks[0]["checks"]}
    assert names >= {*tasks[1]["checks"]}


def test_a_moved_branch_is_judged_by_the_checks_of_all_tasks(crew: Crew) -> None:
    tasks = [task("a", "echo new > a.txt", "python3 own.py"), task("c", "echo new > c.txt")]
    mission = crew.record(tasks, READS, apply=True, break_at="promote")
    assert crew.work(mission).status == "paused"
    (crew.repo / "b.txt").write_text("moved\n")
    git(crew.repo, "commit", "-qam", "moved")
    with crew.opened() as app:
        app.steering.resume(mission)
    state = crew.work(mission)
    assert state.applied is not None
    assert state.applied.state == "blocked"
    scope, passed = checked(crew, mission)[-1]
    assert scope == "merged"
    assert "python3 own.py" not in passed


def test_a_change_that_the_branch_has_already_is_merged_only_with_its_checks(crew: Crew) -> None:
    # Both make the same change; with the first task's change, the second task's check fails.
    tasks = [
        task("a", "echo new > a.txt; echo new > b.txt", "true"),
        task("b", "sleep 1; echo new > b.txt", "python3 has.py a a"),
    ]
    mission = crew.record(tasks, READS, attempts=1)
    crew.work(mission)
    merged = [event.task for event in crew.events(mission, TaskMerged)]
    back = returned(crew, mission)
    assert len(merged) == 1
    assert back[0].reason.code == "merged_red"


def test_more_of_a_plan_keeps_the_checks_of_its_tasks(crew: Crew) -> None:
    mission = crew.record([task("a", "echo new > a.txt", "python3 has.py a new")], READS)
    assert crew.work(mission).status == "promoted"
    with crew.opened() as app:
        made = follow_up_mission(app, FollowUp(mission=mission, text="more"))
        request = app.mission_reader.state(made).request
    assert request is not None
    assert request.extra_checks == ("python3 has.py a new",)


def test_more_of_a_plan_begins_on_its_merged_result(crew: Crew) -> None:
    mission = crew.record([task("a", "echo new > a.txt"), task("b", "echo new > b.txt")], READS)
    assert crew.work(mission).status == "promoted"
    with crew.opened() as app:
        made = follow_up_mission(app, FollowUp(mission=mission, text="more"))
    state = crew.work(made)
    assert state.first_base is not None
    with crew.opened() as app:
        assert state.first_base.commit == app.mission_reader.state(mission).commit
