"""Files that are computed from the log and only save time: any of them may be missing at any time."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from chargehand.store.database.files import write_whole

_SEAL = 32


class DerivedFiles:
    """Files in a directory of the state directory, each with its checksum; reading and writing never fail.

    They may repeat payloads, so erasing removes all of them.
    """

    def __init__(self, home: Path, *, read_only: bool) -> None:
        self._place = home / "derived"
        self._read_only = read_only

    def read(self, name: str) -> bytes | None:
        """Return the content that was written last, `None` if it is missing, damaged or not readable."""
        try:
            found = (self._place / name).read_bytes()
        except OSError:
            return None
        content = memoryview(found)[_SEAL:]
        return bytes(content) if hashlib.sha256(content).digest() == found[:_SEAL] else None

    def write(self, name: str, content: bytes) -> None:
        """Replace the content atomically; on a full or read-only disk the old content stays."""
        if not self._read_only:
            with suppress(OSError):
                write_whole(self._place / name, hashlib.sha256(content).digest() + content, durable=False)

    def remove(self, name: str) -> None:
        """Remove one file; raises `OSError` if it cannot be removed."""
        if not self._read_only:
            (self._place / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all files, unfinished ones too; raises `OSError` if one stays."""
        for path in [*self._place.iterdir()] if self._place.is_dir() else []:
            path.unlink(missing_ok=True)
