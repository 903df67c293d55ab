"""The heads of each mission, kept beside the database so that a cut tail shows: the last one, and signed ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from chargehand.store._files import sync_directory, write_whole

_SIGNED = re.compile(r"(?P<mission>[a-z0-9][a-z0-9-]{0,63})\.(?P<seq>[1-9][0-9]{0,17})\.signed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A line that was on the disk: its place and its hash."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedFile:
    """A file that should hold a signed head: the place that its name tells, and what is in it."""

    mission: str
    seq: int
    content: bytes


class Heads:
    """Files in `<home>/heads`: `<mission>` for its last durable head, `<mission>.<seq>.signed` for signed ones.

    Written only after a durable append, never before: a head that is ahead of the log means loss, so after a
    power cut it must not be. A signed head has a file of its own: it is there whole or not at all, no write can
    tear another one, and it is never written again.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
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

    def put_signed(self, mission: str, seq: int, *, content: bytes) -> None:
        """Keep a signed head, on the disk when this returns. Raises `OSError`."""
        write_whole(self.directory / f"{mission}.{seq}.signed", content, durable=True)
        sync_directory(self.home)

    def get_signed(self, mission: str, seq: int) -> bytes | None:
        """Return the signed head of one line; `None` where there is none. Raises `OSError`."""
        try:
            return (self.directory / f"{mission}.{seq}.signed").read_bytes()
        except FileNotFoundError:
            return None

    def unsigned(self) -> frozenset[str]:
        """Return the ids of the missions with a kept head of their last durable line."""
        return frozenset(name for name in self._names() if not _SIGNED.fullmatch(name))

    def signed(self, mission: str | None = None) -> tuple[SignedFile, ...]:
        """Return the files of signed heads, of one mission or of all, by mission and place. Raises `OSError`."""
        files = []
        for name in self._names():
            match = _SIGNED.fullmatch(name)
            if match and mission in (None, match["mission"]):
                content = (self.directory / name).read_bytes()
                files.append(SignedFile(mission=match["mission"], seq=int(match["seq"]), content=content))
        return tuple(sorted(files, key=lambda file: (file.mission, file.seq)))

    def missions(self) -> frozenset[str]:
        """Return the ids of the missions with a head of either kind."""
        matches = map(_SIGNED.fullmatch, self._names())
        return self.unsigned() | {match["mission"] for match in matches if match}

    def _names(self) -> list[str]:
        if not self.directory.is_dir():
            return []
        return [path.name for path in self.directory.iterdir() if not path.name.startswith(".tmp-")]
