"""Who has not begun waits for an earlier mission that works on the same, on one branch, and begins on what it landed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from desk import repository, shell
from tests.conftest import git
from tests.crash_kit import MARK, sleepers, wait_until, wake

from chargehand.app.composition import App
from chargehand.app.missions import cancel_mission, pause_mission, resume_mission
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.runs import RunRequest
from chargehand.app.worker import Worker
from chargehand.core.fold import read_payload
from chargehand.core.mission_events import MissionAllowed, MissionQueued
from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap


class Branch:
    """A repository whose branch missions are applied to, by one worker of this process."""

    def __init__(self, place: Path) -> None:
        self.place, self.repo = place, repository(place / "repo")
        self.environ = {
            "HOME": str(place),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "CHARGEHAND_HOME": str(place / "state"),
            "XDG_CONFIG_HOME": str(place / "config"),
        }

    def opened(self, role: Any = "command") -> App:
        return App.open(environ=self.environ, cwd=self.repo, role=role)

    def ask(self, script: str, *, apply: bool = True, **touches: Any) -> str:
        """Record a mission whose only task touches that, or that has no plan where nothing is named."""
        file = self.place / "plan.json"
        file.write_text(json.dumps({"tasks": [{"id": "t", "text": script, "agent": shell(script), **touches}]}))
        asked = RunRequest(
            plan=str(file), agent="command:true", only_checks=("true",), yes=True, apply=apply, text=None
        )
        with self.opened() as app:
            request, plan = plan_request(app, asked)
            return record_mission(app, request, plan=plan)

    def ask_in(self, area: str, script: str) -> str:
        """Record a mission without a plan that may change an area."""
        asked = RunRequest(text=script, agent=shell(script), only_checks=("true",), apply=True, allow=(area,))
        with self.opened() as app:
            return record_mission(app, asked)

    def work(self) -> None:
        with self.opened("worker") as app:
            asyncio.run(Worker(app, slots=4).work(until_idle=True))

    def state(self, mission: str) -> MissionState:
        with self.opened() as app:
            return app.mission_reader.state(mission)

    def holds(self, mission: str) -> list[MissionQueued]:
        return [each for each in self.told(mission, MissionQueued) if each.waits_for == "missions"]

    def told(self, mission: str, kind: type) -> list[Any]:
        with self.opened() as app:
            payloads = [read_payload(line) for line in app.store.log.read(mission)]
        return [payload for payload in payloads if isinstance(payload, kind)]

    def landed(self, *missions: str) -> None:
        for mission in missions:
            state = self.state(mission)
            assert (state.status, state.applied and state.applied.state) == ("promoted", "done"), state.reasons

    async def beside(self, act: Any) -> None:
        """Let a worker go on until nothing is left, and `act` in a thread meanwhile."""
        with self.opened("worker") as app:
            working = asyncio.create_task(Worker(app, slots=4).work(until_idle=True))
            await asyncio.to_thread(act)
            await working


@pytest.fixture
def branch(tmp_path: Path) -> Branch:
    return Branch(tmp_path)


ADDS = "cat log.txt > seen-{0}.txt 2>/dev/null; echo {0} >> log.txt"


def test_the_second_of_two_plans_on_one_file_begins_on_what_the_first_one_landed(branch: Branch) -> None:
    first = branch.ask(ADDS.format("a"), change=["log.txt", "seen-a.txt"])
    second = branch.ask(ADDS.format("b"), change=["log.txt", "seen-b.txt"])
    branch.work()
    branch.landed(first, second)
    (held,) = branch.holds(second)
    assert (held.mission, held.reason.code) == (first, "collision_file")
    assert held.reason.message.startswith(f"mission {first} and this one may both change 'log.txt'")
    assert git(branch.repo, "show", "main:seen-b.txt").split() == ["a"], "it began on what the first one left"
    assert branch.holds(first) == []
    assert branch.state(second).conflicts == []
    assert branch.state(second).first_base == branch.state(second).base


def test_contracts_and_areas_hold_and_other_branches_and_files_do_not(branch: Branch) -> None:
    contract = branch.ask("echo a > a.txt", change=["a.txt"], contracts=["api"])
    elsewhere = branch.ask("echo b > b.txt", change=["b.txt"])
    silent = branch.ask("echo c > c.txt")
    unapplied = branch.ask("echo d > d.txt", apply=False, change=["a.txt"])
    same_contract = branch.ask("echo e > e.txt", change=["e.txt"], contracts=["api"])
    inside = branch.ask_in("b.txt", "echo f >> b.txt")
    branch.work()
    branch.landed(contract, elsewhere, silent, same_contract, inside)
    assert [branch.holds(each) for each in (contract, elsewhere, silent, unapplied)] == [[], [], [], []]
    assert {each.mission: each.reason.code for each in branch.holds(same_contract)} == {
        contract: "collision_contract"
    }
    assert {each.mission: each.reason.code for each in branch.holds(inside)} == {elsewhere: "collision_area"}


def test_what_is_off_in_the_configuration_holds_nobody(branch: Branch) -> None:
    branch.environ["CHARGEHAND_ENGINE_HOLD_COLLISIONS"] = "false"
    first = branch.ask("echo a > a.txt", change=["*.txt"])
    second = branch.ask("echo b > b.txt", change=["*.txt"])
    branch.work()
    branch.landed(first, second)
    assert branch.holds(second) == []


def slow(script: str) -> str:
    return f"sleep {MARK}; {script}"


def test_what_was_written_and_not_declared_holds_whoever_declares_it(branch: Branch) -> None:
    first = branch.ask(f"echo a > f.txt; {slow('echo a > a.txt')}")

    def act() -> None:
        wait_until(lambda: bool(sleepers()))
        with branch.opened() as app:
            wait_until(lambda: bool(app.mission_reader.state(first).checkpoints))
        asked.append(branch.ask("echo b >> f.txt", change=["f.txt"]))
        wait_until(lambda: bool(branch.holds(asked[0])))
        state = branch.state(asked[0])
        assert (state.status, state.worker is None or state.at_rest) == ("planned", True)
        assert wake()

    asked: list[str] = []
    asyncio.run(branch.beside(act))
    branch.landed(first, asked[0])
    assert git(branch.repo, "show", "main:f.txt").split() == ["a", "b"]


@pytest.mark.parametrize("how", ["cancel", "pause", "plan"])
def test_who_ends_is_paused_or_has_another_plan_holds_no_more(branch: Branch, how: str) -> None:
    first = branch.ask(slow("echo a > f.txt"), change=["f.txt"])
    second = branch.ask("echo b >> f.txt", change=["f.txt"])

    def act() -> None:
        wait_until(lambda: bool(sleepers()) and bool(branch.holds(second)))
        with branch.opened() as app:
            if how == "cancel":
                cancel_mission(app, first)
            else:
                pause_mission(app, first, reason="lunch")
            wait_until(lambda: app.mission_reader.state(second).status == "promoted")
            if how != "cancel":
                resume_mission(app, first)
                assert wake()

    asyncio.run(branch.beside(act))
    branch.landed(second)
    assert branch.state(first).status == ("cancelled" if how == "cancel" else "promoted")


def test_a_person_lets_it_begin_all_the_same_for_these_two_plans(branch: Branch) -> None:
    first = branch.ask(slow("echo a > a.txt"), change=["f.txt"])
    second = branch.ask("echo b > b.txt", change=["f.txt"])

    def act() -> None:
        wait_until(lambda: bool(sleepers()) and bool(branch.holds(second)))
        with branch.opened() as app:
            resume_mission(app, second)
            wait_until(lambda: app.mission_reader.state(second).status == "promoted")
        assert branch.state(first).status == "running"
        assert wake()

    asyncio.run(branch.beside(act))
    branch.landed(first, second)
    (allowed,) = branch.told(second, MissionAllowed)
    assert list(allowed.beside) == [first]
    assert len(branch.holds(second)) == 1
