"""Tallies of benchmarks that the user counts as evidence for choices: one file for each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from chargehand.core.choices import BenchmarkTally
from chargehand.core.codec import unpack_as
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.store.database.connection import typed_errors
from chargehand.store.database.files import write_whole


class BenchEvidence:
    """Files in the state directory; they belong to this machine, also if the store is a shared database."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._place = home / "bench" / "evidence"
        self._known: tuple[object, tuple[BenchmarkTally, ...]] = (None, ())

    def write(self, run: str, tallies: Sequence[BenchmarkTally]) -> None:
        """Replace the tallies of a run; raises `StoreError`."""
        with typed_errors(self._home):
            write_whole(self._place / run, msgspec.msgpack.encode(tuple(tallies)), durable=True)

    def remove(self, run: str) -> None:
        """Remove the tallies of a run; raises `NotFoundError` without any, `StoreError`."""
        with typed_errors(self._home):
            known = [each.name for each in self._place.iterdir()] if self._place.is_dir() else []
            if run not in known:
                hint = f"known: {', '.join(sorted(known)) or 'none'}"
                raise NotFoundError(f"nothing is learned from a run {run!r}", hint=hint)
            (self._place / run).unlink(missing_ok=True)

    def read(self) -> tuple[BenchmarkTally, ...]:
        """Return all tallies in the order of the runs' names; the same object while no file has changed.

        Raises `StoreError`, with code `evidence_damaged` for a file that cannot be read.
        """
        if not self._place.is_dir():
            return ()
        with typed_errors(self._home):
            files = sorted(path for path in self._place.iterdir() if not path.name.startswith("."))
            stamp = [(path.name, (found := path.stat()).st_mtime_ns, found.st_ino) for path in files]
            if self._known[0] != stamp:
                self._known = (stamp, tuple(each for path in files for each in _read(path)))
        return self._known[1]


def _read(path: Path) -> tuple[BenchmarkTally, ...]:
    try:
        return unpack_as(path.read_bytes(), tuple[BenchmarkTally, ...])
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{path} is damaged: {error}",
            code="evidence_damaged",
            hint=f"`chargehand bench learn {path.name}` writes it again, with --forget it is removed",
        ) from error
