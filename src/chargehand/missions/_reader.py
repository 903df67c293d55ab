"""The depot as `checks` reads trees."""

from __future__ import annotations

from collections.abc import Iterator

from chargehand.workspace.depot import Depot


class DepotReader:
    """Shows the trees of a depot as (path, mode, id); satisfies `checks.TreeReader`."""

    def __init__(self, depot: Depot) -> None:
        self._depot = depot

    def entries(self, tree: str, /) -> Iterator[tuple[str, int, str]]:
        """Yield all files and links of a tree."""
        for entry in self._depot.entries(tree):
            yield entry.path, entry.mode, entry.id

    def lookup(self, tree: str, path: str, /) -> tuple[int, str] | None:
        """Return mode and id of what a tree has at `path`."""
        entry = self._depot.lookup(tree, path)
        return None if entry is None else (entry.mode, entry.id)

    def read_blob(self, id: str, /, limit: int | None = None) -> bytes:
        """Return a blob's content, at most `limit` bytes of it."""
        return self._depot.read_blob(id, limit=limit)

    def blob_size(self, id: str, /) -> int:
        """Return a blob's size in bytes."""
        return self._depot.blob_size(id)
