"""The repository map: indexing, one changed file, queries and the map for a request, at 20,000 files."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Result, Sample, Side, Taken, compare, percentile_95, timed
from benchmarks.mission_kit import MissionKit
from benchmarks.repositories import ENVIRONMENT, git
from chargehand.knowledge.index import CodeIndex
from chargehand.knowledge.maps import RepositoryMap
from chargehand.workspace.depot import Depot

FILES, _SMOKE_FILES, _DEFINITIONS = 20_000, 300, 5
CHANGED_AIM, QUERY_AIM, MAP_AIM = 0.05, 0.03, 0.1
_REQUEST = (
    "Reading the header of a packet fails if the cache has no entry for its route: parse_header_17 raises instead "
    "of asking the server again, and the session is closed although the client could go on."
)
_VOCABULARY = """
account balance cache client config decode depot driver encode engine event filter format handler header
index journal kernel layer limit lock merge model mount order packet parser path policy port query queue
reader
"""
_WORDS = _VOCABULARY.split()


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Make a project of Python files and measure its map; the peers are `git grep` and indexing it all again."""
    files = FILES if rounds > 1 else _SMOKE_FILES
    repository = kit.place / "code"
    _write_project(repository, files)
    root = kit.place / "map"
    depot = Depot.open(root, repository=repository)
    base = depot.resolve_base()
    with CodeIndex(root, depot) as index:
        with timed() as whole:
            summary = index.bring(base.tree)
        assert (summary.parsed, summary.complete) == (files, True)
        made = RepositoryMap(index, base.tree)
        size, memory = index.path.stat().st_size >> 20, _resident_mib()
        note = f"{files:,} files, {files * _DEFINITIONS:,} definitions; index {size} MiB, process {memory} MiB"
        indexed = Taken(name="first index", rounds=[[whole[0]]])
        first = Result(
            benchmark="code_map",
            case="first index",
            sides=(indexed,),
            files=files,
            load=os.getloadavg(),
            note=note,
        )
        changed = await compare(
            "code_map", "one file changed", [Side(name="incremental", sample=_changed(depot, base.tree, index))],
            rounds=rounds, files=files, aim=CHANGED_AIM, note=f"indexing it all again takes {whole[0]:.1f} s",
        )  # fmt: skip
        made.bring()
        searches = await compare(
            "code_map",
            "a query",
            [
                Side(name="search, callers, tests", sample=_queries(made)),
                Side(name="git grep -nw", sample=_grep(repository)),
            ],
            rounds=rounds * 3,
            files=files,
            aim=QUERY_AIM,
        )
        late = percentile_95(searches.sides[0].samples)
        searches = replace(searches, note=f"95 of 100 queries take at most {1000 * late:.0f} ms")
        maps = await compare(
            "code_map", "map for a request", [Side(name="2,000 tokens", sample=_render(made))],
            rounds=rounds, files=files, aim=MAP_AIM,
        )  # fmt: skip
    return [first, changed, searches, maps]


def _write_project(place: Path, files: int) -> None:
    """Commit files of five functions each, which call functions of other files."""
    dice = random.Random(files)
    place.mkdir(parents=True)
    git(place, "init", "--quiet", "--initial-branch=main")
    command = ["git", "-C", str(place), "fast-import", "--quiet", "--depth=0"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE) as importer:
        assert importer.stdin is not None
        importer.stdin.write(b"commit refs/heads/main\ncommitter A <a@b> 1700000000 +0000\ndata 5\nfirst\n")
        for number in range(files):
            text = "".join(_function(dice, number, place, files) for place in range(_DEFINITIONS)).encode()
            path = f"src/{_WORDS[number % 31]}/{_WORDS[number % 29]}_{number}.py"
            importer.stdin.write(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(text), text))
    assert importer.returncode == 0


def _name(number: int, place: int) -> str:
    return f"{_WORDS[(number + place) % 31]}_{_WORDS[number % 23]}_{number * _DEFINITIONS + place}"


def _function(dice: random.Random, number: int, place: int, files: int) -> str:
    calls = "\n".join(
        f"    {_name(dice.randrange(files), dice.randrange(_DEFINITIONS))}(value, {dice.randrange(99)})"
        for _ in range(4)
    )
    words = " ".join(dice.choices(_WORDS, k=12))
    return (
        f'def {_name(number, place)}(value, other=0):\n    """Return {words}."""\n{calls}\n    return value\n\n\n'
    )


def _changed(depot: Depot, tree: str, index: CodeIndex) -> Sample:
    path = next(entry.path for entry in depot.entries(tree))
    number = 0

    async def sample() -> float:
        nonlocal number
        number += 1
        new = depot.replace_paths(tree, [], tree, contents={path: b"def changed_%d():\n    pass\n" % number})
        with timed() as seconds:
            assert index.bring(new).parsed == 1
        index.bring(tree)
        return seconds[0]

    return sample


def _queries(made: RepositoryMap) -> Sample:
    """Take one query of each kind in turn, each for another name."""
    number = 0

    async def sample() -> float:
        nonlocal number
        number += 1
        name = _name(number * 7 % _SMOKE_FILES, number % _DEFINITIONS)
        with timed() as seconds:
            match number % 4:
                case 0:
                    assert made.search_code(name).hits[0].name == name
                case 1:
                    made.who_calls(name)
                case 2:
                    made.impact_of([name])
                case _:
                    made.tests_for([name])
        return seconds[0]

    return sample


def _grep(repository: Path) -> Sample:
    number = 0

    async def sample() -> float:
        nonlocal number
        number += 1
        name = _name(number * 7 % _SMOKE_FILES, number % _DEFINITIONS)
        with timed() as seconds:
            git(repository, "grep", "-nw", name, "main")
        return seconds[0]

    return sample


def _render(made: RepositoryMap) -> Sample:
    async def sample() -> float:
        with timed() as seconds:
            assert made.render(_REQUEST)
        return seconds[0]

    return sample


def _resident_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
