"""`benchmarks/run [NAME…] [--files N,N…] [--json]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from benchmarks import (
    checkpoint,
    command,
    egress,
    engine,
    gateway,
    inspection,
    isolate,
    machine,
    mission,
    promotion,
    ready,
    report,
    scale,
    startup,
    workers,
)
from benchmarks.measure import Result
from benchmarks.shop import Shop, remove

_OVER_FILES: dict[str, Callable[..., Awaitable[list[Result]]]] = {
    "ready": ready.run,
    "checkpoint": checkpoint.run,
    "promotion": promotion.run,
    "inspection": inspection.run,
    "scale": scale.run,
    "mission": mission.run,
}
_ONCE: dict[str, Callable[..., Awaitable[list[Result]]]] = {
    "startup": startup.run,
    "engine": engine.run,
    "workers": workers.run,
    "gateway": gateway.run,
    "egress": egress.run,
    "isolate": isolate.run,
}
_NAMES = (*_ONCE, "command", *_OVER_FILES)
_ROUNDS = {
    "startup": 15,
    "engine": 5,
    "workers": 5,
    "gateway": 20,
    "egress": 20,
    "isolate": 10,
    "command": 40,
    "ready": 15,
    "checkpoint": 15,
    "promotion": 15,
    "inspection": 15,
    "scale": 5,
    "mission": 12,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_NAMES)} (default: all)")
    parser.add_argument("--files", default="1000,20000,90000", help="sizes of the repositories")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=float, default=1.0, help="multiplies the number of rounds")
    parser.add_argument("--place", type=Path, help="directory for temporary files (default: the system's)")
    wanted = parser.parse_args()
    unknown = set(wanted.names) - set(_NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)}")
    return wanted


async def _run(wanted: argparse.Namespace, place: Path) -> AsyncIterator[Result]:
    names = wanted.names or _NAMES
    sizes = [int(size) for size in wanted.files.split(",")]
    for size in sizes:
        _say(f"{size:,} files: making the repository")
        shop = Shop.make(place / str(size), files=size)
        for name in (name for name in _ONCE if name in names and size == sizes[0]):
            _say(name)
            for result in await _ONCE[name](shop, rounds=_rounds(wanted, name)):
                yield result
        async with shop.open() as opened:
            if size == sizes[0] and "command" in names:
                for result in await command.run(shop, opened, rounds=_rounds(wanted, "command")):
                    yield result
            for name in (name for name in _OVER_FILES if name in names):
                _say(f"{size:,} files: {name}")
                for result in await _OVER_FILES[name](shop, opened, rounds=_rounds(wanted, name)):
                    yield result
        remove(shop.place)


async def _show(wanted: argparse.Namespace, place: Path) -> list[Result]:
    """Measure everything; each row of the table is shown when it is there."""
    results = []
    async for result in _run(wanted, place):
        results.append(result)
        if not wanted.json:
            print(report.rows(result), flush=True)
    return results


def _rounds(wanted: argparse.Namespace, name: str) -> int:
    factor: float = wanted.rounds
    return max(3, round(_ROUNDS[name] * factor))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    """Measure and print."""
    wanted = _arguments()
    place = Path(tempfile.mkdtemp(prefix="chargehand-benchmark-", dir=wanted.place))
    try:
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


if __name__ == "__main__":
    main()
