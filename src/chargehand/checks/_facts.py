"""What can be read of one change by itself: the part of inspection that reads content, and that is cached."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from chargehand.checks._dependency_files import Dependencies, dependencies_in
from chargehand.checks._reader import TreeReader, is_regular
from chargehand.checks._secrets import SEARCHED, blob_findings
from chargehand.checks._suite import Suite
from chargehand.checks._surface import Surface
from chargehand.checks._weakening import suites_of
from chargehand.core.records import Change, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one change says: `findings` of its content (paths left out), why it touches the check surface.

    `size` is that of the new content in bytes. Suites and dependencies are `None` where the file has none.
    """

    findings: tuple[Finding, ...] = ()
    surface: str | None = None
    size: int = 0
    old_suite: Suite | None = None
    new_suite: Suite | None = None
    old_dependencies: Dependencies | None = None
    new_dependencies: Dependencies | None = None


def read_facts(change: Change, reader: TreeReader, surface: Surface, *, large_bytes: int) -> Facts:
    """Read the content of one change. Raises what `reader` raises."""
    once = _ReadOnce(reader)
    old_suite, new_suite = suites_of(change, once)
    return Facts(
        # Without the path an entry can be encoded: a path need not be text.
        findings=tuple(replace(f, path="") for f in blob_findings(change, once, large_bytes=large_bytes)),
        surface=surface.reason(change, once),
        size=once.blob_size(change.new_id) if change.new_id and is_regular(change.new_mode) else 0,
        old_suite=old_suite,
        new_suite=new_suite,
        old_dependencies=dependencies_in(change.path, once, change.old_mode, change.old_id),
        new_dependencies=dependencies_in(change.path, once, change.new_mode, change.new_id),
    )


class _ReadOnce:
    """A `TreeReader` that reads each blob of one change once, however many rules look at it."""

    def __init__(self, reader: TreeReader) -> None:
        self.entries = reader.entries
        self.lookup = reader.lookup
        self._reader = reader
        self._blobs: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}

    def read_blob(self, id: str, /, *, limit: int | None = None) -> bytes:
        """Return the blob's content, at most `limit` bytes of it."""
        if limit is None or limit > SEARCHED:
            return self._reader.read_blob(id, limit=limit)
        if id not in self._blobs:
            self._blobs[id] = self._reader.read_blob(id, limit=SEARCHED)
        return self._blobs[id][:limit]

    def blob_size(self, id: str, /) -> int:
        """Return the blob's size in bytes."""
        if id not in self._sizes:
            self._sizes[id] = self._reader.blob_size(id)
        return self._sizes[id]
