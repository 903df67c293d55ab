"""An agent delegates parts of its task: they become tasks of the plan, within bounds, with deadlines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import repository, shell
from test_coordinator import Crew, branch, task
from test_reviews import script
from tests.conftest import git

from chargehand.core.mission_events import QuestionAsked
from chargehand.core.plan_events import PlanMade, TaskDelegated, TaskEnded, TaskMerged, TaskStarted
from chargehand.reports.plan_graph import plan_tree
from chargehand.reports.progress.event_text import describe_event
from chargehand.reports.story import show_plan

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "place").mkdir()
    return Crew(tmp_path / "place", repository(tmp_path / "repo"))


def part(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "text": f"Write {name}", "role": "developer", **more}


def hands_on(name: str, *parts: dict[str, Any]) -> str:
    """Return an agent that delegates these parts, and first writes a file named `name` unless it is empty."""
    payload = {"summary": "done", "evidence": ["saw it"], "delegate": parts}
    message = json.dumps({"type": "task_completion", "status": "success", "payload": payload})
    writes = f"pathlib.Path('sub/{name}.txt').write_text('x')\n" if name else ""
    return script(f"{writes}pathlib.Path(os.environ['CHARGEHAND_MESSAGE']).write_text({message!r})\n")


# Writes a file named after the last word of the first line.
WRITES = script(
    "name = request.splitlines()[0].split()[-1]\npathlib.Path('sub', name + '.txt').write_text(request)\n"
)
TEAM = [{"role": "developer", "agent": WRITES}]


def delegated(crew: Crew, mission: str) -> list[TaskDelegated]:
    return crew.events(mission, TaskDelegated)


def test_delegated_parts_become_tasks_before_the_dependents_of_the_task(crew: Crew) -> None:
    first = hands_on("a", part("one"), part("two", after=["one"], deadline=600))
    mission = crew.record(
        [task("a", first, areas=["sub/**"]), task("last", shell("ls sub > sub/last.txt"), after=["a"])], team=TEAM
    )
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    assert [event.task for event in crew.events(mission, TaskMerged)] == ["a", "a.one", "a.two", "last"]
    made = branch(crew, state)
    assert git(crew.repo, "show", f"{made}:sub/last.txt").split() == [
        "a.txt",
        "h.txt",
        "last.txt",
        "one.txt",
        "two.txt",
    ]
    told = git(crew.repo, "show", f"{made}:sub/two.txt")
    assert "The agent of task a handed this on" in told
    assert "within 10m" in told
    assert state.plan is not None
    plan = state.plan.plan
    one, two, last = (plan.task(name) for name in ("a.one", "a.two", "last"))
    assert one is not None
    assert two is not None
    assert last is not None
    assert (one.after, two.after, last.after) == (("a",), ("a", "a.one"), ("a", "a.one", "a.two"))
    # A task cannot delegate a change that it may not make itself.
    assert {one.areas, two.areas} == {("sub/**",)}
    assert (one.delegated_by, two.deadline) == ("a", 600.0)
    # A change of the plan like any other, with the task that asked for it.
    assert [event.identity for event in crew.events(mission, PlanMade)][1:] == ["task a"]
    assert [(each.task, each.tasks) for each in delegated(crew, mission)] == [("a", ("a.one", "a.two"))]
    with crew.opened() as app:
        shown = show_plan(app, mission)
    assert [each.delegated_by for each in shown.tasks] == ["", "a", "a", ""]
    assert ("  handed on", "a.one, a.two") in {(row.name, row.why) for row in plan_tree(shown)}


def test_an_impossible_delegation_is_refused_and_the_result_merged(crew: Crew) -> None:
    parts = {
        "a": (part("b", role="nobody"), "role_unknown", "'nobody'"),
        "c": (part("b", role="", needs=["wings"]), "agent_unable", "wings"),
        "d": (part("b", after=["last"]), "plan_invalid", "in a circle"),
    }
    tasks = [task(name, hands_on(name, asked)) for name, (asked, _, _) in parts.items()]
    mission = crew.record([*tasks, task("last", after=["a", "c", "d"])], team=TEAM)
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    assert len(crew.events(mission, TaskMerged)) == 4
    assert len(crew.events(mission, PlanMade)) == 1
    with crew.opened() as app:
        rows = plan_tree(show_plan(app, mission))
    refusals = delegated(crew, mission)
    assert sorted(each.task for each in refusals) == ["a", "c", "d"]
    for each in refusals:
        _, code, result = parts[each.task]
        assert each.refused is not None
        assert (each.tasks, each.refused.code) == ((), code)
        assert result in each.refused.message
        shown = [row.why for row in rows if (row.name.strip(), row.status) == ("handed on", "refused")]
        assert each.refused.message in shown


def test_a_part_is_handed_on_twice_at_most(crew: Crew) -> None:
    """Each agent delegates the same part again."""
    message = {
        "type": "task_completion",
        "status": "success",
        "payload": {"summary": "done", "evidence": ["x"], "delegate": [part("b")]},
    }
    agent = script(
        "pathlib.Path('sub', str(len(os.listdir('sub')))).write_text('x')\n"
        f"pathlib.Path(os.environ['CHARGEHAND_MESSAGE']).write_text({json.dumps(message)!r})\n"
    )
    mission = crew.record([task("a", agent), task("z", after=["a"])], team=[{"role": "developer", "agent": agent}])
    state = crew.work(mission)
    assert state.status == "promoted"
    assert [event.task for event in crew.events(mission, TaskMerged)] == ["a", "a.b", "a.b.b", "z"]
    *taken, last = delegated(crew, mission)
    assert [each.tasks for each in taken] == [("a.b",), ("a.b.b",)]
    assert last.refused is not None
    assert "was handed on 2 times already" in last.refused.message


def test_only_one_of_several_candidates_delegates(crew: Crew) -> None:
    """Each candidate would delegate a different part, identified by a random id."""
    payload = {"summary": "read it", "evidence": ["read it"]}
    agent = script(
        f"payload = {payload!r} | {{'delegate': [{part('x')!r} | {{'id': 'x' + os.urandom(8).hex()}}]}}\n"
        "message = {'type': 'task_completion', 'status': 'success', 'payload': payload}\n"
        "pathlib.Path(os.environ['CHARGEHAND_MESSAGE']).write_text(__import__('json').dumps(message))\n"
    )
    mission = crew.record([task("a", agent, role="reviewer", candidates=2), task("z", after=["a"])], team=TEAM)
    assert crew.work(mission).status == "promoted"
    (told,) = delegated(crew, mission)
    assert told.refused is None
    ends = [(event.task, event.outcome) for event in crew.events(mission, TaskEnded)]
    assert ends == [("a", "done"), (told.tasks[0], "merged"), ("z", "merged")]
    runs = [run.mission for run in crew.events(mission, TaskStarted) if run.task == "a"]
    assert told.mission in runs


def test_a_delegation_without_a_plan_is_logged_but_ignored(crew: Crew) -> None:
    mission = crew.record([task("a", hands_on("a", part("b")))])
    state = crew.work(mission)
    assert (state.status, state.plan) == ("promoted", None)
    with crew.opened() as app:
        told = [describe_event(line) for line in app.store.log.read(mission)]
    assert any("and hands on: b" in (line or "") for line in told)


def test_a_task_past_its_deadline_is_stopped_and_can_be_retried_or_skipped(crew: Crew) -> None:
    slow = shell("sleep 600")
    mission = crew.record(
        [task("a", hands_on("a", part("slow", deadline=1.0))), task("last", after=["a"])],
        team=[{"role": "developer", "agent": slow}],
    )
    state = crew.work(mission)
    assert state.status == "waiting"
    (asked,) = crew.events(mission, QuestionAsked)
    assert (asked.question, asked.reasons[0].code) == ("task/a.slow/1", "deadline")
    assert "was not done within 1s" in asked.text
    assert crew.children(mission)["a.slow"] == "cancelled"
    assert crew.answer(mission, "retry").status == "waiting"
    first, second = [run for run in crew.events(mission, TaskStarted) if run.task == "a.slow"]
    assert (second.round, second.rung) == (2, "person")
    assert first.due is not None
    assert second.due is not None
    assert second.due >= first.due + 1.0
    assert crew.answer(mission, "skip").status == "promoted"
    ends = {event.task: event.outcome for event in crew.events(mission, TaskEnded)}
    assert ends == {"a": "merged", "a.slow": "left_out", "last": "merged"}
