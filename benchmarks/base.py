"""Preparing a commit for workspaces, once for each base: fetch, write out, verify."""

from __future__ import annotations

import os

from benchmarks.measure import Result, Taken, settle, spend
from benchmarks.mission_kit import MissionKit, Opened
from benchmarks.repositories import ENVIRONMENT

PEER = "git clone, checked out"


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Report the time of preparing the repository's base, and measure a clone of the same repository once."""
    sides = [Taken(name="depot, base, verified", rounds=[[opened.prepared]])]
    if kit.peers:
        target = kit.place / "clone"
        settle()
        argv = ["git", "clone", "--quiet", str(kit.repository), str(target)]
        sides.append(Taken(name=PEER, rounds=[[spend(argv, environment=ENVIRONMENT).wall]]))
        spend(["rm", "-rf", str(target)])
    speed = kit.files / opened.prepared
    note = f"{kit.files:,} files: {speed:,.0f} a second, each read back and held against its id"
    return [
        Result(
            benchmark="base",
            case="first preparation",
            sides=tuple(sides),
            files=kit.files,
            load=os.getloadavg(),
            note=note,
        )
    ]
