"""The cache of inspection facts: keyed by all their inputs, with entries that are verified before use."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from chargehand.checks._facts import Facts
from chargehand.checks.areas import Areas
from chargehand.checks.surface.rules import Surface
from chargehand.checks.trees import TreeReader
from chargehand.core.codec import unpack_as
from chargehand.core.records import Change

# Bytes of an entry's checksum: it detects damage and swapped entries, not forgery (no agent can write the cache).
_SEAL = 16
_LARGEST_ENTRY = 256 * 1024


class InspectionCache(Protocol):
    """Stores entries by key. It may lose any of them at any time; the reader verifies each returned entry."""

    def get(self, keys: Collection[str], /) -> Mapping[str, bytes]:
        """Return the known entries."""
        ...

    def put(self, entries: Mapping[str, bytes], /) -> None:
        """Store entries, replacing earlier ones."""
        ...


class MemoryCache:
    """An `InspectionCache` in memory that evicts the least recently used entries; thread-safe."""

    def __init__(self, *, entries: int = 20_000) -> None:
        self._most = entries
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, keys: Collection[str], /) -> Mapping[str, bytes]:
        """Return the known entries."""
        with self._lock:
            found = {key: self._entries[key] for key in keys if key in self._entries}
            for key in found:
                self._entries.move_to_end(key)
            return found

    def put(self, entries: Mapping[str, bytes], /) -> None:
        """Store entries, replacing earlier ones."""
        with self._lock:
            for key, entry in entries.items():
                self._entries[key] = entry
                self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)


class LayeredCache:
    """A near `InspectionCache` before a far one: entries found in the far one are copied to the near one."""

    def __init__(self, near: InspectionCache, far: InspectionCache) -> None:
        self._near = near
        self._far = far

    def get(self, keys: Collection[str], /) -> Mapping[str, bytes]:
        """Return the entries known to either."""
        near = self._near.get(keys)
        missing = [key for key in keys if key not in near]
        far = self._far.get(missing) if missing else {}
        self._near.put(far)
        return {**near, **far}

    def put(self, entries: Mapping[str, bytes], /) -> None:
        """Store entries in both."""
        self._near.put(entries)
        self._far.put(entries)


def plan_version(areas: Areas, reader: TreeReader, base_tree: str) -> str:
    """Return a digest of the facts' inputs other than the change: rules, Python, base, parts of the areas."""
    # `ast` parses the same source differently in different versions of Python.
    parts = [
        rules_digest(Path(__file__).parent),
        list(sys.version_info[:2]),
        list(areas.commands),
        areas.large_bytes,
        Surface(areas, reader, base_tree).digest,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def key_of(change: Change, *, plan: str) -> str:
    """Return the cache key of a change's facts under a plan version."""
    modes, ids = [change.old_mode, change.new_mode], [change.old_id, change.new_id]
    parts = [plan, change.path, change.kind, *modes, *ids]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def sealed(key: str, facts: Facts) -> bytes | None:
    """Return facts as a cache entry, `None` if they are too large or cannot be encoded."""
    try:
        body = msgspec.msgpack.encode(facts)
    except (UnicodeEncodeError, OverflowError):
        return None
    return _seal(key, body) + body if len(body) <= _LARGEST_ENTRY else None


def unsealed(key: str, entry: bytes) -> Facts | None:
    """Return the facts of an entry; `None` if it is damaged, or was made for another key."""
    body = entry[_SEAL:]
    if entry[:_SEAL] != _seal(key, body):
        return None
    try:
        return unpack_as(body, Facts)
    except msgspec.MsgspecError:
        return None


def _seal(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + body).digest()[:_SEAL]


@cache
def rules_digest(package: Path) -> str:
    """Return a digest of a package's source at any depth: people forget to raise a version number."""
    digest = hashlib.sha256()
    try:
        for path in sorted(package.rglob("*.py")):
            source = path.read_bytes()
            digest.update(f"{path.relative_to(package)} {len(source)}\n".encode() + source)
    except OSError:
        return secrets.token_hex(16)  # without the source nothing is reused beyond this process
    return digest.hexdigest()
