"""A plan of twenty tasks on real code: collisions, conflicts, changes that break together, a base that moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_coordinator import Crew
from tests import forked
from tests.conftest import git
from tests.crash_kit import nothing_survives
from tests.integration import standard_library_tasks as tasks
from tests.integration.standard_library import CHECK, library

from chargehand.app.composition import App
from chargehand.core.plan_events import TaskHeld, TaskMerged, TaskReturned, TaskStarted
from chargehand.missions.provenance import verify_mission

pytestmark = [pytest.mark.needs_bwrap, pytest.mark.timeout(580)]
PLANS = [
    pytest.param(tasks.six(), id="six"),
    pytest.param(tasks.twenty(), id="twenty", marks=pytest.mark.soak),
]


class LibraryCrew(Crew):
    """A crew on the standard library, with the model of the task `table`."""

    def __init__(self, place: Path) -> None:
        config = place / "config/chargehand"
        config.mkdir(parents=True)
        script = place / "table.jsonl"
        script.write_bytes(tasks.TABLE_TALK.dump())
        (config / "config.toml").write_text(tasks.config(str(script)))
        super().__init__(place, library(place / "repo"))

    def say(self, *words: str) -> str:
        """Return a command's output; no worker is started behind the test's back."""
        with App.open(environ=self.environ, cwd=self.repo, role="worker") as app:
            assert app.member.id
            code, said, error = forked.run(words, cwd=self.repo, environ=self.environ)
        assert code == 0, (words, said, error)
        return said

    def held(self, mission: str) -> dict[frozenset[str], str]:
        """Return the reason for holding a task, by the two tasks that collide."""
        events = self.events(mission, TaskHeld)
        return {frozenset(each.reason.message.split("'")[1:4:2]): each.reason.code for each in events}


@pytest.fixture
def crew(tmp_path: Path) -> LibraryCrew:
    return LibraryCrew(tmp_path)


@pytest.mark.parametrize("planned", PLANS)
def test_a_plan_of_twenty_tasks_ends_green_and_reports_all_problems(
    crew: LibraryCrew, planned: list[dict[str, Any]]
) -> None:
    repo, names = crew.repo, {task["id"] for task in planned}
    with nothing_survives():
        mission = crew.record(planned, CHECK, apply=True)
        (repo / "untracked.txt").write_text("mine\n")
        before = git(repo, "rev-parse", "main")
        state = crew.work(mission)
        assert state.status == "waiting", (state.status, state.reasons)
        # Everything that does not wait for a person is done, and nothing of it is in the repository.
        merged = {each.task for each in crew.events(mission, TaskMerged)}
        assert merged == names - {"table", "wrap-words", "wrap-wide", "index"}
        assert git(repo, "for-each-ref", "--format=%(objectname)", "refs/heads").split() == [before]
        assert git(repo, "status", "--short") == "?? untracked.txt"
        git(repo, "commit", "--quiet", "--allow-empty", "--message=empty")
        (repo / "OWN").write_text("own\n")
        git(repo, "add", "OWN")
        git(repo, "commit", "--quiet", "--message=own")
        own = git(repo, "rev-parse", "main")
        crew.say("mission", "answer", mission, "--task", "wrap-words", "12")
        crew.say("mission", "answer", mission, "--task", "table", "no")
        state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    check_collisions(crew, mission, names)
    check_that_trouble_is_told(crew, mission)
    check_branches(crew, mission, names, own)
    check_undo(crew, mission, own)
    if "news-one" in names:
        check_conflict(crew, mission)


def check_collisions(crew: LibraryCrew, mission: str, names: set[str]) -> None:
    """Each collision is logged with its kind, and colliding tasks never ran in parallel."""
    collisions = {
        frozenset({"json-sorted", "json-short"}): "collision_file",
        frozenset({"log-names", "log-counts"}): "collision_area",
        frozenset({"wrap-words", "wrap-wide"}): "collision_file",  # found by written files: one task declares less
    }
    expected = {pair: code for pair, code in collisions.items() if pair <= names}
    assert crew.held(mission) == expected
    events = crew.events(mission, TaskStarted, TaskMerged)
    for pair in expected:
        assert [type(each) for each in events if each.task in pair][-4:][1::2] == [TaskMerged, TaskMerged]


def check_that_trouble_is_told(crew: LibraryCrew, mission: str) -> None:
    """Of the two changes that broke together the later one went back, in its own conversation."""
    assert [run.rung for run in runs(crew, mission, "strict")] == ["first"]
    assert [run.rung for run in runs(crew, mission, "table")] == ["first", "returned"]
    back = next(each for each in crew.events(mission, TaskReturned) if each.task == "table")
    assert back.reason.code == "merged_red"
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        evidence = app.store.artifacts.get(back.evidence).decode()
    assert "escape() takes 1 positional argument" in evidence
    told = "together with later merges"
    log, report = crew.say("mission", "log", mission), crew.say("mission", "report", mission)
    assert f"task table goes back: {told}" in log
    assert log.count("task table started") == 2
    assert f"went back: `{told}" in report
    plan = json.loads(crew.say("--json", "mission", "plan", mission))
    (table,) = (each for each in plan["tasks"] if each["id"] == "table")
    assert [each["code"] for each in table["returned"]] == ["merged_red"]
    assert all(each["status"] == "merged" for each in plan["tasks"])
    row = next(line for line in crew.say("mission", "plan", mission).splitlines() if line.startswith("table"))
    assert told in row


def check_branches(crew: LibraryCrew, mission: str, names: set[str], own: str) -> None:
    """The user's branch has one commit for each task, and one merge with the commits made meanwhile."""
    repo = crew.repo
    done = git(repo, "log", "--no-merges", "--format=%(trailers:key=Task,valueonly,separator=)", f"{own}..main")
    assert sorted(done.split()) == sorted(names)
    assert git(repo, "rev-list", "--count", "--merges", f"{own}..main") == "1"
    assert git(repo, "merge-base", own, "main") == own
    assert git(repo, "status", "--short") == "?? untracked.txt"
    assert (repo / "untracked.txt").read_text() == "mine\n"
    assert (repo / "OWN").read_text() == "own\n"
    assert git(repo, "fsck", "--strict", "--no-dangling") == ""
    git(repo, "worktree", "add", "--quiet", "--detach", str(crew.place / "clean"), "main")
    tests = git(crew.place / "clean", "ls-files", "tests/test_*.py").split()
    assert len(tests) == 1 + len(names) - 2 * ("news-one" in names)
    with App.open(environ=crew.environ, cwd=repo) as app:
        found = verify_mission(app.store, app.projects.depot(app.projects.find()), mission)
        assert [each.problems for each in found] == [()] * (len(names) + 1)
        assert not [each for each in app.mission_reader.all() if each.status == "running"]


def check_undo(crew: LibraryCrew, mission: str, own: str) -> None:
    """The report's last undo command reverts everything, although the branch is a merge."""
    command = json.loads(crew.say("--json", "mission", "report", mission))["undo"]["commands"][-1]
    clone = crew.place / "undone"
    git(crew.repo, "clone", "--quiet", str(crew.repo), str(clone))
    git(clone, *command.removeprefix("git ").split(), "--no-edit")
    assert git(clone, "rev-parse", "HEAD^{tree}") == git(clone, "rev-parse", f"{own}^{{tree}}")


def check_conflict(crew: LibraryCrew, mission: str) -> None:
    """Of two changes to one line the later one went back, to an agent that takes no messages."""
    backs = [each for each in crew.events(mission, TaskReturned) if each.task.startswith("news")]
    assert [each.reason.code for each in backs] == ["merge_conflict"]
    assert [run.rung for run in runs(crew, mission, backs[0].task)] == ["first", "returned"]
    entries = (crew.repo / "lib/news.py").read_text().split()
    assert sorted(entries) == ['"First', "'one',", "'two',", "=", "ENTRIES", "[", "]", 'release",']


def runs(crew: LibraryCrew, mission: str, task: str) -> list[Any]:
    return [each for each in crew.events(mission, TaskStarted) if each.task == task]
