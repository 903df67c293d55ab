"""Export into the user's repository: a branch by compare-and-swap, and notes on commits."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from chargehand.core.errors import NotFoundError, RepositoryError
from chargehand.core.records import Export
from chargehand.core.text import printable
from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import GitError, RefMovedError, disk_errors
from chargehand.workspace.host.files import hold_lock
from chargehand.workspace.host.git import Git
from chargehand.workspace.tree.history import NOTES, NotesPlace, add_note, note_bytes, read_ref, swap_ref

_PREFIX = "tmp_objdir-chargehand-"  # git's own gc removes what a crash leaves under such a name
_LAST = (".idx",)


@contextlib.contextmanager
def quarantine(objects: Path) -> Iterator[Path]:
    """Make an object directory within another one for the block."""
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=objects))
    try:
        (place / "pack").mkdir()
        (place / "info").mkdir()
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def quoted(path: Path) -> str:
    """Return a path as git reads it from a list that is separated by colons."""
    text = os.fspath(path)
    if not any(character in text for character in ':"\n'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def take_in(aside: Path, objects: Path) -> None:
    """Move all objects to the others; a pack is seen only once its index is there, which comes last."""
    found = [path for path in aside.rglob("*") if path.is_file()]
    for path in sorted(found, key=lambda path: path.suffix in _LAST):
        target = objects / path.relative_to(aside)
        if not target.exists():
            _make_beside(target.parent, like=objects)
            os.rename(path, target)


def _make_beside(directory: Path, *, like: Path) -> None:
    """Make a directory that others may use as they may use the one above (a shared repository)."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
        directory.chmod(like.stat().st_mode & 0o7777)


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


def export_notes(depot: Depot, commit: str) -> bool:
    """Add the depot's note of `commit` to the user's `refs/notes/chargehand`; return whether that changed it.

    All notes there stay, that of the commit too: only lines that it lacks are added. No other ref is touched, no
    hook is run. Done already is done; a commit without a note is nothing to do. The commit itself has to be
    exported before. Raises `RepositoryError` (`notes_unusable`) when something there is in the way: nothing is
    changed then, and the call can be made again; `InfrastructureError` (`no_space`).
    """
    text = depot.annotation(commit)
    if text is None:
        return False
    place = NotesPlace(depot.repository.git, depot.repository.common_dir / "objects")
    try:
        with hold_lock(depot.notes_lock):
            return add_note(place, commit, note_bytes(text), fault=depot.fault)
    except (GitError, RefMovedError, NotFoundError) as problem:
        raise _unusable(depot, commit, problem.message) from problem
    except OSError as problem:
        raise _unusable(depot, commit, str(problem)) from problem


def _unusable(depot: Depot, commit: str, why: str) -> RepositoryError:
    where = str(depot.repository.path)
    return RepositoryError(
        f"the note of commit {commit!r} could not be written to {NOTES!r} in {where!r}: {why}",
        code="notes_unusable",
        hint=f"look at it with 'git log {NOTES}'; the commit itself is not affected",
    )
