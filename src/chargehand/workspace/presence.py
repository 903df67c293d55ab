"""Looks for a promoted change on a branch of the user's repository, where people merge, rebase and revert it.

The branch's tip is read in the user's repository, and the rest in the depot with the user's objects added: there
no configuration of the user's runs a program, and a commit is found even if no branch of the user's has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from chargehand.core.records import Base, Presence
from chargehand.workspace.depot import DIFF_OPTIONS, Depot
from chargehand.workspace.host.git import Git, quote_alternate
from chargehand.workspace.tree.history import read_ref

# Limits of a look: the newest commits of the branch that touch the change, its first paths, and seconds of git.
_COMMITS, _PATHS, _SECONDS = 2_000, 200, 30.0
_PATCH = ("diff-tree", "-p", "--root", "--full-index", *DIFF_OPTIONS)
# The line of `git revert`, also in the middle of a person's message.
_REVERTS = re.compile(r"This reverts commit ([0-9a-f]{7,40})")


class FoundChange(Struct, frozen=True, kw_only=True):
    """Whether a branch contains a change, and the commit that brought it again or undid it, if it is one."""

    presence: Presence
    by: str = ""


def find_change(depot: Depot, branch: str, base: Base, commit: str) -> FoundChange | None:
    """Return whether `branch` contains the change from `base` to `commit`; `None` if there is no such branch.

    The branch has the change by `commit` itself, or by a commit with the same patch (rebased, amended, picked or
    squashed). The change is undone by a commit that says so as `git revert` does, by one with the inverse patch,
    or if all paths of the change are as on the base again. Writes nothing. Raises `GitError` and `NotFoundError`
    if commits or files are missing, `InfrastructureError` (`git_timeout`).
    """
    tip = read_ref(depot.repository.git, f"refs/heads/{branch}")
    if tip is None or tip == commit:
        return None if tip is None else FoundChange(presence="present")
    objects = quote_alternate(depot.repository.common_dir / "objects")
    git = depot.git.within(GIT_ALTERNATE_OBJECT_DIRECTORIES=objects).limited(_SECONDS)
    made = depot.read_commit(commit)
    paths = [change.path for change in depot.diff(base.tree, made.tree)][:_PATHS]
    listed = (
        "rev-list",
        "--full-history",
        "--topo-order",
        f"--max-count={_COMMITS}",
        tip,
        f"^{base.commit}",
        "--",
    )
    newer = git(*listed, *paths).lines[::-1]
    # A second promotion of a mission has both: its own patch, and the patch of the whole result.
    befores = dict.fromkeys((base.tree, *(depot.tree_of(parent) for parent in made.parents[:1])))
    own = [
        git(*_PATCH, old, new, "--", *paths).out for a in befores for old, new in ((a, made.tree), (made.tree, a))
    ]
    later = git(*_PATCH, "--stdin", "--", *paths, input="".join(f"{each}\n" for each in newer).encode()).out
    patches = _read_patches(git, own, later)
    forward = {patches.get(f"{number:040x}") for number in range(0, len(own), 2)} - {None}
    inverse = {patches.get(f"{number:040x}") for number in range(1, len(own), 2)} - {None} - forward
    found = FoundChange(presence="absent")
    if git("merge-base", "--is-ancestor", commit, tip, ok=(0, 1)).code == 0:
        found = FoundChange(presence="present")
    brought, undid = {commit}, set[str]()
    for each, named in zip(newer, _read_reverts(git, newer), strict=True):
        if each != commit and (patches.get(each) in forward or _names(named, undid)):
            brought.add(each)
            found = FoundChange(presence="present", by=each)
        elif patches.get(each) in inverse or _names(named, brought):
            undid.add(each)
            found = FoundChange(presence="undone", by=each)
    if (
        found.presence == "present"
        and not git("diff-tree", "--quiet", base.tree, tip, "--", *paths, ok=(0, 1)).code
    ):
        return FoundChange(presence="undone")
    return found


def _read_patches(git: Git, own: Sequence[bytes], later: bytes) -> Mapping[str, str]:
    """Return the ids of patches by their commits: those of `own` by their numbers, as 40 digits of hex."""
    numbered = b"".join(b"%040x\n%b\n" % (number, patch) for number, patch in enumerate(own))
    lines = git("patch-id", "--stable", input=numbered + later).lines
    return {commit: patch for patch, _, commit in (line.partition(" ") for line in lines)}


def _read_reverts(git: Git, commits: Sequence[str]) -> Iterable[Sequence[str]]:
    """Return for each commit the ids in its message that it says to revert."""
    if not commits:
        return ()
    listed = "".join(f"{each}\n" for each in commits).encode()
    messages = git("log", "--no-walk=unsorted", "--stdin", "-z", "--format=%B", input=listed).out
    return [_REVERTS.findall(text.decode("utf-8", "replace")) for text in messages.split(b"\0")[: len(commits)]]


def _names(named: Sequence[str], commits: Iterable[str]) -> bool:
    return any(commit.startswith(each) for each in named for commit in commits)
