"""Merges two commits of the depot without a working tree, and describes conflicts.

A conflict is described from the three contents only. Nothing is parsed from a file with conflict markers, so a
text that contains such markers is handled like any other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.core.errors import RefusedError
from chargehand.core.records import Conflict, ConflictHunk, ConflictKind, Excerpt, Side
from chargehand.core.text import printable, shown_path
from chargehand.workspace.errors import GitError
from chargehand.workspace.host.git import Git, git_version
from chargehand.workspace.hunks import Hunk, find_hunks, split_lines
from chargehand.workspace.tree.history import is_descendant, read_commit
from chargehand.workspace.tree.objects import GITLINK, ObjectReader, compare

if TYPE_CHECKING:
    import pygit2

_MERGE_TREE = (2, 38)  # the git version that can merge without a working tree
_MERGE_TREE_BASE = (2, 40)  # and with a base other than the merge base
_CONFLICT = b"CONFLICT ("
_RENAMED = (b"rename", b"directory rename", b"file location")
_SET_ASIDE = (b"file/directory", b"distinct modes", b"distinct types")
_OF_LINES: tuple[ConflictKind, ...] = ("content", "both_added")
# Returns whether both sides' conflicting lines are kept for a path.
IsUnion = Callable[[str], bool]
_MAX_FILES = 50
_MAX_HUNKS = 10
_MAX_LINES = 30
_MAX_SIDE = 2000
_MAX_TEXT = 60_000  # characters of all hunks together: the report is part of a prompt
_WORDS: dict[ConflictKind, str] = {
    "content": "both changed the same lines",
    "both_added": "both added it, with different content",
    "modify_delete": "one changed it, the other deleted it",
    "rename": "one side renamed it, the other changed it in another way",
    "mode": "both changed the kind of the file",
    "binary": "both changed it, and it is binary",
    "file_directory": "a file on one side is a directory on the other",
    "submodule": "both changed the submodule",
}


class Stages(Struct, frozen=True, kw_only=True):
    """Git's report of one path in conflict; git calls a side of it in the index a stage."""

    path: str
    base: Side | None = None
    ours: Side | None = None
    theirs: Side | None = None
    renamed: bool = False
    in_the_way: bool = False
    others: tuple[str, ...] = ()

    def conflict_kind(self, contents: Iterable[bytes | None]) -> ConflictKind:
        """Return how the sides conflict; `contents` are those of their files, `None` for a missing file."""
        sides = (self.base, self.ours, self.theirs)
        if any(side and stat.S_IFMT(side.mode) == GITLINK for side in sides):
            return "submodule"
        if self.in_the_way:
            return "file_directory"
        # A single side: git lists both ends of a rename at separate paths.
        if self.renamed or sides.count(None) == 2:
            return "rename"
        if self.ours is None or self.theirs is None:
            return "modify_delete"
        if stat.S_IFMT(self.ours.mode) != stat.S_IFMT(self.theirs.mode) or self.ours.id == self.theirs.id:
            return "mode"
        if any(content and b"\0" in content for content in contents):
            return "binary"
        return "content" if self.base is not None else "both_added"


class MergeConflictError(RefusedError):
    """Two sides cannot be merged; `conflicts` gives places and reasons, and nothing was changed."""

    default_code = "merge_conflict"

    def __init__(self, message: str, conflicts: Sequence[Conflict], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.conflicts = tuple(conflicts)


class MergeResult(Struct, frozen=True, kw_only=True):
    """The merged tree or `None`, the paths in conflict, and the details of the first of them."""

    tree: str | None
    conflicts: tuple[str, ...] = ()
    details: tuple[Conflict, ...] = ()


class _PathMessages(Struct):
    """The content of git's messages about one path: the kinds of conflict, and the other paths involved."""

    kinds: set[bytes] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


def merge_commits(
    git: Git,
    git_dir: Path,
    *,
    reader: ObjectReader,
    ours: str,
    theirs: str,
    base: str | None,
    union: IsUnion | None = None,
) -> MergeResult:
    """Merge `theirs` into `ours`; `base` replaces the merge base of their history.

    For a text file accepted by `union`, conflicting lines of both sides are kept, as git's merge driver `union`
    does. Raises `GitError`.
    """
    if base in (None, ours) and is_descendant(reader, theirs, ours):  # a fast-forward, like most merges here
        return MergeResult(tree=read_commit(reader, theirs).tree)
    # A base is passed only if it differs from git's: with it git would not merge several bases recursively.
    found = git.run("merge-base", ours, theirs).text or None
    ancestor = base or found
    version = git_version()
    if version < _MERGE_TREE or (ancestor != found and version < _MERGE_TREE_BASE):
        return _merge_in_process(git_dir, reader, ours, theirs, ancestor, union)
    extra = (f"--merge-base={ancestor}",) if ancestor != found else ()
    done = git.run("merge-tree", "--write-tree", "--messages", "-z", *extra, ours, theirs)
    # Exit code 1 means conflicts; any other code is a failure.
    if done.code not in (0, 1):
        raise GitError(f"git merge-tree failed: {done.error!r}", exit_status=done.code)
    tree, *fields = done.out.split(b"\0")
    if done.code == 0:
        return MergeResult(tree=tree.decode())
    conflicts = list(_parse_conflicts(fields))
    united = _unite_lines(git_dir, reader, conflicts, union)
    if len(united) == len(conflicts):
        return MergeResult(tree=_with_files(git_dir, tree.decode(), united))
    return _result_of(reader, (each for each in conflicts if each.path not in united))


def _unite_lines(
    git_dir: Path, reader: ObjectReader, conflicts: Iterable[Stages], union: IsUnion | None
) -> dict[str, Side]:
    """Return, by path, the merged files of those conflicts in which the lines of both sides are kept."""
    import pygit2

    three: dict[str, Stages] = {}
    for each in conflicts:
        if union is None or each.renamed or not union(each.path):
            continue
        files = [side for side in (each.base, each.ours, each.theirs) if side is not None]
        if any(stat.S_IFMT(side.mode) != stat.S_IFREG for side in files):
            continue
        if each.conflict_kind([reader.blob(bytes.fromhex(side.id)) for side in files]) in _OF_LINES:
            three[each.path] = each
    if not three:
        return {}
    repository = pygit2.Repository(str(git_dir))

    def tree_of(sides: Iterable[Side | None]) -> pygit2.Tree:
        # Contains only these files, under numbers: paths have directories.
        builder = repository.TreeBuilder()
        for number, side in enumerate(sides):
            if side is not None:
                builder.insert(str(number), side.id, pygit2.enums.FileMode(side.mode))
        return repository[builder.write()].peel(pygit2.Tree)

    base, ours, theirs = (
        tree_of(getattr(each, name) for each in three.values()) for name in ("base", "ours", "theirs")
    )
    merged = repository.merge_trees(base, ours, theirs, favor=pygit2.enums.MergeFavor.UNION)
    found = {path: merged[str(number)] for number, path in enumerate(three) if str(number) in merged}
    return {path: Side(mode=int(entry.mode), id=str(entry.id)) for path, entry in found.items()}


def _add_files(index: pygit2.Index, files: Mapping[str, Side]) -> None:
    import pygit2

    for path, side in files.items():
        if index.conflicts is not None and path in index.conflicts:
            del index.conflicts[path]
        index.add(pygit2.IndexEntry(path, pygit2.Oid(hex=side.id), pygit2.enums.FileMode(side.mode)))


def _with_files(git_dir: Path, tree: str, files: Mapping[str, Side]) -> str:
    """Return a tree with these files at their paths."""
    import pygit2

    repository = pygit2.Repository(str(git_dir))
    index = pygit2.Index()
    index.read_tree(repository[tree].peel(pygit2.Tree))
    _add_files(index, files)
    return str(index.write_tree(repository))


def _result_of(reader: ObjectReader, stages: Iterable[Stages]) -> MergeResult:
    ordered = sorted(stages, key=lambda each: os.fsencode(each.path))
    paths = tuple(each.path for each in ordered)
    return MergeResult(tree=None, conflicts=paths, details=describe(reader, ordered))


def _parse_conflicts(fields: list[bytes]) -> Iterator[Stages]:
    """Yield the paths in conflict from merge-tree's fields: staged entries, an empty field, then messages."""
    end = fields.index(b"")
    messages: dict[str, _PathMessages] = {}
    at = end + 1
    # A message is a count, that many paths, a stable kind, and a sentence for people.
    while at < len(fields) and fields[at].isdigit():
        count = int(fields[at])
        paths = [os.fsdecode(path) for path in fields[at + 1 : at + 1 + count]]
        label = fields[at + 1 + count]
        at += count + 3
        if label.startswith(_CONFLICT):
            for path in paths:
                of = messages.setdefault(path, _PathMessages())
                of.kinds.add(label.removeprefix(_CONFLICT).rstrip(b")"))
                of.others.update(other for other in paths if other != path)
    found: dict[str, dict[str, Side]] = {}
    for entry in fields[:end]:
        info, _, name = entry.partition(b"\t")
        mode, blob, stage = info.split(b" ")
        path = os.fsdecode(name)
        of = messages.get(path, _PathMessages())
        if any(kind.startswith(_SET_ASIDE) for kind in of.kinds):
            # Git put this side under a made-up name (`path~commit`), since the other side is in its way.
            path = next((other for other in sorted(of.others) if path.startswith(f"{other}~")), path)
        side = Side(mode=int(mode, 8), id=blob.decode())
        found.setdefault(path, {})[("base", "ours", "theirs")[int(stage) - 1]] = side
    for path, sides in found.items():
        of = messages.get(path, _PathMessages())
        renamed = any(kind.startswith(_RENAMED) for kind in of.kinds)
        yield replace(
            _stages(path, sides),
            renamed=renamed,
            in_the_way=b"file/directory" in of.kinds,
            others=tuple(sorted(of.others)) if renamed else (),
        )


def _stages(path: str, sides: Mapping[str, Side]) -> Stages:
    return Stages(path=path, base=sides.get("base"), ours=sides.get("ours"), theirs=sides.get("theirs"))


def _merge_in_process(
    git_dir: Path, reader: ObjectReader, ours: str, theirs: str, base: str | None, union: IsUnion | None
) -> MergeResult:
    import pygit2

    # Read before libgit2 does: it never returns from a truncated loose object.
    before = None if base is None else bytes.fromhex(read_commit(reader, base).tree)
    for side in (ours, theirs):
        for change in compare(reader, before, bytes.fromhex(read_commit(reader, side).tree)):
            for mode, entry in ((change.old_mode, change.old_id), (change.new_mode, change.new_id)):
                if entry is not None and mode != GITLINK:
                    reader.read(bytes.fromhex(entry))
    repository = pygit2.Repository(str(git_dir))
    # Histories without a common commit use the empty tree as base: files in both are then added by both.
    ancestor = repository[base or repository.TreeBuilder().write()].peel(pygit2.Tree)
    merged = repository.merge_trees(
        ancestor, repository[ours].peel(pygit2.Tree), repository[theirs].peel(pygit2.Tree)
    )
    if not merged.conflicts:
        return MergeResult(tree=str(merged.write_tree(repository)))
    conflicts = list(_conflicts_of(merged))
    united = _unite_lines(git_dir, reader, conflicts, union)
    if len(united) < len(conflicts):
        return _result_of(reader, (each for each in conflicts if each.path not in united))
    _add_files(merged, united)
    return MergeResult(tree=str(merged.write_tree(repository)))


def _conflicts_of(merged: pygit2.Index) -> Iterator[Stages]:
    found: dict[str, dict[str, Side]] = {}
    for conflict in merged.conflicts or ():
        for name, entry in zip(("base", "ours", "theirs"), conflict, strict=True):
            if entry is not None:
                sides = found.setdefault(entry.path, {})
                sides[name] = Side(mode=int(entry.mode), id=str(entry.id))
    yield from (_stages(path, sides) for path, sides in found.items())


# --- details of conflicts


def describe(reader: ObjectReader, stages: Iterable[Stages]) -> tuple[Conflict, ...]:
    """Return the details of the first paths in conflict; the size of their texts together is bounded."""
    found: list[Conflict] = []
    left = _MAX_TEXT
    for each in islice(stages, _MAX_FILES):
        sides = (each.base, each.ours, each.theirs)
        contents = [
            None if side is None or stat.S_IFMT(side.mode) == GITLINK else reader.blob(bytes.fromhex(side.id))
            for side in sides
        ]
        kind = each.conflict_kind(contents)
        types = {stat.S_IFMT(side.mode) for side in sides if side is not None}
        readable = kind not in ("submodule", "file_directory") and len(types) == 1
        hunks = list(_find_clashes(contents[0], contents[1], contents[2])) if readable else []
        conflict = Conflict(
            path=each.path,
            kind=kind,
            base=each.base,
            ours=each.ours,
            theirs=each.theirs,
            others=each.others,
            hunks=tuple(hunks[:_MAX_HUNKS]),
            left_out=len(hunks[_MAX_HUNKS:]),
        )
        kept = 0
        for hunk in conflict.hunks:
            size = sum(len(side.text) for side in (hunk.base, hunk.ours, hunk.theirs) if side is not None)
            if size > left:
                break
            left -= size
            kept += 1
        left_out = conflict.left_out + len(conflict.hunks) - kept
        found.append(replace(conflict, hunks=conflict.hunks[:kept], left_out=left_out))
    return tuple(found)


def conflict_report(
    conflicts: Sequence[Conflict], *, ours: str = "the branch", theirs: str = "your changes"
) -> str:
    """Return the conflicts as a text for an agent or a person; `ours` and `theirs` are the names of the sides.

    Every line of a file follows a word and a bar, so no text of a file can pass for a line of the report.
    """
    lines: list[str] = []
    for conflict in conflicts:
        lines.append(f"{shown_path(conflict.path)}: {conflict.kind}: {_WORDS[conflict.kind]}")
        if conflict.others:
            lines.append(f"  together with {', '.join(map(shown_path, conflict.others))}")
        for hunk in conflict.hunks:
            for name, side in (("before", hunk.base), (ours, hunk.ours), (theirs, hunk.theirs)):
                lines += _excerpt_lines(name, side)
        if conflict.left_out:
            lines.append(f"  and {conflict.left_out} more places")
    return "\n".join(lines) + "\n"


def _excerpt_lines(name: str, side: Excerpt | None) -> Iterator[str]:
    if side is None:
        return
    if not side.lines:
        yield f"  {name}, nothing after line {side.start}"
        return
    last = side.start + side.lines - 1
    yield f"  {name}, " + (f"line {side.start}:" if side.lines == 1 else f"lines {side.start} to {last}:")
    for line in side.text.split("\n")[: -1 if side.text.endswith("\n") else None]:
        yield "    | " + printable(line.replace("\r", "\\r"))
    if side.cut:
        yield "    (cut)"


def _find_clashes(base: bytes | None, ours: bytes | None, theirs: bytes | None) -> Iterator[ConflictHunk]:
    """Yield the conflicting lines; nothing if they cannot be compared."""
    if ours is not None and theirs is not None:
        if base is None:
            yield from _compare_two(None, ours, theirs)
        else:
            hunks = list(_compare_three(base, ours, theirs))
            yield from hunks
            # Git compares with another algorithm and may find a conflict that this comparison does not find. In
            # text files, report everything between the common lines at top and bottom of the three.
            if not hunks and find_hunks(ours, theirs) is not None:
                texts = split_lines(base), split_lines(ours), split_lines(theirs)
                top = _count_alike(zip(*texts, strict=False))
                bottom = _count_alike(zip(*(reversed(text[top:]) for text in texts), strict=False))
                sides = [_excerpt(text, top, len(text) - top - bottom) for text in texts]
                yield ConflictHunk(base=sides[0], ours=sides[1], theirs=sides[2])
    elif base is not None and ours is not None:
        yield from (replace(found, theirs=None) for found in _compare_two(base, ours, base))
    elif base is not None and theirs is not None:
        yield from (replace(found, ours=None) for found in _compare_two(base, base, theirs))


def _compare_two(base: bytes | None, ours: bytes, theirs: bytes) -> Iterator[ConflictHunk]:
    """Yield the differences of two contents; a base equals one of them."""
    mine, other = split_lines(ours), split_lines(theirs)
    for hunk in find_hunks(ours, theirs) or ():
        left = _excerpt(mine, hunk.old, hunk.old_lines)
        right = _excerpt(other, hunk.new, hunk.new_lines)
        yield ConflictHunk(base=None if base is None else left if base is ours else right, ours=left, theirs=right)


def _compare_three(base: bytes, ours: bytes, theirs: bytes) -> Iterator[ConflictHunk]:
    """Yield places where both sides changed overlapping or adjacent lines of the base, with different results."""
    mine, other = find_hunks(base, ours), find_hunks(base, theirs)
    if mine is None or other is None:
        return
    texts = split_lines(base), split_lines(ours), split_lines(theirs)
    changes = [(0, hunk) for hunk in mine] + [(1, hunk) for hunk in other]
    # Changes of both sides (0 and 1) that overlap or touch in the base.
    regions: list[list[tuple[int, Hunk]]] = []
    end = 0
    for side, hunk in sorted(changes, key=lambda change: (change[1].old, change[1].old_lines)):
        if not regions or hunk.old > end:
            regions.append([])
        regions[-1].append((side, hunk))
        end = max(end, hunk.old + hunk.old_lines)
    shift = [0, 0]  # the lines by which each side is longer before the region
    for region in regions:
        low = min(hunk.old for _, hunk in region)
        high = max(hunk.old + hunk.old_lines for _, hunk in region)
        grown = [sum(h.new_lines - h.old_lines for side, h in region if side == which) for which in (0, 1)]
        starts, counts = [low + by for by in shift], [high - low + by for by in grown]
        shift = [before + by for before, by in zip(shift, grown, strict=True)]
        left = texts[1][starts[0] : starts[0] + counts[0]]
        right = texts[2][starts[1] : starts[1] + counts[1]]
        if {side for side, _ in region} == {0, 1} and left != right:
            yield ConflictHunk(
                base=_excerpt(texts[0], low, high - low),
                ours=_excerpt(texts[1], starts[0], counts[0]),
                theirs=_excerpt(texts[2], starts[1], counts[1]),
            )


def _count_alike(lines: Iterable[tuple[bytes, ...]]) -> int:
    """Return the number of first rows that have the same line three times."""
    return sum(1 for _ in takewhile(lambda row: len(set(row)) == 1, lines))


def _excerpt(lines: Sequence[bytes], start: int, count: int) -> Excerpt:
    shown = b"".join(lines[start : start + min(count, _MAX_LINES)])
    text = shown[:_MAX_SIDE].decode("utf-8", "backslashreplace")
    cut = count > _MAX_LINES or len(shown) > _MAX_SIDE
    return Excerpt(start=start + (1 if count else 0), lines=count, text=text, cut=cut)
