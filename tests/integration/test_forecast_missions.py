"""Forecasts of real missions: recorded before and after attempts, shown by the command, and asked about."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from command_line import repository
from msgspec.structs import replace
from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.app.forecasts import forecast_mission
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.choices import Candidate, ChoiceHistory, ChoiceOutcome
from chargehand.core.errors import UsageError
from chargehand.core.state import MissionState
from chargehand.decisions import forecasts
from chargehand.decisions.decider import Decider
from chargehand.decisions.explanation import check_forecast
from chargehand.decisions.plan_forecasts import forecast_plan
from chargehand.missions.forecasting import BUDGET_QUESTION
from chargehand.reports.predictions import list_forecasts
from chargehand.reports.reading import StateReader

pytestmark = pytest.mark.needs_bwrap

# Its first attempt fails.
AGENT = "if [ -e sub/first ]; then rm sub/first; echo x >> sub/done; else touch sub/first; exit 3; fi"
CHECK = "cat sub/* > /dev/null"
LEARNED = "[decisions]\nlearned = true\n"


class Project:
    """A repository, a person's configuration with one agent, and a history of that agent."""

    def __init__(self, place: Path, *, outcomes: int, usd: float) -> None:
        self.repo = repository(place / "repo")
        self.config = place / "config/chargehand/config.toml"
        self.config.parent.mkdir(parents=True)
        self.write(LEARNED)
        self.environ = {
            "HOME": str(place),
            "PATH": os.environ["PATH"],
            "CHARGEHAND_HOME": str(used_state(place / "state")),
            "XDG_CONFIG_HOME": str(place / "config"),
        }
        self.outcomes, self.usd = outcomes, usd

    def write(self, more: str) -> None:
        self.config.write_text(f"[agents.twice]\ncommand = {json.dumps(['sh', '-c', AGENT])}\n{more}")

    def app(self) -> App:
        decider = Decider(
            history=lambda: self.history(app),
            forecaster=forecasts.forecast_mission,
            plan_forecaster=forecast_plan,
        )
        app = App(environ=self.environ, cwd=self.repo, role="worker", decider=decider)  # the history reads it
        return app

    def history(self, app: App) -> ChoiceHistory:
        outcome = ChoiceOutcome(
            candidate=Candidate(agent="twice"),
            is_good=True,
            cost_usd=self.usd,
            kind=app.projects.find().id,
            seconds=20.0,
        )
        ends = range(self.outcomes)
        return ChoiceHistory(outcomes=tuple(ChoiceOutcome(**{**_fields(outcome), "work": str(n)}) for n in ends))

    def start(self, app: App, budget: str, *, plan_file: str | None = None) -> str:
        asked = RunRequest(
            text="Write",
            only_checks=(CHECK,),
            yes=True,
            agent="twice",
            attempts="3",
            budget=budget,
            plan=plan_file,
        )
        request, plan = plan_request(app, asked)
        return record_mission(app, request, plan=plan)

    def work(self, app: App, mission: str) -> MissionState:
        asyncio.run(Worker(app, slots=1).work(until_idle=True))
        return app.mission_reader.state(mission)


def _fields(outcome: ChoiceOutcome) -> dict[str, object]:
    return {name: getattr(outcome, name) for name in outcome.__struct_fields__}


def test_a_mission_is_forecast_before_and_after_its_attempts_and_compared_at_its_end(tmp_path: Path) -> None:
    project = Project(tmp_path, outcomes=25, usd=0.5)
    app = project.app()
    try:
        mission = project.start(app, "5")
        with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
            before = forecast_mission(reader, mission)
        assert before.forecast is not None
        assert (before.forecast.outcomes, before.forecast.is_guess, before.forecast.cost_usd) == (0, True, None)
        assert any("a guess: fewer than 20 outcomes known" in line for line in before.summary)
        ended = project.work(app, mission)
    finally:
        app.close()
    assert (ended.status, len(ended.attempts)) == ("promoted", 2)
    assert [each.after for each in ended.forecasts] == [0, 1]
    first = ended.forecasts[0].forecast
    assert first.outcomes == 25
    assert first.cost_usd is not None
    assert 0.2 < first.cost_usd.middle < 1
    with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
        after = forecast_mission(reader, mission)
        assert (after.forecast, after.plan, after.at_start) == (None, None, replace(first, evidence=""))
        assert after.summary[0].startswith("When it began: ")
        assert after.summary[-1].startswith("It ended promoted: ")
        project.write("")
    with (
        StateReader.open(environ=project.environ, cwd=project.repo) as reader,
        pytest.raises(UsageError) as caught,
    ):
        forecast_mission(reader, mission)
    assert caught.value.hint == "chargehand config set decisions.learned true"


def test_the_forecast_of_a_plan_is_recorded_before_its_first_task_and_computed_again(tmp_path: Path) -> None:
    project = Project(tmp_path, outcomes=25, usd=0.5)
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"tasks": [{"id": "one", "text": "W"}, {"id": "two", "text": "W", "after": ["one"]}]})
    )
    app = project.app()
    try:
        mission = project.start(app, "50", plan_file=str(plan))
        ended = project.work(app, mission)
    finally:
        app.close()
    assert (ended.status, ended.tasks and ended.tasks.merged) == ("promoted", 2)
    (recorded,) = ended.forecasts  # once, however often the coordinator wakes
    made = recorded.forecast
    assert (recorded.after, made.tasks, made.outcomes, made.is_guess) == (0, 2, 25, False)
    assert made.cost_usd is not None
    assert 0.5 < made.cost_usd.middle < 2.5  # two tasks of half a dollar, and further attempts
    assert 0 < made.chance <= made.unlimited < 1
    assert check_forecast(made) is True
    assert check_forecast(replace(made, chance=made.chance / 2)) is False
    assert made.seed is not None
    assert check_forecast(replace(made, seed=made.seed + 1)) is False
    assert check_forecast(replace(made, evidence=made.evidence.replace("plan-forecast-1", "other"))) is None
    with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
        listed = {each.mission: each for each in list_forecasts(reader, limit=20).forecasts if each.tasks}
        told = forecast_mission(reader, mission).summary
    (found,) = listed.values()
    assert (found.mission, found.reproduced, found.is_good) == (mission, True, True)
    assert told[0].startswith("When it began: ")
    assert "chance that all 2 tasks get done" in told[0]


def test_the_unfinished_tasks_of_a_plan_are_simulated(tmp_path: Path) -> None:
    project = Project(tmp_path, outcomes=0, usd=1.0)
    plan = tmp_path / "plan.json"
    tasks = [{"id": "one", "text": "Write"}, {"id": "two", "text": "Write", "after": ["one"]}]
    plan.write_text(json.dumps({"tasks": [*tasks, {"id": "three", "text": "Write"}]}))
    app = project.app()
    try:
        project.work(app, project.start(app, "5"))
        mission = project.start(app, "5", plan_file=str(plan))
        with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
            found = forecast_mission(reader, mission)
            assert forecast_mission(reader, mission) == found
    finally:
        app.close()
    assert found.forecast is None
    assert found.plan is not None
    assert 0 < found.plan.chance < 1
    assert found.plan.cost_usd is None  # a program's cost is not known
    assert found.plan.seconds is not None
    assert {each.task for each in found.plan.critical} <= {"one", "two", "three"}
    assert found.plan.outcomes == 2
    assert found.summary[0].endswith("a guess: fewer than 20 outcomes known.")
    assert any(line.startswith("On the longest path: ") for line in found.summary)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_budget_that_will_not_do_is_a_question_before_any_attempt(tmp_path: Path, place: int) -> None:
    project = Project(tmp_path, outcomes=25, usd=1.0)
    app = project.app()
    try:
        mission = project.start(app, "0.05")
        asked = project.work(app, mission)
        assert (asked.status, asked.attempts, len(asked.forecasts)) == ("waiting", [], 1)
        assert [each.code for each in asked.reasons] == ["budget_unlikely"]
        question = asked.questions[BUDGET_QUESTION]
        assert (question.kind, question.closed) == ("risk", True)
        assert question.options[0] == "go on anyway"
        assert question.options[2] == "stop"
        app.steering.answer(mission, question.options[place])
        ended = project.work(app, mission)
    finally:
        app.close()
    assert ended.config is not None
    if place == 2:
        assert (ended.status, ended.attempts) == ("failed", [])
        assert [each.code for each in ended.reasons] == ["budget_unlikely"]
    else:
        assert (ended.status, len(ended.attempts)) == ("promoted", 2)
    assert (ended.config.limits.budget_usd > 0.5) == (place == 1)
    assert len(ended.questions) == 1


def test_a_guess_and_a_sufficient_budget_ask_nothing(tmp_path: Path) -> None:
    guess = Project(tmp_path / "guess", outcomes=5, usd=1.0)
    app = guess.app()
    try:
        assert guess.work(app, guess.start(app, "0.05")).status == "promoted"
    finally:
        app.close()
