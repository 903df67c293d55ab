"""Recording an agent's changes as a commit."""

from __future__ import annotations

import json
import random
import shutil
import time
from itertools import count
from pathlib import Path

from benchmarks.measure import Result, Sample, Side, compare, timed
from benchmarks.mission_kit import MissionKit, Opened
from benchmarks.repositories import git, paths
from chargehand.sandbox.contract import Sandbox
from chargehand.workspace.workspace import Workspace

CHANGES = (1, 100, 1000)
AIMS = {100: 0.025, 1000: 0.150}
_EDIT = """
import json, sys
stamp, paths = json.load(sys.stdin)
for path in paths:
    with open(path, "a") as file:
        file.write(f"changed {stamp} in {path}\\n")
"""
_STILL_SECONDS = 0.03
"""A file written within the kernel's clock tick before a scan is read again at the next one; agents are slower."""
_stamps = count(1)


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare with git given the changed paths, and with git finding them, each with a separate index."""
    copy = kit.copy("plain") if kit.peers else None
    results = []
    for number in CHANGES:
        if number > kit.files:
            continue
        changed = random.Random(number).sample(paths(kit.files), number)
        async with opened.both() as (workspace, sandbox):
            sides = [
                Side(name="checkpoint", sample=checkpointed(workspace, sandbox, changed)),
                Side(name="freeze, checkpoint, thaw", sample=_frozen(workspace, sandbox, changed)),
                *(_peers(kit, opened, copy, changed) if copy else ()),
            ]
            case = f"{number:,} changed file{'s' if number > 1 else ''}"
            result = await compare("checkpoint", case, sides, rounds=rounds, files=kit.files, aim=AIMS.get(number))
        results.append(result)
    if copy:
        kit.take_down(copy)
    return results


def _peers(kit: MissionKit, opened: Opened, copy: Path, changed: list[str]) -> list[Side]:
    plumbing = _plumbing(kit, opened, copy, changed)
    return [
        Side(name="git update-index, write-tree, commit-tree", sample=plumbing),
        Side(name="git add -A, write-tree", sample=_add_all(kit, copy, changed)),
    ]


def checkpointed(workspace: Workspace, sandbox: Sandbox, changed: list[str]) -> Sample:
    """Return a sample that changes these files inside, freezes, and times only the checkpoint."""

    async def sample() -> float:
        await edit_inside(sandbox, changed)
        await sandbox.freeze()
        with timed() as seconds:
            made = workspace.checkpoint("measured")
        await sandbox.thaw()
        assert made.changed == len(changed)
        return seconds[0]

    return sample


def _frozen(workspace: Workspace, sandbox: Sandbox, changed: list[str]) -> Sample:
    async def sample() -> float:
        await edit_inside(sandbox, changed)
        with timed() as seconds:
            await sandbox.freeze()
            made = workspace.checkpoint("measured")
            await sandbox.thaw()
        assert made.changed == len(changed)
        return seconds[0]

    return sample


async def edit_inside(sandbox: Sandbox, changed: list[str]) -> None:
    """Change these files as an agent does; on return their times are old enough for a scan to trust."""
    done = await sandbox.exec(["python3", "-c", _EDIT], stdin=json.dumps([next(_stamps), changed]).encode())
    assert done.exit_code == 0, done.stderr
    time.sleep(_STILL_SECONDS)


def _plumbing(kit: MissionKit, opened: Opened, copy: Path, changed: list[str]) -> Sample:
    index = _private_index(kit, copy, "plumbing.index")
    listed = "\0".join(changed).encode()

    async def sample() -> float:
        _edit_plain(copy, changed)
        with timed() as seconds:
            git(copy, "update-index", "-z", "--stdin", environment=index, input=listed)
            tree = git(copy, "write-tree", environment=index)
            git(copy, "commit-tree", tree, "-p", opened.base.commit, "-m", "checkpoint")
        return seconds[0]

    return sample


def _add_all(kit: MissionKit, copy: Path, changed: list[str]) -> Sample:
    index = _private_index(kit, copy, "add.index")

    async def sample() -> float:
        _edit_plain(copy, changed)
        with timed() as seconds:
            git(copy, "add", "-A", environment=index)
            git(copy, "write-tree", environment=index)
        return seconds[0]

    return sample


def _private_index(kit: MissionKit, copy: Path, name: str) -> dict[str, str]:
    index = kit.place / name
    shutil.copy(git(copy, "rev-parse", "--git-path", "index"), index)
    environment = {"GIT_INDEX_FILE": str(index)}
    git(copy, "add", "-A", environment=environment)
    git(copy, "write-tree", environment=environment)
    return environment


def _edit_plain(copy: Path, changed: list[str]) -> None:
    stamp = next(_stamps)
    for path in changed:
        with (copy / path).open("a") as file:
            file.write(f"changed {stamp} in {path}\n")
    time.sleep(_STILL_SECONDS)
