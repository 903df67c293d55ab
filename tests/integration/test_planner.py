"""`run --plan auto`: a planner's report becomes the plan, once it is as valid as a person's, and work starts."""

from __future__ import annotations

import json
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import repository
from test_coordinator import READS, Crew, branch, task
from test_reviews import script
from tests.conftest import git
from tests.crash_kit import CrashKit, nothing_survives, sample

from chargehand.app.composition import App
from chargehand.app.requests import change_plan, plan_request, record_mission
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import ChargehandError
from chargehand.core.events import read_payload
from chargehand.core.plan_events import PlanMade, PlannerStarted, PlanProposed, TaskEnded, TaskHeld
from chargehand.core.plans import MOST_TASKS, Plan
from chargehand.core.state import MissionState
from chargehand.missions.coordination import planner
from chargehand.missions.plan_documents import parse_plan
from chargehand.reports.documents import mission_document
from chargehand.reports.story import show_plan

pytestmark = pytest.mark.needs_bwrap


def plans(*reports: str) -> str:
    """Return an agent that reports the plans in turn, the next one after each complaint; in other roles it works.

    The last word of a task's text names the file that it writes.
    """
    return script(
        "if os.environ.get('CHARGEHAND_ROLE') == 'planner':\n"
        "    again = request.count('cannot be used')\n"
        f"    print({reports!r}[min(again, {len(reports) - 1})])\n"
        "else:\n"
        "    name = request.splitlines()[0].split()[-1]\n"
        "    pathlib.Path('sub', name + '.txt').write_text('x')\n"
    )


def document(*tasks: dict[str, Any], **more: Any) -> str:
    return json.dumps({"tasks": tasks, **more})


def small(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "text": f"Write {name}", **more}


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "place").mkdir()
    return Crew(tmp_path / "place", repository(tmp_path / "repo"))


def record(crew: Crew, agent: str, **options: Any) -> str:
    asked = RunRequest(text="Write files", plan="auto", agent=agent, only_checks=(READS,), yes=True, **options)
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        request, plan = plan_request(app, asked)
        return record_mission(app, request, plan=plan)


def refused(crew: Crew, mission: str) -> MissionState:
    """Work, and return a mission that ended without a plan after three planners."""
    state = crew.work(mission)
    assert (state.status, state.reasons[0].code) == ("refused", "plan_failed")
    assert len(crew.events(mission, PlannerStarted)) == 3
    assert not crew.events(mission, PlanMade)
    assert state.export is None
    return state


FENCED = (
    "Here is the plan.\n\n```yaml\n- id: a\n  text: Write a\n- {id: b, text: Write b, after: [a]}\n```\nGood luck."
)


@pytest.mark.parametrize("report", [document(small("a"), small("b", after=["a"])), FENCED])
def test_a_planners_report_becomes_the_plan(crew: Crew, report: str) -> None:
    mission = record(crew, plans(report))
    state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ())
    (made,) = crew.events(mission, PlanMade)
    assert (made.identity, [each.id for each in made.plan.tasks]) == ("planner", ["a", "b"])
    (asked,) = crew.events(mission, PlannerStarted)
    assert crew.children(mission) == {"": "promoted", "a": "promoted", "b": "promoted"}
    names = git(crew.repo, "ls-tree", "--name-only", f"{branch(crew, state)}:sub").split()
    assert names == ["a.txt", "b.txt", "h.txt"]
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        planner = app.mission_reader.state(asked.mission)
        assert (planner.parent, planner.request and planner.request.role) == (mission, "planner")
        assert show_plan(app, mission).planners == (asked.mission,)
        assert mission_document(app.mission_reader.state(mission)).cost_usd == 0.0


def test_an_invalid_plan_is_returned_to_the_planner_with_the_error(crew: Crew) -> None:
    circle = document(small("a", after=["b"]), small("b", after=["a"]))
    mission = record(crew, plans(circle, document(small("a"))))
    state = crew.work(mission)
    assert state.status == "promoted"
    first, second = crew.events(mission, PlannerStarted)
    wrong, good = crew.events(mission, PlanProposed)
    assert (wrong.mission, good.mission, good.reason) == (first.mission, second.mission, None)
    assert "a after b after a" in wrong.reason.message
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        evidence = app.store.artifacts.get(wrong.evidence).decode()
        told = app.mission_reader.state(second.mission).request
    assert told is not None
    assert circle in evidence
    assert evidence in told.text


@pytest.mark.parametrize(
    ("report", "result"),
    [
        (document(small("a", after=["b"]), small("b", after=["a"])), "a after b after a"),
        (document(small("a", role="wizard")), "task a: .*wizard"),
        (document(small("a"), small("b", agent="nobody")), "task 'b': .*nobody"),
        (document(small("a", models=["other"])), "'models' names 'other', which is not configured"),
        (document(*(small(f"t{number}") for number in range(1_500))), f"1500 tasks, more than {MOST_TASKS}"),
        ("I would rather not.", "must be a table"),
        ("", "produced no plan"),
    ],
)
def test_after_two_repairs_the_last_error_ends_the_mission(crew: Crew, report: str, result: str) -> None:
    state = refused(crew, record(crew, plans(report)))
    assert re.search(result, state.reasons[0].message), state.reasons


def test_ambiguities_of_a_planner_are_asked_before_any_work(crew: Crew) -> None:
    unclear = [{"id": "format", "question": "Which format?", "options": ["toml", "yaml"]}]
    mission = record(crew, plans(document(small("a"), ambiguities=unclear)))
    state = crew.work(mission)
    assert state.status == "waiting"
    assert state.open_question is not None
    assert state.open_question.options == ("toml", "yaml")
    assert crew.children(mission) == {"": "promoted"}
    assert crew.answer(mission, "toml").status == "promoted"
    assert len(crew.events(mission, PlannerStarted)) == 1


def test_tasks_of_a_planner_that_write_the_same_wait_and_are_within_a_persons_limits(crew: Crew) -> None:
    report = document(*(small(name, change=["sub/x.txt"], attempts=99, timeout="9h") for name in ("a", "b")))
    mission = record(crew, plans(report), attempts="2", time="10m")
    assert crew.work(mission).status == "promoted"
    assert crew.events(mission, TaskHeld)
    (made,) = crew.events(mission, PlanMade)
    assert {(each.attempts, each.seconds) for each in made.plan.tasks} == {(2, 600.0)}


def test_tasks_of_a_file_that_write_the_same_wait(crew: Crew) -> None:
    mission = crew.record([task(name, change=["sub/*.txt"]) for name in ("a", "b")])
    assert crew.work(mission).status == "promoted"
    assert crew.events(mission, TaskHeld)


@pytest.mark.parametrize(
    ("tasks", "result"),
    [
        ([task("a", after=["c"]), task("b", after=["a"]), task("c", after=["b"])], "a after c after b after a"),
        ([task("a", role="wizard"), task("b")], "task a: .*wizard"),
        ([task(f"t{number}", "native") for number in range(10_000)], f"10000 tasks, more than {MOST_TASKS}"),
    ],
)
def test_a_bad_file_is_refused_before_anything_is_recorded(
    crew: Crew, tasks: list[dict[str, Any]], result: str
) -> None:
    with pytest.raises(ChargehandError, match=result):
        crew.record(tasks)
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        assert not app.store.log.missions()


def test_an_unknown_planner_or_a_missing_request_is_refused(crew: Crew) -> None:
    with pytest.raises(ChargehandError, match="nobody"):
        record(crew, "nobody")
    with (
        App.open(environ=crew.environ, cwd=crew.repo) as app,
        pytest.raises(ChargehandError, match="no request was given"),
    ):
        plan_request(app, RunRequest(plan="auto", agent="command:true"))


class PlannerKit(CrashKit):
    """A state directory with a coordinator that wants a plan: the first proposal is a cycle."""

    def __init__(self, place: Path, *, like: CrashKit | None = None) -> None:
        super().__init__(place, like=like)
        self.repository = repository(place / "repo")
        circle = document(small("a", after=["b"]), small("b", after=["a"]))
        agent = plans(circle, document(small("a"), small("b")))
        asked = RunRequest(
            text="Write files", plan="auto", repo=self.repository, agent=agent, only_checks=(READS,), yes=True
        )
        with self.app() as app:
            request, made = plan_request(app, asked)
            self.coordinator = record_mission(app, request, plan=made)

    def finish(self) -> dict[str, int]:
        """Let workers finish it; return the counts of events and children whose number is fixed."""
        assert self.worker().wait() == 0, self.result()
        with self.app() as app:
            assert app.mission_reader.state(self.coordinator).status == "promoted", self.result()
            payloads = [read_payload(line) for line in app.store.log.read(self.coordinator)]
            children = len(app.store.log.children(self.coordinator))
        kinds = (PlannerStarted, PlanProposed, PlanMade, TaskEnded)
        counts = {kind.__name__: sum(isinstance(each, kind) for each in payloads) for kind in kinds}
        return {**counts, "children": children}


@pytest.mark.parametrize(
    ("of_a_plan", "of_all"),
    [(2, 1), pytest.param(10_000, 10_000, marks=[pytest.mark.soak, pytest.mark.timeout(4 * 3600)])],
)
def test_a_crash_while_planning_does_not_change_the_outcome(tmp_path: Path, of_a_plan: int, of_all: int) -> None:
    expected = {"PlannerStarted": 2, "PlanProposed": 2, "PlanMade": 1, "TaskEnded": 2, "children": 4}
    with nothing_survives():
        like = PlannerKit(tmp_path / "like")
        like.worker(plan=f"trace:{tmp_path / 'trace'}").wait()
        assert like.finish() == expected
        passed = (tmp_path / "trace").read_text().splitlines()
        of_plans = [point for point in passed if "plan." in point]
        assert of_plans
        for number, point in enumerate([*sample(of_plans, of_a_plan), *sample(passed, of_all)]):
            kit = PlannerKit(tmp_path / f"at-{number}", like=like)
            assert kit.worker(plan=point).wait() in (-signal.SIGKILL, 0), point
            assert kit.finish() == expected, point
            kit.at_rest()


def test_a_plan_set_by_a_person_replaces_the_plan_being_read(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, changed = threading.Event(), threading.Event()

    def read(content: bytes, name: str) -> Plan:
        if name == "plan":
            reading.set()
            assert changed.wait(60)
        return parse_plan(content, name)

    monkeypatch.setattr(planner, "parse_plan", read)
    mission = record(crew, plans(document(small("theirs"), small("too"))))
    own = crew.place / "own.json"
    own.write_text(document(small("mine"), small("also")))
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(crew.work, mission)
        assert reading.wait(60)
        with App.open(environ=crew.environ, cwd=crew.repo) as app:
            change_plan(app, mission, str(own))
        changed.set()
        state = working.result()
    assert [[each.id for each in made.plan.tasks] for made in crew.events(mission, PlanMade)] == [["mine", "also"]]
    assert (state.status, {each.task for each in crew.events(mission, TaskEnded)}) == (
        "promoted",
        {"mine", "also"},
    )
