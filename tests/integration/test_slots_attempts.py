"""Five agents work at once on a state directory; the sixth waits, says why, and starts by itself."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.clock_kit import AheadClock
from tests.integration.mission_kit import GOLD, REQUEST, MissionKit

from chargehand.app.composition import App
from chargehand.app.wiring.session import Session
from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.events import Payload, decode
from chargehand.core.mission_events import AttemptFinished, MissionAdmitted, MissionQueued
from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap

LIMIT = 200.0


class Gang:
    """Missions of one repository that run at once, each in a separate app, as several processes would."""

    def __init__(self, kit: MissionKit) -> None:
        self.kit = kit
        self.clock = AheadClock()
        self.states: dict[str, MissionState] = {}
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[MissionState]] = []

    async def __aenter__(self) -> Gang:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def begin(self, script: str, *, checks: Sequence[str] = (), **changes: object) -> tuple[App, str]:
        """Run a mission in a separate app; return both."""
        app = App(environ=self.kit.environ, cwd=self.kit.repository, clock=self.clock)
        self._stack.callback(app.close)
        session: Session = await self._stack.enter_async_context(app.session())
        agent = f"command:sh -c {shlex.quote(script)}"
        wanted = replace(REQUEST, agent=agent, only_checks=tuple(checks), **changes)
        missions = session.missions
        made = missions.create(wanted, repository=str(self.kit.repository), base=session.base, config={})
        self._tasks.append(asyncio.create_task(missions.run(made)))
        return app, made

    async def settled(self) -> list[MissionState]:
        """Wait for all missions."""
        return await asyncio.wait_for(asyncio.gather(*self._tasks), LIMIT)


def told(app: App, mission: str, *kinds: type[Payload]) -> list[Payload]:
    """Return the payloads of these kinds in the log."""
    lines = app.store.log.read(mission)
    found = [decode(line.type, line.payload) for line in lines if line.payload is not None]
    return [payload for payload in found if isinstance(payload, kinds)]


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.02)


async def test_the_sixth_attempt_waits_with_a_reason_and_starts_by_itself(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    async with Gang(kit) as gang:
        hangs = f"{GOLD}; sleep 600"
        five = [await gang.begin(hangs, checks=["cat calc/*"], seconds=3600.0) for _ in range(5)]
        for app, made in five:
            await until(lambda app=app, made=made: told(app, made, AttemptStarted))
        app, sixth = await gang.begin(GOLD, checks=["cat calc/*"], seconds=300.0)
        await until(lambda: told(app, sixth, MissionQueued))
        queued = app.mission_reader.state(sixth).queued
        assert queued is not None
        assert (queued.waits_for, queued.before, queued.places) == ("attempts", 0, 5)
        assert "5 agents work already" in queued.reason.message
        assert app.mission_reader.state(sixth).status == "running"
        gang.clock.put_forward(600.0)  # longer than its own limit, which does not count this wait
        await asyncio.sleep(0.1)
        assert told(app, sixth, AttemptStarted, AttemptFinished) == []
        one, ended = five[0]
        one.controls.stop_all("cancel", identity="os:test")
        await until(lambda: app.mission_reader.state(sixth).status == "promoted")
        (admitted,) = told(app, sixth, MissionAdmitted)
        assert isinstance(admitted, MissionAdmitted)
        assert admitted.seconds > 600.0
        state = app.mission_reader.state(sixth)
        assert state.queued is None
        assert state.seconds_of() < 300.0
        assert one.mission_reader.state(ended).status == "cancelled"


async def test_cancelled_or_paused_missions_in_the_queue_are_skipped(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    kit.environ["CHARGEHAND_ENGINE_ATTEMPTS_AT_ONCE"] = "1"
    async with Gang(kit) as gang:
        holder, _ = await gang.begin("sleep 600", checks=["cat calc/*"])
        await until(lambda: list((kit.home / "slots/attempts").glob("place-*")))
        cancelled, gone = await gang.begin(GOLD, checks=["cat calc/*"])
        await until(lambda: told(cancelled, gone, MissionQueued))
        paused, asleep = await gang.begin(GOLD, checks=["cat calc/*"])
        await until(lambda: told(paused, asleep, MissionQueued))
        await paused.controls.take({"mission": asleep, "order": "pause", "identity": "os:test"})
        cancelled.controls.stop_all("cancel", identity="os:test")
        last, made = await gang.begin(GOLD, checks=["cat calc/*"])
        await until(lambda: told(last, made, MissionQueued))
        holder.controls.stop_all("cancel", identity="os:test")
        await until(lambda: last.mission_reader.state(made).status == "promoted")
        assert cancelled.mission_reader.state(gone).status == "cancelled"
        assert paused.mission_reader.state(asleep).status == "paused"
        await paused.controls.take({"mission": asleep, "order": "resume", "identity": "os:test"})
        await until(lambda: paused.mission_reader.state(asleep).status == "promoted")


async def test_verdicts_take_turns(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    kit.environ["CHARGEHAND_ENGINE_CHECKS_AT_ONCE"] = "1"
    async with Gang(kit) as gang:
        holder, _ = await gang.begin(GOLD, checks=["sleep 600"])
        await until(lambda: list((kit.home / "slots/checks").glob("place-*")))
        scripts = [f"{GOLD}; echo '# {name}' >> README.md" for name in "ab"]
        made = [await gang.begin(script, checks=["cat calc/*"]) for script in scripts]
        await until(lambda: all(told(app, mission, MissionQueued) for app, mission in made))
        holder.controls.stop_all("cancel", identity="os:test")
        await until(lambda: all(app.mission_reader.state(each).status == "promoted" for app, each in made))
        waits = [payload for app, mission in made for payload in told(app, mission, MissionQueued)]
        assert {payload.waits_for for payload in waits if isinstance(payload, MissionQueued)} == {"checks"}
        assert len(waits) == len([each for app, mission in made for each in told(app, mission, MissionAdmitted)])
