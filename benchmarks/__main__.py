"""`benchmarks/run [NAME…] [--files N,N…] [--json]`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from benchmarks import (
    base,
    beliefs,
    bench,
    by_hand,
    checkpoint,
    code_map,
    command,
    decisions,
    depth,
    egress,
    engine,
    first_view,
    forges,
    gateway,
    inspection,
    isolate,
    layers,
    machine,
    mission,
    plans,
    promotion,
    ready,
    report,
    scale,
    server,
    startup,
    tiers,
    verdict,
    watching,
    workers,
)
from benchmarks.measure import Result
from benchmarks.mission_kit import MissionKit, Opened, remove

_Row = Callable[..., Awaitable[list[Result]]]
_OVER_FILES: dict[str, _Row] = {
    "base": base.run,
    "ready": ready.run,
    "checkpoint": checkpoint.run,
    "promotion": promotion.run,
    "inspection": inspection.run,
    "scale": scale.run,
    "mission": mission.run,
}
_FIRST_SIZE: dict[str, _Row] = {
    "command": command.run,
    "tiers": tiers.run,
    "watching": watching.run,
    "layers": layers.run,
}
_ONCE: dict[str, _Row] = {
    "startup": startup.run,
    "engine": engine.run,
    "workers": workers.run,
    "plans": plans.run,
    "by_hand": by_hand.run,
    "gateway": gateway.run,
    "beliefs": beliefs.run,
    "bench": bench.run,
    "decisions": decisions.run,
    "code_map": code_map.run,
    "egress": egress.run,
    "isolate": isolate.run,
    "server": server.run,
    "first_view": first_view.run,
    "verdict": verdict.run,
    "forges": forges.run,
}
_NAMES = (*_ONCE, *_FIRST_SIZE, *_OVER_FILES, "depth")
_ROUNDS = {
    "startup": 15,
    "engine": 5,
    "workers": 5,
    "plans": 3,
    "by_hand": 5,
    "gateway": 20,
    "beliefs": 5,
    "bench": 5,
    "decisions": 5,
    "code_map": 20,
    "egress": 20,
    "isolate": 10,
    "server": 10,
    "first_view": 10,
    "verdict": 5,
    "forges": 7,
    "command": 40,
    "tiers": 15,
    "watching": 5,
    "layers": 5,
    "base": 1,
    "ready": 15,
    "checkpoint": 15,
    "promotion": 15,
    "inspection": 15,
    "scale": 5,
    "mission": 12,
    "depth": 15,
}


_SMOKE_SIZES = (1_200, 2_400)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_NAMES)} (default: all)")
    parser.add_argument("--files", default="1000,20000,90000", help="sizes of the repositories, up to 500000")
    parser.add_argument(
        "--peers-up-to",
        type=int,
        default=100_000,
        metavar="FILES",
        help="above this size leave out the peers that copy every file (default: 100000)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=float, default=1.0, help="multiplies the number of rounds")
    parser.add_argument("--smoke", action="store_true", help="run everything once to see that it works")
    parser.add_argument("--place", type=Path, help="directory for temporary files (default: the system's)")
    wanted = parser.parse_args()
    if wanted.smoke:
        wanted.files = ",".join(map(str, _SMOKE_SIZES))
    unknown = set(wanted.names) - set(_NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)}")
    if "depth" in wanted.names and "," not in wanted.files:
        parser.error(f"depth compares two sizes, --files {wanted.files} is one")
    return wanted


async def _run(wanted: argparse.Namespace, place: Path) -> AsyncIterator[Result]:
    """Measure at each size; the smallest repository is kept for `depth` until the largest exists."""
    names = wanted.names or _NAMES
    sizes = sorted({int(size) for size in wanted.files.split(",")})
    ends = (sizes[0], sizes[-1]) if "depth" in names and len(sizes) > 1 else ()
    async with contextlib.AsyncExitStack() as until_the_end:
        kept: dict[MissionKit, Opened] = {}
        for size in sizes:
            _say(f"{size:,} files: making the repository")
            kit = MissionKit.make(place / str(size), files=size, peers=size <= wanted.peers_up_to)
            async with contextlib.AsyncExitStack() as now:
                for table in (_ONCE,) if size == sizes[0] else ():
                    async for result in _rows(wanted, table, kit):
                        yield result
                opened = await (until_the_end if size in ends else now).enter_async_context(kit.open())
                for table in (_FIRST_SIZE, _OVER_FILES) if size == sizes[0] else (_OVER_FILES,):
                    async for result in _rows(wanted, table, kit, opened):
                        yield result
            if size in ends:
                kept[kit] = opened
            else:
                remove(kit.place)
        if ends:
            _say("depth")
            for result in await depth.run(kept, rounds=_rounds(wanted, "depth")):
                yield result


async def _rows(
    wanted: argparse.Namespace, table: Mapping[str, _Row], kit: MissionKit, *opened: Opened
) -> AsyncIterator[Result]:
    for name, row in table.items():
        if not wanted.names or name in wanted.names:
            _say(f"{kit.files:,} files: {name}")
            for result in await row(kit, *opened, rounds=_rounds(wanted, name)):
                yield result


async def _show(wanted: argparse.Namespace, place: Path) -> list[Result]:
    """Measure everything, and print each row of the table as soon as it is measured."""
    results = []
    async for result in _run(wanted, place):
        results.append(result)
        if not wanted.json and not wanted.smoke:
            print(report.rows(result), flush=True)
    return results


def _rounds(wanted: argparse.Namespace, name: str) -> int:
    if wanted.smoke:
        return 1
    factor: float = wanted.rounds
    return max(3, round(_ROUNDS[name] * factor))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    wanted = _arguments()
    place = Path(tempfile.mkdtemp(prefix="chargehand-benchmark-", dir=wanted.place))
    try:
        if wanted.smoke:
            asyncio.run(_show(wanted, place))
            return
        described = machine.describe(place)
        if not wanted.json:
            print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in described.items()))
            print(f"\n{report.HEAD}", flush=True)
        results = asyncio.run(_show(wanted, place))
    finally:
        remove(place)
    if wanted.json:
        print(json.dumps(report.document(described, results), indent=1))
    else:
        print(f"\n{report.notes(results)}")
        print(depth.summary(results))


if __name__ == "__main__":
    main()
