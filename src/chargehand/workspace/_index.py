"""Writes a git index (version 2, with the cached-tree extension) without reading the files it describes.

Stat data are what `core.checkStat=minimal` compares: the whole seconds of mtime and the size.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

from chargehand.workspace._trees import LINK, ObjectReader

_HEAD = struct.Struct(">10I20sH")
_KINDS = 0o170000


class IndexEntry(NamedTuple):
    """One file of the index: path, git's mode, size in bytes, raw blob id."""

    path: bytes
    mode: int
    size: int
    id: bytes


@dataclass(slots=True)
class _Counted:
    files: int
    text: bytes


def encode_index(entries: list[IndexEntry], *, mtime: int, reader: ObjectReader, tree: bytes) -> bytes:
    """Return the index that holds `entries` (in git's order) with one mtime in seconds; they are `tree`'s."""
    parts = [b"DIRC" + struct.pack(">II", 2, len(entries))]
    parts += [_encode(entry, mtime) for entry in entries]
    extension = _cached(reader, tree, b"").text
    parts.append(b"TREE" + struct.pack(">I", len(extension)) + extension)
    body = b"".join(parts)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _encode(entry: IndexEntry, mtime: int) -> bytes:
    path = entry.path
    head = _HEAD.pack(
        0, 0, mtime, 0, 0, 0, _canonical(entry.mode), 0, 0, entry.size, entry.id, min(len(path), 0xFFF)
    )
    return head + path + b"\0" * (8 - (len(head) + len(path)) % 8)


def _canonical(mode: int) -> int:
    if mode & _KINDS == 0o100000:
        return 0o100755 if mode & 0o100 else 0o100644
    return mode if mode & _KINDS != LINK else LINK


def _cached(reader: ObjectReader, tree: bytes, name: bytes) -> _Counted:
    files, subtrees, below = 0, 0, []
    for child, entry in reader.tree(tree).items():
        if entry.is_tree:
            counted = _cached(reader, entry.id, child)
            subtrees += 1
            files += counted.files
            below.append(counted.text)
        else:
            files += 1
    head = b"%s\0%d %d\n%s" % (name, files, subtrees, tree)
    return _Counted(files, head + b"".join(below))
