"""Chargehand's branches in the user's repository: those that are merged, and their removal."""

from __future__ import annotations

import os

from msgspec import Struct

from chargehand.workspace.repository import Repository


class MergedBranch(Struct, frozen=True, kw_only=True):
    """A branch of Chargehand whose commit is part of HEAD."""

    name: str
    commit: str


def merged_branches(repository: Repository, prefix: str) -> tuple[MergedBranch, ...]:
    """Return the merged branches with a prefix that are checked out nowhere; () without a HEAD."""
    pattern = f"refs/heads/{prefix}{'' if prefix.endswith('/') else '*'}"
    form = "--format=%(refname)%00%(objectname)%00%(worktreepath)%00"
    listed = repository.git.run("for-each-ref", "--merged=HEAD", form, pattern)
    if listed.code:
        return ()
    fields = [os.fsdecode(field).removeprefix("\n") for field in listed.out.split(b"\0")]
    refs = zip(fields[::3], fields[1::3], fields[2::3], strict=False)
    return tuple(
        MergedBranch(name=ref.removeprefix("refs/heads/"), commit=commit)
        for ref, commit, worktree in refs
        if not worktree
    )


def remove_branch(repository: Repository, branch: MergedBranch) -> bool:
    """Remove a branch that is still at its commit; return whether it was."""
    return repository.git.run("update-ref", "-d", f"refs/heads/{branch.name}", branch.commit).code == 0
