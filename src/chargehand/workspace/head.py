"""Writes the `.git` of a workspace whose tree is judged: at a commit of that tree, like a clone of its branch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from chargehand.core.records import Base
from chargehand.core.text import late_pattern
from chargehand.workspace.bases import BaseLayers, pack_objects
from chargehand.workspace.host.files import give_tree
from chargehand.workspace.host.git import Git
from chargehand.workspace.tree.attributes import TreeAttributes
from chargehand.workspace.tree.history import read_commit
from chargehand.workspace.tree.objects import GITLINK, Entries, ObjectReader, compare
from chargehand.workspace.tree.write import IndexEntry, edit_index, is_shown_alike, open_directory

_HEADS = "refs/heads/"
# Characters with a special meaning in a line of `info/exclude`.
_SPECIAL = late_pattern(rb"[\\*?\[ ]")


class Head(Struct, frozen=True, kw_only=True):
    """HEAD of a workspace: a commit of the depot with the workspace's tree, and its branch (short name).

    `overlaid` lists paths at which a sandbox shows other files: git treats them as unchanged or ignored.
    """

    commit: str
    branch: str
    overlaid: tuple[str, ...] = ()


class HeadWriter(Struct, frozen=True, kw_only=True):
    """Turns the `.git` of new workspaces on `base` into a clone of another branch.

    Writes only the difference to the base: the objects between the two commits, and the changed index entries.
    """

    git: Git
    reader: ObjectReader
    base: Base
    layers: BaseLayers

    def write(self, head: Head, root: Path, *, environment: Path | None) -> None:
        """Write the `.git` below `root`, the files of a workspace at `head` over an environment layer."""
        place = root / ".git"
        tree = bytes.fromhex(read_commit(self.reader, head.commit).tree)
        self._write_objects(place / "objects/pack", head.commit)
        own = self.base.branch or "main"
        # Git stores branch names as paths: a branch cannot be named like the directory of another branch.
        clash = own.startswith(f"{head.branch}/") or head.branch.startswith(f"{own}/")
        branch = own if clash else head.branch
        _replace(place / _HEADS / branch, f"{head.commit}\n".encode())
        _replace(place / "HEAD", f"ref: {_HEADS}{branch}\n".encode())
        lines = [_SPECIAL.sub(rb"\\\g<0>", b"/" + os.fsencode(path)) for path in head.overlaid if "\n" not in path]
        if environment is not None:
            lines += _find_untracked(environment, self.reader.tree(tree), self.reader, b"/")
        exclude = (self.layers.git / ".git/info/exclude").read_bytes()
        _replace(place / "info/exclude", exclude + b"".join(b"%s\n" % line for line in lines))
        with open_directory(root) as fd:
            edits = {path: _index_entry(fd, path, mode, blob) for path, mode, blob in self._find_written(tree)}
            for path in map(os.fsencode, head.overlaid):
                if (entry := self.reader.find(tree, path)) is not None and not entry.is_tree:
                    edits[path] = IndexEntry(path, entry.mode, 0, entry.id, 0, assumed=True)
        # Written after the files: git compares an entry as young as its index by content, and so notices a check
        # that rewrites a file within the same second.
        index = (self.layers.git / ".git/index").read_bytes()
        _replace(place / "index", edit_index(index, edits))
        give_tree(place)

    def _write_objects(self, pack: Path, commit: str) -> None:
        pack.mkdir(parents=True, exist_ok=True)
        wanted = f"{commit}\n^{self.base.commit}"
        if pack_objects(self.git, pack, wanted).code:  # the history has holes: cut it off at the base
            pack_objects(self.git, pack, f"--shallow {self.base.commit}\n{wanted}", ok=(0,))

    def _find_written(self, tree: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield path, mode and id of every entry that differs from the base; mode 0 means deleted."""
        before = bytes.fromhex(self.base.tree)
        changes = {os.fsencode(change.path): change for change in compare(self.reader, before, tree)}
        for path, change in changes.items():
            yield path, change.new_mode or 0, bytes.fromhex(change.new_id or "")
        if any(path.rpartition(b"/")[2] == b".gitattributes" for path in changes):
            # Content that did not change was also rewritten if the new attributes convert it differently.
            old, new = TreeAttributes(self.reader, before), TreeAttributes(self.reader, tree)
            for path, entry in self.reader.walk(tree):
                if path not in changes and not is_shown_alike(path, entry, old, new):
                    yield path, entry.mode, entry.id


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _index_entry(root: int, path: bytes, mode: int, id: bytes) -> IndexEntry | None:
    if not mode:
        return None
    if mode == GITLINK:  # git compares no times of a submodule
        return IndexEntry(path, mode, 0, id, 0)
    info = os.stat(path, dir_fd=root, follow_symlinks=False)
    return IndexEntry(path, mode, info.st_size, id, int(info.st_mtime))


def _find_untracked(layer: Path, tree: Entries, reader: ObjectReader, prefix: bytes) -> Iterator[bytes]:
    """Yield lines of `info/exclude` for the paths of a layer that a tree does not have."""
    for found in os.scandir(os.fsencode(layer)):
        entry = tree.get(found.name)
        path = prefix + found.name
        if entry is None and b"\n" not in path:
            yield _SPECIAL.sub(rb"\\\g<0>", path)
        elif entry is not None and entry.is_tree and found.is_dir(follow_symlinks=False):
            yield from _find_untracked(Path(os.fsdecode(found.path)), reader.below(entry), reader, path + b"/")
