"""The time that the runner of benchmarks adds to each problem, besides its mission and validation."""

from __future__ import annotations

import os
import time

from benchmarks.measure import Result, Taken, settle
from benchmarks.mission_kit import MissionKit
from benchmarks.self_suite import ARMS, make_suite
from chargehand.bench.records import Arm
from chargehand.bench.runner import BenchRunner, new_run
from chargehand.bench.suites import load_suite

AIM = 0.2


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Run a small suite in turn; a mission with its validation is the time to compare with."""
    root = make_suite(kit.place / "bench-suite")
    suite = load_suite(root)
    environ = {**kit.environ, "CHARGEHAND_HOME": str(kit.place / "bench-state")}
    added, whole = Taken(name="added by the runner"), Taken(name="mission and validation")
    for number in range(rounds + 1):
        arm = Arm(agent=ARMS["solves"].agent)
        made = new_run(suite, root, environ, arm=arm, samples=1, seed=0, checks=(), id=f"round-{number}")
        settle()
        began = time.perf_counter()
        results = await BenchRunner(made, suite, environ).work()
        seconds = (time.perf_counter() - began) / len(results)
        if not all(each.outcome == "solved" for each in results):
            raise RuntimeError(f"a known solution was not accepted: {results}")
        if number:  # the first one probes the machine
            overhead = sum(each.overhead for each in results) / len(results)
            added.rounds.append([overhead])
            whole.rounds.append([seconds - overhead])
    return [
        Result(
            benchmark="bench",
            case="one problem of a suite",
            sides=(added, whole),
            aim=AIM,
            load=os.getloadavg(),
            note=f"{len(suite.problems)} problems, one after the other",
        )
    ]
