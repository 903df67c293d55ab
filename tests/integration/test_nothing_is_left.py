"""P5: when an attempt ends, in any way, no process, mount, control group or temporary file of it survives."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace
from test_crashes import descendants
from tests.crash_kit import mounts, wait_until

from chargehand.app.composition import App
from chargehand.app.wiring.session import Session
from chargehand.testing.sandbox.kit import until
from mission_kit import CHECK, GOLD, REQUEST, MissionKit

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


def _not_ours(file: Path) -> bool:
    """Return whether a lock or socket belongs to a worker other than this process."""
    lock = file.with_suffix(".lock")
    return not lock.exists() or json.loads(lock.read_bytes())["pid"] != os.getpid()


def leftovers(home: Path) -> list[str]:
    """Return leftovers of attempts in the state directory, and remaining control groups of this process."""
    kept = [
        *home.glob("projects/*/workspaces/*"),
        *(lock for lock in home.glob("workers/*") if _not_ours(lock)),
        *home.glob("acceptance-*"),
        *home.glob("registries-*"),
        *home.glob("probe-*"),
    ]
    # Not by glob: it fails on directories that vanish while it looks.
    names = [os.path.join(place, name) for place, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    groups = [name for name in names if f"/chargehand-{os.getpid()}-" in name]
    return [*map(str, kept), *groups]


async def attempt(app: App, session: Session, kit: MissionKit, kind: str) -> None:
    missions = session.missions
    request = replace(
        REQUEST,
        agent=f"command:sh -c {shlex.quote(ENDS[kind])}",
        slug=kind.replace(" ", "-"),
        only_checks=(CHECK,),
        seconds=1.5 if kind in ("timed out", "killed") else 60.0,
    )
    mission = missions.create(request, repository=str(kit.repository), base=session.base, config={})
    running = asyncio.create_task(missions.run(mission))
    if kind == "cancelled":
        while not missions.look.state(mission).attempts:
            await asyncio.sleep(0.05)
        assert await asyncio.to_thread(app.order, mission, "cancel")
    await asyncio.wait([running])


async def many(kit: MissionKit, rounds: int) -> None:
    app = kit.app()
    async with app.session() as session:
        idle = len(descendants(os.getpid()))
        for number in range(rounds):
            await attempt(app, session, kit, list(ENDS)[number % len(ENDS)])
            await until(lambda: len(descendants(os.getpid())) == idle)
            assert leftovers(kit.home) == []
    app.close()


@pytest.mark.parametrize("rounds", [12, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_no_process_or_mount_is_left_after_any_end(tmp_path: Path, rounds: int) -> None:
    before = (mounts(), descendants(os.getpid()))
    asyncio.run(many(MissionKit(tmp_path), rounds))
    wait_until(lambda: (mounts(), descendants(os.getpid())) == before)
