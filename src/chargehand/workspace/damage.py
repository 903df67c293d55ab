"""Which commits of a depot can no longer be read whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from chargehand.core.errors import InfrastructureError, NotFoundError
from chargehand.workspace.tree.history import read_commit
from chargehand.workspace.tree.objects import EMPTY_TREE, ObjectReader


def find_damage(git_dir: Path, commits: Iterable[str]) -> dict[str, str]:
    """Return the commits that cannot be read whole, each with what is wrong, in words.

    Looked at is each commit with its tree and all files in it, against their ids; not what came before it. An
    object that many commits share is read once.
    """
    if not (git_dir / "objects").is_dir():
        return dict.fromkeys(commits, f"there is no depot in {str(git_dir)!r}")
    reader, found = ObjectReader(git_dir / "objects"), _Sweep()
    damaged = {}
    for commit in dict.fromkeys(commits):
        try:
            wrong = found.tree(reader, bytes.fromhex(read_commit(reader, commit).tree))
        except (NotFoundError, InfrastructureError) as error:
            wrong = error.message
        except (ValueError, StopIteration):  # no id of an object, or a commit without a tree
            wrong = f"{commit!r} is not a commit"
        if wrong is not None:
            damaged[commit] = wrong
    return damaged


class _Sweep:
    """What is known of the objects that were read, by their raw ids: `None` for one that is whole."""

    def __init__(self) -> None:
        self._known: dict[bytes, str | None] = {EMPTY_TREE: None}

    def tree(self, reader: ObjectReader, id: bytes) -> str | None:
        if id not in self._known:
            self._known[id] = self._look(reader, id)
        return self._known[id]

    def _look(self, reader: ObjectReader, id: bytes) -> str | None:
        try:
            for entry in reader.tree(id).values():
                if entry.is_gitlink:
                    continue
                wrong = self.tree(reader, entry.id) if entry.is_tree else self._file(reader, entry.id)
                if wrong is not None:
                    return wrong
        except (NotFoundError, InfrastructureError) as error:
            return error.message
        return None

    def _file(self, reader: ObjectReader, id: bytes) -> str | None:
        if id not in self._known:
            self._known[id] = None
            try:
                reader.blob(id)
            except (NotFoundError, InfrastructureError) as error:
                self._known[id] = error.message
        return self._known[id]
