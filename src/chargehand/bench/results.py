"""Directories of runs: a header, an append-only file of results, and scratch state of unfinished trials.

The line of a result is written and synced once its trial is complete, and only then is the scratch state removed.
So a process that is killed at any moment leaves either the whole line or a trial to continue. A line that was cut
off is dropped when the run is opened for writing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from chargehand.bench.records import BenchResult, RunHeader
from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError, NotFoundError, RefusedError, StoreError, UsageError
from chargehand.workspace.errors import disk_errors
from chargehand.workspace.space import remove_tree

_HEADER, _RESULTS, _LOCK, _SCRATCH = "run.json", "results.jsonl", "lock", "t"
_T = TypeVar("_T")
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class RunDirectory:
    """The directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._append = threading.Lock()

    @property
    def header(self) -> RunHeader:
        """The header; raises `StoreError` (`bench_damaged`) if it cannot be read."""
        return _decode(self.path / _HEADER, (self.path / _HEADER).read_bytes(), RunHeader)

    def results(self) -> tuple[BenchResult, ...]:
        """Return the last result of each trial, in the order of problems and samples.

        Its cost includes that of earlier tries, which ended with an error. An incomplete last line is left out.
        Raises `StoreError` (`bench_damaged`) for any other unreadable line.
        """
        found: dict[tuple[str, int], BenchResult] = {}
        file = self.path / _RESULTS
        with contextlib.suppress(FileNotFoundError):
            for line in file.read_bytes().split(b"\n")[:-1]:
                result = _decode(file, line, BenchResult)
                if (earlier := found.get(result.key)) is not None:
                    spent, more = earlier.cost_usd, result.cost_usd
                    result = replace(result, cost_usd=None if spent is None or more is None else spent + more)
                found[result.key] = result
        order = {name: number for number, name in enumerate(self.header.problems)}
        return tuple(sorted(found.values(), key=lambda each: (order.get(each.problem, 0), each.sample)))

    def append(self, result: BenchResult) -> None:
        """Write a result to disk and sync it; on an error the file is as before. Raises `InfrastructureError`."""
        left = memoryview(msgspec.json.encode(result) + b"\n")
        with (
            disk_errors("writing a result"),
            self._append,
            open(self.path / _RESULTS, "ab", buffering=0) as file,
        ):
            size = file.seek(0, os.SEEK_END)
            try:
                while left:  # a full disk may take a part
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise

    def scratch(self, problem: str, sample: int) -> Path:
        """Return the directory of a trial's repository and state; short, since sockets are below it."""
        return self.path / _SCRATCH / f"{self.header.problems.index(problem)}-{sample}"

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the run for the block; drop an incomplete last line.

        Raises `RefusedError` (`bench_busy`) if another process works on it.
        """
        with open(self.path / _LOCK, "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(
                    f"another process works on the run {self.path.name!r}",
                    code="bench_busy",
                    hint="wait for its end",
                ) from None
            file = self.path / _RESULTS
            with contextlib.suppress(FileNotFoundError), open(file, "r+b") as results:
                content = results.read()
                results.truncate(content.rfind(b"\n") + 1)
            yield


def require_new(root: Path, name: str) -> None:
    """Raise `UsageError` for a name that no run can have, `RefusedError` (`bench_exists`) if a run has it."""
    if not _LABEL.fullmatch(name):
        hint = "lower-case letters, digits, '.', '_' and '-', at most 64"
        raise UsageError(f"{name!r} cannot name a run", hint=hint)
    if (root / name).exists():
        raise RefusedError(
            f"there is already a run {name!r}",
            code="bench_exists",
            hint=f"choose another name, or continue that run: chargehand bench resume {name}",
        )


def create_run(root: Path, header: RunHeader) -> RunDirectory:
    """Create the directory of a run below `root`; complete or absent after a crash. Raises as `require_new`."""
    require_new(root, header.id)
    place, partial = root / header.id, root / f".{header.id}.{os.getpid()}"
    partial.mkdir(parents=True, mode=0o700)
    with open(partial / _HEADER, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(header)))
        os.fsync(file.fileno())
    partial.rename(place)
    return RunDirectory(place)


def list_runs(root: Path) -> tuple[RunDirectory, ...]:
    """Return all runs below `root`, by name; some may be damaged."""
    found = sorted(path.parent for path in root.glob(f"*/{_HEADER}"))
    return tuple(RunDirectory(path) for path in found if _LABEL.fullmatch(path.name))


def find_run(root: Path, name: str) -> RunDirectory:
    """Return the run with this id; raise `NotFoundError`."""
    known = {each.path.name: each for each in list_runs(root)}
    if name not in known:
        raise NotFoundError(f"there is no run {name!r}", hint=f"known: {', '.join(known) or 'none'}")
    return known[name]


def remove_scratch(path: Path) -> None:
    """Remove a trial's directory, which may be missing; a rest that cannot be removed stays."""
    with contextlib.suppress(InfrastructureError):
        remove_tree(path)


def _decode(file: Path, content: bytes, kind: type[_T]) -> _T:
    try:
        return decode_as(content, kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreError(
            f"{file} is damaged: {error}",
            code="bench_damaged",
            hint="restore the file, or remove its directory: the run is then lost",
        ) from error
