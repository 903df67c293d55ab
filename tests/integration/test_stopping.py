"""Every way to stop a mission keeps the agent's files as a checkpoint, which is shown and resumed from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.native_kit import FINISH, NativeKit, call, says, scripted

from chargehand.app.composition import App
from chargehand.core.errors import RefusedError
from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap
Stop = Callable[[App, str], Awaitable[None]]
# It ends only in the run after the stop, if the file that it wrote before is still in place.
RESUMED = "test -e done.txt && exec cp done.txt calc/kept.txt; echo half > done.txt; touch began; sleep 600"


async def cancel(app: App, mission: str) -> None:
    app.controls.stop_all("cancel", identity="os:test")


async def release(app: App, mission: str) -> None:
    app.controls.stop_all("release")


async def pause(app: App, mission: str) -> None:
    await app.controls.take({"order": "pause", "mission": mission, "identity": "os:test"})


async def pause_and_cancel(app: App, mission: str) -> None:
    await pause(app, mission)
    assert kept(app, mission) == "half\n", "what a paused mission has written is shown"
    await cancel(app, mission)


async def pause_and_release(app: App, mission: str) -> None:
    await pause(app, mission)
    await release(app, mission)


STOPS: dict[str, tuple[Stop, str]] = {
    "cancelled": (cancel, "cancelled"),
    "released": (release, "planned"),
    "paused and cancelled": (pause_and_cancel, "cancelled"),
    "paused and released": (pause_and_release, "paused"),
}


def kept(app: App, mission: str) -> str:
    """Return the content of `done.txt` in the mission's last checkpoint."""
    state = app.mission_reader.state(mission)
    depot = app.projects.depot(app.projects.find(Path(state.repository)))
    entry = depot.lookup(state.checkpoints[-1].tree, "done.txt")
    return "" if entry is None else depot.read_blob(entry.id).decode()


def began(kit: NativeKit) -> Callable[[], bool]:
    """Return a condition: the agent has written its files and waits."""
    places = "projects/*/workspaces/w-*-attempt-*/generations/*/upper/began"
    return lambda: any(kit.home.glob(places))


async def stopped(kit: NativeKit, stop: Stop, **wanted: object) -> MissionState:
    """Run a mission and stop it once its agent has written something."""
    with contextlib.closing(kit.app()) as app:
        async with app.session() as session:
            mission = kit.create(session, only_checks=("true",), attempts=1, **wanted)
            running = asyncio.create_task(session.missions.run(mission))
            while not began(kit)():
                assert not running.done(), running
                await asyncio.sleep(0.02)
            await stop(app, mission)
            with contextlib.suppress(asyncio.CancelledError, RefusedError):
                await running
            return app.mission_reader.state(mission)


def resumed(kit: NativeKit, mission: str) -> MissionState:
    with kit.opened() as app:
        app.steering.resume(mission)
    return kit.work(mission)


@pytest.mark.parametrize("name", STOPS)
def test_a_stopped_program_resumes_from_its_written_files(tmp_path: Path, name: str) -> None:
    kit = NativeKit(tmp_path)
    stop, status = STOPS[name]
    state = asyncio.run(stopped(kit, stop, agent="command:sh -c '" + RESUMED + "'"))
    assert state.status == status
    with kit.opened() as app:
        assert kept(app, state.id) == "half\n"
    state = resumed(kit, state.id)
    assert (state.status, [each.status for each in state.attempts]) == ("promoted", ["succeeded"])
    with kit.opened() as app:
        depot = app.projects.depot(app.projects.find(kit.repository))
        assert state.tree is not None
        assert depot.lookup(state.tree, "calc/kept.txt") is not None


def test_an_agent_stopped_during_an_action_keeps_its_files(tmp_path: Path) -> None:
    kit = NativeKit(tmp_path)
    act = call("bash", command="test -e /tmp/x || { echo half > done.txt; touch began; sleep 600; }", timeout=600)
    kit.model("scripted", scripted([says("", act), FINISH]))
    state = asyncio.run(stopped(kit, cancel, agent="native", model="scripted"))
    with kit.opened() as app:
        assert (state.status, kept(app, state.id)) == ("cancelled", "half\n")


def test_files_of_a_dead_worker_are_kept_when_its_mission_is_cancelled(tmp_path: Path) -> None:
    """The end of a mission whose worker died removes its workspace, but not the content."""
    kit = NativeKit(tmp_path)

    async def die(app: App, mission: str) -> None:
        app.controls.stop_all("lost")  # as after a crash: nothing more is recorded or kept

    state = asyncio.run(stopped(kit, die, agent="command:sh -c '" + RESUMED + "'"))
    assert (state.status, state.checkpoints) == ("paused", [])
    with kit.opened() as app:
        assert app.steering.cancel(state.id).status == "cancelled"
        assert kept(app, state.id) == "half\n"
        assert list(kit.home.glob("projects/*/workspaces/w-*-attempt-*")) == []
