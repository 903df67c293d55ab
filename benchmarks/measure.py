"""Takes samples of several sides in turn, so that a drifting machine affects all of them alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

Sample = Callable[[], Awaitable[float]]
"""Prepares, does the work once, cleans up; returns the seconds of the work alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way of doing the work; `repeat` samples are taken in each round (fewer for slow work).

    After `most` rounds it is left out, for work that takes minutes to clean up.
    """

    name: str
    sample: Sample
    repeat: int = 1
    most: int | None = None


@dataclass(slots=True, kw_only=True)
class Taken:
    """The samples of one side in seconds, round by round."""

    name: str
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def samples(self) -> list[float]:
        """All samples."""
        return [sample for samples in self.rounds for sample in samples]

    @property
    def median(self) -> float:
        """The median of all samples, in seconds."""
        return statistics.median(self.samples)

    @property
    def minimum(self) -> float:
        """The smallest sample, in seconds."""
        return min(self.samples)

    def ratio(self, other: Taken) -> float:
        """Return how many times as long as `other` this takes: the median of the ratios of all rounds."""
        pairs = zip(self.rounds, other.rounds, strict=False)  # the shorter of the two, see `Side.most`
        return statistics.median(statistics.median(mine) / statistics.median(its) for mine, its in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One comparison: the product first, then its peers; `aim` in seconds, `load` at its end."""

    benchmark: str
    case: str
    sides: tuple[Taken, ...]
    files: int | None = None
    aim: float | None = None
    load: tuple[float, float, float]
    note: str = ""


async def compare(
    benchmark: str,
    case: str,
    sides: Sequence[Side],
    *,
    rounds: int,
    seconds: float = 60.0,
    files: int | None = None,
    aim: float | None = None,
    note: str = "",
) -> Result:
    """Take `rounds` rounds (fewer, but at least 3, once `seconds` are over), each side in turn: A B A B.

    One sample of each side is taken first and discarded, except for sides with a `most` and for a single round.
    """
    for side in sides:
        if side.most is None and rounds > 1:
            await side.sample()
    taken = [Taken(name=side.name) for side in sides]
    started = time.monotonic()
    for number in range(rounds):
        if number >= 3 and time.monotonic() - started > seconds:
            break
        for side, record in zip(sides, taken, strict=True):
            if side.most is None or number < side.most:
                record.rounds.append([await side.sample() for _ in range(side.repeat if rounds > 1 else 1)])
    return Result(
        benchmark=benchmark,
        case=case,
        sides=tuple(taken),
        files=files,
        aim=aim,
        load=os.getloadavg(),
        note=note,
    )


def percentile_95(samples: Sequence[float]) -> float:
    """Return the value that 95 of 100 samples do not exceed; of a single sample, this one."""
    return statistics.quantiles(samples, n=20)[-1] if len(samples) > 1 else samples[0]


@contextmanager
def timed() -> Iterator[list[float]]:
    """Append the seconds that the block takes to the yielded list."""
    seconds: list[float] = []
    started = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - started)


def settle() -> None:
    """Flush written data to disk, so that no side pays for the writes of another."""
    os.sync()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The cost of one whole process in seconds: wall time, and processor time including its children."""

    wall: float
    cpu: float


def spend(argv: Sequence[str], *, cwd: Path | None = None, environment: dict[str, str] | None = None) -> Spent:
    """Run a program to its end, quietly; raises `RuntimeError` with its output if it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(
        argv, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{list(argv)!r} ended with {process.returncode}: {output.decode(errors='replace')}")
    return Spent(wall=wall, cpu=usage.ru_utime + usage.ru_stime)
