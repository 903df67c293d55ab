"""How the tasks of a plan stand, in words, from what is known of their missions; no terminal, no store."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from chargehand.app.outcome import next_commands
from chargehand.app.progress import live_output
from chargehand.app.progress.crew import Crew, CrewFacts, CrewTask, describe_crew
from chargehand.app.progress.crew_rows import crew_rows
from chargehand.core.attempt_events import RoleChosen
from chargehand.core.events import Payload
from chargehand.core.plan_events import (
    PlanMade,
    PlannerStarted,
    PlanProgress,
    PlanWanted,
    ReviewStarted,
    TaskEnded,
    TaskHeld,
    TaskMerged,
    TaskReturned,
    TaskReviewed,
    TaskStarted,
)
from chargehand.core.plans import Plan, Task
from chargehand.core.records import Base, MissionRequest, Reason
from chargehand.core.state import AttemptState, MissionState, MissionSummary, Question
from chargehand.missions.reading import already_rolled_back_error

ASKED = MissionRequest(
    text="new dates\nand more", agent="command:sh -c 'x'", command=(), slug="x", role="developer"
)
PLAN = Plan(
    tasks=(
        Task(id="a", text="A"),
        Task(id="b", text="B", reviewers=("reviewer", "security")),
        Task(id="c", text="C", after=("a", "b")),
        Task(id="d", text="D", after=("c",)),
        Task(id="e", text="E"),
    ),
    at_once=2,
)
HELD = Reason(code="collision_file", message="both change x.txt")


def started(task: str, mission: str, round: int = 1, **more: Any) -> TaskStarted:
    return TaskStarted(task=task, mission=mission, round=round, rung="first", base="0", why="", **more)


def child(id: str, task: str, status: str = "running", **more: Any) -> MissionSummary:
    attempts = [AttemptState(id="a", number=1, agent="x", workspace="w")] if status == "running" else []
    known: dict[str, Any] = {"attempts": attempts, "request": ASKED, "created": "2026-01-02T03:00:00+00:00"}
    return MissionSummary(id=id, parent="m", task=task, status=status, **(known | more))


def describe(events: list[Payload], *children: MissionSummary, **more: Any) -> Crew:
    progress = PlanProgress().after(PlanMade(plan=PLAN, identity="os:me"))
    for event in events:
        progress = progress.after(event)
    questions = more.pop("questions", {})
    state = MissionState(id="m", status="running", request=ASKED, plan=progress, questions=questions)
    facts = CrewFacts(state=state, children={each.id: each for each in children}, **more)
    return describe_crew(facts)


def by_id(crew: Crew) -> dict[str, CrewTask]:
    return {task.id: task for task in crew.tasks}


def test_who_works_who_is_held_and_who_waits_for_whom() -> None:
    crew = describe(
        [started("a", "m-a"), TaskHeld(task="b", reason=HELD)],
        child("m-a", "a"),
        steps={"m-a": "checks"},
    )
    assert (crew.title, [task.standing for task in crew.tasks]) == (
        "new dates",
        ["works", "held", "waits", "waits", "next"],
    )
    tasks = by_id(crew)
    assert tasks["a"].detail == "developer sh: running checks"
    assert tasks["a"].since
    assert tasks["b"].detail == "both change x.txt; chargehand mission plan m --start b begins it"
    assert tasks["c"].detail == "after a, b"
    assert tasks["e"].detail == "begins when one of 2 places is free"
    assert crew.needs == ()


def test_reviews_rounds_and_ends() -> None:
    events: list[Payload] = [
        started("a", "m-a"),
        TaskMerged(task="a", mission="m-a", commit="1", tree="2"),
        TaskEnded(task="a", outcome="merged"),
        started("b", "m-b"),
        ReviewStarted(task="b", mission="m-r", of="m-b", role="reviewer", tree="2"),
        ReviewStarted(task="b", mission="m-s", of="m-b", role="security", tree="2"),
    ]
    missions = [child("m-a", "a", "promoted"), child("m-b", "b", "promoted"), child("m-r", "b", "promoted")]
    crew = by_id(describe(events, *missions, child("m-s", "b", "planned")))
    assert (crew["a"].standing, crew["a"].detail) == ("merged", "by developer sh")
    assert (crew["b"].standing, crew["b"].detail) == ("queued", "begins")
    crew = by_id(describe(events, *missions, child("m-s", "b")))
    assert (crew["b"].standing, crew["b"].detail) == ("review", "reviewer done, security works")
    done = child("m-s", "b", "promoted")
    assert by_id(describe(events, *missions, done))["b"].standing == "merging"
    why = Reason(code="review_objected", message="1 of 2 objects")
    events += [
        TaskReviewed(task="b", of="m-b", decision="revise", why="1 of 2 objects", votes=()),
        TaskReturned(task="b", mission="m-b", reason=why, base="1", tree="2", evidence="f"),
        TaskStarted(task="b", mission="m-b2", round=2, rung="returned", base="1", why=""),
    ]
    model = RoleChosen(
        role="developer", digest="", artifact="", origin="", agent="native", models=("fast",), writes=True, why=""
    )
    again = child("m-b2", "b", role=model)
    crew = by_id(describe(events, *missions, done, again, steps={"m-b2": "agent"}))
    assert crew["b"].standing == "works"
    assert crew["b"].detail == "developer fast: agent working, round 2, since 1 of 2 objects"
    events.append(TaskEnded(task="b", outcome="left_out", reason=Reason(code="left_out", message="a person did")))
    left = by_id(describe(events, *missions, done, again))["b"]
    assert (left.standing, left.detail) == ("left out", "a person did")


def test_what_needs_a_person_comes_with_the_command_and_those_behind_it_say_so() -> None:
    own = Question(
        id="task/a/1", text="Try it again?", options=("retry", "skip"), tree="", attempt=None, kind="decision"
    )
    asks = Question(id="q", text="Which way?", options=(), tree="", attempt="a1")
    reason = Reason(code="agent_failed", message="the agent gave up.")
    crew = describe(
        [started("a", "m-a"), started("b", "m-b")],
        child("m-a", "a", "failed", reasons=(reason,)),
        child("m-b", "b", "waiting", questions={"q": asks}),
        questions={"task/a/1": own},
    )
    first, second = crew.needs
    assert first.message == "the agent gave up. Try it again?"
    assert " ".join(first.command) == "chargehand mission answer m --task a retry"
    assert first.choices == "retry, skip, or words of your own"
    assert (second.task, second.message) == ("b", "Which way?")
    assert " ".join(second.command) == "chargehand mission answer m --task b TEXT"
    tasks = by_id(crew)
    assert [tasks[name].standing for name in "ab"] == ["needs you", "needs you"]
    assert tasks["d"].detail == "after c; a, b needs you"


def test_an_approval_a_pause_and_the_plan_itself_need_a_person() -> None:
    reason = Reason(code="surface", message="a check surface was changed")
    events: list[Payload] = [started("a", "m-a"), started("b", "m-b"), started("e", "m-e", candidate=1)]
    waiting = [
        child("m-a", "a", "waiting", reasons=(reason,)),
        child("m-b", "b", "paused"),
        child("m-e", "e", "paused", reasons=(Reason(code="worker_lost", message="lost"),)),
    ]
    crew = describe(events, *waiting)
    approval, pause = crew.needs
    assert " ".join(approval.command) == "chargehand mission promote m --task a --reason TEXT"
    assert approval.message == "a check surface was changed"
    assert " ".join(pause.command) == "chargehand mission resume m-b"
    # A worker that died is no matter of a person.
    assert by_id(crew)["e"].standing == "works"
    unclear = Question(id="plan/x", text="Which?", options=("ISO 8601",), tree="", attempt=None, closed=True)
    (need,) = describe([], questions={"plan/x": unclear}).needs
    assert (need.task, need.choices, need.command[-1]) == ("", "ISO 8601", "'ISO 8601'")


def test_while_there_is_no_plan_its_planner_is_the_crew() -> None:
    progress = PlanProgress().after(PlanWanted()).after(PlannerStarted(mission="m-p", round=1))
    asks = Question(id="q", text="Which way?", options=(), tree="", attempt="a1")
    for questions, standing in (({}, "works"), ({"q": asks}, "needs you")):
        child_ = child("m-p", "planner", "waiting" if questions else "running", questions=questions)
        state = MissionState(id="m", status="running", request=ASKED, plan=progress)
        crew = describe_crew(CrewFacts(state=state, children={"m-p": child_}))
        assert (crew.planned, [(task.id, task.standing) for task in crew.tasks]) == (
            False,
            [("planner", standing)],
        )
        assert [" ".join(need.command) for need in crew.needs] == ["chargehand mission answer m-p TEXT"] * len(
            questions
        )
        rows = [row.text for row in crew_rows(crew, now=datetime.now(UTC), width=80, height=24)]
        assert rows[1] == "a planner makes its plan first"


def test_the_cost_is_that_of_all_missions_and_what_is_not_known_is_said() -> None:
    def paid(known: bool, usd: float | None, **more: Any) -> list[AttemptState]:
        attempt = AttemptState(
            id="a",
            number=1,
            agent="x",
            workspace="w",
            calls=2,
            cost_known=known,
            cost_usd=usd,
            **more,
        )
        return [attempt]

    events: list[Payload] = [started("a", "m-a"), started("b", "m-b")]
    first = child("m-a", "a", attempts=paid(True, 0.25))
    crew = describe(events, first, child("m-b", "b", attempts=paid(True, 0.5)))
    assert (crew.cost.usd, crew.cost.known, by_id(crew)["a"].cost.usd) == (0.75, True, 0.25)
    # What a follow-up took over was paid for once.
    copied = child("m-b", "b", attempts=paid(True, 0.5, copied=True))
    assert describe(events, first, copied).cost.usd == 0.25
    unknown = describe(events, first, child("m-b", "b", attempts=paid(False, None, booked_usd=1.0)))
    assert (unknown.cost.usd, unknown.cost.known) == (1.25, False)


def test_what_is_offered_after_the_roll_back_of_a_plan_is_not_refused() -> None:
    base = Base(commit="0" * 40, tree="t", revision="HEAD")
    state = MissionState(id="m", status="promoted", commit="1" * 40, tree="t", base=base)
    assert "promotes it again" in next_commands(state)[0]
    state.plan = PlanProgress()
    assert next_commands(state) == ()
    assert already_rolled_back_error(state).hint == "chargehand mission show m"


@pytest.mark.parametrize("pause", [None, 5])
def test_a_wait_is_told_once_it_lasts(monkeypatch: pytest.MonkeyPatch, pause: int | None) -> None:
    moments = itertools.count()
    monkeypatch.setattr(live_output.time, "monotonic", lambda: float(next(moments)))
    patience = live_output.Patience()
    reason = Reason(code="no_worker", message="no worker is running")
    told = [patience.lasting(None if number == pause else reason) for number in range(12)]
    assert told == [None] * 10 + [reason] * 2 if pause is None else [None] * 12
