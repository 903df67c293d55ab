"""Snapshots: bare copies of one commit of other people's repositories, to be read only. Nothing is checked out."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from chargehand.core.errors import RepositoryError
from chargehand.core.text import printable
from chargehand.workspace.depot import Depot, PathEntry
from chargehand.workspace.errors import disk_errors
from chargehand.workspace.host.files import hold_lock, remove_tree, tree_bytes
from chargehand.workspace.host.git import private_git
from chargehand.workspace.remotes import Remote, snapshot_command
from chargehand.workspace.repository import Repository, find_repository
from chargehand.workspace.tree.objects import check_depth

_REF = "refs/chargehand/snapshot"
_SECONDS = 1800.0
# A hostile tree can name one directory so often that it seems to have billions of files.
_MOST_FILES = 500_000
_OLD_SECONDS = 86_400.0


class RepositorySnapshot(Depot):
    """The snapshot in the directory `root`; its commit changes with `fetch` only."""

    def __init__(self, root: Path) -> None:
        git_dir = root / "depot.git"
        bare = Repository(path=git_dir, git_dir=git_dir, common_dir=git_dir, bare=True, branch=None)
        super().__init__(root, repository=bare)

    @property
    def head(self) -> str:
        """The commit that was fetched last. Raises `RepositoryError` (`snapshot_damaged`)."""
        commit = self.read_ref(_REF)
        if commit is None:
            raise RepositoryError(
                f"{str(self.path)!r} has no commit", code="snapshot_damaged", hint="remove it and add it again"
            )
        return commit

    @property
    def size(self) -> int:
        """The bytes that the directory takes on disk, with an index beside the repository."""
        return tree_bytes(self.root)[1]

    def entries(self, tree: str, prefix: str = "", *, most: int | None = None) -> tuple[PathEntry, ...]:
        """Return all entries as `Depot` does. Raises `RepositoryError` (`base_tree`): too deep, or too many."""
        check_depth(self.reader, bytes.fromhex(tree))
        found = super().entries(tree, prefix, most=_MOST_FILES + 1 if most is None else most)
        if len(found) > _MOST_FILES:
            raise RepositoryError(
                f"the repository has more than {_MOST_FILES} files",
                code="base_tree",
                hint="use a smaller repository",
            )
        return found

    def list_directory(self, tree: str, directory: str) -> dict[str, PathEntry]:
        """Return the entries of one directory ("" is the top) by name, empty if it is not a directory."""
        start: bytes | None = bytes.fromhex(tree)
        if directory:
            found = self.reader.find(bytes.fromhex(tree), os.fsencode(directory))
            start = found.id if found is not None and found.is_tree else None
        rows = self.reader.tree(start).items()
        return {
            os.fsdecode(name): PathEntry(path=os.fsdecode(name), mode=e.mode, id=e.id.hex()) for name, e in rows
        }

    def fetch(self, source: Remote) -> str:
        """Fetch HEAD of the source and return its commit; a rewritten history replaces the old one.

        Raises `RepositoryError` (`source_failed`); the snapshot is then unchanged.
        """
        command = snapshot_command(self.git, _check_owner(source), _REF)
        try:
            done = command.run(seconds=_SECONDS)
        except subprocess.TimeoutExpired:
            raise _source_error(source, f"git did not end in {_SECONDS:.0f} s") from None
        if done.returncode:
            lines = printable(done.stderr.decode(errors="replace")).splitlines()
            said = [line.strip() for line in lines if line.startswith(("fatal:", "error:", "remote:", "ERROR:"))]
            raise _source_error(source, "; ".join(said[:3]) or f"git ended with {done.returncode}")
        return self.head

    def prune(self) -> None:
        """Remove the objects of earlier commits."""
        self.git("gc", "--quiet", "--prune=now")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process changes the snapshot, and hold it."""
        # Not inside the directory, which may be removed by then.
        with hold_lock(self.root.parent / ".locks" / f"{self.root.name}.lock"):
            yield

    def remove(self) -> None:
        """Remove the directory; others see it whole or not at all."""
        gone = Path(tempfile.mkdtemp(prefix=".gone-", dir=self.root.parent))
        self.root.rename(gone / "snapshot")
        remove_tree(gone)


def create_snapshot(place: Path, source: Remote, *, files: Mapping[str, bytes]) -> RepositorySnapshot | None:
    """Make the snapshot of a repository in the directory `place`; return `None` if something is there already.

    `files` are written next to it, by name, before others see it.
    An interrupted call leaves only a hidden directory, which a later one removes.
    Raises `RepositoryError` (`source_failed`, `base_tree`, `not_a_repository` and others of `find_repository`).
    """
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for left in (*place.parent.glob(".new-*"), *place.parent.glob(".gone-*")):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _OLD_SECONDS:
                remove_tree(left)
    with disk_errors("making the snapshot"), tempfile.TemporaryDirectory(prefix=".new-", dir=place.parent) as made:
        fresh = Path(made) / "snapshot"
        git_dir = fresh / "depot.git"
        fresh.mkdir()
        private_git(git_dir)("init", "--quiet", "--bare", "--template=")
        first = RepositorySnapshot(fresh)
        first.entries(first.tree_of(first.fetch(source)))  # refuses a tree that could never be indexed
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        try:
            fresh.rename(place)
        except OSError:  # a directory with files is never replaced: another process was first
            if not place.exists():
                raise
            shutil.rmtree(fresh, ignore_errors=True)
            return None
    return RepositorySnapshot(place)


def _check_owner(source: Remote) -> Remote:
    if source.protocol != "file":
        return source
    # Its owner is checked: git would start programs that another user's configuration names.
    found = find_repository(Path(source.url))
    return Remote(name=source.name, url=str(found.git_dir), protocol="file")


def _source_error(source: Remote, reason: str) -> RepositoryError:
    return RepositoryError(
        f"cannot fetch {source.shown_url}: {reason}",
        code="source_failed",
        hint="check the address and your access to it; if the repository has a new address, add that one",
    )
