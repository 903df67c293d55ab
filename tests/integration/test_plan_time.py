"""The time that a person gives a plan counts by the clock, for all its tasks together."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from desk import repository, shell
from tests import forked
from tests.integration.test_coordinator import Crew, task

from chargehand.app.requests import FollowUp, follow_up_mission, plan_request, record_mission
from chargehand.app.runs import RunRequest
from chargehand.core.attempt_events import MessageDelivered
from chargehand.core.mission_events import MissionFinished
from chargehand.core.plan_events import TaskEnded

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "place").mkdir()
    return Crew(tmp_path / "place", repository(tmp_path / "repo"))


def test_a_plan_ends_when_its_time_is_over_and_so_do_its_tasks(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b", shell("sleep 600"), timeout="1h")], time="5s")
    state = crew.work(mission)
    assert (state.status, [reason.code for reason in state.reasons]) == ("exhausted", ["time"])
    assert "time limit of 5 s is over; what was merged before stays" in state.reasons[0].message
    assert crew.children(mission)["a"] == "promoted"
    assert crew.children(mission)["b"] in ("cancelled", "exhausted")
    assert 5.0 <= state.plan_elapsed < 60.0
    with crew.opened() as app:
        limits = [app.mission_reader.state(row.id).request for row in app.store.log.children(mission)]
    assert all(request is not None and request.seconds <= 5.0 for request in limits), "what was left for each"


def test_a_plan_whose_time_was_over_goes_on_with_more_and_with_what_a_person_said(crew: Crew) -> None:
    hurries = "case $CHARGEHAND_REQUEST in *hurry*) echo x > sub/b.txt;; *) sleep 600;; esac"
    mission = crew.record([task("a"), task("b", shell(hurries), after=["a"])], time="5s")
    assert crew.work(mission).status == "exhausted"
    with crew.opened() as app:
        follow_up_mission(app, FollowUp(mission=mission, text="please hurry", time="1h", budget="3"))
    assert crew.work(mission).status == "waiting"
    state = crew.answer(mission, "retry")
    assert (state.status, [each.outcome for each in crew.events(mission, TaskEnded)]) == (
        "promoted",
        ["merged"] * 2,
    )
    assert len(crew.events(mission, MessageDelivered)) == 1
    with crew.opened() as app:
        limits = [app.mission_reader.state(row.id).config for row in app.store.log.children(mission)]
    assert [each and each.limits.budget_usd for each in limits] == [5.0, 5.0, 3.0]
    assert state.undelivered == {}


def test_without_a_word_of_a_person_each_task_has_a_limit_of_its_own(crew: Crew) -> None:
    mission = crew.record([task("a")])
    state = crew.work(mission)
    assert state.request is not None
    assert (state.status, state.request.plan_seconds) == ("promoted", None)


def test_a_worker_that_dies_when_the_time_is_over_leaves_a_plan_that_ends_so(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b", shell("sleep 600"))], time="4s")

    def work(*plan: str) -> int:
        module = "tests.dying" if plan else "chargehand"
        words = (*plan, "worker", "--until-idle")
        return forked.ForkedProcess(words, cwd=crew.repo, environ=crew.environ, module=module, session=True).wait()

    # Usually the first that ends is `a`; then the time is over, and `b` or the plan is about to.
    assert work("before mission.finished#2") == -signal.SIGKILL
    assert work() == 0
    with crew.opened() as app:
        state = app.mission_reader.state(mission)
    assert (state.status, [reason.code for reason in state.reasons]) == ("exhausted", ["time"])
    assert len(crew.events(mission, MissionFinished)) == 1
    assert not set(crew.children(mission).values()) - {"promoted", "cancelled", "exhausted"}


def test_the_time_of_a_plan_counts_while_a_planner_makes_it(crew: Crew) -> None:
    asked = RunRequest(
        text="Write files", plan="auto", agent=shell("sleep 600"), only_checks=("true",), yes=True, time="3s"
    )
    with crew.opened() as app:
        request, plan = plan_request(app, asked)
        mission = record_mission(app, request, plan=plan)
    state = crew.work(mission)
    assert (state.status, [reason.code for reason in state.reasons]) == ("exhausted", ["time"])
    assert "nothing was merged" in state.reasons[0].message
    assert not set(crew.children(mission).values()) - {"cancelled", "exhausted"}
