"""The mission meant by a coordinator's name and a task."""

from __future__ import annotations

import pytest

from chargehand.core.errors import RefusedError
from chargehand.core.mission_events import QuestionAsked
from chargehand.core.plan_events import PlanMade, PlanProgress, ReviewStarted, TaskStarted
from chargehand.core.plans import Plan, Task
from chargehand.core.state import MissionState, MissionSummary, Question
from chargehand.missions.waiting import find_addressee


def asking(name: str, status: str = "waiting") -> MissionSummary:
    asked = Question.of(QuestionAsked(question="q", tree="t", reasons=(), text="Which way?", attempt="a-1"))
    child = MissionSummary(id=name, parent="m-1", task="code", status=status)  # type: ignore[arg-type]
    child.questions["q"] = asked
    return child


def test_a_reviewer_of_a_task_is_answered_by_its_coordinators_name_too() -> None:
    progress = PlanProgress().after(PlanMade(plan=Plan(tasks=(Task(id="code", text="x"),)), identity="ada"))
    progress = progress.after(
        TaskStarted(task="code", mission="m-code", round=1, rung="first", base="0" * 40, why="")
    )
    progress = progress.after(
        ReviewStarted(task="code", mission="m-review", of="m-code", role="reviewer", tree="t")
    )
    state = MissionState(id="m-1", status="running", plan=progress)
    done = MissionSummary(id="m-code", parent="m-1", task="code", status="promoted")
    for task in ("code", None):
        meant = find_addressee(state, (done, asking("m-review")), "answer", task)
        assert (meant.mission, meant.question is not None) == ("m-review", True)
    with pytest.raises(RefusedError, match="no open question"):
        find_addressee(state, (done, asking("m-review", "cancelled")), "answer", "code")
