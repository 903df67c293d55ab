"""The cost of a plan is that of all its child missions, at any moment and wherever it is read."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples, make_repository

from chargehand.app.composition import App
from chargehand.app.missions import ListRequest, list_missions
from chargehand.core.attempt_events import AttemptStarted, ModelCalled
from chargehand.core.mission_events import AttemptFinished, MissionFinished
from chargehand.core.plan_events import PlanMade, TaskEnded
from chargehand.core.plans import Plan, Task
from chargehand.core.records import MissionRequest
from chargehand.missions.journal import MissionSubmission, create_mission
from chargehand.reports.documents import mission_document
from chargehand.reports.showing import show_mission

ASKED = MissionRequest(text="change it", agent="", command=(), slug="change-it")
TASKS = ("a", "b", "c")
# The missions of the planner and of reviewers belong to no task.
OWNERS = (*TASKS, "")


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, str, float | None]]:
    """Draw steps with their owner: a call and its cost (`None`: unknown), the end of an attempt or of a task."""
    cost = st.one_of(st.none(), st.integers(0, 900).map(lambda cents: cents / 100))
    steps = st.tuples(st.sampled_from(("call", "replay", "start", "finish", "end")), st.sampled_from(OWNERS), cost)
    return draw(st.lists(steps, max_size=12))


class Costs:
    """A coordinator with one child mission for each owner, and the cost of their calls."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.coordinator = self.create()
        plan = Plan(tasks=tuple(Task(id=name, text=name) for name in TASKS))
        self.log(self.coordinator, PlanMade(plan=plan, identity="os:ada"))
        self.children = {name: self.create(parent=self.coordinator, task=name) for name in OWNERS}
        self.attempts: dict[str, str] = {}
        self.costs: list[float | None] = []
        self.count = 0

    def create(self, **more: Any) -> str:
        found = self.app.preparation.find()
        submission = MissionSubmission(
            project=found.project.id,
            request=ASKED,
            repository=str(self.app.cwd),
            base=found.base,
            config={},
            **more,
        )
        return create_mission(self.app.store, submission)

    def log(self, mission: str, *payloads: Any) -> None:
        self.app.store.log.append(mission, *payloads)

    def step(self, kind: str, owner: str, cost: float | None) -> None:
        self.count += 1
        mission, attempt = self.children[owner], self.attempts.get(owner)
        if kind == "end" and owner:
            # The cost in the event may be wrong, or older than a review: the children's own logs count.
            self.log(self.coordinator, TaskEnded(task=owner, outcome="merged", cost_usd=cost))
        elif kind == "start" or attempt is None:
            attempt = self.attempts[owner] = f"t-{self.count}"
            started = AttemptStarted(
                attempt=attempt, number=self.count, agent="native", workspace=f"w-{self.count}", tree="t"
            )
            self.log(mission, started)
        elif kind in ("call", "replay"):
            status = "ok" if kind == "call" else "replayed"
            called = ModelCalled(
                call=f"c-{self.count}",
                attempt=attempt,
                turn=1,
                model="m",
                upstream="u",
                status=status,
                http_status=200,
                seconds=1.0,
                cost_usd=cost,
                cost_known=cost is not None,
            )
            self.log(mission, called)
            self.costs += [cost] if kind == "call" else []
        else:
            known = next(each for each in self.app.mission_reader.state(mission).attempts if each.id == attempt)
            ended = AttemptFinished(
                attempt=attempt,
                status="succeeded",
                seconds=1.0,
                reasons=(),
                cost_usd=known.cost_usd if known.calls else 0.0,
                cost_known=known.cost_known or not known.calls,
            )
            self.log(mission, ended)
            del self.attempts[owner]

    def check(self) -> None:
        """Compare every place that shows the plan's cost with the sum of its calls."""
        expected = None if None in self.costs else sum(each for each in self.costs if each is not None)
        reader = self.app.mission_reader
        listed = list_missions(self.app, ListRequest()).missions
        found = {
            "result": mission_document(reader.state(self.coordinator)),
            "details": show_mission(self.app, self.coordinator)[1],
            "at rest": mission_document(reader.at_rest(self.coordinator)),
            "followed": mission_document(reader.followed(self.coordinator).look()[0]),
            "list": next(each for each in listed if each.mission == self.coordinator),
        }
        for place, document in found.items():
            assert document.cost_known == (expected is not None), place
            assert document.cost_usd == (None if expected is None else pytest.approx(expected)), place
            assert document.tasks is not None
            assert document.tasks.cost_usd == document.cost_usd, place


@settings(max_examples=examples(10), deadline=None)
@given(history=histories(), keeps=st.booleans())
def test_the_cost_of_a_plan_is_that_of_all_its_child_missions(
    history: list[tuple[str, str, float | None]], keeps: bool
) -> None:
    with tempfile.TemporaryDirectory() as place:
        environ = {"HOME": place, "PATH": "/usr/bin:/bin", "CHARGEHAND_HOME": f"{place}/state"}
        repository = make_repository(Path(place) / "repo", {"f.txt": "a\n"})
        with App.open(environ=environ, cwd=repository) as app:
            app.keeps_missions = keeps
            costs = Costs(app)
            for step in history:
                costs.step(*step)
                costs.check()
            # A person ends the coordinator, which changes nothing about the money spent.
            for child in costs.children.values():
                costs.log(child, MissionFinished(status="cancelled"))
            costs.log(costs.coordinator, MissionFinished(status="cancelled"))
            costs.check()
