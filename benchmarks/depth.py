"""Effect of the repository's size: the same work in the smallest and the largest repository, in turn."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping

from benchmarks.checkpoint import CHANGES, checkpointed
from benchmarks.measure import Result, Side, compare
from benchmarks.mission_kit import MissionKit, Opened
from benchmarks.repositories import paths

AIM_RATIO = 1.3


async def run(kits: Mapping[MissionKit, Opened], *, rounds: int) -> list[Result]:
    """Checkpoint the same number of changes in each repository: close together (in few directories), and anywhere.

    Changes close together show the cost of the repository's size. Anywhere, 1,000 changes are in 100 directories
    of a small repository and in 3,000 of a large one, and each directory is a tree to be written.
    """
    results = []
    for number in CHANGES:
        for close in (True, False) if number > 1 else (True,):
            chosen = {kit: _chosen(kit, number, close=close) for kit in kits}
            results.append(await _compared(kits, chosen, number, close=close, rounds=rounds))
    return results


async def _compared(
    kits: Mapping[MissionKit, Opened],
    chosen: Mapping[MissionKit, list[str]],
    number: int,
    *,
    close: bool,
    rounds: int,
) -> Result:
    sides = []
    async with contextlib.AsyncExitStack() as stack:
        for kit, opened in kits.items():
            workspace, sandbox = await stack.enter_async_context(opened.both())
            name = f"{kit.files:,} files, {_directories(chosen[kit]):,} directories"
            sides.append(Side(name=name, sample=checkpointed(workspace, sandbox, chosen[kit])))
        where = "" if number == 1 else ", close together" if close else ", anywhere"
        case = f"checkpoint of {number:,} change{'s' if number > 1 else ''}{where}"
        return await compare("depth", case, sides, rounds=rounds)


def summary(results: list[Result]) -> str:
    """Return the rows of this benchmark as one line, "" without such rows."""
    words = [
        f"{result.case.removeprefix('checkpoint of ')} {last.ratio(first):.2f}x"
        for result in results
        if result.benchmark == "depth"
        for first, last in [(result.sides[0], result.sides[-1])]
    ]
    said = "; ".join(words)
    return f"a checkpoint, from the smallest to the largest repository (aim {AIM_RATIO}x): {said}" if said else ""


def _chosen(kit: MissionKit, number: int, *, close: bool) -> list[str]:
    found = paths(kit.files)
    return sorted(found)[:number] if close else random.Random(number).sample(found, number)


def _directories(changed: list[str]) -> int:
    """Return the number of directories with changes, including their parents: the trees that are written."""
    return 1 + len({path.rsplit("/", depth)[0] for path in changed for depth in range(1, path.count("/") + 1)})
