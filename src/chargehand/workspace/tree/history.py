"""Commits, refs and notes of a repository: written in process; git moves the refs in one step.

Notes have separate refs, in our repositories or the user's; lines are added and never lost. The notes tree is
edited in process and its ref moved by compare-and-swap: `git notes` reads and writes the ref without comparing, so
one of two concurrent calls would lose its note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field

from chargehand.core.errors import NotFoundError, RepositoryError, UsageError
from chargehand.core.records import Checkpoint
from chargehand.core.text import late_pattern
from chargehand.workspace.errors import Fault, GitError, RefMovedError, no_fault
from chargehand.workspace.host.files import sync_file_system
from chargehand.workspace.host.git import ZERO, Git
from chargehand.workspace.tree.objects import EMPTY_TREE, FILE, ObjectReader, ObjectWriter, TreeEntry, edit_tree

_SUBJECT = "checkpoint: "
_CHANGED = "changed: "
_ID = late_pattern(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NEAR = 64  # commits; a mission makes tens of checkpoints
# Characters that would end a name, an address or the whole line in the head of a commit.
_UNSAFE = late_pattern(r"[<>\n\0]")


class Author(Struct, frozen=True, kw_only=True):
    """The author of a commit, with its time."""

    name: str = "Chargehand"
    email: str = "chargehand@localhost"
    when: datetime = field(default_factory=lambda: datetime.now(UTC))

    def line(self) -> str:
        """Return the author line of a commit object: `name <email> seconds offset`."""
        offset = self.when.strftime("%z")[:5] or "+0000"
        name = _UNSAFE.sub("", self.name).strip() or "unknown"
        return f"{name} <{_UNSAFE.sub('', self.email)}> {int(self.when.timestamp())} {offset}"


class Commit(Struct, frozen=True, kw_only=True):
    """A commit as stored: ids in hex, the complete message."""

    id: str
    tree: str
    parents: tuple[str, ...]
    message: str


def write_commit(
    reader: ObjectReader, *, tree: str, parents: tuple[str, ...], message: str, author: Author
) -> str:
    """Write a commit object; return its id."""
    # In process: `git commit-tree` takes 3 ms, and every action of a native agent makes a checkpoint.
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    lines += [f"author {author.line()}", f"committer {author.line()}", "", message.rstrip("\n") + "\n"]
    content = "\n".join(lines).encode("utf-8", "replace")
    with ObjectWriter(reader.objects) as writer:
        return writer.add("commit", content).hex()


def read_commit(reader: ObjectReader, id: str) -> Commit:
    """Return a commit; raises `NotFoundError` code `commit_not_found`."""
    kind, content = reader.read(bytes.fromhex(id))
    if kind != "commit":
        raise NotFoundError(f"{id!r} is not a commit", code="commit_not_found")
    head, _, message = content.partition(b"\n\n")
    fields = [line.split(b" ", 1) for line in head.split(b"\n") if b" " in line]
    return Commit(
        id=id,
        tree=next(value for name, value in fields if name == b"tree").decode(),
        parents=tuple(value.decode() for name, value in fields if name == b"parent"),
        message=message.decode("utf-8", "replace"),
    )


def checkpoint_message(trigger: str, changed: int) -> str:
    """Return the message of a checkpoint's commit, from which `read_checkpoint` reads both values."""
    return f"{_SUBJECT}{trigger}\n\n{_CHANGED}{changed}\n"


def read_checkpoint(reader: ObjectReader, commit: str) -> Checkpoint:
    """Return the checkpoint stored as a commit."""
    found = read_commit(reader, commit)
    subject, _, rest = found.message.partition("\n")
    counts = [line.removeprefix(_CHANGED) for line in rest.splitlines() if line.startswith(_CHANGED)]
    return Checkpoint(
        commit=commit,
        tree=found.tree,
        parent=found.parents[0] if found.parents else "",
        trigger=subject.removeprefix(_SUBJECT),
        changed=int(counts[0]) if counts and counts[0].isdecimal() else 0,
    )


def is_id(text: str) -> bool:
    """Return whether a text is a complete object id."""
    return _ID.fullmatch(text.encode("utf-8", "replace")) is not None


def read_ref_file(git_dir: Path, ref: str) -> str | None:
    """Return the id in a ref's file, `None` if the ref certainly does not exist.

    Raises `LookupError` if only git can answer: the ref is packed, symbolic, or not stored as a file. A git
    process takes longer than all the rest of a small checkpoint.
    """
    try:
        content = (git_dir / ref).read_bytes().strip()
    except FileNotFoundError:
        if (git_dir / "packed-refs").exists() or (git_dir / "reftable").exists():
            raise LookupError(ref) from None
        return None
    except OSError as problem:
        raise LookupError(ref) from problem
    if not _ID.fullmatch(content):
        raise LookupError(ref)
    return content.decode()


def read_ref(git: Git, ref: str) -> str | None:
    """Return the id that `ref` points to, or `None`."""
    asked = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", ref)
    return asked.text if asked.code == 0 else None


def is_descendant(reader: ObjectReader, commit: str, ancestor: str) -> bool:
    """Return whether `ancestor` is among the last first parents of `commit`; false may mean "further back"."""
    for _ in range(_NEAR):
        if commit == ancestor:
            return True
        parents = read_commit(reader, commit).parents
        if not parents:
            return False
        commit = parents[0]
    return False


def swap_ref(git: Git, ref: str, *, new: str | None, old: str | None) -> None:
    """Set `ref` to `new` if it is at `old` (`None`: absent), in one step.

    Raises `RefMovedError` if it has another value, `GitError` if git cannot write it.
    """
    # `--no-deref`: otherwise git would move the branch behind a symbolic ref.
    if new is None:
        done = git.run("update-ref", "--no-deref", "-d", ref, old or ZERO)
    else:
        done = git.run("update-ref", "--no-deref", ref, new, old or ZERO)
    if done.code == 0:
        return
    # Git gives the reason only in words; the ref's present value distinguishes a lost race from a broken
    # repository.
    actual = read_ref(git, ref)
    if actual != old:
        raise RefMovedError(ref, expected=old, actual=actual)
    raise GitError(f"could not set {ref!r}: {done.error!r}", exit_status=done.code)


# Signed heads of logs, and provenance statements; separate refs, so that readers need only one of them.
NOTES = "refs/notes/chargehand"
PROVENANCE = "refs/notes/chargehand-provenance"
_TRIES = 64  # each failure means that another writer's note was added


class NotesPlace(Struct, frozen=True):
    """A repository with notes: git for it, and the `objects` of its (common) git directory."""

    git: Git
    objects: Path


class RefMove(Struct, frozen=True):
    """A ref, its new value, and its required old value (`None`: absent)."""

    ref: str
    new: str
    old: str | None


def read_note(place: NotesPlace, commit: str, ref: str = NOTES) -> bytes | None:
    """Return the note of a commit, `None` if missing.

    Raises `NotFoundError` and `RepositoryError` (`notes_unusable`) for a ref that does not hold notes.
    """
    reader = ObjectReader(place.objects)
    tip = _notes_tip(place, ref)
    if tip is None:
        return None
    entry = _find_note(reader, _notes_tree(reader, tip), commit)[1]
    return None if entry is None else reader.blob(entry.id)


def add_notes(place: NotesPlace, commit: str, notes: Mapping[str, bytes], *, fault: Fault = no_fault) -> bool:
    """Add to the commit's note under each ref the lines that it lacks; return whether any were added.

    All refs move in one step, and are on disk on return. Raises `NotFoundError` for a missing commit,
    `RepositoryError` (`notes_unusable`), `RefMovedError` if other writers were faster every time, `GitError`,
    `OSError`, `InfrastructureError` (`no_space`).
    """
    reader = ObjectReader(place.objects)
    read_commit(reader, commit)
    for left in reversed(range(_TRIES)):
        moves = []
        for ref, note in notes.items():
            tip = _notes_tip(place, ref)
            tree = _notes_tree(reader, tip)
            path, entry = _find_note(reader, tree, commit)
            before = b"" if entry is None else reader.blob(entry.id)
            known = {b"", *before.split(b"\n")}
            missing = [line for line in dict.fromkeys(note.split(b"\n")) if line not in known]
            if not missing:
                continue
            glue = b"\n" if before and not before.endswith(b"\n") else b""
            with ObjectWriter(reader.objects) as writer:
                blob = writer.add("blob", before + glue + b"".join(line + b"\n" for line in missing))
                edited = edit_tree(reader, writer, tree, [(path, TreeEntry(FILE, blob))]).hex()
            parents = () if tip is None else (tip,)
            message = f"Note on {commit}\n"
            new = write_commit(reader, tree=edited, parents=parents, message=message, author=Author())
            moves.append(RefMove(ref, new, tip))
        if not moves:
            return False
        fault("notes:written")
        try:
            # As in `Depot.swap`: the objects are on disk before the refs.
            sync_file_system(place.objects)
            _swap_refs(place.git, moves)
            sync_file_system(place.objects)
        except RefMovedError:
            if not left:
                raise
        else:
            return True
    raise AssertionError


def _swap_refs(git: Git, moves: Sequence[RefMove]) -> None:
    """Run `swap_ref` for several refs, all or nothing, in one git process."""
    if len(moves) == 1:
        swap_ref(git, moves[0].ref, new=moves[0].new, old=moves[0].old)
        return
    lines = [f"option no-deref\nupdate {move.ref} {move.new} {move.old or ZERO}\n" for move in moves]
    done = git.run("update-ref", "--stdin", input="".join(lines).encode())
    if done.code == 0:
        return
    for move in moves:
        actual = read_ref(git, move.ref)
        if actual != move.old:
            raise RefMovedError(move.ref, expected=move.old, actual=actual)
    raise GitError(f"could not set {[move.ref for move in moves]!r}: {done.error!r}", exit_status=done.code)


def note_bytes(text: str) -> bytes:
    """Return the lines of a note; raises `UsageError` (`note_empty`) if there are no lines."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError(f"{text!r} is not a note", code="note_empty", hint="give at least one line of text")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _notes_tip(place: NotesPlace, ref: str) -> str | None:
    with suppress(LookupError):
        return read_ref_file(place.objects.parent, ref)
    link = place.git.run("symbolic-ref", "--quiet", ref)
    if link.code == 0:
        raise RepositoryError(
            f"{ref!r} is a symbolic ref to {link.text!r}",
            code="notes_unusable",
            hint=f"git symbolic-ref --delete {ref}",
        )
    return read_ref(place.git, ref)


def _notes_tree(reader: ObjectReader, tip: str | None) -> bytes:
    return EMPTY_TREE if tip is None else bytes.fromhex(read_commit(reader, tip).tree)


def _find_note(reader: ObjectReader, tree: bytes, commit: str) -> tuple[bytes, TreeEntry | None]:
    """Return the path at which the note of a commit is, or should be, and its entry.

    Git spreads the 40 digits over directories of two digits, to any depth, and reads them at any depth.
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
