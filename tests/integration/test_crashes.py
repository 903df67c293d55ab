"""P3 for promotion: wherever a process dies, the user's repository is at base or at the promoted tree."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.conftest import git, repository_state
from workshop import CHECK, GOLD, Workshop

from chargehand.core import fold
from chargehand.store import verify

pytestmark = pytest.mark.needs_bwrap

BEFORE_SWAP = ("environment", "agent", "verdict", "before_commit", "prepared")
AFTER_SWAP = ("swapped", "promoted", "exported")
PROGRAM = """
import asyncio, os, shlex, signal, sys
from dataclasses import replace
from pathlib import Path
from chargehand.app import App
from chargehand.core import MissionRequest
from chargehand.missions import Missions

repository, script, check, point = sys.argv[1:]

def fault(name):
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    app = App(environ=os.environ, cwd=Path(repository))
    async with app.session() as session:
        missions = Missions(session.missions._services, fault=fault)
        agent = "command:sh -c " + shlex.quote(script)
        request = MissionRequest(text="mend", agent=agent, command=(), slug="mend", only_checks=(check,))
        mission = missions.create(request, repository=repository, config={})
        print(mission, flush=True)
        await missions.run(mission, base=session.base)
        await missions.roll_back(mission)

asyncio.run(main())
"""


def run_and_die(shop: Workshop, point: str, script: str = GOLD) -> str:
    """Run a mission in a process of its own that is killed at `point`; return the mission's id."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(shop.repository), script, CHECK, point],
        env=shop.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip()


async def recover(shop: Workshop) -> None:
    app = shop.app()
    async with app.session():
        pass
    app.close()


def descendants(root: int) -> dict[int, str]:
    """Return the processes below `root`, those inside sandboxes included, with their start times."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = (int(fields[1]), fields[19])
    found: dict[int, str] = {}
    fresh = {root}
    while fresh:
        fresh = {pid for pid, (parent, _) in stats.items() if parent in fresh and pid not in found}
        found |= {pid: stats[pid][1] for pid in fresh}
    return found


def survivors(processes: dict[int, str]) -> list[int]:
    """Return those of the processes that still live."""
    found = []
    for pid, started in processes.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == started and fields[0] not in "ZX":
            found.append(pid)
    return found


@pytest.mark.parametrize("point", [*BEFORE_SWAP, *AFTER_SWAP])
def test_kill_at_every_point_leaves_old_or_new_and_recovery_completes(tmp_path: Path, point: str) -> None:
    shop = Workshop(tmp_path)
    before = repository_state(shop.repository)
    mission = run_and_die(shop, point)
    app = shop.app()
    crashed = app.look.state(mission)
    if crashed.status != "promoted":
        assert crashed.status == "failed"
        assert crashed.reasons[0].code == "worker_lost"
    assert repository_state(shop.repository) == before
    asyncio.run(recover(shop))
    state = app.look.state(mission)
    branches = git(shop.repository, "for-each-ref", "--format=%(refname)", "refs/heads/chargehand/")
    if point in AFTER_SWAP:
        assert state.status == "promoted"
        assert state.export is not None
        assert state.export.state == "done"
        assert git(shop.repository, "rev-parse", branches) == state.commit
        assert "a + b" in git(shop.repository, "show", f"{branches}:calc/core.py")
    else:
        assert state.status == "failed"
        assert branches == ""
        assert state.commit is None
    assert repository_state(shop.repository) == before
    assert verify(app.store).ok
    app.close()


@pytest.mark.parametrize("point", ["rollback_prepared", "rolled_back"])
def test_a_roll_back_that_died_can_be_done_again(tmp_path: Path, point: str) -> None:
    shop = Workshop(tmp_path)
    before = repository_state(shop.repository)
    mission = run_and_die(shop, point)
    branch = git(shop.repository, "for-each-ref", "--format=%(refname)", "refs/heads/chargehand/")
    assert "a + b" in git(shop.repository, "show", f"{branch}:calc/core.py")

    async def again() -> None:
        app = shop.app()
        async with app.session() as session:
            state = await session.missions.roll_back(mission)
            assert state.export is not None
            assert state.export.state == "done"
        app.close()

    asyncio.run(again())
    assert git(shop.repository, "rev-parse", f"{branch}^{{tree}}") == git(
        shop.repository, "rev-parse", "main^{tree}"
    )
    assert git(shop.repository, "rev-list", "--count", f"main..{branch}") == "2"
    assert repository_state(shop.repository) == before


def test_a_killed_mission_leaves_no_process_and_its_attempt_is_lost(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    hang = "setsid sh -c 'while :; do sleep 1; done' & sleep 300"
    argv = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(shop.repository), hang, CHECK, "never"]
    with subprocess.Popen(argv, env=shop.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mission = process.stdout.readline().strip()
        app = shop.app()
        wait_until(lambda: bool(fold(app.store.log.read(mission), live=True).attempts))
        assert app.look.state(mission).status == "running"
        wait_until(lambda: len(descendants(process.pid)) >= 6)  # launcher, bubblewrap, server, shells, sleepers
        started = descendants(process.pid)
        process.kill()
    wait_until(lambda: not survivors(started))
    state = app.look.state(mission)
    assert (state.status, state.attempts[0].status) == ("failed", "lost")
    app.close()


def wait_until(holds, *, seconds: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    """Wait until `holds()`; fail after `seconds`."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, "it did not come to hold"
        time.sleep(0.02)
