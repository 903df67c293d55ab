"""Commits and refs of the depot."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from chargehand.core.errors import NotFoundError
from chargehand.core.records import Checkpoint
from chargehand.workspace._errors import GitError, RefMovedError
from chargehand.workspace._files import sync_file_system
from chargehand.workspace._git import ZERO, Git
from chargehand.workspace._objects import ObjectWriter
from chargehand.workspace._trees import ObjectReader

_COMMIT = 1
_SUBJECT = "checkpoint: "
_CHANGED = "changed: "
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_UNSAFE = re.compile(r"[<>\n\0]")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who made a commit, and when."""

    name: str = "Chargehand"
    email: str = "chargehand@localhost"
    when: datetime = field(default_factory=_now)

    def line(self) -> str:
        """Return git's form of it."""
        offset = self.when.strftime("%z")[:5] or "+0000"
        name = _UNSAFE.sub("", self.name).strip() or "unknown"
        return f"{name} <{_UNSAFE.sub('', self.email)}> {int(self.when.timestamp())} {offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit as stored: ids hex, the message whole."""

    id: str
    tree: str
    parents: tuple[str, ...]
    message: str


def write_commit(
    reader: ObjectReader, *, tree: str, parents: tuple[str, ...], message: str, author: Author
) -> str:
    """Write a commit object; return its id."""
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    lines += [f"author {author.line()}", f"committer {author.line()}", "", message.rstrip("\n") + "\n"]
    content = "\n".join(lines).encode("utf-8", "replace")
    with ObjectWriter(reader.objects) as writer:
        return writer.add("commit", content).hex()


def read_commit(reader: ObjectReader, id: str) -> Commit:
    """Return a commit; raises `NotFoundError` code `commit_not_found`."""
    kind, content = reader.read(bytes.fromhex(id))
    if kind != _COMMIT:
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


def read_loose_ref(git_dir: Path, ref: str) -> str | None:
    """Return the id in a ref's own file; `None` where it has none or points to another ref: git knows then.

    A process of git takes longer than all the rest of a small checkpoint.
    """
    try:
        content = (git_dir / ref).read_bytes().strip()
    except OSError:
        return None
    return content.decode() if _ID.fullmatch(content) else None


def read_ref(git: Git, ref: str) -> str | None:
    """Return the id that `ref` points to, or `None`."""
    asked = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", ref)
    return asked.text if asked.code == 0 else None


def swap_ref(git: Git, ref: str, *, new: str | None, old: str | None) -> None:
    """Set `ref` to `new` if it is at `old` (`None`: absent), in one step; raises `RefMovedError` if it is not."""
    if new is None:
        done = git.run("update-ref", "--no-deref", "-d", ref, old or ZERO)
    else:
        done = git.run("update-ref", "--no-deref", ref, new, old or ZERO)
    if done.code == 0:
        return
    actual = read_ref(git, ref)
    if actual != old:
        raise RefMovedError(ref, expected=old, actual=actual)
    raise GitError(f"could not set {ref!r}: {done.error!r}", exit_status=done.code)


def swap_durably(git: Git, git_dir: Path, ref: str, *, new: str | None, old: str | None) -> None:
    """`swap_ref` that holds over a loss of power: objects are on the disk before the ref, the ref on return."""
    sync_file_system(git_dir)
    swap_ref(git, ref, new=new, old=old)
    sync_file_system(git_dir)
