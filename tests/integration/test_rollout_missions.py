"""Missions of two projects: one is in a roll-out of a model that does nothing, until outcomes stop it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from command_line import repository
from tests.native_kit import FINISH, call, says, scripted
from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.state import MissionState
from chargehand.decisions.rollouts import is_member
from chargehand.reports.choices import explain_choices
from chargehand.reports.reading import StateReader
from chargehand.reports.rollouts import RolloutView, list_rollouts

pytestmark = pytest.mark.needs_bwrap

MODELS = {
    "works": scripted((says("I write", call("bash", command="echo x > sub/x.txt")), FINISH)),
    "idle": scripted((FINISH,)),
}


class Projects:
    """Two repositories, and the configuration of a person whose only agent works with the model `works`."""

    def __init__(self, place: Path) -> None:
        self.repositories = {name: repository(place / name) for name in ("one", "two")}
        self.config = place / "config/chargehand/config.toml"
        self.config.parent.mkdir(parents=True)
        self.environ = {
            "HOME": str(place),
            "PATH": os.environ["PATH"],
            "CHARGEHAND_HOME": str(used_state(place / "state")),
            "XDG_CONFIG_HOME": str(place / "config"),
        }
        lines = ["[agents.coder]", 'kind = "native"', 'model = "works"']
        for name, script in MODELS.items():
            file = place / f"{name}.jsonl"
            file.write_bytes(script.dump())
            lines += [f"[models.{name}]", 'provider = "script"', f"script = {json.dumps(str(file))}"]
            lines.append(f'model = "maker/{name}-1"')
        self.base = "\n".join(lines) + "\n"
        self.configure("")

    def configure(self, more: str) -> None:
        self.config.write_text(self.base + more)

    def run(self, name: str, text: str = "Write", **options: str) -> MissionState:
        asked = RunRequest(text=text, only_checks=("cat sub/* > /dev/null",), yes=True, attempts="1", **options)
        app = App(environ=self.environ, cwd=self.repositories[name], role="worker")
        try:
            request, plan = plan_request(app, asked)
            mission = record_mission(app, request, plan=plan)
            asyncio.run(Worker(app, slots=1).work(until_idle=True))
            return app.mission_reader.state(mission)
        finally:
            app.close()

    def register(self, name: str) -> str:
        app = App(environ=self.environ, cwd=self.repositories[name], role="worker")
        try:
            return app.preparation.register_project(self.repositories[name]).id
        finally:
            app.close()

    def rollout(self) -> RolloutView:
        with StateReader.open(environ=self.environ, cwd=self.repositories["one"]) as reader:
            (found,) = list_rollouts(reader).rollouts
        return found


def _model(state: MissionState) -> str | None:
    assert state.request is not None
    return state.request.model


def test_a_member_project_gets_the_model_until_its_outcomes_stop_it(tmp_path: Path) -> None:
    projects = Projects(tmp_path)
    one, two = map(projects.register, projects.repositories)
    numbers = range(1000)
    name = next(f"r{n}" for n in numbers if is_member(f"r{n}", 50, one) and not is_member(f"r{n}", 50, two))
    # A high error rate, so that two missions on each side suffice.
    projects.configure(f'[rollouts.{name}]\nmodel = "idle"\npercent = 50\nloss = 0.4\nerror_rate = 0.4\n')
    inside = projects.run("one")
    assert (_model(inside), inside.status) == ("idle", "refused")
    assert inside.chosen[-1].code == "rollout"
    assert inside.request is not None
    assert inside.request.fallback == ("works",)
    outside = projects.run("two")
    assert (_model(outside), outside.status) == ("works", "promoted")
    assert outside.chosen[-1].code == "rollout_outside"
    # A person's choice wins, and does not count.
    named = projects.run("one", model="works")
    assert (_model(named), [each.code for each in named.chosen]) == ("works", ["only_agent"])
    view = projects.rollout()
    assert (view.state.verdict, view.state.inside.outcomes, view.state.outside.outcomes) == ("too_little", 1, 1)
    projects.run("one", "Write again")
    projects.run("two", "Write again")
    view = projects.rollout()
    assert view.state.verdict == "stopped"
    assert (view.state.inside.rate, view.state.outside.rate) == (0.0, 1.0)
    assert view.meaning.endswith("by 100 points; all choices are as before it")
    assert (view.raise_with, view.end_with) == ("", f"chargehand config set rollouts.{name}.percent 0")
    after = projects.run("one", "Write after it")
    assert (_model(after), after.status) == ("works", "promoted")
    assert not any(each.code.startswith("rollout") for each in after.chosen)
    with StateReader.open(environ=projects.environ, cwd=projects.repositories["one"]) as reader:
        (choice,) = explain_choices(reader, inside.id).choices
    assert choice.chosen == "coder with idle"
    assert choice.why == f"the only one configured, in roll-out {name} to 50 % of projects"
