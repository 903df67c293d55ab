"""Judging an agent's changes without running anything, and reverting single changes."""

from __future__ import annotations

import random

from benchmarks.checkpoint import edit_inside
from benchmarks.measure import Result, Sample, Side, compare, timed
from benchmarks.mission_kit import MissionKit, Opened
from benchmarks.repositories import git, paths
from chargehand.checks.areas import Areas
from chargehand.checks.cache import MemoryCache
from chargehand.checks.inspection import examine
from chargehand.missions.services import DepotReader
from chargehand.sandbox.contract import Sandbox
from chargehand.workspace.hunks import LineRange
from chargehand.workspace.rollback import Drop, plan_rollback, write_rollback
from chargehand.workspace.workspace import Workspace

FILES, PATTERNS, HUNKS = 1000, 100, 100
AIM = 1.0


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare inspection with git writing the patch, and smart roll-back with git applying it in reverse."""
    changed = random.Random(7).sample(paths(kit.files), min(FILES, kit.files))
    async with opened.both() as (workspace, sandbox):
        await edit_inside(sandbox, changed)
        tree = workspace.checkpoint("measured").tree
        looks = await compare(
            "inspection",
            f"{len(changed):,} changed files, {PATTERNS} patterns",
            [
                Side(name="first look", sample=_look(opened, tree)),
                Side(name="one file changed since", sample=_look_again(opened, workspace, sandbox, changed)),
                Side(name="git diff-tree -p", sample=_patch(kit, opened, tree)),
            ],
            rounds=rounds,
            files=kit.files,
            aim=AIM,
        )
    return [looks, await _taken_back(kit, opened, changed, rounds=rounds)]


def _areas() -> Areas:
    return Areas(allow=("**",), forbid=tuple(f"**/secret{number}/**" for number in range(PATTERNS - 1)))


def _look(opened: Opened, tree: str) -> Sample:
    changes, reader = opened.depot.diff(opened.base.tree, tree), DepotReader(opened.depot)

    async def sample() -> float:
        with timed() as seconds:
            found = examine(changes, reader, opened.base.tree, _areas(), cache=MemoryCache())
        assert found.looked == len(changes)
        assert not found.cached
        return seconds[0]

    return sample


def _look_again(opened: Opened, workspace: Workspace, sandbox: Sandbox, changed: list[str]) -> Sample:
    reader, cache = DepotReader(opened.depot), MemoryCache()
    changes = opened.depot.diff(opened.base.tree, workspace.checkpoint("measured").tree)
    examine(changes, reader, opened.base.tree, _areas(), cache=cache)

    async def sample() -> float:
        await edit_inside(sandbox, changed[:1])
        changes = opened.depot.diff(opened.base.tree, workspace.checkpoint("measured").tree)
        with timed() as seconds:
            found = examine(changes, reader, opened.base.tree, _areas(), cache=cache)
        assert found.looked - found.cached == 1
        return seconds[0]

    return sample


def _patch(kit: MissionKit, opened: Opened, tree: str) -> Sample:
    async def sample() -> float:
        with timed() as seconds:
            git(opened.depot.path, "diff-tree", "-r", "-p", opened.base.tree, tree)
        return seconds[0]

    return sample


async def _taken_back(kit: MissionKit, opened: Opened, changed: list[str], *, rounds: int) -> Result:
    """Revert the last line, which was added, in some of the changed files."""
    depot = opened.depot
    async with opened.both() as (workspace, sandbox):
        await edit_inside(sandbox, changed)
        tree = workspace.checkpoint("measured").tree
    drops, chosen = [], changed[:HUNKS]
    for path in chosen:
        entry = depot.lookup(tree, path)
        assert entry is not None
        last = depot.read_blob(entry.id).count(b"\n")
        drops.append(Drop(path=path, lines=(LineRange(first=last, last=last),)))

    expected = depot.replace_paths(tree, chosen, opened.base.tree)

    async def smart() -> float:
        with timed() as seconds:
            plan = plan_rollback(depot, tree, opened.base.tree, drops=drops)
            made = write_rollback(depot, plan)
        assert made == expected
        return seconds[0]

    index = {"GIT_INDEX_FILE": str(kit.place / "reverse.index")}
    patch = depot.patch(opened.base.tree, tree, chosen)

    async def reversed_patch() -> float:
        git(depot.path, "read-tree", tree, environment=index)
        with timed() as seconds:
            git(depot.path, "apply", "--cached", "--reverse", environment=index, input=patch)
            made = git(depot.path, "write-tree", environment=index)
        assert made == expected
        return seconds[0]

    return await compare(
        "inspection",
        f"{len(chosen)} changes of {len(changed):,} taken back",
        [
            Side(name="plan and write a roll-back by hunk", sample=smart),
            Side(name="git apply --cached --reverse, write-tree", sample=reversed_patch),
        ],
        rounds=rounds,
        files=kit.files,
    )
