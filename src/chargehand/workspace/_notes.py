"""Notes on commits under one ref, in a repository of ours or the user's: lines that are added and never lost.

The notes tree is edited in process and its ref moved by compare-and-swap: `git notes` reads and writes the ref
without comparing, so of two at once one would lose its note.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chargehand.core.errors import RepositoryError, UsageError
from chargehand.workspace._errors import Fault, RefMovedError, no_fault
from chargehand.workspace._git import Git
from chargehand.workspace._history import Author, read_commit, read_ref, swap_durably, write_commit
from chargehand.workspace._objects import ObjectWriter
from chargehand.workspace._trees import EMPTY_TREE, FILE, Entry, ObjectReader, edit_tree

NOTES = "refs/notes/chargehand"
_TRIES = 64  # each one that fails means that somebody else's note is in


@dataclass(frozen=True, slots=True)
class NotesPlace:
    """A repository that holds notes: git on it, and its object directory."""

    git: Git
    objects: Path


def read_note(place: NotesPlace, commit: str) -> bytes | None:
    """Return the note of a commit, `None` where there is none.

    Raises `NotFoundError` and `RepositoryError` (`notes_unusable`) for a ref that holds no notes.
    """
    reader = ObjectReader(place.objects)
    tip = _tip(place.git)
    if tip is None:
        return None
    entry = _find(reader, _tree(reader, tip), commit)[1]
    return None if entry is None else reader.blob(entry.id)


def add_note(place: NotesPlace, commit: str, note: bytes, *, fault: Fault = no_fault) -> bool:
    """Add the lines of `note` that the commit's note does not have yet; return whether there were any.

    On the disk when this returns. Raises `NotFoundError` for a commit that is not there, `RepositoryError`
    (`notes_unusable`), `RefMovedError` when others were faster time and again, `GitError`, `OSError`,
    `InfrastructureError` (`no_space`).
    """
    reader = ObjectReader(place.objects)
    read_commit(reader, commit)
    for left in reversed(range(_TRIES)):
        tip = _tip(place.git)
        new = _with_note(reader, tip, commit, note)
        if new is None:
            return False
        fault("notes:written")
        try:
            # Objects that we wrote ourselves have to be on the disk before git brings the ref there.
            swap_durably(place.git, place.objects, NOTES, new=new, old=tip)
        except RefMovedError:
            if not left:
                raise
        else:
            return True
    raise AssertionError


def note_bytes(text: str) -> bytes:
    """Return the lines of a note; raises `UsageError` (`note_empty`) where there are none."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError(f"{text!r} is not a note", code="note_empty", hint="give it at least one line of text")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _tip(git: Git) -> str | None:
    link = git.run("symbolic-ref", "--quiet", NOTES)
    if link.code == 0:
        raise RepositoryError(
            f"{NOTES!r} stands for {link.text!r}",
            code="notes_unusable",
            hint=f"git symbolic-ref --delete {NOTES}",
        )
    return read_ref(git, NOTES)


def _tree(reader: ObjectReader, tip: str | None) -> bytes:
    return EMPTY_TREE if tip is None else bytes.fromhex(read_commit(reader, tip).tree)


def _with_note(reader: ObjectReader, tip: str | None, commit: str, note: bytes) -> str | None:
    """Write the notes commit that follows `tip`; `None` when the note has all lines already."""
    tree = _tree(reader, tip)
    path, entry = _find(reader, tree, commit)
    before = b"" if entry is None else reader.blob(entry.id)
    known = {b"", *before.split(b"\n")}
    missing = [line for line in dict.fromkeys(note.split(b"\n")) if line not in known]
    if not missing:
        return None
    glue = b"\n" if before and not before.endswith(b"\n") else b""
    with ObjectWriter(reader.objects) as writer:
        blob = writer.add("blob", before + glue + b"".join(line + b"\n" for line in missing))
        edited = edit_tree(reader, writer, tree, [(path, Entry(FILE, blob))])
    parents = () if tip is None else (tip,)
    return write_commit(reader, tree=edited.hex(), parents=parents, message=f"Note on {commit}\n", author=Author())


def _find(reader: ObjectReader, tree: bytes, commit: str) -> tuple[bytes, Entry | None]:
    """Return where the note of a commit is, or should be, and its entry.

    Git spreads the 40 digits over directories of two, as deep as it likes, and reads them at any depth.
    """
    name = commit.encode()
    for depth in range(len(name) // 2):
        parts = [name[at : at + 2] for at in range(0, 2 * depth, 2)]
        path = b"/".join((*parts, name[2 * depth :]))
        entry = reader.find(tree, path)
        if entry is not None and not entry.is_tree:
            return path, entry
    above = reader.find(tree, name[:2])
    in_the_way = above is not None and not above.is_tree
    return (name if in_the_way else name[:2] + b"/" + name[2:]), None
