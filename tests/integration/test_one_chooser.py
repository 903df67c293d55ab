"""Requests, tasks, attempts and retries are all chosen by the one chooser that an app is given."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from command_line import repository
from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.choices import (
    Candidate,
    Choice,
    ChoiceContext,
    ChoiceHistory,
    Chooser,
    Moment,
)
from chargehand.core.events import read_payload
from chargehand.core.mission_events import AgentSelected, MissionCreated
from chargehand.core.plan_events import TaskStarted
from chargehand.core.records import ChoiceReason
from chargehand.core.state import MissionState
from chargehand.decisions.decider import Decider
from chargehand.decisions.rules import FixedRules
from chargehand.store.rows import MissionFilter

pytestmark = pytest.mark.needs_bwrap

WRITES = "echo x > sub/$(echo $CHARGEHAND_REQUEST | md5sum | cut -c1-8).txt"
AGENTS = {"one": "exit 3", "two": "exit 3", "three": "exit 3", "four": WRITES}
WHY = ChoiceReason("retry", source="the test")
Payloads = dict[str, list[object]]


class NamedChooser:
    """Chooses by moment and current agent if that is possible, otherwise as the fixed rules do."""

    def __init__(self, wanted: Mapping[tuple[Moment, str], str]) -> None:
        self.wanted = wanted
        self.seen: list[tuple[str, str, str]] = []

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        """Return the named agent, and note the moment with the current and the chosen agent."""
        now = context.current.agent if context.current else ""
        wanted = self.wanted.get((context.moment, now), "")
        found = next((each.candidate for each in context.candidates if each.agent.name == wanted), None)
        choice = Choice(chosen=found, reasons=(WHY,)) if found else FixedRules().choose(context, history)
        self.seen.append((context.moment, now, choice.chosen.agent if choice.chosen else choice.action))
        return choice


class Stopping:
    """Names the agent of the request, and finds no later attempt worth its cost."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        """Return a stop at its moment."""
        if context.moment == self.moment:
            return Choice(action="stop", reasons=(ChoiceReason("not_worth_it"),))
        if context.moment == "request":
            return Choice(chosen=Candidate(agent="one"), reasons=(WHY,))
        return FixedRules().choose(context, history)


class Place:
    def __init__(self, place: Path) -> None:
        self.repo = repository(place / "repo")
        config = place / "config/chargehand/config.toml"
        config.parent.mkdir(parents=True)
        agents = (
            f"[agents.{name}]\ncommand = {json.dumps(['sh', '-c', script])}\n" for name, script in AGENTS.items()
        )
        config.write_text("".join(agents))
        self.plan = place / "plan.json"
        self.environ = {
            "HOME": str(place),
            "PATH": os.environ["PATH"],
            "CHARGEHAND_HOME": str(used_state(place / "state")),
            "XDG_CONFIG_HOME": str(place / "config"),
        }

    def run(
        self, chooser: Chooser, *, tasks: int = 0, attempts: int = 1
    ) -> tuple[MissionState, dict[str, list[object]]]:
        """Run a mission to its end; return its state, and the payloads of it and of its tasks by mission."""
        asked = RunRequest(
            text="Write it", only_checks=("cat sub/* > /dev/null",), yes=True, attempts=str(attempts)
        )
        if tasks:
            plan = {"tasks": [{"id": f"t{number}", "text": f"Write {number}"} for number in range(tasks)]}
            self.plan.write_text(json.dumps(plan))
            asked = RunRequest(
                plan=str(self.plan), only_checks=asked.only_checks, yes=True, attempts=str(attempts)
            )
        app = App(environ=self.environ, cwd=self.repo, role="worker", decider=Decider(chooser=chooser))
        try:
            request, plan_of = plan_request(app, asked)
            mission = record_mission(app, request, plan=plan_of)
            asyncio.run(Worker(app, slots=4).work(until_idle=True))
            children = app.store.log.summaries(app.workers.live, MissionFilter(parent=mission))
            names = [mission, *(each.summary.id for each in children)]
            payloads = {name: [read_payload(line) for line in app.store.log.read(name)] for name in names}
            return app.mission_reader.state(mission), payloads
        finally:
            app.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_request_attempt_and_retry_of_a_mission_obey_the_chooser(place: Place) -> None:
    chooser = NamedChooser({("request", ""): "one", ("attempt", "one"): "two", ("retry", "two"): "four"})
    state, payloads = place.run(chooser, attempts=3)
    assert state.status == "promoted", state.reasons
    assert state.request is not None
    assert (state.request.agent, state.request.why, state.chosen) == (
        "one",
        "the choice for the next round",
        (WHY,),
    )
    selected = [each for each in payloads[state.id] if isinstance(each, AgentSelected)]
    assert [each.agent for each in selected][:1] == ["two"]
    assert selected[-1].agent == "four"
    assert all(each.reasons in ((WHY,), ()) for each in selected)
    assert selected[-1].reasons == (WHY,)
    assert [attempt.agent for attempt in state.attempts] == ["two", "four"]
    assert {(moment, now, chosen) for moment, now, chosen in chooser.seen} == {
        ("request", "", "one"),
        ("attempt", "one", "two"),
        ("retry", "two", "four"),
    }


def test_tasks_and_their_next_rounds_obey_the_chooser(place: Place) -> None:
    wanted = {
        ("request", ""): "one",
        ("task", "one"): "two",
        ("attempt", "two"): "three",
        ("retry", "two"): "four",
    }
    state, payloads = place.run(NamedChooser(wanted), tasks=2)
    assert state.status == "promoted", state.reasons
    started = [each for each in payloads[state.id] if isinstance(each, TaskStarted)]
    assert sorted((each.task, each.round, each.rung) for each in started) == [
        (task, *run) for task in ("t0", "t1") for run in ((1, "first"), (2, "approach"))
    ]
    assert all(each.reasons == ((WHY,) if each.round == 2 else ()) for each in started)
    for each in started:
        created = next(line for line in payloads[each.mission] if isinstance(line, MissionCreated))
        worked = [line.agent for line in payloads[each.mission] if isinstance(line, AgentSelected)]
        expected = ("two", "three") if each.round == 1 else ("four", "four")
        assert (created.request.agent, worked[-1]) == expected
        assert created.chosen[0].code == "retry"


def test_a_chooser_may_stop_before_the_limit_of_attempts(place: Place) -> None:
    state, _ = place.run(Stopping("retry"), attempts=3)
    assert (state.status, len(state.attempts)) == ("failed", 1)
    none, _ = place.run(Stopping("attempt"), attempts=3)
    assert (none.status, [reason.code for reason in none.reasons], none.attempts) == (
        "refused",
        ["not_worth_it"],
        [],
    )


def test_a_chooser_may_stop_a_task_before_a_person_is_asked(place: Place) -> None:
    state, payloads = place.run(Stopping("retry"), tasks=2)
    assert (state.status, [reason.code for reason in state.reasons]) == ("refused", ["task_failed"])
    assert "not tried again: another try is not worth its cost" in state.reasons[0].message
    assert {each.round for each in payloads[state.id] if isinstance(each, TaskStarted)} == {1}
    assert not state.questions
