"""Missions of an agent that fails and of one that works: with learned choices the one that works is chosen."""

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
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.choices import BenchmarkTally, Candidate, ChoiceHistory, ChoiceOutcome
from chargehand.core.errors import UsageError
from chargehand.core.state import MissionState
from chargehand.decisions.decider import Decider
from chargehand.decisions.learned import LearnedRules
from chargehand.reports.choices import explain_choices, list_choices, replay_choices
from chargehand.reports.reading import StateReader
from chargehand.reports.statistics import StatisticsRequest, model_statistics

pytestmark = pytest.mark.needs_bwrap

WRITES = "echo x > sub/$(echo $CHARGEHAND_REQUEST | md5sum | cut -c1-8).txt"
AGENTS = {"broken": "exit 3", "works": WRITES}


class Project:
    """A repository, and a person's configuration of two agents."""

    def __init__(self, place: Path) -> None:
        self.repo = repository(place / "repo")
        self.agents = dict(AGENTS)
        self.config = place / "config/chargehand/config.toml"
        self.config.parent.mkdir(parents=True)
        self.environ = {
            "HOME": str(place),
            "PATH": os.environ["PATH"],
            "CHARGEHAND_HOME": str(used_state(place / "state")),
            "XDG_CONFIG_HOME": str(place / "config"),
        }

    def configure(self, decisions: str) -> None:
        agents = (
            f"[agents.{name}]\ncommand = {json.dumps(['sh', '-c', text])}\n" for name, text in self.agents.items()
        )
        self.config.write_text("".join(agents) + decisions)

    def run(
        self, number: int, agent: str | None = None, *, attempts: int = 1, decider: Decider | None = None
    ) -> MissionState:
        asked = RunRequest(
            text=f"Write {number}",
            only_checks=("cat sub/* > /dev/null",),
            yes=True,
            agent=agent,
            attempts=str(attempts),
        )
        app = App(environ=self.environ, cwd=self.repo, role="worker", decider=decider)
        try:
            request, plan = plan_request(app, asked)
            mission = record_mission(app, request, plan=plan)
            asyncio.run(Worker(app, slots=1).work(until_idle=True))
            return app.mission_reader.state(mission)
        finally:
            app.close()


def test_the_agent_that_works_is_chosen_after_outcomes_of_both(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.configure("")
    with pytest.raises(UsageError, match="2 agents are configured"):
        project.run(0)
    # A person's own choices are outcomes too.
    for number in range(4):
        assert project.run(number, "broken").status == "failed"
        assert project.run(10 + number, "works").status == "promoted"
    project.configure("[decisions]\nlearned = true\nexplore = false\n")
    learned = project.run(20)
    assert learned.request is not None
    assert (learned.request.agent, learned.status) == ("works", "promoted")
    assert learned.request.why.startswith("works: ")
    assert learned.request.why.endswith("from 8 attempts")
    assert learned.chosen[-1].code == "learned"
    with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
        (choice,) = explain_choices(reader, learned.id).choices
    assert choice.learned is not None
    assert (choice.chosen, choice.learned.chosen, choice.learned.replayed) == ("works", "works", True)
    assert [each.name for each in choice.learned.candidates] == ["works", "broken"]
    assert (choice.learned.outcomes, choice.learned.is_guess) == (8, True)
    with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
        again = replay_choices(reader)
        assert (again.same, again.skipped, again.different) == (1, 0, ())
        assert replay_choices(reader, learned.id) == again
        listed = list_choices(reader, limit=2).choices
        assert (listed[0].mission, listed[0].chosen) == (learned.id, "works")
        assert len({each.mission for each in listed}) == 2
    # The person's word still wins.
    assert project.run(21, "broken").status == "failed"
    later = project.run(22)
    assert later.request is not None
    assert later.request.why.endswith("from 10 attempts")


def test_the_first_mission_of_a_project_learns_from_benchmarks(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.configure("[decisions]\nlearned = true\nexplore = false\n")
    with App.open(environ=project.environ, cwd=project.repo) as app:
        for run, good in (("a", "broken"), ("b", "works")):
            tallies = [
                BenchmarkTally(
                    candidate=Candidate(agent=agent), kind="bench/suite", attempts=20, good=20 * (agent == good)
                )
                for agent in AGENTS
            ]
            app.store.evidence.write(run, tallies)
        app.store.evidence.remove("a")
    learned = project.run(1)
    assert learned.request is not None
    assert (learned.request.agent, learned.status) == ("works", "promoted")
    with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
        assert replay_choices(reader).same == 1


def test_a_risky_green_change_is_reviewed_by_a_person(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.configure("[decisions]\nlearned = true\nreview_percent = 99\n")
    assert project.run(1, "works").status == "promoted"
    project.configure("[decisions]\nlearned = true\nreview_percent = 1\n")
    state = project.run(2, "works")
    assert (state.status, [each.code for each in state.reasons]) == ("waiting", ["promotion_risk"])
    assert "all checks pass" in state.reasons[0].message
    assert "top-level directories: 1, attempt: 1" in state.reasons[0].message


def test_an_attempt_that_is_not_worth_its_price_is_left_out_and_explained(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.agents = {"wrong": "rm -r sub"}
    project.configure("")
    red = ChoiceOutcome(
        candidate=Candidate(agent="wrong"), is_good=False, cost_usd=3.0, kind=project.run(1).project
    )
    many = ChoiceHistory(outcomes=tuple(replace(red, work=str(number)) for number in range(30)))
    decider = Decider(chooser=LearnedRules(explores=False), history=lambda: many)
    state = project.run(2, "wrong", attempts=3, decider=decider)
    assert (state.status, len(state.attempts)) == ("refused", 1)
    with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
        last = explain_choices(reader, state.id).choices[-1]
        assert replay_choices(reader, state.id).same == 1
    assert last.chosen == "no further attempt"
    assert last.why.startswith("another try is not worth its cost: wrong again has a ")
    assert last.learned is not None
    assert [each.name for each in last.learned.candidates] == ["no further attempt", "wrong again"]


def test_the_statistics_of_models_show_what_choices_follow_from(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.configure("[decisions]\nlearned = true\n")
    for number in range(3):
        project.run(number, "works")
    project.run(3, "broken")
    with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
        best, worst = model_statistics(reader, StatisticsRequest(repo=None, everywhere=False, since=None)).learned
    assert [(best.name, best.good, best.attempts), (worst.name, worst.good, worst.attempts)] == [
        ("works", 3, 3),
        ("broken", 0, 1),
    ]
    assert best.low < best.chance < best.high
    assert worst.chance < best.chance
    assert best.price_usd is None
    project.configure("")
    with StateReader.open(environ=project.environ, cwd=project.repo) as reader:
        assert model_statistics(reader, StatisticsRequest(repo=None, everywhere=False, since=None)).learned == ()
