"""Finds commits of a depot that can no longer be read completely."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from chargehand.core.errors import InfrastructureError, NotFoundError, RepositoryError
from chargehand.workspace.errors import GitError
from chargehand.workspace.host.git import private_git
from chargehand.workspace.tree.history import NOTES, PROVENANCE, NotesPlace, read_commit, read_note
from chargehand.workspace.tree.objects import EMPTY_TREE, ObjectReader


def find_damage(git_dir: Path, commits: Iterable[str]) -> dict[str, str]:
    """Return the commits that cannot be read completely, each with a description of the damage.

    Each commit, its tree and all files in it are checked against their ids; its ancestors are not. An object that
    many commits share is read once.
    """
    if not (git_dir / "objects").is_dir():
        return dict.fromkeys(commits, f"there is no depot in {str(git_dir)!r}")
    reader = ObjectReader(git_dir / "objects")
    sweep = _Sweep(reader)
    damaged = {}
    for commit in dict.fromkeys(commits):
        try:
            wrong = sweep.find(bytes.fromhex(read_commit(reader, commit).tree), is_tree=True)
        except (NotFoundError, InfrastructureError) as error:
            wrong = error.message
        except (ValueError, StopIteration):  # not an object id, or a commit without a tree
            wrong = f"{commit!r} is not a commit"
        if wrong is not None:
            damaged[commit] = wrong
    return damaged


class _Sweep:
    """The result for each object read so far, by raw id: the damage in words, or `None` if intact."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._known: dict[bytes, str | None] = {EMPTY_TREE: None}

    def find(self, id: bytes, *, is_tree: bool) -> str | None:
        """Return the damage of an object or, for a tree, of the first damaged entry in it; `None` if intact."""
        if id not in self._known:
            wrong = None
            try:
                if is_tree:
                    below = [entry for entry in self._reader.tree(id).values() if not entry.is_gitlink]
                    found = (self.find(entry.id, is_tree=entry.is_tree) for entry in below)
                    wrong = next((each for each in found if each is not None), None)
                else:
                    self._reader.blob(id)
            except (NotFoundError, InfrastructureError) as error:
                wrong = error.message
            self._known[id] = wrong
        return self._known[id]


def read_depot_note(git_dir: Path, commit: str, what: Literal["head", "provenance"]) -> tuple[bytes, str]:
    """Return the note of a promoted commit in a depot, and "" or the reason why it cannot be read."""
    ref = NOTES if what == "head" else PROVENANCE
    try:
        note = read_note(NotesPlace(private_git(git_dir), git_dir / "objects"), commit, ref)
    except (NotFoundError, InfrastructureError, RepositoryError, GitError) as error:
        return b"", error.message
    # Missions of versions before provenance have no such note.
    missing = "it is missing" if note is None and what == "head" else ""
    return note or b"", missing
