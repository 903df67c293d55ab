"""Commits, refs and notes of a repository: written in process, refs moved by git in one step.

Notes stand under refs of their own, in a repository of ours or the user's; their lines are added and never lost.
The notes tree is edited in process and its ref moved by compare-and-swap: `git notes` reads and writes the ref
without comparing, so of two at once one would lose its note.
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
# What would end a name, an address or the whole line in the head of a commit.
_UNSAFE = late_pattern(r"[<>\n\0]")


class Author(Struct, frozen=True, kw_only=True):
    """Who made a commit, and when."""

    name: str = "Chargehand"
    email: str = "chargehand@localhost"
    when: datetime = field(default_factory=lambda: datetime.now(UTC))

    def line(self) -> str:
        """Return the author line of a commit object: `name <email> seconds offset`."""
        offset = self.when.strftime("%z")[:5] or "+0000"
        name = _UNSAFE.sub("", self.name).strip() or "unknown"
        return f"{name} <{_UNSAFE.sub('', self.email)}> {int(self.when.timestamp())} {offset}"


class Commit(Struct, frozen=True, kw_only=True):
    """A commit as stored: ids hex, the message whole."""

    id: str
    tree: str
    parents: tuple[str, ...]
    message: str


def write_commit(
    reader: ObjectReader, *, tree: str, parents: tuple[str, ...], message: str, author: Author
) -> str:
    """Write a commit object; return its id."""
    # In process: `git commit-tree` takes 3 ms, and a native agent's every action makes a checkpoint.
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
    """Return the message of a checkpoint's commit, from which `read_checkpoint` reads both again."""
    return f"{_SUBJECT}{trigger}\n\n{_CHANGED}{changed}\n"


def read_checkpoint(reader: ObjectReader, commit: str) -> Checkpoint:
    """Return the checkpoint that a commit is."""
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
    """Tell whether a text is a whole object id."""
    return _ID.fullmatch(text.encode("utf-8", "replace")) is not None


def read_ref_file(git_dir: Path, ref: str) -> str | None:
    """Return the id that a ref's own file holds, `None` where there surely is no such ref.

    Raises `LookupError` where only git can tell: the ref is packed, symbolic, or not kept as a file. A process of
    git takes longer than all the rest of a small checkpoint.
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
    """Return whether `ancestor` is among the last first parents of `commit`; "no" may also mean "further back"."""
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

    Raises `RefMovedError` if it is elsewhere, `GitError` if git cannot write it.
    """
    # `--no-deref`: through a symbolic ref git would move the branch that it leads to.
    if new is None:
        done = git.run("update-ref", "--no-deref", "-d", ref, old or ZERO)
    else:
        done = git.run("update-ref", "--no-deref", ref, new, old or ZERO)
    if done.code == 0:
        return
    # Git says why in words only; where the ref is now tells a lost race from a broken repository.
    actual = read_ref(git, ref)
    if actual != old:
        raise RefMovedError(ref, expected=old, actual=actual)
    raise GitError(f"could not set {ref!r}: {done.error!r}", exit_status=done.code)


def swap_durably(git: Git, git_dir: Path, ref: str, *, new: str | None, old: str | None) -> None:
    """`swap_ref` that survives a loss of power: objects are on the disk before the ref, the ref on return."""
    # Two syncs, not one: were the ref on the disk first, it could name a commit that the disk does not have.
    sync_file_system(git_dir)
    swap_ref(git, ref, new=new, old=old)
    sync_file_system(git_dir)


# Signed heads of logs, and statements of provenance: whoever reads one need not know of the other.
NOTES = "refs/notes/chargehand"
PROVENANCE = "refs/notes/chargehand-provenance"
_TRIES = 64  # each one that fails means that somebody else's note is in


class NotesPlace(Struct, frozen=True):
    """A repository that holds notes: git on it, and the `objects` of its (common) git directory."""

    git: Git
    objects: Path


class RefMove(Struct, frozen=True):
    """A ref, where it is to be, and where it must be before (`None`: absent)."""

    ref: str
    new: str
    old: str | None


def read_note(place: NotesPlace, commit: str, ref: str = NOTES) -> bytes | None:
    """Return the note of a commit, `None` where there is none.

    Raises `NotFoundError` and `RepositoryError` (`notes_unusable`) for a ref that holds no notes.
    """
    reader = ObjectReader(place.objects)
    tip = _notes_tip(place, ref)
    if tip is None:
        return None
    entry = _find_note(reader, _notes_tree(reader, tip), commit)[1]
    return None if entry is None else reader.blob(entry.id)


def add_notes(place: NotesPlace, commit: str, notes: Mapping[str, bytes], *, fault: Fault = no_fault) -> bool:
    """Add to the commit's note under each ref the lines that it does not have yet; return whether there were any.

    All refs move in one step, and are on the disk when this returns. Raises `NotFoundError` for a commit that is
    not there, `RepositoryError` (`notes_unusable`), `RefMovedError` when others were faster time and again,
    `GitError`, `OSError`, `InfrastructureError` (`no_space`).
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
            # As in `swap_durably`: the objects are on the disk before the refs.
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
    """`swap_ref` of several refs, all or none, by one process of git."""
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
    """Return the lines of a note; raises `UsageError` (`note_empty`) where there are none."""
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
