"""Breakpoints: a mission stops where it was told to, goes on from there, and does nothing twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from desk import MEND, Desk, repository, shell

from chargehand.core.breakpoints import parse_breakpoints
from chargehand.core.errors import UsageError


class Stops:
    """Missions that stop, their workers in the background, each command a process of its own."""

    def __init__(self, place: Path) -> None:
        self.desk = Desk(place)
        self.repo = repository(place / "repo")

    def run(self, *points: str, agent: str = MEND) -> dict[str, Any]:
        """Run a mission to where it stops."""
        words = [word for point in points for word in ("--break-at", point)]
        said = self.desk.run(self.repo, *words, agent=agent)
        assert said.code == 3, said
        return said.document

    def resume(self, mission: str, *words: str) -> dict[str, Any]:
        """Let a mission go on, as a background worker does it, to where it stops or ends."""
        assert self.desk.say("mission", "resume", mission, *words, cwd=self.repo).code == 0
        self.desk.say("worker", "--until-idle", cwd=self.repo)
        self.desk.say("mission", "watch", mission, cwd=self.repo)
        return self.desk.say("mission", "show", mission, cwd=self.repo).document

    def events(self, mission: str, kind: str) -> list[dict[str, Any]]:
        lines = self.desk.say("mission", "log", mission, cwd=self.repo).stdout.splitlines()
        return [event for event in map(json.loads, lines) if event["type"] == kind]

    def points(self, mission: str) -> list[str]:
        """Return where a mission stopped, in order, without the names of trees."""
        found = [event["payload"]["point"] for event in self.events(mission, "mission.paused")]
        return ["promotion" if point.startswith("promotion") else point for point in found]


@pytest.fixture
def stops(tmp_path: Path) -> Stops:
    return Stops(tmp_path)


@pytest.mark.parametrize("text", ["", "verdict", "task:", "plan,promt", "step,"])
def test_what_is_no_breakpoint_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no breakpoint") as refused:
        parse_breakpoints([text])
    assert "task:ID" in refused.value.hint


def test_breakpoints_are_named_with_commas_or_one_by_one() -> None:
    assert parse_breakpoints(["plan, task:a", "step", "plan"]) == ("plan", "task:a", "step")


def test_a_point_of_a_plan_needs_the_plan(stops: Stops) -> None:
    stops.desk.refused("usage", 2, "run", "x", "--agent", MEND, "--break-at", "task:a", cwd=stops.repo)
    stops.desk.refused("usage", 2, "run", "x", "--agent", MEND, "--break-at", "soon", cwd=stops.repo)
    (stops.repo.parent / "plan.json").write_text(json.dumps({"tasks": [{"id": "a", "text": "b"}]}))
    words = ("run", "--plan", "../plan.json", "--agent", MEND, "--break-at", "task:b")
    assert stops.desk.refused("usage", 2, *words, cwd=stops.repo)["hint"] == "it has: a"


@pytest.mark.needs_bwrap
def test_a_mission_waits_before_its_promotion_and_is_not_judged_twice(stops: Stops) -> None:
    stopped = stops.run("promote")
    mission = stopped["mission"]
    assert (stopped["status"], [each["code"] for each in stopped["reasons"]]) == ("paused", ["breakpoint"])
    assert stopped["branch"] is None
    assert stopped["reasons"][0]["message"].startswith("stopped at a breakpoint, before the promotion of tree")
    verdicts = len(stops.events(mission, "verdict.given"))
    ended = stops.resume(mission)
    assert (ended["status"], len(ended["attempts"])) == ("promoted", 1)
    assert len(stops.events(mission, "verdict.given")) == verdicts
    assert len(stops.events(mission, "attempt.started")) == 1
    assert stops.points(mission) == ["promotion"]


@pytest.mark.needs_bwrap
def test_single_steps_stop_before_each_step(stops: Stops) -> None:
    mission = stops.run("step")["mission"]
    seen = [stops.resume(mission)["status"] for _ in range(4)]
    assert seen == ["paused", "paused", "paused", "promoted"]
    assert stops.points(mission) == ["base", "attempt/1", "verdict/1", "promotion"]
    shown = stops.desk.say("mission", "show", mission, cwd=stops.repo).document
    assert [attempt["status"] for attempt in shown["attempts"]] == ["succeeded"]
    assert len(stops.events(mission, "attempt.started")) == 1


@pytest.mark.needs_bwrap
def test_one_step_more_and_then_to_the_end(stops: Stops) -> None:
    mission = stops.run("promote")["mission"]
    assert stops.resume(mission, "--to-end")["status"] == "promoted"
    other = stops.run("step")["mission"]
    stepped = stops.resume(other, "--step")
    assert (stepped["status"], stops.points(other)) == ("paused", ["base", "attempt/1"])
    assert stops.resume(other, "--to-end")["status"] == "promoted"
    assert stops.points(other) == ["base", "attempt/1"]
    changed = [event["payload"] for event in stops.events(other, "mission.breakpoints_changed")]
    assert [(each["kinds"], each["once"]) for each in changed] == [(["step"], True), ([], False)]
    assert all(each["identity"] for each in changed)


@pytest.mark.needs_bwrap
def test_an_attempt_that_was_paused_takes_one_step(stops: Stops) -> None:
    mission = stops.run("promote")["mission"]
    stepped = stops.resume(mission, "--step")
    assert stepped["status"] == "promoted", "there is no further point"


@pytest.mark.needs_bwrap
def test_a_failed_attempt_is_shown_to_a_person_before_the_next(stops: Stops) -> None:
    said = stops.desk.say(
        *("run", "mend", "--agent", shell("echo x >> g.txt"), "--attempts", "2", "--break-at", "step"),
        *("--only-check", "grep -q b f.txt", "--yes"),
        cwd=stops.repo,
    )
    mission = said.document["mission"]
    for _ in range(5):
        ended = stops.resume(mission)
    assert ended["status"] == "refused"
    assert stops.points(mission) == ["base", "attempt/1", "verdict/1", "attempt/2", "verdict/2"]
