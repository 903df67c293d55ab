"""Missions with a plan: tasks are child missions, merged one by one, controlled and explained as one mission."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import repository, shell
from tests import forked
from tests.conftest import git
from tests.crash_kit import MARK, sleepers, wait_until, wake
from tests.used_state import used_state

from chargehand.app.checkpoints import preview_roll_back, roll_back_task
from chargehand.app.composition import App
from chargehand.app.missions import (
    answer_question,
    cancel_mission,
    pause_mission,
    promote_mission,
    resume_mission,
    roll_back_mission,
)
from chargehand.app.requests import FollowUp, follow_up_mission, plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import ChargehandError, NotFoundError, RefusedError, UsageError
from chargehand.core.events import read_payload
from chargehand.core.mission_events import ApprovalGiven, MergeConflicted
from chargehand.core.plan_events import TaskEnded, TaskHeld, TaskMerged, TaskReturned, TaskStarted
from chargehand.core.state import MissionState, Question
from chargehand.missions.provenance import verify_mission
from chargehand.reports.outcome import next_commands
from chargehand.reports.showing import report_mission
from chargehand.reports.story import show_plan
from chargehand.store.rows import MissionFilter

pytestmark = pytest.mark.needs_bwrap

READS = "cat f.txt sub/* >/dev/null 2>&1; ls"
"""A check that opens what tasks change."""


class Crew:
    """A state directory with a repository; one worker in this process runs its missions."""

    def __init__(self, place: Path, repo: Path) -> None:
        self.repo = repo
        self.environ = {
            "HOME": str(place),
            "PATH": os.environ["PATH"],
            "CHARGEHAND_HOME": str(used_state(place / "state")),
            "XDG_CONFIG_HOME": str(place / "config"),
        }
        self.place = place

    def record(self, tasks: list[dict[str, Any]], check: str = READS, **more: Any) -> str:
        file = self.place / "plan.json"
        options = {
            name: more.pop(name)
            for name in ("attempts", "apply", "budget", "model", "break_at", "red_base", "time")
            if name in more
        }
        file.write_text(json.dumps({"tasks": tasks, **more}))
        asked = RunRequest(plan=str(file), agent="command:true", only_checks=(check,), yes=True, **options)
        with App.open(environ=self.environ, cwd=self.repo) as app:
            request, plan = plan_request(app, asked)
            return record_mission(app, request, plan=plan)

    def opened(self) -> App:
        return App.open(environ=self.environ, cwd=self.repo)

    def work(self, mission: str) -> MissionState:
        """Work until nothing is left to do, and return the mission's state."""
        with App.open(environ=self.environ, cwd=self.repo, role="worker") as app:
            asyncio.run(Worker(app, slots=4).work(until_idle=True))
            state = app.mission_reader.state(mission)
            assert (state.damaged_events, state.unknown_events) == (0, 0)
            return state

    def answer(self, mission: str, text: str) -> MissionState:
        with App.open(environ=self.environ, cwd=self.repo) as app:
            answer_question(app, mission, text)
        return self.work(mission)

    def answer_each(self, mission: str, answers: Mapping[str, str]) -> MissionState:
        """Answer the questions about these tasks, and work until nothing is left to do."""
        with App.open(environ=self.environ, cwd=self.repo) as app:
            asked = asked_about(app.mission_reader.state(mission))
            for name, text in answers.items():
                answer_question(app, mission, text, question=asked[name].id)
        return self.work(mission)

    def events(self, mission: str, *kinds: type) -> list[Any]:
        with App.open(environ=self.environ, cwd=self.repo) as app:
            payloads = [read_payload(line) for line in app.store.log.read(mission)]
        return [payload for payload in payloads if isinstance(payload, kinds)]

    def children(self, mission: str) -> dict[str, str]:
        """Return the last status of each task's missions."""
        with App.open(environ=self.environ, cwd=self.repo) as app:
            listed = app.store.log.summaries(app.workers.live, MissionFilter(parent=mission))
        return {each.summary.task: each.summary.status for each in listed}

    def mission_of(self, coordinator: str, name: str) -> str:
        """Return the last mission of a task."""
        return [each.mission for each in self.events(coordinator, TaskStarted) if each.task == name][-1]


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "place").mkdir()
    return Crew(tmp_path / "place", repository(tmp_path / "repo"))


def writes(name: str, text: str = "x") -> str:
    return shell(f"echo {text} > sub/{name}.txt")


def task(name: str, agent: str = "", **more: Any) -> dict[str, Any]:
    return {"id": name, "text": f"Write {name}", "agent": agent or writes(name), **more}


def asked_about(state: MissionState) -> dict[str, Question]:
    """Return the open question about each task."""
    found: dict[str, Question] = {}
    for asked in state.questions.values():
        if asked.open:
            named = re.search(r"[Tt]ask '?(\w+)", asked.text)
            assert named is not None, asked.text
            found[named[1]] = asked
    return found


def branch(crew: Crew, state: MissionState) -> str:
    assert state.export is not None, (state.status, state.reasons)
    return state.export.ref.removeprefix("refs/heads/")


def test_tasks_are_merged_in_an_order_that_their_plan_allows(crew: Crew) -> None:
    mission = crew.record(
        [task("last", shell("cat sub/a.txt sub/b.txt > sub/c.txt"), after=["a", "b"]), task("a"), task("b")]
    )
    before = git(crew.repo, "rev-parse", "main")
    state = crew.work(mission)
    assert (state.status, state.tasks and state.tasks.merged) == ("promoted", 3)
    merged = [event.task for event in crew.events(mission, TaskMerged)]
    assert sorted(merged[:2]) == ["a", "b"]
    assert merged[2] == "last"
    made = branch(crew, state)
    assert git(crew.repo, "show", f"{made}:sub/c.txt").split() == ["x", "x"]
    # Only the whole result is exported, one commit for each task; nothing else in the repository changes.
    assert git(crew.repo, "for-each-ref", "--format=%(refname:short)", "refs/heads").split() == [made, "main"]
    assert len(git(crew.repo, "log", "--format=%s", f"main..{made}").splitlines()) == 3
    assert git(crew.repo, "rev-parse", "main") == before
    assert set(crew.children(mission).values()) == {"promoted"}


def test_tasks_that_change_the_same_file_run_sequentially(crew: Crew) -> None:
    adds = shell("cat sub/log.txt > sub/n.txt 2>/dev/null; echo x >> sub/log.txt; sleep 0.3")
    mission = crew.record([task(name, adds, change=["sub/log.txt"]) for name in ("a", "b", "c")])
    state = crew.work(mission)
    assert state.status == "promoted"
    assert git(crew.repo, "show", f"{branch(crew, state)}:sub/log.txt").split() == ["x", "x", "x"]
    assert next(event.reason.code for event in crew.events(mission, TaskHeld)) == "collision_file"
    assert not crew.events(mission, TaskReturned)


def test_the_later_of_two_conflicting_tasks_is_returned(crew: Crew) -> None:
    """Both change the same line; nothing in the plan says so."""
    agent = shell("cp sub/line.txt sub/was.txt 2>/dev/null; echo $CHARGEHAND_REQUEST | md5sum > sub/line.txt")
    mission = crew.record([task("a", agent), task("b", agent)])
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    (back,) = crew.events(mission, TaskReturned)
    assert back.reason.code == "merge_conflict"
    assert [(each.branch, each.count) for each in crew.events(mission, MergeConflicted)] == [(None, 1)]
    _, result, _ = forked.run(("mission", "log", mission), cwd=crew.repo, environ=crew.environ)
    assert "1 path conflicts with later merges" in result
    assert [run.rung for run in crew.events(mission, TaskStarted) if run.task == back.task] == [
        "first",
        "returned",
    ]
    assert len(git(crew.repo, "log", "--format=%s", f"main..{branch(crew, state)}").splitlines()) == 2


@pytest.mark.parametrize("union", [False, True], ids=["conflicts", "union"])
def test_six_undeclared_additions_to_the_same_file_are_all_merged(crew: Crew, union: bool) -> None:
    """Redone one after the other, they need no person; in a `union` file their lines do not conflict."""
    if union:
        (crew.repo / "chargehand.toml").write_text('[project]\nunion = ["sub/h.txt"]\n')
        git(crew.repo, "add", "chargehand.toml")
        git(crew.repo, "commit", "-qm", "Keep both sides of sub/h.txt")
    names = [f"t{number}" for number in range(6)]
    # All begin on the same base, so that all but the first to be merged conflict.
    mission = crew.record([task(name, shell(f"echo {name} >> sub/h.txt")) for name in names], at_once=6)
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    assert not state.questions
    lines = git(crew.repo, "show", f"{branch(crew, state)}:sub/h.txt").split()
    assert sorted(lines[-6:]) == names
    runs = [(run.task, run.rung) for run in crew.events(mission, TaskStarted)]
    again = {run.task for run in crew.events(mission, TaskReturned)}
    assert sorted(runs) == sorted([*((name, "first") for name in names), *((name, "returned") for name in again)])
    assert len(again) == (0 if union else 5)
    held = {event.reason.code for event in crew.events(mission, TaskHeld)}
    assert held == (set() if union else {"collision_conflict"})


def test_a_task_that_breaks_the_merged_tree_is_returned(crew: Crew) -> None:
    """Each is green alone; the check, which names neither, fails with three files but not with four."""
    check = f"{READS}; test $(ls sub | wc -l) != 3"
    # It waits until the other task is merged, so that this one goes back to be mended.
    careful = shell(
        f"test -e sub/a.txt || sleep {MARK}; echo x > sub/b.txt; test ! -e sub/a.txt || echo x > sub/mended.txt"
    )
    mission = crew.record([task("a"), task("b", careful)], check)

    def wake_after_the_first() -> None:
        wait_until(lambda: crew.events(mission, TaskMerged))
        wait_until(wake)

    with ThreadPoolExecutor(1) as pool:
        woken = pool.submit(wake_after_the_first)
        state = crew.work(mission)
        woken.result()
    assert state.status == "promoted"
    backs = crew.events(mission, TaskReturned)
    assert {back.reason.code for back in backs} == {"merged_red"}
    made = branch(crew, state)
    names = git(crew.repo, "ls-tree", "--name-only", f"{made}:sub").split()
    assert names == ["a.txt", "b.txt", "h.txt", "mended.txt"]


def test_a_failed_task_asks_a_person_while_the_others_continue(crew: Crew) -> None:
    mission = crew.record([task("bad", shell("exit 3")), task("good"), task("after", after=["bad"])])
    state = crew.work(mission)
    assert state.status == "waiting"
    asked = state.open_question
    assert asked is not None
    assert asked.options == ("retry", "skip", "stop")
    assert [event.task for event in crew.events(mission, TaskMerged)] == ["good"]
    again = crew.answer(mission, "retry")
    assert again.status == "waiting"
    assert again.open_question is not None
    assert again.open_question.id != asked.id
    done = crew.answer(mission, "skip")
    assert done.status == "promoted"
    outcomes = {event.task: event.outcome for event in crew.events(mission, TaskEnded)}
    assert outcomes == {"bad": "left_out", "good": "merged", "after": "merged"}


def test_a_refused_result_may_be_promoted_and_the_question_says_why_and_how(crew: Crew) -> None:
    check = f"{READS}; test ! -e sub/bad.txt"
    mission = crew.record([task("bad"), task("good")], check)
    state = crew.work(mission)
    asked = state.open_question
    assert asked is not None
    child = crew.mission_of(mission, "bad")
    assert f"chargehand mission promote {child}" in asked.text
    with crew.opened() as app:
        assert app.mission_reader.state(child).reasons[0].message in asked.text
        (shown,) = [each for each in show_plan(app, mission).tasks if each.id == "bad"]
        assert (shown.status, shown.reason and shown.reason.message) == ("waiting", asked.text)


def test_a_person_stops_everything_over_a_task(crew: Crew) -> None:
    mission = crew.record([task("bad", shell("exit 3")), task("good")])
    crew.work(mission)
    state = crew.answer(mission, "stop")
    assert (state.status, state.reasons[0].code) == ("refused", "task_failed")
    assert state.export is None
    assert any(each.startswith(f"chargehand mission promote {mission}") for each in next_commands(state))
    with crew.opened() as app:
        with pytest.raises(RefusedError, match="cannot continue") as refused:
            follow_up_mission(app, FollowUp(mission=mission, text="go on"))
        assert f"mission promote {mission}" in refused.value.hint
        with pytest.raises(RefusedError, match="its result is not needed"):
            follow_up_mission(app, FollowUp(mission=crew.mission_of(mission, "bad"), text="go on"))
        with pytest.raises(RefusedError, match="has another tree"):
            asyncio.run(promote_mission(app, mission, tree="0123"))
        part = asyncio.run(promote_mission(app, mission, reason="good will do"))
    assert (part.status, [each.reason for each in crew.events(mission, ApprovalGiven)]) == (
        "promoted",
        ["good will do"],
    )
    assert git(crew.repo, "diff", "--name-only", f"main..{branch(crew, part)}").split() == ["sub/good.txt"]


def test_ambiguities_of_a_plan_are_asked_before_any_work(crew: Crew) -> None:
    unclear = [{"id": "format", "question": "Which format?", "options": ["toml", "yaml"]}]
    told = shell("echo $CHARGEHAND_REQUEST > sub/a.txt")
    mission = crew.record([task("a", told), task("b")], ambiguities=unclear)
    state = crew.work(mission)
    assert state.status == "waiting"
    assert crew.children(mission) == {}
    done = crew.answer(mission, "toml")
    assert done.status == "promoted"
    assert "Which format? toml" in git(crew.repo, "show", f"{branch(crew, done)}:sub/a.txt")


def test_conditions_and_loops_run_on_the_merged_tree(crew: Crew) -> None:
    counts = shell("echo x >> sub/n.txt")
    mission = crew.record(
        [
            task("there", done_when="test -e f.txt"),
            task("never", when="test -e nowhere"),
            task("three", counts, loop={"most": 9, "until": "test $(wc -l < sub/n.txt) = 3"}),
            task("two", shell("echo y >> sub/two.txt"), loop={"most": 2}, after=["there", "never"]),
            task("part", loop={"most": 3}, done_when="test -e sub/part.txt"),
            task("twins", shell("echo z >> sub/twins.txt"), loop={"most": 2}, candidates=2),
        ]
    )
    state = crew.work(mission)
    assert state.status == "promoted"
    outcomes = {event.task: event.outcome for event in crew.events(mission, TaskEnded)}
    # A task's merged rounds stay merged, however its loop ends.
    ended = {"three": "merged", "two": "merged", "part": "merged", "twins": "merged"}
    assert outcomes == {"there": "done", "never": "left_out", **ended}
    starts = [(event.task, event.round) for event in crew.events(mission, TaskStarted)]
    assert [starts.count(("twins", number)) for number in (1, 2)] == [2, 2]
    made = branch(crew, state)
    assert git(crew.repo, "show", f"{made}:sub/n.txt").split() == ["x"] * 3
    assert git(crew.repo, "show", f"{made}:sub/two.txt").split() == ["y"] * 2


# A condition, the branch that begins first if nothing decides, and the branch taken.
DECISIONS = {
    # The branch taken makes the condition fail, ...
    "a": ("test ! -e sub/a_then.txt", "then", "then"),
    "b": ("test ! -e sub/b_then.txt", "else", "then"),
    # ... and here it makes the condition succeed.
    "c": ("test -e sub/c_else.txt", "else", "else"),
    "d": ("test -e sub/d_else.txt", "then", "else"),
}


@pytest.mark.parametrize("more", [{"at_once": 1}, {}])
def test_a_decision_is_made_once(crew: Crew, more: dict[str, Any]) -> None:
    plan: list[dict[str, Any]] = []
    taken: dict[str, str] = {}
    for name, (condition, begins, takes) in DECISIONS.items():
        branches = {
            way: task(
                f"{name}_{way}",
                change=[f"sub/{name}.txt", f"sub/{name}_{way}.txt"],
                priority=int(way == begins),
            )
            for way in ("then", "else")
        }
        plan.append({"decide": {"if": condition, **branches}})
        taken |= {f"{name}_{way}": "merged" if way == takes else "left_out" for way in branches}
    mission = crew.record(plan, **more)
    state = crew.work(mission)
    assert state.status == "promoted"
    assert {event.task: event.outcome for event in crew.events(mission, TaskEnded)} == taken


# Task -> its condition, and why that cannot run.
CANNOT_RUN: dict[str, tuple[dict[str, str], str]] = {
    "missing": ({"when": "tesst -e f.txt"}, "a program was not found (exit code 127)"),
    "locked": ({"when": "test -e f.txt && ./f.txt"}, "a program cannot be executed (exit code 126)"),
    "unread": ({"done_when": "if test -e f.txt"}, "the shell cannot read it"),
    "killed": ({"when": "kill -9 $$"}, "signal 9 ended it"),
    "endless": ({"when": "sleep 600"}, "it did not end within 2s"),
    "again": ({"while": "tesst -e f.txt"}, "a program was not found"),
    # The exit codes of these do not show it.
    "negated": ({"when": "! tesst -e f.txt"}, "a program did not start: tesst: not found"),
    "piped": ({"when": "tesst -e f.txt | sort"}, "a program did not start: tesst: not found"),
    "asked": (
        {"done_when": "if tesst -e f.txt; then true; else true; fi"},
        "a program did not start: tesst: not found",
    ),
    "passed": (
        {"when": "test -e f.txt; sub/../f.txt; true"},
        "a program did not start: sub/../f.txt: Permission denied",
    ),
}


def test_a_condition_that_cannot_run_is_asked_about_and_skips_no_task(crew: Crew) -> None:
    crew.environ["CHARGEHAND_LIMITS_CHECK_TIME"] = "2s"
    mission = crew.record([*(task(name, **each) for name, (each, _) in CANNOT_RUN.items()), task("good")])
    state = crew.work(mission)
    assert state.status == "waiting"
    asked = asked_about(state)
    for name, (condition, why) in CANNOT_RUN.items():
        ((key, command),) = condition.items()
        assert f"the condition {key!r} of task {name!r} cannot run: {command}" in asked[name].text
        assert why in asked[name].text
    assert [event.task for event in crew.events(mission, TaskEnded)] == ["good"]
    # On retry, a `while` loop begins without its condition, which runs again after the round.
    tried = ("missing", "unread", "again")
    answers = {name: "retry" if name in tried else "skip" for name in CANNOT_RUN}
    state = crew.answer_each(mission, answers)
    assert (state.status, set(asked_about(state))) == ("waiting", {"again"})
    state = crew.answer_each(mission, {"again": "skip"})
    assert state.status == "promoted"
    outcomes = {event.task: event.outcome for event in crew.events(mission, TaskEnded)}
    assert outcomes == {
        name: "merged" if name in (*tried, "good") else "left_out" for name in (*CANNOT_RUN, "good")
    }


def test_both_branches_of_a_decision_that_cannot_be_made_ask(crew: Crew) -> None:
    decide = {"if": "tesst -e f.txt", "then": task("yes"), "else": task("no")}
    mission = crew.record([{"decide": decide}])
    assert crew.work(mission).status == "waiting"
    assert crew.answer(mission, "skip").status == "waiting"
    assert crew.answer(mission, "retry").status == "promoted"
    outcomes = {event.task: event.outcome for event in crew.events(mission, TaskEnded)}
    assert sorted(outcomes.values()) == ["left_out", "merged"]


def test_a_loop_that_is_not_done_asks_a_person(crew: Crew) -> None:
    # How often each task is merged before a person is asked.
    loops = {
        "a": ({"until": "test -e never"}, 2),
        "b": ({"while": "test -e f.txt"}, 2),
        "c": ({"until": "tesst"}, 1),
    }
    tasks = [
        task(name, shell(f"echo x >> sub/{name}.txt"), loop={"most": 2, **loop})
        for name, (loop, _) in loops.items()
    ]
    mission = crew.record([*tasks, task("d", after=["a", "b", "c"])])
    state = crew.work(mission)
    assert state.status == "waiting"
    asked = asked_about(state)
    for name, (_, merged) in loops.items():
        assert merged_times(crew, mission, name) == merged
        why = "a program was not found" if merged == 1 else "after 2 rounds, of at most 2"
        assert why in asked[name].text
    state = crew.answer_each(mission, dict.fromkeys(loops, "retry"))
    assert (state.status, set(asked_about(state))) == ("waiting", {*loops})
    for name, (_, merged) in loops.items():
        assert merged_times(crew, mission, name) == merged + 1
    state = crew.answer_each(mission, dict.fromkeys(loops, "skip"))
    assert state.status == "promoted"
    for name, (_, merged) in loops.items():
        assert git(crew.repo, "show", f"{branch(crew, state)}:sub/{name}.txt").split() == ["x"] * (merged + 1)


def merged_times(crew: Crew, mission: str, name: str) -> int:
    """Return how often a task was merged."""
    return [event.task for event in crew.events(mission, TaskMerged)].count(name)


def test_a_repeat_ends_after_a_round_without_changes(crew: Crew) -> None:
    mission = crew.record([task("a", repeat=5), task("b", after=["a"])])
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    ended = {event.task: event for event in crew.events(mission, TaskEnded)}
    assert ended["a"].outcome == "merged"
    assert ended["a"].reason.message == "round 2 had nothing more to change"


def test_a_plan_with_only_finished_tasks_makes_no_commit(crew: Crew) -> None:
    mission = crew.record([task("a", done_when="true"), task("b", done_when="true")])
    state = crew.work(mission)
    assert (state.status, state.reasons[0].code, state.commit) == ("promoted", "nothing_to_do", None)
    assert crew.children(mission) == {}


def test_cancelling_ends_its_tasks_too(crew: Crew) -> None:
    async def cancelled() -> MissionState:
        with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as app:
            worker = Worker(app, slots=4)
            working = asyncio.create_task(worker.work(until_idle=False))
            while not any(each.status == "running" for each in app.mission_reader.all() if each.parent):
                await asyncio.sleep(0.1)
            await asyncio.to_thread(cancel_mission, app, mission)
            await asyncio.sleep(0.5)
            worker.stop()
            await working
            return app.mission_reader.state(mission)

    mission = crew.record([task("a", shell("sleep 60")), task("b", after=["a"])])
    state = asyncio.run(cancelled())
    assert state.status == "cancelled"
    assert crew.children(mission) == {"a": "cancelled"}


def test_a_paused_coordinator_starts_no_task_until_resumed(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b")])
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        pause_mission(app, mission, reason="later")
    assert crew.work(mission).status == "paused"
    assert crew.children(mission) == {}
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        app.steering.resume(mission)
    assert crew.work(mission).status == "promoted"


def test_paused_tasks_resume_with_their_plan(crew: Crew) -> None:
    async def paused_and_resumed() -> MissionState:
        with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as app:
            worker = Worker(app, slots=4)
            working = asyncio.create_task(worker.work(until_idle=True))
            await asyncio.to_thread(wait_until, lambda: len(sleepers()) == 2)
            with App.open(environ=crew.environ, cwd=crew.repo) as other:
                await asyncio.to_thread(pause_mission, other, mission, reason="lunch")
                assert set(crew.children(mission).values()) == {"paused"}
                await asyncio.to_thread(resume_mission, other, mission)
            assert wake()
            await working
            return app.mission_reader.state(mission)

    slow = {name: shell(f"sleep {MARK}; echo x > sub/{name}.txt") for name in ("a", "b")}
    mission = crew.record([task(name, agent) for name, agent in slow.items()])
    state = asyncio.run(paused_and_resumed())
    assert state.status == "promoted"
    assert crew.children(mission) == {"a": "promoted", "b": "promoted"}


def test_the_example_plan_of_the_documentation_works(crew: Crew) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/plans.md").read_text()
    example, *_ = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = crew.place / "dates.yaml"
    file.write_text(example)
    asked = RunRequest(plan=str(file), text="new date format", agent="command:true", only_checks=(READS,))
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        request, plan = plan_request(app, asked)
        mission = record_mission(app, request, plan=plan)
    state = crew.work(mission)
    assert state.status == "promoted"
    assert git(crew.repo, "show", f"{branch(crew, state)}:sub/notes.txt").split() == ["parsed", "printed"]


def test_a_plan_with_a_single_task_is_an_ordinary_mission(crew: Crew) -> None:
    mission = crew.record([task("a", acceptance=["it is written"])])
    state = crew.work(mission)
    assert (state.status, state.tasks) == ("promoted", None)
    assert state.request is not None
    assert "it is written" in state.request.text


@pytest.mark.parametrize(
    "own",
    [{"budget": 100}, {"timeout": "2h"}, {"models": ["one", "two"]}],
)
def test_the_limits_of_a_single_task_do_not_exceed_those_of_its_plan(crew: Crew, own: dict[str, Any]) -> None:
    file = crew.place / "plan.json"
    file.write_text(json.dumps({"tasks": [task("a", **own)]}))
    asked = RunRequest(plan=str(file), agent="command:true", budget="1", time="1m", yes=True)
    with crew.opened() as app:
        request, plan = plan_request(app, asked)
    assert (request.budget, request.time) == ("1", "1m")
    assert plan is not None


def test_the_request_of_a_single_task_includes_its_obligations(crew: Crew) -> None:
    covering = task("a", covers=["o"], acceptance=["it is written"])
    state = crew.work(crew.record([covering], obligations={"o": "nothing is lost"}))
    assert state.request is not None
    assert "It is done when:\n- nothing is lost\n- it is written" in state.request.text


def test_a_task_with_an_unknown_agent_or_role_is_refused_before_recording(crew: Crew) -> None:
    with pytest.raises(NotFoundError, match=r"task b: .*nobody"):
        crew.record([task("a"), {"id": "b", "text": "b", "agent": "nobody"}])
    with pytest.raises(ChargehandError, match=r"task b: .*wizard"):
        crew.record([task("a"), task("b", role="wizard")])
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        assert not app.store.log.missions()


def test_the_plan_is_shown_as_a_tree(crew: Crew) -> None:
    chain = [task(f"c{number}", after=[f"c{number - 1}"]) for number in range(1, 40)]
    mission = crew.record([task("last", after=["a", "b"]), task("a"), task("b", after=["a"]), task("c0"), *chain])
    _, result, _ = forked.run(("mission", "plan", mission), cwd=crew.repo, environ=crew.environ)
    _, *lines = result.splitlines()
    rows = [line.split("pending")[0].rstrip() for line in lines]
    assert rows[:6] == ["a", "  b", "    last", "c0", "  c1", "    c2"]
    assert lines[2].rstrip().endswith("also after a")
    assert len(rows) == 43
    assert max(map(len, lines)) <= 80


def test_collisions_are_shown_before_the_plan_starts(crew: Crew) -> None:
    twelve = [task(f"x{number}", change=["sub/same.txt"]) for number in range(6)]
    mission = crew.record([task("a", change=["f.txt"]), task("b", areas=["**"]), task("c", after=["b"]), *twelve])
    _, result, _ = forked.run(("mission", "plan", mission), cwd=crew.repo, environ=crew.environ)
    told = [line for line in result.splitlines() if "not side by side" in line]
    assert len(told) == 10
    assert "'a' and 'b' have an area in common" in told[0]
    assert result.splitlines()[-1].strip() == "and 12 more: --json has them all"
    _, result, _ = forked.run(("--json", "mission", "plan", mission), cwd=crew.repo, environ=crew.environ)
    pairs = [tuple(each["tasks"]) for each in json.loads(result)["collisions"]]
    assert len(pairs) == 22
    assert ("b", "c") not in pairs, "the plan orders these two"
    assert all(each["reason"]["code"].startswith("collision_") for each in json.loads(result)["collisions"])


def test_a_task_with_needs_goes_to_an_agent_that_offers_them(crew: Crew) -> None:
    offers = {"plain": [], "half": ["browser"], "whole": ["browser", "gpu"]}
    agents = [
        f"[agents.{name}]\ncommand = ['sh', '-c', 'echo x > sub/{name}.txt']\noffers = {each}\n"
        for name, each in offers.items()
    ]
    file = crew.place / "config/chargehand/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("".join(agents))
    needs = {"one": ["browser"], "two": ["gpu", "browser"]}
    tasks = [{"id": name, "text": name, "needs": each} for name, each in needs.items()]
    with pytest.raises(UsageError, match="task three: no agent offers all that it needs: gpu, printer"):
        crew.record([*tasks, {"id": "three", "text": "three", "needs": ["gpu", "printer"]}])
    with pytest.raises(UsageError, match="agent 'plain' does not offer"):
        crew.record([{"id": "one", "text": "one", "needs": ["gpu"], "agent": "plain"}])
    for chosen, who in ((tasks, ["half", "whole"]), (tasks[1:], ["whole"])):
        state = crew.work(crew.record(chosen))
        assert state.status == "promoted"
        names = git(crew.repo, "diff", "--name-only", f"main..{branch(crew, state)}").split()
        assert names == [f"sub/{each}.txt" for each in who]


def test_a_retried_task_with_needs_goes_to_another_agent(crew: Crew) -> None:
    broken = "".join(
        f"[agents.{name}]\ncommand = ['sh', '-c', 'exit 3']\noffers = ['gpu']\n" for name in ("a", "b")
    )
    whole = "[agents.c]\ncommand = ['sh', '-c', 'echo x > sub/c.txt']\noffers = ['gpu']\n"
    file = crew.place / "config/chargehand/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(broken + whole)
    mission = crew.record([{"id": "one", "text": "one", "needs": ["gpu"]}])
    state = crew.work(mission)
    assert state.status == "waiting"
    assert [run.rung for run in crew.events(mission, TaskStarted)] == ["first", "approach"]
    state = crew.answer(mission, "retry")
    assert state.status == "promoted"
    with crew.opened() as app:
        runs = [app.mission_reader.state(run.mission) for run in crew.events(mission, TaskStarted)]
    assert [each.request and each.request.agent for each in runs] == ["a", "b", "c"]


def test_each_merged_task_has_provenance_and_is_in_the_report(crew: Crew) -> None:
    done: dict[str, Any] = {"covers": ["d1"], "acceptance": ["it is there"]}
    duties = [{"id": "d1", "text": "Both are there"}]
    mission = crew.record([task("a", **done), task("b", after=["a"], **done)], obligations=duties)
    state = crew.work(mission)
    assert state.status == "promoted"
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        found = verify_mission(app.store, app.projects.depot(app.projects.find()), mission)
        assert [each.problems for each in found] == [(), ()]
        report, text = report_mission(app, mission)
    assert [(each.id, each.outcome, each.commit) for each in report.tasks] == [
        (each.task, "merged", each.commit) for each in crew.events(mission, TaskMerged)
    ]
    assert report.promoted is not None
    assert report.promoted.verdict is not None
    assert "obligation `d1`: `Both are there`: `a`, `b`" in text


def test_a_sleeping_coordinator_resumes_after_refused_commands(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b", shell(f"sleep {MARK}; echo x > sub/b.txt"), after=["a"])])

    async def sleep_behind_a_merge(app: App) -> None:
        worker = Worker(app, slots=4)
        working = asyncio.create_task(worker.work(until_idle=True))
        await asyncio.to_thread(wait_until, lambda: sleepers() and app.mission_reader.state(mission).asleep)
        worker.stop()
        await working

    with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as app:
        asyncio.run(sleep_behind_a_merge(app))
        assert app.mission_reader.state(mission).asleep
    for deed in (
        lambda app: promote_mission(app, mission, reason="now"),
        lambda app: roll_back_mission(app, mission),
        lambda app: roll_back_task(app, mission, "a", with_dependents=True),
    ):
        with crew.opened() as app, pytest.raises(RefusedError):
            asyncio.run(deed(app))
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(crew.work, mission)
        wait_until(wake)
        assert ending.result().status == "promoted"


def test_only_the_coordinator_exports_the_result_of_a_task(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b")])
    made = branch(crew, crew.work(mission))
    with crew.opened() as app:
        child = app.store.log.children(mission)[0].id
        with pytest.raises(RefusedError, match=mission):
            asyncio.run(roll_back_mission(app, child))
        with pytest.raises(RefusedError, match=mission):
            preview_roll_back(app, child)
    assert git(crew.repo, "for-each-ref", "--format=%(refname:short)", "refs/heads").split() == [made, "main"]


def test_a_result_waiting_for_its_merge_frees_its_slot(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b"), task("c")], at_once=2)
    assert crew.work(mission).status == "promoted"
    told = [type(each).__name__ for each in crew.events(mission, TaskStarted, TaskMerged)]
    assert told == ["TaskStarted"] * 3 + ["TaskMerged"] * 3


async def test_a_worker_wakes_its_missions_without_waiting_for_a_poll(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SCAN_SECONDS", "_POLL_SECONDS"):
        monkeypatch.setattr(f"chargehand.app.worker.{name}", 3600.0)
    mission = await asyncio.to_thread(crew.record, [task("a", when="true"), task("b", after=["a"])])
    with App.open(environ=crew.environ, cwd=crew.repo, role="worker") as app:
        # One slot: each turn but the first waits for another turn to end.
        worker = Worker(app, slots=1)
        working = asyncio.create_task(worker.work(until_idle=False))
        try:
            async with asyncio.timeout(120):
                while app.store.log.summary(mission).summary.status != "promoted":
                    await asyncio.sleep(0.05)
        finally:
            worker.stop()
            await working
