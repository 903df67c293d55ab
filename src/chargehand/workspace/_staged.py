"""What is staged in the user's repository, as a tree of the depot: their index and objects are only read.

No filter runs and no file of the working tree is opened: the index has what a commit would.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from chargehand.core.errors import RefusedError
from chargehand.core.records import Base
from chargehand.workspace._depot import Depot
from chargehand.workspace._errors import GitError
from chargehand.workspace._git import ZERO, Git
from chargehand.workspace._objects import ObjectWriter
from chargehand.workspace._trees import Entry, edit_tree

_GITLINK = 0o160000


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The tree that is staged on a base, and the paths in which it differs (those taken out left out)."""

    tree: str
    changed: tuple[str, ...]


def staged_tree(depot: Depot, base: Base) -> Staged:
    """Return what is staged in the user's repository; `GIT_INDEX_FILE` names another index, as hooks have it.

    Raises `RefusedError` (`index_unmerged`) while a merge has conflicts there.
    """
    git = depot.repository.git
    index = os.environ.get("GIT_INDEX_FILE")
    if index is not None:
        git = git.within(GIT_INDEX_FILE=str(depot.repository.path / index))
    listed = git("diff-index", "--cached", "--raw", "-z", "--no-renames", "--abbrev=40", base.commit, "--")
    entries = dict(_entries(listed.out.split(b"\0")[:-1]))
    contents = _contents(git, sorted({e.id for e in entries.values() if e is not None and e.mode != _GITLINK}))
    with ObjectWriter(depot.reader.objects) as writer:
        for content in contents:
            writer.add("blob", content)
        tree = edit_tree(depot.reader, writer, bytes.fromhex(base.tree), list(entries.items())).hex()
    return Staged(tree=tree, changed=tuple(os.fsdecode(path) for path, entry in entries.items() if entry))


def _entries(fields: list[bytes]) -> Iterator[tuple[bytes, Entry | None]]:
    for about, path in zip(fields[::2], fields[1::2], strict=True):
        _, mode, _, new, status = about.decode().lstrip(":").split(" ")
        if status == "U":
            raise RefusedError(
                f"{os.fsdecode(path)!r} is unmerged in the index",
                code="index_unmerged",
                hint="finish the merge first",
            )
        if status != "D" and new != ZERO:  # zero: added by intent alone
            yield path, Entry(int(mode, 8), bytes.fromhex(new))
        elif status == "D":
            yield path, None


def _contents(git: Git, ids: list[bytes]) -> Iterator[bytes]:
    """Yield the blobs of these ids, asked for by one process."""
    if not ids:
        return
    asked = "".join(f"{each.hex()}\n" for each in ids).encode()
    answer, at = git("cat-file", "--batch", input=asked).out, 0
    for _ in ids:
        end = answer.index(b"\n", at)
        words = answer[at:end].split(b" ")
        if len(words) != 3:
            raise GitError(f"git cat-file said {answer[at:end].decode(errors='replace')!r}", exit_status=0)
        size = int(words[2])
        yield answer[end + 1 : end + 1 + size]
        at = end + 2 + size
