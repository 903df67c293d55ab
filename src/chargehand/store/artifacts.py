"""Large outputs as files named by their content."""

from __future__ import annotations

import hashlib
import re
import zlib
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from chargehand.core.clock import Clock
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.store.database.connection import Database, typed_errors
from chargehand.store.database.files import write_whole

_PACK_FROM = 4096  # bytes: one block of most file systems; packing less saves nothing
_LEVEL = 3
_PACKED = ".z"
_ID = re.compile(r"[0-9a-f]{64}")


class ArtifactRow(Struct, frozen=True):
    """Metadata of an artifact: `size` in bytes unpacked, `mission` "" if it belongs to no mission."""

    id: str
    mission: str
    kind: str
    size: int
    time: str


class Artifacts:
    """Stores content under `<home>/artifacts/ab/<sha256>`, with `.z` if packed (zlib); a `core.ArtifactSink`."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._directory = database.home / "artifacts"

    def put(self, content: bytes, *, kind: str, mission: str | None = None, durable: bool = False) -> str:
        """Store `content` and return its id, the hex SHA-256; equal content is stored once.

        `durable` returns only after it survives a power cut. Raises `StoreError`.
        """
        name = hashlib.sha256(content).hexdigest()
        plain, packed = self._paths(name)
        with typed_errors(self._database.home):
            # A durable one is written even if it exists: it is unknown whether that file has reached the disk.
            if durable or not self._holds(name, content):
                smaller = zlib.compress(content, _LEVEL) if len(content) >= _PACK_FROM else content
                if len(smaller) < len(content):
                    write_whole(packed, smaller, durable=durable)
                    plain.unlink(missing_ok=True)
                else:
                    write_whole(plain, content, durable=durable)
                    packed.unlink(missing_ok=True)
        # Noted after the file exists: a row without its content would be a loss, a file without a row is harmless.
        time = self._clock.now().isoformat(timespec="microseconds")
        row = ArtifactRow(name, mission or "", kind, len(content), time)
        with self._database.write(durable=durable) as connection:
            connection.execute("INSERT OR IGNORE INTO artifacts VALUES (?, ?, ?, ?, ?)", astuple(row))
        return name

    def get(self, id: str) -> bytes:
        """Return the content, identical to the stored one.

        Raises `NotFoundError` for an unknown id, `StoreError` (`artifact_corrupt`) if the content does not match
        the id.
        """
        content = self._read(id)
        if content is None:
            with self._database.read() as connection:
                noted = connection.execute("SELECT 1 FROM artifacts WHERE id = ?", (id,)).fetchone() is not None
            raise self._corrupt(id) if noted else NotFoundError(f"there is no artifact {id!r}")
        if hashlib.sha256(content).hexdigest() != id:
            raise self._corrupt(id)
        return content

    def is_intact(self, id: str) -> bool:
        """Return whether `get` returns the content: it exists and is unchanged."""
        try:
            self.get(id)
        except (NotFoundError, StoreError):
            return False
        return True

    def list(self, mission: str | None = None) -> tuple[ArtifactRow, ...]:
        """Return the artifacts of one mission, or all, oldest first. Raises `StoreError`."""
        where = "" if mission is None else " WHERE mission = :mission"
        query = f"SELECT id, mission, kind, size, time FROM artifacts{where} ORDER BY time, id"
        with self._database.read() as connection:
            return tuple(ArtifactRow(*row) for row in connection.execute(query, {"mission": mission}))

    def _paths(self, id: str) -> tuple[Path, Path]:
        plain = self._directory / id[:2] / id
        return plain, plain.with_name(id + _PACKED)

    def _holds(self, id: str, content: bytes) -> bool:
        # The whole content is compared: after a power cut a file can exist and be empty.
        try:
            return self._read(id) == content
        except StoreError:
            return False

    def _read(self, id: str) -> bytes | None:
        if not _ID.fullmatch(id):
            return None
        plain, packed = self._paths(id)
        with typed_errors(self._database.home):
            with suppress(FileNotFoundError):
                # After a crash between writing one form and removing the other both exist, with equal content.
                return plain.read_bytes()
            try:
                return zlib.decompress(packed.read_bytes())
            except FileNotFoundError:
                return None
            except zlib.error as error:
                raise self._corrupt(id) from error

    def _corrupt(self, id: str) -> StoreError:
        return StoreError(
            f"the content of artifact {id!r} is lost or changed",
            code="artifact_corrupt",
            hint="`chargehand store restore` restores a backup",
        )
