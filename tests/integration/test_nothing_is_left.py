"""P5: when an attempt ends, however it ends, no process, mount, control group or temporary file of it survives."""

from __future__ import annotations

import asyncio
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from test_crashes import descendants
from workshop import CHECK, GOLD, REQUEST, Workshop

from chargehand.missions import Missions

pytestmark = pytest.mark.needs_bwrap

HUNG = "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' >/dev/null 2>&1 &"
ENDS = {
    "promoted": f"{GOLD}; {HUNG}",
    "refused": f"{HUNG} true",
    "failed": f"{HUNG} exit 3",
    "timed out": f"{HUNG} (sleep 100 & sleep 100)",
    "killed": f"{HUNG} kill -9 -1; sleep 100",
    "cancelled": f"{HUNG} sleep 100",
}


def leftovers(home: Path) -> list[str]:
    """Return what is left in the state directory that belongs to an attempt, and control groups of ours."""
    kept = [
        *home.glob("projects/*/workspaces/*"),
        *home.glob("running/*"),
        *home.glob("acceptance-*"),
        *home.glob("registries-*"),
        *home.glob("probe-*"),
    ]
    groups = Path("/sys/fs/cgroup").glob(f"**/chargehand-{os.getpid()}-*")
    return [str(path) for path in (*kept, *groups)]


async def attempt(missions: Missions, shop: Workshop, session: object, kind: str) -> None:
    request = replace(
        REQUEST,
        agent=f"command:sh -c {shlex.quote(ENDS[kind])}",
        slug=kind.replace(" ", "-"),
        only_checks=(CHECK,),
        seconds=1.5 if kind in ("timed out", "killed") else 60.0,
    )
    mission = missions.create(request, repository=str(shop.repository), config={})
    running = asyncio.create_task(missions.run(mission, base=session.base))  # type: ignore[attr-defined]
    if kind == "cancelled":
        while not missions.look.state(mission).attempts:
            await asyncio.sleep(0.05)
        assert await asyncio.to_thread(missions.cancel, mission)
    await asyncio.wait([running])


async def many(shop: Workshop, rounds: int) -> None:
    app = shop.app()
    async with app.session() as session:
        idle = len(descendants(os.getpid()))
        for number in range(rounds):
            await attempt(session.missions, shop, session, list(ENDS)[number % len(ENDS)])
            assert len(descendants(os.getpid())) == idle
            assert leftovers(shop.home) == []
    app.close()


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


@pytest.mark.parametrize("rounds", [12, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_nothing_is_left_after_any_end(tmp_path: Path, rounds: int) -> None:
    before = (mounts(), descendants(os.getpid()))
    asyncio.run(many(Workshop(tmp_path), rounds))
    assert (mounts(), descendants(os.getpid())) == before
