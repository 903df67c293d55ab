"""Merging in the bare repository of a local forge: without a work tree, by `git merge-tree`."""

from __future__ import annotations

import re

from chargehand.forges.contract import ForgeError, MergeMethod
from chargehand.forges.local_directory import LocalDirectory, LocalItem

_CLOSES = re.compile(r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\s+#(\d+)\b", re.IGNORECASE)


def closed_issues(text: str) -> list[int]:
    """Return the numbers of the issues that a merged request with this text closes."""
    return [int(number) for number in _CLOSES.findall(text)]


def merge_heads(
    directory: LocalDirectory, repository: str, item: LocalItem, *, method: MergeMethod, person: str
) -> str:
    """Merge a request's head commit into its base branch and return the new commit of the base.

    Raises `ForgeError` (`refused`) for a conflict, or if the base moved meanwhile.
    """
    base = require_branch(directory, repository, item.base)
    subject = f"{item.title} (#{item.number})"
    if method == "rebase":
        new = _replay(directory, repository, base, item.head_commit, person)
    else:
        tree = merged_tree(directory, repository, base, item.head_commit)
        parents = ["-p", base, *(["-p", item.head_commit] if method == "merge" else [])]
        text = f"{subject}\n\n{item.body}".strip()
        _, new = directory.git(repository, "commit-tree", tree, *parents, "-m", text, person=person)
    code, _ = directory.git(repository, "update-ref", f"refs/heads/{item.base}", new, base, ok=(0, 1, 128))
    if code:
        raise ForgeError("refused", f"the branch {item.base} of {repository} moved meanwhile", hint="try again")
    return new


def merged_tree(directory: LocalDirectory, repository: str, ours: str, theirs: str) -> str:
    """Return the tree of a merge. Raises `ForgeError` (`refused`) for a conflict."""
    code, output = directory.git(repository, "merge-tree", "--write-tree", ours, theirs, ok=(0, 1))
    if code:
        raise ForgeError("refused", f"the changes conflict in {repository}", hint="merge the base branch first")
    return output.partition("\n")[0]


def require_branch(directory: LocalDirectory, repository: str, name: str) -> str:
    """Return the commit of a branch. Raises `ForgeError` (`refused`) if it does not exist."""
    found = find_branch(directory, repository, name)
    if found is None:
        raise ForgeError("refused", f"{repository} has no branch {name!r}")
    return found


def find_branch(directory: LocalDirectory, repository: str, name: str) -> str | None:
    """Return the commit of a branch, `None` if it does not exist."""
    if "\0" in name:  # no argument of a program has it
        return None
    code, output = directory.git(
        repository, "show-ref", "--verify", "--hash", f"refs/heads/{name}", ok=(0, 1, 128)
    )
    return output if code == 0 else None


def _replay(directory: LocalDirectory, repository: str, base: str, head: str, person: str) -> str:
    _, listed = directory.git(repository, "rev-list", "--reverse", "--no-merges", f"{base}..{head}")
    for commit in listed.splitlines():
        # A commit with the tree of the new base on the parent of the old one: their merge base is that parent.
        # `merge-tree --merge-base` would need git 2.40.
        _, parent = directory.git(repository, "rev-parse", f"{commit}^")
        _, onto = directory.git(repository, "commit-tree", f"{base}^{{tree}}", "-p", parent, "-m", "base")
        tree = merged_tree(directory, repository, onto, commit)
        _, text = directory.git(repository, "log", "-1", "--format=%B", commit)
        _, base = directory.git(repository, "commit-tree", tree, "-p", base, "-m", text, person=person)
    return base
