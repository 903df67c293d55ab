"""Merges two commits in the depot without a working tree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pygit2

from chargehand.core.records import Conflict, Side
from chargehand.workspace._errors import GitError
from chargehand.workspace._git import Git, git_version
from chargehand.workspace._merge_conflicts import Stages, describe
from chargehand.workspace._trees import ObjectReader

_MERGE_TREE = (2, 38)
_MERGE_TREE_BASE = (2, 40)
_CONFLICT = b"CONFLICT ("
_RENAMED = (b"rename", b"directory rename", b"file location")
_SET_ASIDE = (b"file/directory", b"distinct modes", b"distinct types")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The merged tree, or `None`, the paths in conflict, and what can be told of the first of them."""

    tree: str | None
    conflicts: tuple[str, ...] = ()
    details: tuple[Conflict, ...] = ()


@dataclass(slots=True)
class _Told:
    """What git's messages say of one path: the kinds of conflict, and the other paths that have part in them."""

    kinds: set[bytes] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


def merge_commits(
    git: Git, git_dir: Path, *, reader: ObjectReader, ours: str, theirs: str, base: str | None
) -> MergeResult:
    """Merge `theirs` into `ours`; `base` stands in for the merge base that history tells."""
    found = git.run("merge-base", ours, theirs).text or None
    ancestor = base or found
    version = git_version()
    if version < _MERGE_TREE or (ancestor != found and version < _MERGE_TREE_BASE):
        return _in_process(git_dir, reader, ours, theirs, ancestor)
    extra = (f"--merge-base={ancestor}",) if ancestor != found else ()
    done = git.run("merge-tree", "--write-tree", "--messages", "-z", *extra, ours, theirs)
    if done.code not in (0, 1):
        raise GitError(f"git merge-tree failed: {done.error!r}", exit_status=done.code)
    tree, *fields = done.out.split(b"\0")
    if done.code == 0:
        return MergeResult(tree=tree.decode())
    return _conflicted(reader, _parse(fields))


def _conflicted(reader: ObjectReader, stages: Iterable[Stages]) -> MergeResult:
    ordered = sorted(stages, key=lambda each: os.fsencode(each.path))
    paths = tuple(each.path for each in ordered)
    return MergeResult(tree=None, conflicts=paths, details=describe(reader, ordered))


def _parse(fields: list[bytes]) -> Iterator[Stages]:
    """Yield the paths in conflict out of merge-tree's fields: staged entries, an empty field, then messages."""
    end = fields.index(b"")
    told = _messages(fields[end + 1 :])
    found: dict[str, dict[str, Side]] = {}
    for entry in fields[:end]:
        info, _, name = entry.partition(b"\t")
        mode, blob, stage = info.split(b" ")
        path = _path_before(os.fsdecode(name), told)
        side = Side(mode=int(mode, 8), id=blob.decode())
        found.setdefault(path, {})[("base", "ours", "theirs")[int(stage) - 1]] = side
    for path, sides in found.items():
        of = told.get(path, _Told())
        renamed = any(kind.startswith(_RENAMED) for kind in of.kinds)
        yield replace(
            _stages(path, sides),
            renamed=renamed,
            in_the_way=b"file/directory" in of.kinds,
            others=tuple(sorted(of.others)) if renamed else (),
        )


def _stages(path: str, sides: Mapping[str, Side]) -> Stages:
    return Stages(path=path, base=sides.get("base"), ours=sides.get("ours"), theirs=sides.get("theirs"))


def _messages(fields: list[bytes]) -> dict[str, _Told]:
    """Read git's messages: a count, so many paths, a stable kind, a sentence for people."""
    told: dict[str, _Told] = {}
    at = 0
    while at < len(fields) and fields[at].isdigit():
        count = int(fields[at])
        paths = [os.fsdecode(path) for path in fields[at + 1 : at + 1 + count]]
        kind = fields[at + 1 + count]
        at += count + 3
        if kind.startswith(_CONFLICT):
            for path in paths:
                of = told.setdefault(path, _Told())
                of.kinds.add(kind.removeprefix(_CONFLICT).rstrip(b")"))
                of.others.update(other for other in paths if other != path)
    return told


def _path_before(path: str, told: dict[str, _Told]) -> str:
    """Return the real path of an entry that git put aside under a made-up name (`path~commit`)."""
    of = told.get(path)
    if of is None or not any(kind.startswith(_SET_ASIDE) for kind in of.kinds):
        return path
    return next((other for other in sorted(of.others) if path.startswith(f"{other}~")), path)


def _in_process(git_dir: Path, reader: ObjectReader, ours: str, theirs: str, base: str | None) -> MergeResult:
    repository = pygit2.Repository(str(git_dir))
    ancestor = repository[base or repository.TreeBuilder().write()].peel(pygit2.Tree)
    merged = repository.merge_trees(
        ancestor, repository[ours].peel(pygit2.Tree), repository[theirs].peel(pygit2.Tree)
    )
    if not merged.conflicts:
        return MergeResult(tree=str(merged.write_tree(repository)))
    found: dict[str, dict[str, Side]] = {}
    for conflict in merged.conflicts:
        for name, entry in zip(("base", "ours", "theirs"), conflict, strict=True):
            if entry is not None:
                sides = found.setdefault(entry.path, {})
                sides[name] = Side(mode=int(entry.mode), id=str(entry.id))
    return _conflicted(reader, (_stages(path, sides) for path, sides in found.items()))
