"""Missions of an agent that fails and of one that works: with learned choices the one that works is chosen."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from command_line import repository
from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import UsageError
from chargehand.core.state import MissionState
from chargehand.reports.choices import explain_choices
from chargehand.reports.reading import StateReader

pytestmark = pytest.mark.needs_bwrap

WRITES = "echo x > sub/$(echo $CHARGEHAND_REQUEST | md5sum | cut -c1-8).txt"
AGENTS = {"broken": "exit 3", "works": WRITES}


class Project:
    """A repository, and a person's configuration of two agents."""

    def __init__(self, place: Path) -> None:
        self.repo = repository(place / "repo")
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
            f"[agents.{name}]\ncommand = {json.dumps(['sh', '-c', text])}\n" for name, text in AGENTS.items()
        )
        self.config.write_text("".join(agents) + decisions)

    def run(self, number: int, agent: str | None = None) -> MissionState:
        asked = RunRequest(text=f"Write {number}", only_checks=("cat sub/* > /dev/null",), yes=True, agent=agent)
        app = App(environ=self.environ, cwd=self.repo, role="worker")
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
    # The person's word still wins.
    assert project.run(21, "broken").status == "failed"
    again = project.run(22)
    assert again.request is not None
    assert again.request.why.endswith("from 10 attempts")
