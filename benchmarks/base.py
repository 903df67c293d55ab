"""Preparing a commit for workspaces, once for each base: fetch, write out, verify."""

from __future__ import annotations

import os

from benchmarks.measure import Result, Taken, settle, spend
from benchmarks.repositories import ENVIRONMENT
from benchmarks.shop import Opened, Shop

PEER = "git clone, checked out"


async def run(shop: Shop, opened: Opened, *, rounds: int) -> list[Result]:
    """Report the time of preparing the shop's base, and measure a clone of the same repository once."""
    sides = [Taken(name="depot, base, verified", rounds=[[opened.prepared]])]
    if shop.peers:
        target = shop.place / "clone"
        settle()
        argv = ["git", "clone", "--quiet", str(shop.repository), str(target)]
        sides.append(Taken(name=PEER, rounds=[[spend(argv, environment=ENVIRONMENT).wall]]))
        spend(["rm", "-rf", str(target)])
    speed = shop.files / opened.prepared
    note = f"{shop.files:,} files: {speed:,.0f} a second, each read back and held against its id"
    return [
        Result(
            benchmark="base",
            case="first preparation",
            sides=tuple(sides),
            files=shop.files,
            load=os.getloadavg(),
            note=note,
        )
    ]
