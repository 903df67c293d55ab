"""Rolling back single tasks of a coordinator, in real repositories: the obstacles, and the remaining tree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from command_line import shell
from test_coordinator import branch, task
from test_steering_tasks import Steered, crew
from tests.conftest import git

from chargehand.app.composition import App
from chargehand.core.mission_events import MissionRolledBack, QuestionAsked, VerdictGiven
from chargehand.core.state import MissionState
from chargehand.missions.missions import Missions
from chargehand.missions.provenance import verify_mission

__all__ = ["crew"]
pytestmark = pytest.mark.needs_bwrap


def line(number: int, text: str = "new") -> str:
    return shell(f"sed -i '{number}s/.*/{text}/' sub/l.txt")


FIRST = task("first", shell("seq 1 20 > sub/l.txt"))


def tree(crew: Steered, ref: str) -> set[str]:
    return set(git(crew.repo, "ls-tree", "-r", "--name-only", ref).split())


def rolled_back(crew: Steered, mission: str, *words: str) -> dict[str, Any]:
    return crew.say("mission", "rollback", mission, *words)


def test_a_task_is_rolled_back_by_a_commit_on_the_exported_branch(crew: Steered) -> None:
    mission = crew.record([task("a"), task("b"), task("c", shell("echo y > sub/h.txt"))])
    state = crew.work(mission)
    made = branch(crew, state)
    before = {ref: git(crew.repo, "rev-parse", ref) for ref in (made, "main")}
    seen = crew.say("mission", "rollback", mission, "--task", "a", "--dry-run")
    assert (seen["tasks"], [each["path"] for each in seen["plan"]["paths"]]) == (["a"], ["sub/a.txt"])
    assert git(crew.repo, "rev-parse", made) == before[made]
    done = rolled_back(crew, mission, "--task", "a")
    assert (done["status"], done["rolled_back"], done["export"]["state"]) == ("promoted", False, "done")
    assert git(crew.repo, "rev-parse", f"{made}^") == before[made]
    assert git(crew.repo, "rev-parse", "main") == before["main"]
    assert git(crew.repo, "diff", "--name-status", before[made], made).split() == ["D", "sub/a.txt"]
    assert f"Roll back task a of mission {mission}" in git(crew.repo, "log", "-1", "--format=%B", made)
    (event,) = crew.events(mission, MissionRolledBack)
    assert (event.tasks, event.commit) == (("a",), git(crew.repo, "rev-parse", made))
    # The landed tree has a verdict, and its provenance can be verified.
    assert crew.events(mission, VerdictGiven)[-1].verdict.tree == event.tree
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        depot = app.projects.depot(app.projects.find(crew.repo))
        checked = verify_mission(app.store, depot, mission)
    assert (checked[-1].commit, checked[-1].problems) == (event.commit, ())
    statuses = {each["id"]: each["status"] for each in crew.say("mission", "plan", mission)["tasks"]}
    assert statuses == {"a": "rolled_back", "b": "merged", "c": "merged"}
    crew.refused("rolled_back", "mission", "rollback", mission, "--task", "a")
    rolled_back(crew, mission, "--task", "c")
    assert git(crew.repo, "show", f"{made}:sub/h.txt") == git(crew.repo, "show", "main:sub/h.txt")
    assert "sub/b.txt" in tree(crew, made)
    done = rolled_back(crew, mission, "--task", "b")
    assert done["rolled_back"]
    assert git(crew.repo, "rev-parse", f"{made}^{{tree}}") == git(crew.repo, "rev-parse", "main^{tree}")
    crew.refused("rolled_back", "mission", "rollback", mission, "--task", "b")
    crew.refused("rolled_back", "mission", "rollback", mission)


def test_dependents_of_a_task_block_its_rollback_or_are_included(crew: Steered) -> None:
    """Built on it by the plan, across a task that had nothing to do, and by later changes to the same files."""
    lines = [task(f"l{n}", line(n), after=["first"], change=["sub/l.txt"]) for n in (1, 10, 20)]
    mission = crew.record(
        [
            FIRST,
            *lines,
            task("a"),
            task("idle", done_when="true", after=["a"]),
            task("b", after=["idle"]),
            task("other"),
        ],
    )
    made = branch(crew, crew.work(mission))
    before = git(crew.repo, "rev-parse", made)
    error = crew.refused("built_on", "mission", "rollback", mission, "--task", "first")
    assert all(name in error["message"] for name in ("l1", "l10", "l20"))
    assert "other" not in error["message"]
    assert "b built on it" in crew.refused("built_on", "mission", "rollback", mission, "--task", "a")["message"]
    crew.refused("task_not_merged", "mission", "rollback", mission, "--task", "idle")
    crew.refused("not_found", "mission", "rollback", mission, "--task", "nobody")
    assert git(crew.repo, "rev-parse", made) == before
    merged = [each.task for each in crew.merges(mission) if each.task.startswith("l")]
    last = merged[-1]
    rolled_back(crew, mission, "--task", last)
    assert git(crew.repo, "show", f"{made}:sub/l.txt").split("\n")[int(last[1:]) - 1] == last[1:]
    rolled_back(crew, mission, "--task", merged[0], "--with-dependents")
    assert git(crew.repo, "show", f"{made}:sub/l.txt").split() == [str(n) for n in range(1, 21)]
    rolled_back(crew, mission, "--task", "a", "--with-dependents")
    assert git(crew.repo, "rev-list", "--count", f"{before}..{made}") == "3"
    assert [each.tasks for each in crew.events(mission, MissionRolledBack)] == [
        (last,), tuple(merged[:2]), ("a", "b")
    ]  # fmt: skip
    assert {"sub/other.txt", "sub/l.txt"} <= tree(crew, made)
    assert not {"sub/a.txt", "sub/b.txt"} & tree(crew, made)


def test_rollback_of_a_task_that_conflicts_with_later_changes_is_refused(crew: Steered) -> None:
    """A file is gone, and a directory of its name has another task's file: no path is the same."""
    there = shell("mkdir sub/h.txt; echo x > sub/h.txt/x")
    tasks = [task("kept"), task("gone", shell("rm sub/h.txt")), task("there", there)]
    mission = crew.record(tasks, "cat f.txt sub/* sub/*/* >/dev/null 2>&1 || true; ls", at_once=1)
    state = crew.work(mission)
    while state.status == "waiting":  # no check opens the deleted file
        assert state.open_question is None, [each.reasons for each in crew.events(mission, QuestionAsked)]
        crew.say("mission", "promote", mission)
        state = crew.work(mission)
    made = branch(crew, state)
    before = git(crew.repo, "rev-parse", made)
    for words in ((), ("--dry-run",)):
        error = crew.refused("merge_conflict", "mission", "rollback", mission, "--task", "gone", *words)
        assert "sub/h.txt" in error["message"]
    assert git(crew.repo, "rev-parse", made) == before
    assert crew.events(mission, MissionRolledBack) == []
    rolled_back(crew, mission, "--task", "there")
    rolled_back(crew, mission, "--task", "gone")


def test_rollback_of_a_task_is_refused_if_the_remaining_tree_fails(crew: Steered) -> None:
    needs = "cat f.txt sub/* >/dev/null 2>&1; ls sub | head -1 | grep -qv ^b"
    mission = crew.record([task("a"), task("b")], needs, at_once=1)
    state = crew.work(mission)
    made = branch(crew, state)
    before = git(crew.repo, "rev-parse", made)
    crew.refused("not_green", "mission", "rollback", mission, "--task", "a")
    assert git(crew.repo, "rev-parse", made) == before
    rolled_back(crew, mission, "--task", "b")


def test_only_a_coordinator_at_rest_is_rolled_back_by_task(crew: Steered) -> None:
    mission = crew.record([task("a"), task("bad", shell("exit 3"))])
    assert crew.work(mission).status == "waiting"
    crew.refused("not_at_rest", "mission", "rollback", mission, "--task", "a")
    assert crew.work(mission).status == "waiting"
    crew.refused("no_plan", "mission", "rollback", crew.child(mission, "a"), "--task", "a")
    assert crew.run("mission", "rollback", mission, "--with-dependents").exit_code == 2


@pytest.mark.parametrize("point", ["rollback_prepared", "rolled_back"])
def test_a_roll_back_that_is_broken_off_happened_or_did_not(crew: Steered, point: str) -> None:
    mission = crew.record([task("a"), task("b")])
    crew.work(mission)

    class Killed(BaseException):
        pass

    def fault(at: str) -> None:
        if at == point:
            raise Killed

    async def back(app: App) -> MissionState:
        async with app.mission_session(mission) as (found, session):
            return await Missions(
                session.missions._services, controls=session.missions._controls, fault=fault
            ).roll_back_task(found, "a")

    with App.open(environ=crew.environ, cwd=crew.repo) as app, pytest.raises(Killed):
        asyncio.run(back(app))
    if point == "rolled_back":
        crew.refused("rolled_back", "mission", "rollback", mission, "--task", "a")
        crew.say("mission", "promote", mission)  # its export is still pending
    else:
        rolled_back(crew, mission, "--task", "a")
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        state = app.mission_reader.state(mission)
    assert "sub/a.txt" not in tree(crew, branch(crew, state))
    assert state.exported == state.commit
