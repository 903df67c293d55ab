"""A mission that pauses, stops or dies gives up its turn at the branch and resumes from the branch's new tip."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.conftest import git
from tests.crash_kit import CrashKit
from tests.integration.mission_kit import REQUEST, MissionKit
from tests.integration.test_moved_branch import commit
from tests.integration.test_slots_attempts import LIMIT, until

from chargehand.app.composition import App
from chargehand.app.requests import plan_request, record_mission
from chargehand.configuration.run_options import RunRequest
from chargehand.core.mission_events import MissionResumed
from chargehand.core.state import MissionState
from chargehand.missions.missions import Missions

pytestmark = pytest.mark.needs_bwrap

FILES = {"f.txt": "one\n"}


def request(name: str, *, checks: tuple[str, ...] = ("true",), **more: Any) -> Any:
    """Return the request of a mission that adds a file of that name and is applied to the branch."""
    agent = f"command:sh -c {shlex.quote(f'echo x > {name}.txt')}"
    return replace(REQUEST, text=name, agent=agent, only_checks=checks, apply=True, **more)


class Two:
    """Missions on one branch in one process, controlled as by `mission pause` and `mission resume`."""

    def __init__(self, app: App, missions: Missions, missions_kit: MissionKit, base: Any) -> None:
        self.app, self.missions, self._kit, self._base = app, missions, missions_kit, base

    def create(self, wanted: Any) -> str:
        return self.missions.create(wanted, repository=str(self._kit.repository), base=self._base, config={})

    async def land(self, name: str) -> MissionState:
        """Run another mission on the branch to its end."""
        state = await asyncio.wait_for(self.missions.run(self.create(request(name))), LIMIT)
        assert (state.status, state.applied and state.applied.state) == ("promoted", "done")
        return state

    async def order(self, mission: str, what: str) -> None:
        await self.app.controls.take({"mission": mission, "order": what, "identity": "os:test"})

    def state(self, mission: str) -> MissionState:
        return self.app.mission_reader.state(mission)

    def landed(self) -> list[str]:
        """Return the titles of the branch's commits, newest first."""
        return git(self._kit.repository, "log", "--format=%s", "main").splitlines()

    @property
    def turns(self) -> Any:
        return self.missions._services.merges(str(self._kit.repository), "main")


@asynccontextmanager
async def two(missions_kit: MissionKit) -> AsyncIterator[Two]:
    app = missions_kit.app()
    try:
        async with app.session() as session:
            yield Two(app, session.missions, missions_kit, session.base)
    finally:
        app.close()


def applied(state: MissionState) -> tuple[str, str | None]:
    return state.status, state.applied.state if state.applied else None


def judged(state: MissionState) -> list[str]:
    return [verdict.status for verdict in state.verdicts if verdict.scope == "merged"]


async def test_a_mission_paused_during_merge_checks_lets_others_land(tmp_path: Path) -> None:
    """Pausing also frees the only slot for checks."""
    missions_kit = MissionKit(tmp_path, FILES)
    missions_kit.environ["CHARGEHAND_ENGINE_CHECKS_AT_ONCE"] = "1"
    async with two(missions_kit) as both:
        # With the file that a person commits meanwhile, its check takes long enough to be paused.
        slow = both.create(request("slow", checks=("test $(ls *.txt | wc -l) -lt 3 || sleep 1.5",)))
        commit(missions_kit.repository, "theirs.txt", "theirs\n")
        going = asyncio.create_task(both.missions.run(slow))
        checks = missions_kit.home / "slots/checks/place-0"
        await until(lambda: any(step.startswith("merge/1") for step in both.state(slow).steps))
        await until(lambda: both.app.controls._running[slow]._sandboxes)
        await both.order(slow, "pause")
        assert checks.exists()
        await both.land("quick")
        assert both.state(slow).status == "paused"
        await both.order(slow, "resume")
        state = await asyncio.wait_for(going, LIMIT)
    assert applied(state) == ("promoted", "done")
    assert judged(state) == ["green", "green"], "what the branch was before, and where it was then"
    assert both.landed()[:3] == ["slow", "quick", "theirs.txt"]


async def test_a_resumed_mission_waits_for_its_turn_and_can_be_paused_again(tmp_path: Path) -> None:
    missions_kit = MissionKit(tmp_path, FILES)
    async with two(missions_kit) as both:
        pausing: list[asyncio.Task[None]] = []

        def pause(point: str) -> None:
            if point == "met" and not pausing:
                pausing.append(asyncio.ensure_future(both.order(mission, "pause")))

        mission = both.create(request("a"))
        commit(missions_kit.repository, "theirs.txt", "theirs\n")
        going = asyncio.create_task(
            Missions(both.missions._services, controls=both.missions._controls, fault=pause).run(mission)
        )
        await until(lambda: both.state(mission).status == "paused")
        async with asyncio.timeout(LIMIT), both.turns.place():
            await both.order(mission, "resume")
            await until(lambda: both.state(mission).queued)
            queued = both.state(mission).queued
            assert queued is not None
            assert queued.waits_for == "merges"
            await both.order(mission, "resume")
            assert len(await asyncio.to_thread(_told, both, mission, MissionResumed)) == 1, "it is on its way"
            await both.order(mission, "pause")
            assert both.state(mission).status == "paused"
        await both.land("b")
        await both.order(mission, "resume")
        state = await asyncio.wait_for(going, LIMIT)
    assert applied(state) == ("promoted", "done")
    assert state.queued is None
    assert both.landed()[:3] == ["a", "b", "theirs.txt"]


def _told(both: Two, mission: str, kind: type[Any]) -> list[Any]:
    return [line for line in both.app.store.log.read(mission) if line.type == kind.type]


async def test_a_mission_cancelled_in_the_queue_gives_up_its_turn(tmp_path: Path) -> None:
    missions_kit = MissionKit(tmp_path, FILES)
    async with two(missions_kit) as both:
        pausing: list[asyncio.Task[None]] = []

        def pause(point: str) -> None:
            if point == "met" and not pausing:
                pausing.append(asyncio.ensure_future(both.order(mission, "pause")))

        mission = both.create(request("a"))
        commit(missions_kit.repository, "theirs.txt", "theirs\n")
        going = asyncio.create_task(
            Missions(both.missions._services, controls=both.missions._controls, fault=pause).run(mission)
        )
        await until(lambda: both.state(mission).status == "paused")
        async with asyncio.timeout(LIMIT), both.turns.place():
            await both.order(mission, "resume")
            await until(lambda: both.state(mission).queued)
            await both.order(mission, "cancel")
            with pytest.raises(asyncio.CancelledError):
                await going
        assert both.state(mission).status == "cancelled"
        await both.land("b")
    assert both.landed()[:2] == ["b", "theirs.txt"]


async def test_a_mission_stopped_before_promotion_resumes_from_the_new_tip(tmp_path: Path) -> None:
    missions_kit = MissionKit(tmp_path, FILES)
    async with two(missions_kit) as both:
        mission = both.create(request("a", break_at=("promote",)))
        assert (await both.missions.run(mission)).status == "paused"
        await both.land("b")
        with App.open(environ=missions_kit.environ, cwd=missions_kit.repository) as app:
            app.steering.resume(mission)
        state = await both.missions.run(mission)
    assert applied(state) == ("promoted", "done")
    assert judged(state) == ["green"]
    assert both.landed()[:2] == ["a", "b"]


async def test_a_manual_promotion_is_merged_with_changes_that_landed_meanwhile(tmp_path: Path) -> None:
    missions_kit = MissionKit(tmp_path, FILES)
    async with two(missions_kit) as both:
        mission = both.create(request("a", break_at=("promote",)))
        await both.missions.run(mission)
        await both.land("b")
        with App.open(environ=missions_kit.environ, cwd=missions_kit.repository) as app:
            assert app.steering.cancel(mission).status == "cancelled"
        state = await both.missions.promote(mission, identity="os:test")
    assert applied(state) == ("promoted", "done")
    assert judged(state) == ["green"]
    assert git(missions_kit.repository, "ls-files").split() == ["a.txt", "b.txt", "f.txt"]


class DiedError(BaseException):
    """The simulated death of a process at a named point."""


@pytest.mark.parametrize("point", ["moved", "prepared", "swapped", "signed", "exported"])
async def test_a_mission_that_crashed_around_promotion_resumes_from_the_new_tip(
    tmp_path: Path, point: str
) -> None:
    missions_kit = MissionKit(tmp_path, FILES)
    async with two(missions_kit) as both:

        def die(name: str) -> None:
            if name == point:
                raise DiedError(name)

        mission = both.create(request("a"))
        commit(missions_kit.repository, "theirs.txt", "theirs\n")
        with pytest.raises(DiedError):
            await Missions(both.missions._services, controls=both.missions._controls, fault=die).run(mission)
        await both.land("b")
        state = await both.missions.run(mission)
    assert applied(state) == ("promoted", "done")
    assert state.verdicts[-1].tree == git(missions_kit.repository, "rev-parse", "main^{tree}")
    assert judged(state) == ["green", "green"]
    assert git(missions_kit.repository, "ls-files").split() == ["a.txt", "b.txt", "f.txt", "theirs.txt"]
    assert git(missions_kit.repository, "status", "--porcelain") == ""


async def test_a_promoted_result_that_fails_with_the_new_tip_keeps_its_branch(
    tmp_path: Path,
) -> None:
    missions_kit = MissionKit(tmp_path, FILES)
    async with two(missions_kit) as both:

        def die(name: str) -> None:
            if name == "swapped":
                raise DiedError(name)

        mission = both.create(request("a", checks=("test $(ls *.txt | wc -l) -lt 3",)))
        with pytest.raises(DiedError):
            await Missions(both.missions._services, controls=both.missions._controls, fault=die).run(mission)
        await both.land("b")
        state = await both.missions.run(mission)
    assert applied(state) == ("promoted", "blocked")
    assert judged(state) == ["red"]
    assert both.landed()[0] == "b"
    assert state.export is not None
    assert state.export.state == "done"


@pytest.mark.parametrize("point", ["met#1", "swapped#1"])
async def test_a_killed_mission_blocks_no_other_and_is_resumed_by_a_worker(tmp_path: Path, point: str) -> None:
    missions_kit, kit = MissionKit(tmp_path, FILES), CrashKit(tmp_path)
    kit.environ["CHARGEHAND_HOME"] = str(missions_kit.home)
    async with two(missions_kit) as both:
        agent = "command:sh -c 'echo x > a.txt'"
        asked = RunRequest(repo=missions_kit.repository, text="a", agent=agent, only_checks=("true",), apply=True)

        def record() -> str:
            return record_mission(both.app, plan_request(both.app, asked)[0], plan=None)

        mission = await asyncio.to_thread(record)
        commit(missions_kit.repository, "theirs.txt", "theirs\n")
        killed = await asyncio.to_thread(lambda: kit.worker(plan=point).wait())
        assert killed == -signal.SIGKILL, kit.output()
        async with both.turns.place():
            assert await both.missions.recover() == [], "it waits for nobody who has the turn"
        await both.land("b")
        assert await both.missions.recover() == [], "what has to be judged is for whoever goes on with it"
        assert await asyncio.to_thread(lambda: kit.worker().wait()) == 0, kit.output()
        state = both.state(mission)
    assert applied(state) == ("promoted", "done")
    assert git(missions_kit.repository, "ls-files").split() == ["a.txt", "b.txt", "f.txt", "theirs.txt"]
    assert state.verdicts[-1].tree == git(missions_kit.repository, "rev-parse", "main^{tree}")
