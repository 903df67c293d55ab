"""The activity of a hung or lost agent is recorded, and its last writes are kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clock_kit import AheadClock, time_of_an_agent
from tests.conftest import git
from tests.crash_kit import MARK, sleepers, wake
from tests.integration.mission_kit import GOLD, REQUEST, MissionKit

from chargehand.app.composition import App
from chargehand.core.state import MissionState
from chargehand.sandbox.contract import Sandbox, ShowsProcesses

pytestmark = pytest.mark.needs_bwrap

KEY = "sk-live-0123456789abcdefghij"


def captured(kit: MissionKit, state: MissionState) -> dict[str, Any]:
    """Return the document captured at the end of the last attempt."""
    name = state.attempts[-1].captured
    assert name is not None
    with contextlib.closing(kit.app()) as app:
        document: dict[str, Any] = json.loads(app.store.artifacts.get(name))
    return document


def test_a_hung_agent_leaves_its_last_writes_and_its_processes(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    # The file is renamed into place, so that it is never seen empty.
    hang = (
        f"{GOLD}; echo working; head -c 9000 /dev/zero | tr '\\0' x; echo; echo the end; "
        f"sh -c 'while :; do :; done' spin & setsid sh -c 'sleep 600; : {KEY}' & "
        "(sleep 600 & exec sleep 700) & "
        "for i in $(seq 999); do echo $i > new.txt; mv new.txt last.txt; sleep 0.1; done"
    )
    with time_of_an_agent(4.0):
        state = kit.run(hang)
    assert (state.status, state.attempts[0].status) == ("exhausted", "timed_out")
    (point,) = state.checkpoints
    assert point.trigger == "timeout"
    assert "a + b" in git_show(kit, state, point.tree, "calc/core.py")
    assert int(git_show(kit, state, point.tree, "last.txt")) > 5, "its last writes, not only its first"

    document = captured(kit, state)
    assert document["why"] == "timeout"
    seen = document["processes"]
    commands = [process["command"] for process in seen]
    assert {"sleep 600", "sleep 700"} <= set(commands)
    (spinning,) = (process for process in seen if process["command"] == "sh -c while :; do :; done spin")
    assert spinning["state"] == "R"
    assert spinning["cpu_seconds"] > 0.2
    (asleep,) = (process for process in seen if process["command"] == "sleep 700")
    assert asleep["state"] == "S"
    assert all(1 < process["pid"] < 1000 for process in seen), "their ids inside, not the host's"
    assert {process["parent"] for process in seen} <= {1} | {process["pid"] for process in seen}
    assert not any(KEY in command for command in commands)
    assert any("[redacted]" in command for command in commands)
    assert document["output"].endswith("xxx\nthe end\n")
    assert len(document["output"]) == 4096
    assert document["limits"]["processes"]
    assert document["disk"]["written_entries"] >= 2
    assert document["disk"]["free_bytes"] > 0


def git_show(kit: MissionKit, state: MissionState, tree: str, path: str) -> str:
    """Return a file of a tree in the depot."""
    return git(kit.home / "projects" / state.project / "depot.git", "show", f"{tree}:{path}")


def test_an_agent_that_ends_by_itself_leaves_no_such_thing(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    assert kit.run(f"{GOLD}; exit 3").attempts[0].captured is None
    assert kit.run(GOLD).attempts[0].captured is None


async def hangs(sandbox: Sandbox) -> None:
    """Wait until the host sees that the agent in the sandbox hangs."""
    assert isinstance(sandbox, ShowsProcesses)
    async with asyncio.timeout(120):
        while "sleep 600" not in [process.command for process in sandbox.processes()]:
            await asyncio.sleep(0.02)


def test_the_last_output_of_a_killed_sandbox_is_kept(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)

    async def work() -> MissionState:
        agent = f"command:sh -c {shlex.quote(f'{GOLD}; echo last words; sleep 600')}"
        with contextlib.closing(kit.app()) as app:
            async with app.session() as session:
                wanted = replace(REQUEST, agent=agent, only_checks=("true",))
                made = session.missions.create(
                    wanted, repository=str(kit.repository), base=session.base, config={}
                )
                heard = asyncio.Event()
                running = asyncio.create_task(
                    session.missions.run(made, on_output=lambda stream, piece: heard.set())
                )
                await asyncio.wait_for(heard.wait(), 120)
                (sandbox,) = app.controls._running[made]._sandboxes
                await hangs(sandbox)
                sandbox._kill()
                while not app.mission_reader.state(made).attempts[0].captured:
                    await asyncio.sleep(0.05)
                app.controls.stop_all("cancel")  # the agent would hang in its next sandbox too
                await asyncio.wait([running])
                return app.mission_reader.state(made)

    state = asyncio.run(work())
    assert state.status == "cancelled"
    document = captured(kit, state)
    assert (document["why"], document["processes"], document["output"]) == ("sandbox_died", [], "last words\n")


def test_setup_time_counts_against_the_time_of_the_agent(tmp_path: Path) -> None:
    """Otherwise a slow setup would leave the agent no time for its last writes before the mission ends."""
    kit, clock = MissionKit(tmp_path), AheadClock()
    kit.environ["CHARGEHAND_PROJECT_SETUP"] = f"sleep {MARK} || true"

    async def work() -> MissionState:
        agent = f"command:sh -c {shlex.quote(f'{GOLD}; sleep 600')}"
        wanted = replace(REQUEST, agent=agent, only_checks=("true",), seconds=600.0)
        with contextlib.closing(App(environ=kit.environ, cwd=kit.repository, clock=clock)) as app:
            async with app.session() as session:
                made = session.missions.create(
                    wanted, repository=str(kit.repository), base=session.base, config={}
                )
                running = asyncio.create_task(session.missions.run(made))
                while not sleepers():
                    await asyncio.sleep(0.02)
                clock.put_forward(597.0)
                wake()
                return await running

    state = asyncio.run(work())
    (attempt,) = state.attempts
    assert (state.status, attempt.status) == ("exhausted", "timed_out")
    assert attempt.seconds is not None
    assert attempt.seconds < 300, "it had all of the mission's time"
    assert [point.trigger for point in state.checkpoints] == ["timeout"]
