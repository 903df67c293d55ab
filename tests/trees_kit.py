"""Trees of a depot created directly from a description, without a workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping

from chargehand.workspace.depot import Depot
from chargehand.workspace.tree.objects import (
    EXECUTABLE,
    FILE,
    GITLINK,
    LINK,
    ObjectWriter,
    TreeEntry,
    edit_tree,
    write_tree,
)

File = tuple[int, bytes]
__all__ = ["EXECUTABLE", "FILE", "GITLINK", "LINK", "File", "files_of", "make_commit", "make_tree"]


def make_tree(depot: Depot, files: Mapping[str, bytes | File]) -> str:
    """Write a tree of these files; a submodule's content is its commit's raw id."""
    with ObjectWriter(depot.reader.objects) as writer:
        edits = []
        for path, given in files.items():
            mode, content = given if isinstance(given, tuple) else (FILE, given)
            blob = content if mode == GITLINK else writer.add("blob", content)
            edits.append((os.fsencode(path), TreeEntry(mode, blob)))
        empty = write_tree(writer, {})
        return edit_tree(depot.reader, writer, empty, edits).hex()


def files_of(depot: Depot, tree: str) -> dict[str, File]:
    """Return the files of a tree."""
    return {e.path: (e.mode, depot.read_blob(e.id)) for e in depot.entries(tree)}


def make_commit(depot: Depot, files: Mapping[str, bytes | File], *parents: str) -> str:
    """Write a commit of these files."""
    return depot.commit(make_tree(depot, files), parents, "made")
