"""Brings a commit of the depot into the user's repository as a branch: the one way out, by compare-and-swap."""

from __future__ import annotations

from pathlib import Path

from chargehand.core.records import Export
from chargehand.core.text import printable
from chargehand.workspace._depot import Depot
from chargehand.workspace._errors import GitError, RefMovedError, disk_errors
from chargehand.workspace._git import Git
from chargehand.workspace._history import read_ref, swap_ref
from chargehand.workspace._quarantine import quarantine, quoted, take_in


def export(depot: Depot, commit: str, *, branch: str, expected_old: str | None) -> Export:
    """Make `branch` in the user's repository point to `commit`, if it is at `expected_old` (`None`: absent).

    Objects come first, the ref last and in one step: a crash leaves the branch as it was, and the call can be
    made again. Done already is done. What stands in the way is `blocked` with the reason, what the user's own
    git does not take in (`fetch.fsckObjects`) among it; nothing is changed. Raises `InfrastructureError`
    (`no_space`).
    """
    ref, git = f"refs/heads/{branch}", depot.repository.git
    current = read_ref(git, ref)
    if current == commit:
        return Export(ref=ref, state="done")
    reason = _hindrance(git, branch, current=current, expected=expected_old)
    if reason:
        return Export(ref=ref, state="blocked", reason=reason)
    depot.fault("export:begin")
    reason = bring_objects(depot, commit)
    if reason:
        return Export(ref=ref, state="blocked", reason=reason)
    depot.fault("export:objects")
    try:
        swap_ref(git, ref, new=commit, old=expected_old)
    except RefMovedError:
        return Export(ref=ref, state="blocked", reason=f"branch {branch!r} was changed by someone else just now")
    except GitError as problem:
        return Export(ref=ref, state="blocked", reason=problem.message)
    depot.fault("export:done")
    return Export(ref=ref, state="done")


def bring_objects(depot: Depot, commit: str) -> str:
    """Fetch a commit and what it needs into the user's repository; no ref, no FETCH_HEAD, no tags.

    Returns why git would not take them, or an empty string. Git checks some objects (`.gitmodules`) only once it
    has written them, and takes what it has for good the next time: so it fetches into a directory aside, and
    only what it took in without complaint comes to the others.
    """
    git, objects = depot.repository.git, depot.repository.common_dir / "objects"
    try:
        with disk_errors("bringing objects into the repository"), quarantine(objects) as aside:
            return _bring_objects(depot, git, commit, aside, objects)
    except OSError as error:
        return f"the repository cannot be written: {error.strerror}: {str(error.filename or objects)!r}"


def _bring_objects(depot: Depot, git: Git, commit: str, aside: Path, objects: Path) -> str:
    done = git.within(GIT_OBJECT_DIRECTORY=str(aside), GIT_ALTERNATE_OBJECT_DIRECTORIES=quoted(objects)).run(
        *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--no-recurse-submodules"),
        *("--no-prune", "--refmap=", str(depot.path), commit),
    )
    if done.code:
        return f"git would not take the objects: {' '.join(printable(done.error).split())}"
    take_in(aside, objects)
    return ""


def _hindrance(git: Git, branch: str, *, current: str | None, expected: str | None) -> str:
    if git.run("check-ref-format", "--branch", branch).code:
        return f"{branch!r} is not a branch name"
    if current != expected:
        if expected is None:
            return f"branch {branch!r} exists already at {current}"
        return f"branch {branch!r} is at {current or 'nothing'}, not at {expected}"
    checked_out = git("for-each-ref", "--format=%(worktreepath)", f"refs/heads/{branch}").text
    if checked_out:
        return f"branch {branch!r} is checked out in {checked_out!r}"
    return _name_clash(git, branch)


def _name_clash(git: Git, branch: str) -> str:
    parts = branch.split("/")
    for depth in range(1, len(parts)):
        above = "/".join(parts[:depth])
        if read_ref(git, f"refs/heads/{above}") is not None:
            return f"a branch {above!r} exists, so git has no room for {branch!r}"
    below = git("for-each-ref", "--count=1", "--format=%(refname:short)", f"refs/heads/{branch}/").text
    return f"a branch {below!r} exists, so git has no room for {branch!r}" if below else ""
