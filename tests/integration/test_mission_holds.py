"""A mission that has not started waits for an earlier one on the same files, and starts on its result."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import repository, shell
from tests.conftest import git
from tests.crash_kit import MARK, CrashKit, sleepers, wait_until, wake

from chargehand.app.composition import App
from chargehand.app.missions import cancel_mission, pause_mission, resume_mission
from chargehand.app.requests import change_plan, plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.events import read_payload
from chargehand.core.mission_events import MissionAllowed, MissionQueued
from chargehand.core.records import Reason
from chargehand.core.state import MissionState
from chargehand.missions import holds
from chargehand.missions.planning.collisions import collision

pytestmark = pytest.mark.needs_bwrap


class Branch:
    """A repository to whose branch one worker of this process applies missions."""

    def __init__(self, place: Path) -> None:
        self.kit = CrashKit(place)
        self.repo, self.environ = repository(place / "repo"), self.kit.environ

    def opened(self, role: Any = "command") -> App:
        return App.open(environ=self.environ, cwd=self.repo, role=role)

    def plan(self, script: str, *, then: str = "", **touches: Any) -> str:
        """Write a plan with a task that touches these files, and perhaps another task after it."""
        tasks = [{"id": "t", "text": "t", "agent": shell(script), **touches}]
        tasks += [{"id": "u", "text": "u", "agent": shell(then), "after": ["t"]}] if then else []
        file = self.kit.place / "plan.json"
        file.write_text(json.dumps({"tasks": tasks}))
        return str(file)

    def ask(
        self, script: str, *, apply: bool = True, then: str = "", break_at: str | None = None, **touches: Any
    ) -> str:
        plan = self.plan(script, then=then, **touches)
        asked = RunRequest(plan=plan, only_checks=("true",), apply=apply, break_at=break_at)
        with self.opened() as app:
            request, plan = plan_request(app, asked)
            return record_mission(app, request, plan=plan)

    def ask_in(self, area: str, script: str) -> str:
        """Record a mission without a plan that may change an area."""
        asked = RunRequest(text=script, agent=shell(script), only_checks=("true",), apply=True, allow=(area,))
        with self.opened() as app:
            return record_mission(app, asked, plan=None)

    def work(self) -> None:
        with self.opened("worker") as app:
            asyncio.run(Worker(app, slots=4).work(until_idle=True))

    def work_beside(self, act: Callable[[App], None]) -> None:
        """Work until nothing is left, while a person runs `act`."""

        def person() -> None:
            with self.opened() as app:
                act(app)

        async def both() -> None:
            with self.opened("worker") as app:
                working = asyncio.create_task(Worker(app, slots=4).work(until_idle=True))
                await asyncio.to_thread(person)
                await working

        asyncio.run(both())

    def state(self, mission: str) -> MissionState:
        with self.opened() as app:
            return app.mission_reader.state(mission)

    def told(self, mission: str, kind: type) -> list[Any]:
        with self.opened() as app:
            payloads = [read_payload(line) for line in app.store.log.read(mission)]
        return [payload for payload in payloads if isinstance(payload, kind)]

    def holds(self, mission: str) -> set[tuple[str, str]]:
        """Return the missions that a mission waited for before it started, with the reasons."""
        queued = self.told(mission, MissionQueued)
        return {(each.mission, each.reason.code) for each in queued if each.waits_for == "missions"}

    def landed(self, *missions: str) -> None:
        for mission in missions:
            state = self.state(mission)
            assert (state.status, state.applied and state.applied.state) == ("promoted", "done"), state.reasons


@pytest.fixture
def branch(tmp_path: Path) -> Branch:
    return Branch(tmp_path)


def adds(name: str) -> str:
    return f"cat log.txt > seen-{name}.txt 2>/dev/null; echo {name} >> log.txt"


def slow(script: str) -> str:
    return f"sleep {MARK}; {script}"


def test_the_second_plan_on_a_file_starts_on_the_result_of_the_first(branch: Branch) -> None:
    first = branch.ask(adds("a"), change=["log.txt", "seen-a.txt"])
    second = branch.ask(adds("b"), change=["log.txt", "seen-b.txt"])
    branch.work()
    branch.landed(first, second)
    assert (branch.holds(first), branch.holds(second)) == (set(), {(first, "collision_file")})
    told = branch.told(second, MissionQueued)[0].reason.message
    assert told == (
        f"mission {first} and this one may both change 'log.txt'; it starts automatically once {first} has ended, "
        f"or by `chargehand mission resume {second}`"
    )
    assert git(branch.repo, "show", "main:seen-b.txt").split() == ["a"], "it began on what the first one left"
    state = branch.state(second)
    assert (state.conflicts, state.first_base == state.base) == ([], True)
    assert state.first_base is not None
    assert state.first_base.commit == branch.state(first).commit


def test_contracts_and_areas_hold_and_other_branches_and_files_do_not(branch: Branch) -> None:
    contract = branch.ask("echo a > a.txt", change=["a.txt"], contracts=["api"])
    elsewhere = branch.ask("echo b > sub/b.txt", change=["sub/b.txt"])
    silent = branch.ask("echo c > c.txt")
    unapplied = branch.ask("echo d > d.txt", apply=False, change=["a.txt"])
    same_contract = branch.ask("echo e > e.txt", change=["e.txt"], contracts=["api"])
    inside = branch.ask_in("sub/", "echo f >> sub/b.txt")
    branch.work()
    branch.landed(contract, elsewhere, silent, same_contract, inside)
    for free in (contract, elsewhere, silent, unapplied):
        assert branch.holds(free) == set()
    assert branch.holds(same_contract) == {(contract, "collision_contract")}
    assert branch.holds(inside) == {(elsewhere, "collision_area")}
    assert git(branch.repo, "show", "main:sub/b.txt").split() == ["b", "f"]


def test_a_mission_being_planned_holds_its_allowed_area(branch: Branch) -> None:
    plan = json.dumps({"tasks": [{"id": "a", "text": "Write a"}]})
    plans = f"[ $CHARGEHAND_ROLE = planner ] && echo {shlex.quote(plan)} || echo a > sub/a.txt"
    agent = f"command:sh -c {shlex.quote(plans)}"
    asked = RunRequest(
        text="Write", plan="auto", agent=agent, only_checks=("true",), apply=True, allow=("sub/",), yes=True
    )
    with branch.opened() as app:
        request, wanted = plan_request(app, asked)
        first = record_mission(app, request, plan=wanted)
    second = branch.ask("ls sub > sub/b.txt", change=["sub/b.txt"])
    branch.work()
    branch.landed(first, second)
    assert branch.holds(second) == {(first, "collision_area")}
    assert "a.txt" in git(branch.repo, "show", "main:sub/b.txt").split()


def test_disabled_collision_holds_do_not_delay_missions(branch: Branch) -> None:
    branch.environ["CHARGEHAND_ENGINE_HOLD_COLLISIONS"] = "false"
    first = branch.ask("echo a > a.txt", change=["*.txt"])
    second = branch.ask("echo b > b.txt", change=["*.txt"])
    branch.work()
    branch.landed(first, second)
    assert branch.holds(second) == set()


def test_an_undeclared_change_holds_other_missions_until_a_person_allows(branch: Branch) -> None:
    """The person's order counts for these two plans only: with another plan the mission waits again."""
    first = branch.ask("echo a > f.txt", then=slow("echo a > a.txt"))

    def act(app: App) -> None:
        def rests(mission: str, status: str) -> bool:
            state, row = app.mission_reader.state(mission), app.store.log.get(mission)
            return state.status == status and row.owner is None and (status != "planned" or state.held is not None)

        wait_until(lambda: bool(sleepers()))
        held.append(branch.ask("echo b > b.txt", change=["f.txt"]))
        held.append(branch.ask("echo c > c.txt", change=["f.txt"], break_at="plan"))
        wait_until(lambda: all(rests(mission, "planned") for mission in held))
        for mission in held:
            resume_mission(app, mission)
        wait_until(lambda: rests(held[0], "promoted") and rests(held[1], "paused"))
        assert app.mission_reader.state(first).status == "running"
        change_plan(app, held[1], branch.plan("echo d > d.txt", change=["f.txt", "d.txt"]))
        resume_mission(app, held[1])
        wait_until(lambda: rests(held[1], "planned"))
        assert wake()

    held: list[str] = []
    branch.work_beside(act)
    branch.landed(first, *held)
    assert branch.holds(held[0]) == {(first, "collision_file")}
    for mission in held:
        (allowed,) = branch.told(mission, MissionAllowed)
        assert first in allowed.beside


def test_a_plan_changed_during_the_collision_check_is_checked_again(
    branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, changed = threading.Event(), threading.Event()

    def look(*prints: Any, **more: Any) -> Reason | None:
        looking.set()
        assert changed.wait(60)
        return collision(*prints, **more)

    monkeypatch.setattr(holds, "collision", look)
    first = branch.ask(slow("echo a > f.txt"), change=["f.txt"])
    second = branch.ask("echo b > b.txt", change=["f.txt"])

    def act(app: App) -> None:
        assert looking.wait(60)
        change_plan(app, second, branch.plan("echo b > b.txt", change=["b.txt"]))
        changed.set()
        wait_until(lambda: bool(sleepers()) and app.mission_reader.state(second).status == "promoted")
        assert wake()

    branch.work_beside(act)
    branch.landed(first, second)
    assert branch.holds(second) == set()


def test_a_paused_or_cancelled_mission_holds_no_other(branch: Branch) -> None:
    first = branch.ask(slow("echo a > f.txt"), change=["f.txt"])
    second = branch.ask("echo b > b.txt", change=["f.txt"])

    def act(app: App) -> None:
        def ended(mission: str) -> bool:
            return app.mission_reader.state(mission).status == "promoted"

        wait_until(lambda: bool(sleepers()) and app.mission_reader.state(second).held is not None)
        pause_mission(app, first, reason="lunch")
        wait_until(lambda: ended(second))
        resume_mission(app, first)
        third.append(branch.ask("echo c > c.txt", change=["f.txt"]))
        wait_until(lambda: app.mission_reader.state(third[0]).held is not None)
        cancel_mission(app, first)
        wait_until(lambda: ended(third[0]))

    third: list[str] = []
    branch.work_beside(act)
    branch.landed(second, *third)
    assert branch.state(first).status == "cancelled"


def test_a_held_mission_can_be_cancelled_and_paused(branch: Branch) -> None:
    first = branch.ask(slow("echo a > f.txt"), change=["f.txt"])
    waiting = [branch.ask("echo b > b.txt", change=["f.txt"]) for _ in range(2)]

    def act(app: App) -> None:
        for mission in waiting:
            wait_until(lambda each=mission: app.mission_reader.state(each).held is not None)
        assert cancel_mission(app, waiting[0]).status == "cancelled"
        assert pause_mission(app, waiting[1], reason="lunch").held is None
        resume_mission(app, waiting[1])
        wait_until(lambda: app.mission_reader.state(waiting[1]).held is not None)
        wait_until(lambda: bool(sleepers()))
        assert wake()

    branch.work_beside(act)
    branch.landed(first, waiting[1])
    assert branch.told(waiting[1], MissionAllowed) == []


def test_a_killed_mission_holds_others_until_resumed_and_ended(branch: Branch) -> None:
    first = branch.ask(adds("a"), change=["log.txt", "seen-a.txt"])
    second = branch.ask(adds("b"), change=["log.txt", "seen-b.txt"])
    assert branch.kit.worker(plan="agent#1").wait() == -signal.SIGKILL, branch.kit.output()
    assert branch.state(first).status != "promoted"
    branch.work()
    branch.landed(first, second)
    assert git(branch.repo, "show", "main:seen-b.txt").split() == ["a"]


def test_a_mission_set_aside_holds_no_other(branch: Branch) -> None:
    first = branch.ask("echo a > f.txt", change=["f.txt"])
    second = branch.ask("echo b > f.txt", change=["f.txt"])
    with branch.opened() as app:
        log, now = app.store.log, app.clock.now()
        reason = Reason(code="collision_file", message="f.txt")
        waits = MissionQueued(
            waits_for="missions", before=0, places=1, reason=reason, mission=first, seen=log.last_seq(first)
        )
        log.append(second, waits)
        assert list(app.mission_reader.sleepers()) == [second]
        assert not app.steering.wake(second, now=now)
        log.set_aside(first)
        assert app.steering.wake(second, now=now)
        assert log.get(second).runnable
