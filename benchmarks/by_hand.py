"""A plan of six tasks, compared with the same work in three git worktrees by a shell script."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from benchmarks.descendants import spend_with_descendants
from benchmarks.measure import Result, Spent, Taken, settle
from benchmarks.mission_kit import MissionKit
from benchmarks.repositories import ENVIRONMENT, git

AIM = 1.2
TASKS, AT_ONCE = 6, 3
_SECONDS, _CHECK = 3, "sleep 1"
_PROGRAM = Path(sys.executable).with_name("chargehand")
_numbers = count(1)
# Like the checks of a plan: on each result and on each merged tree.
_SCRIPT = f"""
set -e
place=$1 name=$2
git branch --quiet "$name" main
git worktree add --quiet "$place/merged" "$name"
work() {{
    git worktree add --quiet -b "$name-$1" "$place/$1" main
    cd "$place/$1"
    sleep {_SECONDS}
    echo made > "made-$name-$1.txt"
    git add --all
    git commit --quiet -m "$1"
    {_CHECK}
}}
task=0
while [ $task -lt {TASKS} ]; do
    lanes= left={AT_ONCE}
    while [ $left -gt 0 ] && [ $task -lt {TASKS} ]; do
        work $task & lanes="$lanes $task:$!"
        task=$((task + 1)) left=$((left - 1))
    done
    for lane in $lanes; do wait "${{lane#*:}}"; done
    for lane in $lanes; do
        (cd "$place/merged" && git merge --quiet --no-ff -m merge "$name-${{lane%:*}}" >/dev/null && {_CHECK})
    done
done
"""


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Compare wall time and processor time; depot, base and the base's verdict already exist."""
    ways: tuple[tuple[str, Callable[[MissionKit], Spent]], ...] = (
        ("git worktrees, by a shell script", _by_hand),
        ("chargehand run --plan", _as_plan),
    )
    clock, processor = [tuple(Taken(name=name) for name, _ in ways) for _ in range(2)]
    _as_plan(kit)
    for _ in range(rounds):
        for number, (_, work) in enumerate(ways):
            settle()
            spent = work(kit)
            clock[number].rounds.append([spent.wall])
            processor[number].rounds.append([spent.cpu])
    case, load = f"{TASKS} tasks of {_SECONDS} s, {AT_ONCE} at once, check `{_CHECK}`", os.getloadavg()
    note = f"ratios are relative to the shell script; the aim for the wall time of a plan is {AIM:g} times"
    return [
        Result(benchmark="by_hand", case=case, sides=clock, load=load, note=note),
        Result(benchmark="by_hand", case=f"{case}: processor time", sides=processor, load=load),
    ]


def _by_hand(kit: MissionKit) -> Spent:
    place, name = kit.place / "by-hand-tasks", f"by-hand-{next(_numbers)}"
    argv = ["sh", "-c", _SCRIPT, "sh", str(place), name]
    spent = spend_with_descendants(argv, cwd=kit.repository, environment=ENVIRONMENT)
    for tree in ("merged", *map(str, range(TASKS))):
        git(kit.repository, "worktree", "remove", str(place / tree))
    return spent


def _as_plan(kit: MissionKit) -> Spent:
    """Run a plan to its end; the processor time of a worker that it leaves behind is included."""
    number = next(_numbers)
    tasks = []
    for each in range(TASKS):
        script = f"sleep {_SECONDS}; echo made > made-{number}-{each}.txt"
        tasks.append({"id": f"t{each}", "text": "Make it", "agent": f"command:sh -c {shlex.quote(script)}"})
    file = kit.place / "tasks.json"
    file.write_text(json.dumps({"tasks": tasks, "at_once": AT_ONCE}))
    argv = [str(_PROGRAM), "run", "Make them", "--plan", str(file), "--agent", "command:true"]
    argv += ["--only-check", _CHECK, "--yes", "--json"]
    return spend_with_descendants(argv, cwd=kit.repository, environment=kit.environ)
