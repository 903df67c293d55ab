"""Time from the agent's last checkpoint to the promoted change, compared with one run of the project's suite."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, Sample, Side, Taken, compare, settle, spend
from benchmarks.mission_kit import MissionKit
from benchmarks.repositories import ENVIRONMENT, git

_PROGRAM = Path(sys.executable).with_name("chargehand")
_MODULES, _TESTS, _SECONDS = 20, 5, 0.1
_SUITE = "python3 -m unittest -v"
_numbers = count(1)
_CODE = """def scale_{number}(value, by=2):
    if value < 0:
        return 0
    return value * by


def clamp_{number}(value, low=0, high=100):
    return max(low, min(value, high))
"""
_TEST = """import time
import unittest

from shop.part_{number} import clamp_{number}, scale_{number}


class Part{number}(unittest.TestCase):
    def setUp(self):
        time.sleep({seconds})

    def test_scale(self):
        self.assertEqual(scale_{number}(3), 6)

    def test_nothing_below_zero(self):
        self.assertEqual(scale_{number}(-1), 0)

    def test_low(self):
        self.assertEqual(clamp_{number}(-5), 0)

    def test_high(self):
        self.assertEqual(clamp_{number}(500), 100)

    def test_between(self):
        self.assertEqual(clamp_{number}(50), 50)
"""
_ADDED = r"\n    def test_by_{number}(self):\n        self.assertEqual(scale_{part}(4, {number}), {result})\n"


_KINDS = {
    "code changed": 1.4,
    "code and its test changed": 1.8,
    "a test added": 1.8,
}
"""Kinds of changes, each with its aim as a multiple of one run of the suite."""
_PHASES = (
    # each ends with the first event of this type after the one before, in this step of the mission
    ("sandbox of the agent closed, attempt recorded", "step.finished", "execution"),
    ("workspace and sandbox of the verdict", "sandbox.opened", "validation"),
    ("suites and faults", "verdict.given", "validation"),
    ("promotion, head signed, export", "mission.finished", "promotion"),
)


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Compare each kind of change with the suite; base, environment and the base's verdict are cached."""
    place = kit.place / "verdicts"
    _make(place, seconds=_SECONDS if rounds > 1 else 0.0)
    environment = {**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"}
    phases: dict[str, list[dict[str, float]]] = {kind: [] for kind in _KINDS}

    async def suite() -> float:
        settle()
        return spend(_SUITE.split(), cwd=place, environment=environment).wall

    def promoted(kind: str) -> Sample:
        async def sample() -> float:
            settle()
            phases[kind].append(_phases(_events(kit, place, _script(kind, next(_numbers)))))
            return sum(phases[kind][-1].values())

        return sample

    sides = [Side(name="the suite once", sample=suite)]
    sides += [Side(name=f"{kind} (aim {aim}x)", sample=promoted(kind)) for kind, aim in _KINDS.items()]
    case = f"{_MODULES * _TESTS} tests, from the agent's end to the promoted change"
    note = "ratios are relative to the suite; its tests sleep, so a busy machine changes little"
    whole = await compare("verdict", case, sides, rounds=rounds, seconds=300, note=note)
    return [whole, *(_result(kind, found[1:]) for kind, found in phases.items())]


def _make(place: Path, *, seconds: float) -> None:
    """Make a project with 100 tests of so many seconds."""
    for directory in ("shop", "tests"):
        (place / directory).mkdir(parents=True)
        (place / directory / "__init__.py").touch()
    for number in range(_MODULES):
        (place / f"shop/part_{number}.py").write_text(_CODE.format(number=number))
        (place / f"tests/test_part_{number}.py").write_text(_TEST.format(number=number, seconds=seconds))
    git(place, "init", "--quiet", "--initial-branch=main")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "-m", "first")


def _script(kind: str, number: int) -> str:
    """Return the agent's script: it makes a different tree each time, and all tests pass."""
    part = number % _MODULES
    code, test = f"shop/part_{part}.py", f"tests/test_part_{part}.py"
    change = f"sed -i 's/value < 0:/value < 0 or value == -{number}:/' {code}"
    # Never 2: its sum equals its product, so the measurement would rightly find the test weaker.
    changes_test = f"sed -i 's/(3), 6/({number + 3}), {2 * (number + 3)}/' {test}"
    added = f"printf '%b' '{_ADDED.format(part=part, number=number, result=4 * number)}' >> {test}"
    return {
        "code changed": change,
        "code and its test changed": f"{change}; {changes_test}",
        "a test added": added,
    }[kind]


def _events(kit: MissionKit, place: Path, script: str) -> list[Mapping[str, Any]]:
    """Run a mission that has to be promoted; return its events."""
    agent = f"command:sh -c {shlex.quote(script)}"
    argv = [str(_PROGRAM), "--json", "run", "change it", "--agent", agent, "--only-check", _SUITE]
    done = subprocess.run(argv, cwd=place, env=kit.environ, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script} ended with {done.returncode}: {done.stdout.decode()} {done.stderr.decode()}")
    mission = json.loads(done.stdout)["mission"]
    argv = [str(_PROGRAM), "--json", "mission", "log", mission]
    log = subprocess.run(argv, cwd=place, env=kit.environ, capture_output=True, check=True).stdout
    return [json.loads(line) for line in log.splitlines()]


def _phases(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of each phase after the agent's last checkpoint."""
    found = {}
    left = iter(events)
    at = _reached(left, "checkpoint.made", "execution")
    for name, kind, step in _PHASES:
        reached = _reached(left, kind, step)
        found[name], at = reached - at, reached
    return found


def _reached(events: Iterable[Mapping[str, Any]], kind: str, step: str) -> float:
    event = next(each for each in events if (each["type"], each["step"]) == (kind, step))
    return datetime.fromisoformat(event["time"]).timestamp()


def _result(kind: str, found: list[dict[str, float]]) -> Result:
    taken = tuple(Taken(name=name, rounds=[[each[name]] for each in found]) for name, *_ in _PHASES)
    return Result(benchmark="verdict", case=f"phases, {kind}", sides=taken, load=os.getloadavg())
