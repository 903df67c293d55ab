"""A whole mission that changes one line and whose only check is `true`, as a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, Side, Taken, compare, settle, spend
from benchmarks.mission_kit import MANY, MissionKit, Opened
from benchmarks.repositories import ENVIRONMENT, git

AIM = 0.6
_PROGRAM = Path(sys.executable).with_name("chargehand")
_numbers = count(1)
_IMPORTS = "import chargehand.cli.run, chargehand.app.composition, chargehand.app.runs"
_PHASES = (
    # each ends with the first event of this type after the one before, in this step of the mission
    ("Python, imports, base resolved, mission recorded", "mission.created", "analyse"),
    ("engine, claim, choice of tier", "tier.chosen", "environment"),
    ("base tree, its checks (cached), policy loaded", "agent.selected", "selection"),
    ("workspace and sandbox opened", "sandbox.opened", "execution"),
    ("agent", "command.finished", "execution"),
    ("checkpoint", "checkpoint.made", "execution"),
    ("sandbox closed, attempt recorded", "step.finished", "execution"),
    ("verdict: workspace and sandbox opened", "sandbox.opened", "validation"),
    ("verdict: check", "sandbox.closed", "validation"),
    ("verdict recorded", "verdict.given", "validation"),
    ("promotion", "promotion.done", "promotion"),
    ("head signed", "head.signed", "promotion"),
    ("export", "export.changed", "promotion"),
)
_BY_HAND = """
set -e
git worktree add --quiet -b "$1" "$2" main
cd "$2"
echo "changed by $1" >> "$3"
true
git add "$3"
git commit --quiet --all -m "$1"
"""


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare with the same work by hand: worktree, change, check, commit; its removal is left out.

    The interpreter's start is subtracted, since it is not part of the work; base and probe already exist.
    """
    path = "NOTES.md"  # not code: if no check opened changed code, a person would have to decide
    target = kit.place / "by-hand"
    environ = kit.environ

    async def ours() -> float:
        settle()
        start = min(spend([sys.executable, "-c", "pass"], environment=environ).wall for _ in range(3))
        return spend(_argv(path), cwd=kit.repository, environment=environ).wall - start

    async def by_hand() -> float:
        settle()
        branch = f"by-hand-{next(_numbers)}"
        argv = ["sh", "-c", _BY_HAND, "sh", branch, str(target), path]
        spent = spend(argv, cwd=kit.repository, environment=ENVIRONMENT)
        git(kit.repository, "worktree", "remove", str(target))
        git(kit.repository, "branch", "--quiet", "-D", branch)
        return spent.wall

    sides = [Side(name="chargehand run", sample=ours, repeat=3)]
    if kit.peers:
        most = None if kit.files < MANY else 2
        sides.append(Side(name="git worktree, commit, by hand", sample=by_hand, most=most))
    result = await compare(
        "mission", "one line, check `true`", sides, rounds=rounds, files=kit.files, aim=AIM, seconds=90
    )
    return [result, _measure_phases(kit, path, rounds)]


def _argv(path: str) -> list[str]:
    agent = f"command:sh -c 'echo changed by {next(_numbers)} >> {path}'"
    return [str(_PROGRAM), "run", "change one line", "--agent", agent, "--only-check", "true", "--json"]


def _measure_phases(kit: MissionKit, path: str, rounds: int) -> Result:
    """Measure the phases of a run by the times of its events; imports alone in a separate process."""
    taken = {name: Taken(name=name) for name in ("whole run", "imports alone")}
    for _ in range(max(5, rounds)):
        settle()
        imports = spend([sys.executable, "-c", _IMPORTS], environment=kit.environ).wall
        began = time.time()
        printed = _output(kit, *_argv(path))
        ended = time.time()
        log = _output(kit, str(_PROGRAM), "mission", "log", json.loads(printed)["mission"], "--json")
        events = [json.loads(line) for line in log.splitlines()]
        seconds = {"whole run": ended - began, "imports alone": imports}
        seconds |= _phases(events, began, ended)
        for name, spent in seconds.items():
            taken.setdefault(name, Taken(name=name)).rounds.append([spent])
    return Result(
        benchmark="mission", case="phases", sides=tuple(taken.values()), files=kit.files, load=os.getloadavg()
    )


def _phases(events: list[Mapping[str, Any]], at: float, ended: float) -> dict[str, float]:
    """Return the seconds of each phase after `at`; the last one lasts until the process `ended`."""
    found = {}
    left = iter(events)
    for name, kind, step in _PHASES:
        event = next(each for each in left if (each["type"], each["step"]) == (kind, step))
        reached = datetime.fromisoformat(event["time"]).timestamp()
        found[name], at = reached - at, reached
    found["mission finished, process ended"] = ended - at
    return found


def _output(kit: MissionKit, *argv: str) -> bytes:
    return subprocess.run(argv, cwd=kit.repository, env=kit.environ, capture_output=True, check=True).stdout
