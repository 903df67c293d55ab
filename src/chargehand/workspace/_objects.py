"""Writes git objects: a few as loose files, many as one pack, each file whole or absent.

The formats are git's own (gitformat-loose, gitformat-pack version 2 with its index version 2).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from chargehand.workspace._errors import disk_errors
from chargehand.workspace._files import write_all

ObjectKind = Literal["commit", "tree", "blob"]
_PACK_TYPE: dict[ObjectKind, int] = {"commit": 1, "tree": 2, "blob": 3}
_MAX_LOOSE = 32  # above this, two files of a pack are cheaper than a file per object
_MAX_BUFFER = 64 * 1024 * 1024
_LEVELS: dict[ObjectKind, int] = {"commit": 1, "tree": 0, "blob": 1}  # trees are mostly ids: nothing to gain


def object_id(kind: ObjectKind, content: bytes) -> bytes:
    """Return the raw id (20 bytes) of an object."""
    digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)), usedforsecurity=False)
    digest.update(content)
    return digest.digest()


class ObjectWriter:
    """Collects objects and writes them together when its `with` block ends well; nothing when it ends badly.

    `known` holds ids that need no writing; what was written is added to it. Raises `InfrastructureError`
    (`no_space`).
    """

    def __init__(self, objects: Path, *, known: set[bytes] | None = None) -> None:
        self._objects = objects
        self._known = known if known is not None else set()
        self._pending: dict[bytes, tuple[ObjectKind, bytes]] = {}
        self._buffered = 0

    def add(self, kind: ObjectKind, content: bytes) -> bytes:
        """Take one object; return its raw id."""
        return self.add_as(object_id(kind, content), kind, content)

    def add_as(self, id: bytes, kind: ObjectKind, content: bytes) -> bytes:
        """Take one object whose id the caller has computed already."""
        if id in self._known or id in self._pending:
            return id
        self._pending[id] = (kind, content)
        self._buffered += len(content)
        if self._buffered > _MAX_BUFFER:
            self.flush()
        return id

    def flush(self) -> None:
        """Write what was collected."""
        with disk_errors("writing objects into the depot"):
            if len(self._pending) > _MAX_LOOSE:
                _write_pack(self._objects / "pack", self._pending)
            else:
                for raw, (kind, content) in self._pending.items():
                    _write_loose(self._objects, raw, kind, content)
        self._known.update(self._pending)
        self._pending.clear()
        self._buffered = 0

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()


def _write_loose(objects: Path, id: bytes, kind: ObjectKind, content: bytes) -> None:
    name = id.hex()
    path = objects / name[:2] / name[2:]
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    header = b"%s %d\0" % (kind.encode(), len(content))
    _write_whole(path, zlib.compress(header + content, _LEVELS[kind]))


def _write_pack(directory: Path, objects: dict[bytes, tuple[ObjectKind, bytes]]) -> None:
    parts = [b"PACK" + struct.pack(">II", 2, len(objects))]
    offset = len(parts[0])
    offsets: dict[bytes, int] = {}
    checks: dict[bytes, int] = {}
    for raw, (kind, content) in objects.items():
        entry = _entry_header(kind, len(content)) + zlib.compress(content, _LEVELS[kind])
        offsets[raw], checks[raw] = offset, zlib.crc32(entry)
        parts.append(entry)
        offset += len(entry)
    body = b"".join(parts)
    trailer = hashlib.sha1(body, usedforsecurity=False).digest()
    ids = sorted(objects)
    name = hashlib.sha1(b"".join(ids), usedforsecurity=False).hexdigest()
    directory.mkdir(exist_ok=True)
    _write_whole(directory / f"pack-{name}.pack", body + trailer)
    # The index makes the pack visible, so it comes last.
    _write_whole(directory / f"pack-{name}.idx", _index(ids, offsets, checks, trailer))


def _entry_header(kind: ObjectKind, size: int) -> bytes:
    first = (_PACK_TYPE[kind] << 4) | (size & 15)
    size >>= 4
    out = bytearray()
    while size:
        out.append(first | 0x80)
        first = size & 0x7F
        size >>= 7
    out.append(first)
    return bytes(out)


def _index(ids: list[bytes], offsets: dict[bytes, int], checks: dict[bytes, int], trailer: bytes) -> bytes:
    counts = [0] * 256
    for raw in ids:
        counts[raw[0]] += 1
    fanout, total = [], 0
    for count in counts:
        total += count
        fanout.append(total)
    body = b"".join(
        (
            b"\xfftOc" + struct.pack(">I", 2),
            struct.pack(">256I", *fanout),
            *ids,
            struct.pack(f">{len(ids)}I", *(checks[raw] for raw in ids)),
            struct.pack(f">{len(ids)}I", *(offsets[raw] for raw in ids)),
            trailer,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _write_whole(path: Path, content: bytes) -> None:
    fresh = path.parent / f"tmp_obj_{secrets.token_hex(8)}"  # git's own gc knows files of this name as litter
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            write_all(fd, content)
        finally:
            os.close(fd)
        os.replace(fresh, path)
    except BaseException:
        with suppress(FileNotFoundError):
            fresh.unlink()
        raise
