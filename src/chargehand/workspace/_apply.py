"""Fast-forwards the branch the user is on: the one place that changes their working tree, and only if clean."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.records import Change, Export
from chargehand.workspace._depot import Depot
from chargehand.workspace._export import bring_objects
from chargehand.workspace._files import replace_file
from chargehand.workspace._git import Git
from chargehand.workspace._history import read_ref
from chargehand.workspace._objects import object_id


class _Journal(msgspec.Struct, frozen=True):
    branch: str
    at: str
    commit: str


def apply(depot: Depot, commit: str, *, branch: str, at: str) -> Export:
    """Fast-forward the checked-out `branch` from `at` to `commit`, files included.

    Git checks every touched path before it writes the first one: local changes, untracked and ignored files in
    the way are `blocked`, and nothing is changed. A journal says that files may be half way, so that the next call
    after a crash goes on; it takes away only files that already hold the new content.
    Raises `RepositoryError` (`apply_bare`, `apply_detached`).
    """
    depot.check_can_apply()
    ref, git = f"refs/heads/{branch}", depot.repository.git
    current = read_ref(git, ref)
    if current == commit:
        _journal(depot).unlink(missing_ok=True)
        return Export(ref=ref, state="done")
    reason = _hindrance(depot, git, commit, branch=branch, at=at, current=current)
    if reason:
        return Export(ref=ref, state="blocked", reason=reason)
    reason = bring_objects(depot, commit)
    if reason:
        return Export(ref=ref, state="blocked", reason=reason)
    depot.fault("apply:objects")
    _resume(depot, git, _Journal(branch, at, commit))
    depot.fault("apply:journal")
    merged = git.run(
        *("merge", "--ff-only", "--no-squash", "--no-autostash", "--no-overwrite-ignore", "--quiet", commit),
        detached=True,
    )
    depot.fault("apply:merged")
    _journal(depot).unlink(missing_ok=True)
    if read_ref(git, ref) != commit:
        return Export(ref=ref, state="blocked", reason=f"git refused the fast-forward: {merged.error}")
    return Export(ref=ref, state="done")


def _hindrance(depot: Depot, git: Git, commit: str, *, branch: str, at: str, current: str | None) -> str:
    head = git.run("symbolic-ref", "--quiet", "HEAD").text
    if head != f"refs/heads/{branch}":
        return f"{branch!r} is not checked out any more (HEAD is at {head or 'a commit of its own'})"
    if current != at:
        return f"branch {branch!r} moved to {current} since the mission began at {at}"
    if depot.git.run("merge-base", "--is-ancestor", at, commit).code:
        return f"{commit} does not follow {at}"
    return ""


def _journal(depot: Depot) -> Path:
    return depot.root / "apply.json"


def _resume(depot: Depot, git: Git, wanted: _Journal) -> None:
    """Write the journal; where it was there already, clear away what a crashed fast-forward had written."""
    place = _journal(depot)
    try:
        found = decode_as(place.read_bytes(), _Journal)
    except (OSError, msgspec.MsgspecError):
        found = None
    if found == wanted:
        changes = depot.diff(depot.tree_of(wanted.at), depot.tree_of(wanted.commit))
        # Git writes the index after the files: once it is there, only the ref is missing.
        if not _in_index(git, wanted.commit, changes):
            _clear(depot, git, changes)
    replace_file(place, msgspec.json.encode(wanted))


def _in_index(git: Git, commit: str, changes: tuple[Change, ...]) -> bool:
    """Return whether the index holds all changes; the paths may be too many to name them to git."""
    differing = git("diff-index", "--cached", "--name-only", "-z", "--no-ext-diff", commit, "--").out.split(b"\0")
    return not {os.fsencode(change.path) for change in changes}.intersection(differing)


def _clear(depot: Depot, git: Git, changes: tuple[Change, ...]) -> None:
    """Remove what already holds the new content: git takes an absent file for an unchanged one."""
    wanted = {os.fsencode(change.path): change.new_id for change in changes if change.new_id is not None}
    root = os.fsencode(depot.repository.path)
    for path, content in _content_ids(git, root, wanted).items():
        if content == wanted[path]:
            os.unlink(os.path.join(root, path))


def _content_ids(git: Git, root: bytes, paths: Iterable[bytes]) -> dict[bytes, str]:
    """Return the ids that git would give to the links and files that are there, all in one process."""
    found: dict[bytes, str] = {}
    files: list[bytes] = []
    for path in paths:
        place = os.path.join(root, path)
        with suppress(OSError):
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode):
                found[path] = object_id("blob", os.readlink(place)).hex()
            elif stat.S_ISREG(mode):
                files.append(path)
    lines = b"".join(_quoted(path) for path in files)
    asked = git.run("hash-object", "--stdin-paths", input=lines)
    if asked.code == 0 and files:
        found |= zip(files, asked.text.split("\n"), strict=True)
    return found


def _quoted(path: bytes) -> bytes:
    """Return a path as a line that git reads back to the byte."""
    return b'"%s"\n' % b"".join(
        b"\\%03o" % byte if byte < 32 or byte in b'"\\' else bytes((byte,)) for byte in path
    )
