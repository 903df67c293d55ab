"""The time limit that a person gives a plan counts by the clock, for all its tasks together."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import repository, shell
from tests import forked
from tests.conftest import git
from tests.crash_kit import MARK, sleepers, wait_until, wake
from tests.integration.test_coordinator import READS, Crew, task

from chargehand.app import worker
from chargehand.app.composition import App
from chargehand.app.missions import promote_mission
from chargehand.app.requests import FollowUp, follow_up_mission, plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.attempt_events import MessageDelivered
from chargehand.core.clock import SystemClock
from chargehand.core.errors import BusyError
from chargehand.core.mission_events import CancelAsked, MissionFinished, QuestionAsked, QuestionExpired
from chargehand.core.plan_events import CoordinatorSlept, CoordinatorWoken, TaskEnded, TaskMerged
from chargehand.core.state import MissionState
from chargehand.reports.progress.event_text import describe_event

pytestmark = pytest.mark.needs_bwrap


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "place").mkdir()
    return Crew(tmp_path / "place", repository(tmp_path / "repo"))


def test_a_plan_ends_when_its_time_is_over_and_so_do_its_tasks(crew: Crew) -> None:
    mission = crew.record([task("a"), task("b", shell("sleep 600"), timeout="1h")], time="5s")
    state = crew.work(mission)
    assert (state.status, [reason.code for reason in state.reasons]) == ("exhausted", ["time"])
    assert "time limit of 5 s is over; merged tasks stay" in state.reasons[0].message
    assert crew.children(mission)["a"] == "promoted"
    assert crew.children(mission)["b"] in ("cancelled", "exhausted")
    assert 5.0 <= state.plan_elapsed < 60.0
    with crew.opened() as app:
        limits = [app.mission_reader.state(row.id).request for row in app.store.log.children(mission)]
    assert all(request is not None and request.seconds <= 5.0 for request in limits), "what was left for each"


def test_a_plan_out_of_time_continues_with_a_new_limit_and_message(crew: Crew) -> None:
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


def test_a_partly_exported_plan_continues_with_its_other_tasks(crew: Crew) -> None:
    hurries = "case $CHARGEHAND_REQUEST in *hurry*) echo x > sub/b.txt;; *) sleep 600;; esac"
    mission = crew.record([task("a"), task("b", shell(hurries), after=["a"]), task("c", after=["b"])], time="5s")
    assert crew.work(mission).status == "exhausted"
    with crew.opened() as app:
        part = asyncio.run(promote_mission(app, mission))
        assert part.status == "promoted"
        goes_on = follow_up_mission(app, FollowUp(mission=mission, text="please hurry", time="1h", budget="3"))
        assert goes_on == mission, "no mission of its own, which would not have the other tasks"
    assert crew.work(mission).status == "waiting"
    state = crew.answer(mission, "retry")
    assert (state.status, [each.outcome for each in crew.events(mission, TaskEnded)]) == (
        "promoted",
        ["merged"] * 3,
    )
    assert state.export is not None
    tip = git(crew.repo, "rev-parse", state.export.ref)
    assert tip == state.commit
    assert git(crew.repo, "show", f"{tip}:sub/b.txt") == "x"
    assert git(crew.repo, "merge-base", "--is-ancestor", part.commit or "", tip) == ""


def test_a_plan_has_no_time_limit_by_default(crew: Crew) -> None:
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

    # Usually `a` ends first; then the time is over, and `b` or the plan is about to end.
    assert work("before mission.finished#2") == -signal.SIGKILL
    assert work() == 0
    with crew.opened() as app:
        state = app.mission_reader.state(mission)
    assert (state.status, [reason.code for reason in state.reasons]) == ("exhausted", ["time"])
    assert len(crew.events(mission, MissionFinished)) == 1
    assert not set(crew.children(mission).values()) - {"promoted", "cancelled", "exhausted"}


@pytest.mark.parametrize(("is_told", "status"), [(True, "cancelled"), (False, "waiting")])
def test_an_order_to_cancel_a_task_applies_even_if_its_plan_ended_first(
    crew: Crew, is_told: bool, status: str
) -> None:
    mission = crew.record([task("a"), task("b", shell("sleep 600"), after=["a"])])
    words = ("after attempt.started#2", "worker", "--until-idle")
    died = forked.ForkedProcess(words, cwd=crew.repo, environ=crew.environ, module="tests.dying", session=True)
    assert died.wait() == -signal.SIGKILL
    with crew.opened() as app:
        child = app.store.log.children(mission)[-1].id
        stop = CancelAsked(identity="coordinator", reason="the plan is over")
        ends = [(child, stop)] if is_told else []
        for name, payload in (*ends, (mission, MissionFinished(status="exhausted"))):
            app.store.log.append(name, payload, epoch=app.store.log.get(name).epoch)
    crew.work(mission)
    assert crew.children(mission) == {"a": "promoted", "b": status}
    with crew.opened() as app:
        codes = [reason.code for reason in app.mission_reader.state(child).reasons]
    assert codes == (["cancelled"] if is_told else ["coordinator_gone"])


def test_the_time_of_a_planner_counts_against_the_plan(crew: Crew) -> None:
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


@pytest.fixture
def unpolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for sleeping missions once, at their start: then each mission is woken at its time."""
    monkeypatch.setattr(worker, "_CHECK_SECONDS", 1e9)


class Ahead(SystemClock):
    """The machine's clock, hours later."""

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=2)


def work_until_woken(crew: Crew, mission: str, *, clock: SystemClock | None = None) -> MissionState:
    """Work until nothing is left to do and nothing sleeps."""
    app = App(environ=crew.environ, cwd=crew.repo, role="worker", clock=clock)
    try:
        asyncio.run(Worker(app, slots=4).work(until_idle=True, sleepers=True))
        return app.mission_reader.state(mission)
    finally:
        app.close()


@pytest.mark.usefixtures("unpolled")
def test_a_sleeping_coordinator_is_woken_at_the_moment_of_its_deadline(crew: Crew) -> None:
    mission = crew.record([task("slow", shell("sleep 600"), deadline=1.0)])
    state = work_until_woken(crew, mission)
    assert (state.status, [reason.message for reason in state.reasons]) == (
        "waiting",
        ["task slow needs a person's decision: it was not done within 1s"],
    )
    (asked,) = crew.events(mission, QuestionAsked)
    assert asked.reasons[0].code == "deadline"
    with crew.opened() as app:
        (child,) = (app.mission_reader.state(row.id) for row in app.store.log.children(mission))
        told = [describe_event(line) for line in app.store.log.read(mission)]
    # No person did it, and its log does not claim so.
    message = "its coordinator stopped it: task slow: it was not done within 1s"
    assert [reason.message for reason in (*child.reasons, *child.attempts[0].reasons)] == [message] * 2
    assert "task slow needs a person's decision: it was not done within 1s" in told
    assert "checks again: its time has come, or a person changed something" in told
    slept = crew.events(mission, CoordinatorSlept)[0]
    with crew.opened() as app:
        (line, *_) = app.store.log.read(mission, types=(CoordinatorSlept.type,))
    # At most the time allowed, less the time that passed before it slept.
    passed = datetime.fromisoformat(slept.wakes) - datetime.fromisoformat(line.time)
    assert timedelta(0) < passed <= timedelta(seconds=1, milliseconds=1)


@pytest.mark.usefixtures("unpolled")
def test_an_unanswered_question_gets_its_default_at_the_time_limit(crew: Crew) -> None:
    crew.environ["CHARGEHAND_LIMITS_QUESTION_SECONDS"] = "1"
    unclear = [{"id": "way", "question": "Which way?", "default": "left"}]
    mission = crew.record([task("a")], ambiguities=unclear)
    assert work_until_woken(crew, mission).status == "promoted"
    assert len(crew.events(mission, QuestionExpired)) == 1


@pytest.mark.usefixtures("unpolled")
@pytest.mark.parametrize("lost", ["none", "the first", "all before the merge", "all before, and one fails"])
def test_a_deadline_does_not_wait_for_the_checks_of_a_merge(
    crew: Crew, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the order to stop is not heeded at first, or fails: a mission that is being taken over cannot."""
    orders, stop = list[str](), App._stop_mission

    def lose(app: App, order: str, why: str) -> None:
        if lost.startswith("all before") and not sleepers():
            return
        orders.append(order)
        if len(orders) == 1 and lost.endswith("fails"):
            raise BusyError("it is held by another process", retry_seconds=1)
        if len(orders) > (lost == "the first"):
            stop(app, order, why)

    monkeypatch.setattr(App, "_stop_mission", lose)
    late = task("late", shell("sleep 600"), deadline=3.0)
    # Its result comes after the deadline, and is what the second merge waits for.
    slow = shell(f"sleep {4 if lost.startswith('all before') else 0}; echo b > sub/b.txt")
    # The second merge is judged again, which takes long.
    check = f"{READS}; test $(ls sub | wc -l) -lt 3 || sleep {MARK} || true"
    mission = crew.record([task("a"), task("b", slow), late], check)

    def look() -> None:
        wait_until(sleepers)
        wait_until(lambda: crew.children(mission)["late"] == "cancelled")
        seen.append(len(crew.events(mission, TaskMerged)))
        assert wake()

    seen = list[int]()
    person = threading.Thread(target=look)
    person.start()
    try:
        state = crew.work(mission)
    finally:
        person.join()
    assert (state.status, seen) == ("waiting", [1])
    assert len(crew.events(mission, TaskMerged)) == 2


@pytest.mark.parametrize("timed", [{"time": "1h"}, {"deadline": 3600}])
def test_no_clock_of_a_plan_runs_while_no_worker_lives(crew: Crew, timed: dict[str, object]) -> None:
    limits = {name: timed.pop(name) for name in ("time",) if name in timed}
    works = task("a", shell(f"sleep {MARK}; echo x > sub/a.txt"), **timed)
    mission = crew.record([works, task("b", after=["a"])], **limits)

    def rests(app: App) -> Callable[[], bool]:
        return lambda: bool(sleepers()) and app.mission_reader.state(mission).asleep

    first = forked.ForkedProcess(("worker",), cwd=crew.repo, environ=crew.environ, session=True)
    try:
        with crew.opened() as app:
            wait_until(rests(app))
    finally:
        first.kill()
        first.wait()
    wait_until(lambda: not sleepers())

    def go_on() -> None:
        wait_until(sleepers)
        assert wake()

    person = threading.Thread(target=go_on)
    person.start()
    try:
        state = work_until_woken(crew, mission, clock=Ahead())
    finally:
        person.join()
    assert (state.status, state.reasons) == ("promoted", ())
    assert state.plan_elapsed < 3600
    assert sum(bool(woken.idle_since) for woken in crew.events(mission, CoordinatorWoken)) == 1
