"""The identity of a repository: its root commits, its git directory, and that directory's inode."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError
from chargehand.workspace.host.files import replace_file
from chargehand.workspace.repository import Repository

# The depot's refs to the commits on which missions started.
BASES = "refs/chargehand/bases/"
IDENTITY = "identity.json"
# Limit of root commits kept: a repository has more only if many histories were merged into it.
_MOST_ROOTS = 100
_MOST_WORKTREES = 100


class RepositoryIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identifying properties of a repository, as of its last use.

    `roots` are its root commits, sorted (for a shallow clone the commits at which its history ends); `common_dir`
    is its git directory, shared by all its worktrees, and `inode` that directory's inode; `worktrees` are the
    directories that were worked in, the latest first. Paths are hexadecimal, because a path need not be valid
    text.
    """

    roots: tuple[str, ...]
    common_dir: str
    inode: int
    worktrees: tuple[str, ...] = ()

    @property
    def place(self) -> Path:
        """The git directory."""
        return _path(self.common_dir)

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories in which the repository may be found, the latest first."""
        return (*map(_path, self.worktrees), self.place.parent, self.place)

    def is_here(self) -> bool:
        """Return whether the git directory is still at the remembered path, compared by inode."""
        try:
            return self.place.stat().st_ino == self.inode
        except OSError:
            return False

    def shares_history(self, repository: Repository) -> bool:
        """Return whether a repository has one of the root commits; a deepened shallow clone keeps its old ones."""
        return any(_has_commit(repository, root) for root in self.roots)

    def seen_at(self, repository: Repository) -> RepositoryIdentity:
        """Return the identity updated with the current location of the repository."""
        here, common_dir, inode = _hex(repository.path), _hex(repository.common_dir), inode_of(repository)
        if here in self.worktrees and (common_dir, inode) == (self.common_dir, self.inode):
            return self
        kept = (here, *(each for each in self.worktrees if each != here))[:_MOST_WORKTREES]
        return msgspec.structs.replace(self, common_dir=common_dir, inode=inode, worktrees=kept)


def identify(repository: Repository) -> RepositoryIdentity:
    """Return the identity of a repository; call it once, since it reads the whole history."""
    return RepositoryIdentity(
        roots=find_roots(repository),
        common_dir=_hex(repository.common_dir),
        inode=inode_of(repository),
        worktrees=(_hex(repository.path),),
    )


def find_roots(repository: Repository) -> tuple[str, ...]:
    """Return the root commits of HEAD and all branches, sorted."""
    found = repository.git.run("rev-list", "--max-parents=0", "HEAD", "--branches")
    lines: Sequence[str] = found.lines
    if found.code:  # HEAD is on a branch without commits, or a commit is missing
        lines = repository.git.run("rev-list", "--max-parents=0", "--branches").lines
    return tuple(sorted(lines))[:_MOST_ROOTS]


def inode_of(repository: Repository) -> int:
    """Return the inode of the git directory."""
    return repository.common_dir.stat().st_ino


def load_identity(root: Path) -> RepositoryIdentity | None:
    """Return the identity stored in a project's directory; `None` for a project made by an older version."""
    try:
        return decode_as((root / IDENTITY).read_bytes(), RepositoryIdentity)
    except (OSError, msgspec.MsgspecError):
        return None


def save_identity(root: Path, identity: RepositoryIdentity) -> None:
    """Store the identity of a project's repository; raises `InfrastructureError`."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        replace_file(root / IDENTITY, msgspec.json.encode(identity))
    except OSError as error:
        message = f"cannot write {str(root / IDENTITY)!r}: {error.strerror}"
        raise InfrastructureError(message, code="no_space") from error


def holds_base(root: Path, repository: Repository) -> bool | None:
    """Return whether a repository has a commit on which a project's missions started, `None` if none is known.

    For projects made by an older version, which stored nothing else about their repository.
    """
    refs = root / "depot.git" / BASES
    bases = {each.name for each in refs.glob("*")}
    with contextlib.suppress(OSError):
        packed = (root / "depot.git" / "packed-refs").read_text(errors="replace").splitlines()
        bases |= {line.rpartition("/")[2] for line in packed if f" {BASES}" in line}
    return any(_has_commit(repository, base) for base in sorted(bases)[:_MOST_ROOTS]) if bases else None


def _has_commit(repository: Repository, commit: str) -> bool:
    # Commands that only read do not load it.
    from chargehand.workspace.tree.objects import read_loose_commit

    # A git process takes longer than the rest of finding a project.
    if read_loose_commit(repository.common_dir / "objects", commit) is not None:
        return True
    return repository.git.run("cat-file", "-e", f"{commit}^{{commit}}").code == 0


def _hex(path: Path) -> str:
    return os.fsencode(path).hex()


def _path(text: str) -> Path:
    return Path(os.fsdecode(bytes.fromhex(text)))
