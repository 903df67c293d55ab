"""Exports into the user's repository: a branch by compare-and-swap, and notes on commits."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from chargehand.core.errors import NotFoundError, RepositoryError
from chargehand.core.records import Export
from chargehand.core.text import printable
from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import GitError, RefMovedError, disk_errors
from chargehand.workspace.host.files import hold_lock
from chargehand.workspace.host.git import Git, quote_alternate
from chargehand.workspace.tree.history import (
    NOTES,
    PROVENANCE,
    NotesPlace,
    add_notes,
    note_bytes,
    read_note,
    swap_ref,
)

_PREFIX = "tmp_objdir-chargehand-"  # git's own gc removes what a crash leaves under this prefix
_PLAIN_BRANCH = re.compile(r"(?!-)[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")


def export_branch(depot: Depot, commit: str, *, branch: str, expected_old: str | None) -> Export:
    """Make `branch` in the user's repository point to `commit` if it is at `expected_old` (`None`: absent).

    Copies objects first and sets the ref last, in one step: a crash leaves the branch unchanged, and the call can
    be repeated. A branch already at `commit` is `done`. Any obstacle yields `blocked` with the reason, including
    objects that the user's git refuses (`fetch.fsckObjects`); nothing is changed then. Raises
    `InfrastructureError` (`no_space`).
    """
    ref = f"refs/heads/{branch}"
    git = depot.repository.git
    current, reason = _inspect_branch(git, branch, expected_old)
    if current == commit:
        return Export(ref=ref, state="done")
    if reason:
        return Export(ref=ref, state="blocked", reason=reason)
    depot.fault("export:begin")
    reason = bring_objects(depot, commit)
    if reason:
        return Export(ref=ref, state="blocked", reason=reason)
    depot.fault("export:objects")
    # By compare-and-swap: a person may have committed to the branch since it was read.
    try:
        swap_ref(git, ref, new=commit, old=expected_old)
    except RefMovedError:
        return Export(
            ref=ref, state="blocked", reason=f"branch {branch!r} was changed by another process just now"
        )
    except GitError as problem:
        return Export(ref=ref, state="blocked", reason=problem.message)
    depot.fault("export:done")
    return Export(ref=ref, state="done")


def check_prefix(depot: Depot, prefix: str) -> None:
    """Return if branches whose names begin with `prefix` can be made in the user's repository.

    Raises `RepositoryError` (`branch_in_the_way`) for a branch with the name of a directory of the prefix.
    """
    names = prefix.split("/")[:-1]
    for count in range(1, len(names) + 1):
        name = "/".join(names[:count])
        if depot.repository.git.run("show-ref", "--verify", "--quiet", f"refs/heads/{name}").code == 0:
            raise RepositoryError(
                f"a branch {name!r} exists, so git has no room for branches {prefix}…",
                code="branch_in_the_way",
                hint=f"rename it (git branch -m {name} NAME), or set another project.branch_prefix",
            )


def _inspect_branch(git: Git, branch: str, expected: str | None) -> tuple[str | None, str]:
    """Return the commit of a branch, and the reason why it cannot be set from `expected`, or an empty string."""
    plain = _PLAIN_BRANCH.fullmatch(branch) is not None and branch != "HEAD"
    if not plain and git.run("check-ref-format", "--branch", branch).code:
        return None, f"{branch!r} is not a branch name"
    # One process lists every relevant ref: the branch, and those above and below it in the name space, which git
    # keeps as directories, so that `a` and `a/b` cannot both be branches.
    first = branch.partition("/")[0]
    listed = git("for-each-ref", "--format=%(refname)%00%(objectname)%00%(worktreepath)%00", f"refs/heads/{first}")
    fields = [os.fsdecode(field).removeprefix("\n") for field in listed.out.split(b"\0")]
    refs = {
        ref.removeprefix("refs/heads/"): (commit, worktree)
        for ref, commit, worktree in zip(fields[::3], fields[1::3], fields[2::3], strict=False)
    }
    current, worktree = refs.get(branch, (None, ""))
    reason = ""
    if current != expected:
        if expected is None:
            reason = f"branch {branch!r} exists already at {current}"
        else:
            reason = f"branch {branch!r} is at {current or 'nothing'}, not at {expected}"
    # The checked-out files would stay unchanged, and `git status` would show the whole change as undone.
    elif worktree:
        reason = f"branch {branch!r} is checked out in {worktree!r}"
    else:
        clash = next((ref for ref in refs if branch.startswith(f"{ref}/") or ref.startswith(f"{branch}/")), None)
        if clash is not None:
            reason = f"a branch {clash!r} exists, so git has no room for {branch!r}"
    return current, reason


def bring_objects(depot: Depot, commit: str) -> str:
    """Fetch a commit and the objects it needs into the user's repository; write no ref, no FETCH_HEAD, no tags.

    Return the reason why git refused them, or an empty string. Raises `InfrastructureError` (`no_space`).
    """
    git = depot.repository.git
    objects = depot.repository.common_dir / "objects"
    try:
        # Git checks some objects (`.gitmodules`) only after it has written them, and the next fetch accepts
        # existing objects without a check. So fetch into a quarantine directory, as receive-pack does but fetch
        # does not, and move only accepted objects to the others.
        with (
            disk_errors("bringing objects into the repository"),
            tempfile.TemporaryDirectory(prefix=_PREFIX, dir=objects, ignore_cleanup_errors=True) as place,
        ):
            aside = Path(place)
            (aside / "pack").mkdir()
            (aside / "info").mkdir()
            alternate = quote_alternate(objects)
            # `--no-prune` and `--refmap=`: no ref of the user's is touched, whatever is configured for fetches.
            done = git.within(GIT_OBJECT_DIRECTORY=str(aside), GIT_ALTERNATE_OBJECT_DIRECTORIES=alternate).run(
                *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc"),
                *("--no-recurse-submodules", "--no-prune", "--refmap=", str(depot.path), commit),
            )
            if done.code:
                return f"git refused the objects: {' '.join(printable(done.error).split())}"
            found = [path for path in aside.rglob("*") if path.is_file()]
            for path in sorted(found, key=lambda path: path.suffix == ".idx"):  # last: an index shows its pack
                target = objects / path.relative_to(aside)
                if not target.exists():
                    with suppress(FileExistsError):
                        target.parent.mkdir()
                        target.parent.chmod(objects.stat().st_mode & 0o7777)  # shared repositories: as others may
                    os.rename(path, target)
            return ""
    except OSError as error:
        return f"the repository cannot be written: {error.strerror}: {str(error.filename or objects)!r}"


def export_notes(depot: Depot, commit: str) -> bool:
    """Add the depot's notes of `commit` to the user's `refs/notes/chargehand` and `…-provenance`.

    Return whether that changed them. All existing notes stay, also those of the commit: only missing lines are
    added. No other ref is touched and no hook is run. Without a note, or if the lines exist already, nothing is
    done. The commit itself must be exported first. Raises `RepositoryError` (`notes_unusable`) if something in the
    repository prevents it: nothing is changed then, and the call can be repeated; `InfrastructureError`
    (`no_space`).
    """
    texts = {NOTES: depot.annotation(commit), PROVENANCE: depot.provenance(commit)}
    notes = {ref: note_bytes(text) for ref, text in texts.items() if text is not None}
    if not notes:
        return False
    try:
        # The lock keeps our processes from losing rounds to each other; compare-and-swap detects other writers.
        with hold_lock(depot.notes_lock):
            return add_notes(_notes_place(depot), commit, notes, fault=depot.fault)
    except (GitError, RefMovedError, NotFoundError) as problem:
        raise _notes_unusable(depot, commit, problem.message) from problem
    except OSError as problem:
        raise _notes_unusable(depot, commit, str(problem)) from problem


def exported_provenance(depot: Depot, commit: str) -> str | None:
    """Return the provenance note of a commit in the user's repository, `None` if missing.

    Raises `NotFoundError`, `RepositoryError` (`notes_unusable`).
    """
    note = read_note(_notes_place(depot), commit, PROVENANCE)
    return None if note is None else note.decode("utf-8", "replace")


def _notes_place(depot: Depot) -> NotesPlace:
    return NotesPlace(depot.repository.git, depot.repository.common_dir / "objects")


def _notes_unusable(depot: Depot, commit: str, why: str) -> RepositoryError:
    where = str(depot.repository.path)
    return RepositoryError(
        f"the note of commit {commit!r} could not be written to {NOTES!r} in {where!r}: {why}",
        code="notes_unusable",
        hint=f"look at it with 'git log {NOTES}'; the commit itself is not affected",
    )
