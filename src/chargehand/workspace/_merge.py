"""Merges two commits in the depot without a working tree."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pygit2

from chargehand.workspace._errors import GitError
from chargehand.workspace._git import Git, git_version

_MERGE_TREE = (2, 38)
_MERGE_TREE_BASE = (2, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The merged tree, or `None` and the paths in conflict."""

    tree: str | None
    conflicts: tuple[str, ...] = ()


def merge_commits(git: Git, git_dir: Path, *, ours: str, theirs: str, base: str | None) -> MergeResult:
    """Merge `theirs` into `ours`; `base` stands in for the merge base that history tells."""
    found = git.run("merge-base", ours, theirs).text or None
    ancestor = base or found
    version = git_version()
    if version < _MERGE_TREE or (ancestor != found and version < _MERGE_TREE_BASE):
        return _in_process(git_dir, ours, theirs, ancestor)
    extra = (f"--merge-base={ancestor}",) if ancestor != found else ()
    done = git.run("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", *extra, ours, theirs)
    if done.code not in (0, 1):
        raise GitError(f"git merge-tree failed: {done.error!r}", exit_status=done.code)
    tree, *conflicts = done.out.rstrip(b"\0").split(b"\0")
    if done.code == 0:
        return MergeResult(tree=tree.decode())
    return MergeResult(tree=None, conflicts=tuple(sorted({os.fsdecode(path) for path in conflicts})))


def _in_process(git_dir: Path, ours: str, theirs: str, base: str | None) -> MergeResult:
    repository = pygit2.Repository(str(git_dir))
    ancestor = repository[base or repository.TreeBuilder().write()].peel(pygit2.Tree)
    merged = repository.merge_trees(
        ancestor, repository[ours].peel(pygit2.Tree), repository[theirs].peel(pygit2.Tree)
    )
    if not merged.conflicts:
        return MergeResult(tree=str(merged.write_tree(repository)))
    paths = {side.path for conflict in merged.conflicts for side in conflict if side is not None}
    return MergeResult(tree=None, conflicts=tuple(sorted(paths)))
