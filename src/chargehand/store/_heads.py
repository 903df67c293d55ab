"""The last durable line of each mission, kept beside the database so that a cut tail shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chargehand.store._files import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A line that was on the disk: its place and its hash."""

    seq: int
    hash: str


class Heads:
    """One small file per mission in `<home>/heads`.

    Written only after a durable append, never before: a head that is ahead of the log means loss, so after a
    power cut it must not be.
    """

    def __init__(self, home: Path) -> None:
        self.directory = home / "heads"

    def put(self, mission: str, *, head: Head) -> None:
        """Keep a head. Raises `OSError`."""
        write_whole(self.directory / mission, f"{head.seq} {head.hash}\n".encode(), durable=True)

    def get(self, mission: str) -> Head | None:
        """Return the kept head; `None` where there is none. Raises `ValueError` for a file that is not a head."""
        try:
            text = (self.directory / mission).read_bytes().decode()
        except FileNotFoundError:
            return None
        seq, digest = text.split()
        return Head(seq=int(seq), hash=digest)

    def missions(self) -> frozenset[str]:
        """Return the ids of the missions with a kept head."""
        if not self.directory.is_dir():
            return frozenset()
        return frozenset(path.name for path in self.directory.iterdir() if not path.name.startswith(".tmp-"))
