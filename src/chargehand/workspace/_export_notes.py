"""Brings the note of a commit into the user's repository: the witness that is outside of our state directory."""

from __future__ import annotations

from chargehand.core.errors import NotFoundError, RepositoryError
from chargehand.workspace._depot import Depot
from chargehand.workspace._errors import GitError, RefMovedError
from chargehand.workspace._files import locked
from chargehand.workspace._notes import NOTES, NotesPlace, add_note, note_bytes


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
        with locked(depot.notes_lock):
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
