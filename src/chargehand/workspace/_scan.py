"""Turns what an agent left on disk into a tree, reading only what may have changed.

One walk serves every driver. Over an overlay's upper a directory starts from what the base has there and each
entry edits it (*merged*); below an opaque directory, and in a plain directory, only what is listed is there.
Every file is opened relative to its directory and never through a link.

An entry that breaks a rule is a finding and leaves the base's version at its path.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from chargehand.core.ports import DriverName
from chargehand.core.records import Change, Finding
from chargehand.workspace._ignore import IgnoreChain, IgnoreFile
from chargehand.workspace._names import (
    STEERING,
    is_git_disguise,
    link_problem,
    name_problem,
    passes_for_repository,
)
from chargehand.workspace._objects import ObjectWriter, object_id
from chargehand.workspace._rules import Findings, WorkspaceLimits, file_problem
from chargehand.workspace._statcache import StatCache
from chargehand.workspace._trees import (
    EXECUTABLE,
    FILE,
    LINK,
    TREE,
    Entries,
    Entry,
    ObjectReader,
    compare,
    write_tree,
)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a workspace holds: its tree, what differs from base, what breaks a rule.

    `files` and `bytes` (on disk) count the entries that differ from base and belong to the tree.
    """

    tree: str
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRules:
    """What the walk is given: raw ids of the base's tree and of the tree the workspace started from, and rules."""

    base: bytes
    start: bytes
    driver: DriverName
    include: IgnoreFile | None = None
    environment: int | None = None
    limits: WorkspaceLimits = field(default_factory=WorkspaceLimits)


@dataclass(frozen=True, slots=True)
class _Place:
    """One directory during the walk; `path` is empty or ends in '/'."""

    fd: int
    path: bytes
    base: Entries
    start: Entries
    chain: IgnoreChain
    merged: bool
    ignored: bool
    included: bool
    depth: int


def scan(
    root: int, rules: ScanRules, *, reader: ObjectReader, cache: StatCache, known: set[bytes]
) -> tuple[Scan, int]:
    """Scan the directory open as `root`; return the result, all written to the depot, and how much `cache` learnt.

    `known` holds ids of trees and blobs that are in the depot already. Raises `InfrastructureError` (`no_space`).
    """
    walk = _Walk(rules, reader, cache)
    try:
        with ObjectWriter(reader.objects, known=known) as writer:
            walk.writer = writer
            tree = walk.top(root)
        learnt = cache.accept()
    except BaseException:
        cache.forget_proposed()
        raise
    changes = tuple(compare(reader, rules.base, tree))
    result = Scan(
        tree=tree.hex(),
        changes=changes,
        findings=walk.findings.result(changes),
        files=walk.files,
        bytes=walk.bytes,
    )
    return result, learnt


def opaque_attribute() -> str:
    """Return the attribute that marks a replaced directory in uppers that we mount.

    As root `trusted.`, which no sandbox can write; else `user.` (`userxattr`), which overlayfs keeps from the
    sandbox. The other one is an agent's own and means nothing.
    """
    return "trusted.overlay.opaque" if os.geteuid() == 0 else "user.overlay.opaque"


class _Walk:
    def __init__(self, rules: ScanRules, reader: ObjectReader, cache: StatCache) -> None:
        self.rules = rules
        self.reader = reader
        self.cache = cache
        self.findings = Findings()
        self.files = 0
        self.bytes = 0
        self.writer: ObjectWriter
        self._overlay = rules.driver == "overlay"
        self._opaque = opaque_attribute()

    def top(self, root: int) -> bytes:
        base = self.reader.tree(self.rules.base)
        start = self.reader.tree(self.rules.start)
        chain = self._chain(IgnoreChain(), b"", base)
        merged = self._overlay and not self._is_opaque(root)
        entries = self._directory(_Place(root, b"", base, start, chain, merged, False, False, 0))
        return self._tree(entries, base, self.rules.base)

    def _tree(self, entries: dict[bytes, Entry], before: Entries, before_id: bytes | None) -> bytes:
        if before_id is not None and entries == before:
            return before_id
        raw = write_tree(self.writer, entries)
        self.reader.remember(raw, entries)
        return raw

    def _chain(self, chain: IgnoreChain, path: bytes, base: Entries) -> IgnoreChain:
        entry = base.get(b".gitignore")
        if entry is None or entry.mode not in (FILE, EXECUTABLE):
            return chain
        return chain.enter(path, IgnoreFile(self.reader.blob(entry.id)))

    def _is_opaque(self, fd: int) -> bool:
        try:
            return os.getxattr(fd, self._opaque) == b"y"
        except OSError:
            return False

    def _directory(self, place: _Place) -> dict[bytes, Entry]:
        out = dict(place.base) if place.merged else {}
        with os.scandir(place.fd) as listing:
            names = sorted(os.fsencode(entry.name) for entry in listing)
        for name in names:
            if not place.path and name == b".git":
                continue
            entry = self._entry(place, name)
            if entry is None:
                out.pop(name, None)
            else:
                out[name] = entry
        return out

    def _entry(self, place: _Place, name: bytes) -> Entry | None:
        """Return what the tree has at `name`; `None` for nothing."""
        try:
            info = os.stat(name, dir_fd=place.fd, follow_symlinks=False)
        except FileNotFoundError:  # gone since it was listed
            return None
        if self._overlay and stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
            return None
        before, start = place.base.get(name), place.start.get(name)
        directory = stat.S_ISDIR(info.st_mode)
        tracked = _tracked(before, directory) or _tracked(start, directory)
        if tracked and not directory:
            return self._tracked_leaf(place, name, info, before)
        outside, included = self._outside(place, name, directory=directory, tracked=tracked)
        if outside and not tracked and not (directory and self._may_include(place.path + name)):
            return None
        if not tracked and not outside and self._bad_name(place, name):
            return before
        if directory:
            return self._subdirectory(place, name, info, ignored=outside, included=included)
        return self._leaf(place, name, info)

    def _tracked_leaf(
        self, place: _Place, name: bytes, info: os.stat_result, before: Entry | None
    ) -> Entry | None:
        if before is not None and before.is_gitlink:
            self.findings.add("entry_submodule", "error", place.path + name, "replaces a submodule")
            return before
        return self._leaf(place, name, info)

    def _outside(self, place: _Place, name: bytes, *, directory: bool, tracked: bool) -> tuple[bool, bool]:
        """Return whether what is not tracked at this name is outside the tree, and whether `include` names it.

        That the environment has something in a tracked directory says nothing of its other files.
        """
        path = place.path + name
        included = place.included
        if not included and self.rules.include is not None:
            included = self.rules.include.includes(path, directory=directory)
        if included:
            return False, True
        ignored = place.ignored or place.chain.ignores(path, directory=directory)
        return ignored or (not tracked and self._in_environment(path)), False

    def _in_environment(self, path: bytes) -> bool:
        if self.rules.environment is None:
            return False
        try:
            os.stat(path, dir_fd=self.rules.environment, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _may_include(self, path: bytes) -> bool:
        return self.rules.include is not None and self.rules.include.may_match_below(path)

    def _bad_name(self, place: _Place, name: bytes) -> bool:
        path = place.path + name
        if is_git_disguise(name):
            self.findings.add("entry_nested_git", "critical", path, "is, or passes for, a repository of its own")
            return True
        problem = name_problem(name)
        if problem:
            self.findings.add("entry_name", "critical", path, problem)
        return bool(problem)

    def _subdirectory(
        self, place: _Place, name: bytes, info: os.stat_result, *, ignored: bool, included: bool
    ) -> Entry | None:
        before, start = place.base.get(name), place.start.get(name)
        path = place.path + name
        submodule = next((entry for entry in (before, start) if entry is not None and entry.is_gitlink), None)
        if submodule is not None:
            return self._submodule(place, name, submodule)
        if place.depth >= self.rules.limits.depth and not _tracked(before, True):
            self.findings.quota(path, f"lies deeper than {self.rules.limits.depth} directories")
            return before
        if info.st_mode & 0o500 != 0o500:
            self.findings.add("entry_unreadable", "error", path, "cannot be read by its owner")
            return before
        base = self.reader.below(before)
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=place.fd)
        except OSError:  # replaced since it was listed
            return before
        try:
            inside = _Place(
                fd,
                path + b"/",
                base,
                self.reader.below(start),
                self._chain(place.chain, path + b"/", base),
                place.merged and before is not None and before.is_tree and not self._is_opaque(fd),
                ignored,
                included,
                place.depth + 1,
            )
            entries = self._directory(inside)
        finally:
            os.close(fd)
        if not entries:
            return None
        if passes_for_repository(entries):
            if not passes_for_repository(base):
                self.findings.add("entry_nested_git", "critical", path, "passes for a bare repository")
                return before
            self._keep_steering(path, base, entries)
        return Entry(TREE, self._tree(entries, base, before.id if before and before.is_tree else None))

    def _keep_steering(self, path: bytes, base: Entries, entries: dict[bytes, Entry]) -> None:
        """Keep what a bare repository that the base holds lets git run; the rest of it are files like others."""
        for name in STEERING:
            if entries.get(name) == base.get(name):
                continue
            said = "changes what git does in a bare repository that the base holds"
            self.findings.add("entry_nested_git", "critical", path + b"/" + name, said)
            if name in base:
                entries[name] = base[name]
            else:
                del entries[name]

    def _submodule(self, place: _Place, name: bytes, before: Entry) -> Entry:
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=place.fd)
        except OSError:  # replaced since it was listed, or closed to its owner
            return before
        try:
            with os.scandir(fd) as listing:
                if next(listing, None) is not None:
                    path = place.path + name
                    self.findings.add(
                        "entry_submodule", "warning", path, "has content, but submodules are kept as is"
                    )
        finally:
            os.close(fd)
        return before

    def _leaf(self, place: _Place, name: bytes, info: os.stat_result) -> Entry | None:
        before = place.base.get(name)
        if stat.S_ISLNK(info.st_mode):
            return self._link(place, name, info)
        if not stat.S_ISREG(info.st_mode):
            self.findings.special(place.path + name, info.st_mode)
            return before
        mode = EXECUTABLE if info.st_mode & stat.S_IXUSR else FILE
        problem = file_problem(info)
        if problem is not None:
            self.findings.add(problem[0], problem[1], place.path + name, problem[2])
            return before
        blob = self.cache.get(info)
        if blob is None:
            blob = self._read(place, name, info, before)
        elif before is None or before.id != blob:
            blob = blob if self._within(place.path + name, info) else None
        if blob is None:
            return before
        if before is not None and before.id == blob and _same_mode(before.mode, mode):
            return before
        return Entry(mode, blob)

    def _within(self, path: bytes, info: os.stat_result) -> bool:
        limits = self.rules.limits
        size = info.st_blocks * 512
        if info.st_size > limits.file_bytes:
            self.findings.quota(path, f"is larger than {limits.file_bytes} bytes")
        elif self.files >= limits.files:
            self.findings.quota(path, f"is one changed file more than the limit of {limits.files}")
        elif self.bytes + size > limits.disk_bytes:
            self.findings.quota(path, f"takes the changed files over the limit of {limits.disk_bytes} bytes")
        else:
            self.files += 1
            self.bytes += size
            return True
        return False

    def _read(self, place: _Place, name: bytes, info: os.stat_result, before: Entry | None) -> bytes | None:
        """Return the id of a file's content, written to the depot unless it is the base's; `None` if too much."""
        path = place.path + name
        if info.st_size > self.rules.limits.file_bytes and not self._has_size(before, info.st_size):
            self._within(path, info)
            return None
        content = _content(place.fd, name, info.st_size)
        if content is None:
            return None if before is None or before.is_tree else before.id
        blob = object_id("blob", content)
        if before is None or before.id != blob:
            if not self._within(path, info):
                return None
            self.writer.add_as(blob, "blob", content)
        self.cache.propose(info, blob)
        return blob

    def _has_size(self, before: Entry | None, size: int) -> bool:
        return before is not None and not before.is_tree and len(self.reader.blob(before.id)) == size

    def _link(self, place: _Place, name: bytes, info: os.stat_result) -> Entry | None:
        before, start = place.base.get(name), place.start.get(name)
        path = place.path + name
        try:
            target = os.readlink(name, dir_fd=place.fd)
        except OSError:  # replaced since it was listed
            return before
        entry = Entry(LINK, object_id("blob", target))
        if entry in (before, start):
            return entry
        problem = link_problem(path, target)
        if problem:
            self.findings.add("entry_link_out", "critical", path, f"is a link whose target {problem}")
            return before
        if not self._within(path, info):
            return before
        self.writer.add_as(entry.id, "blob", target)
        return entry


def _tracked(entry: Entry | None, directory: bool) -> bool:
    """Return whether the tree knows this entry as what it is now: a directory as one, anything else as a leaf."""
    if entry is None:
        return False
    return entry.is_tree or entry.is_gitlink if directory else not entry.is_tree


def _same_mode(old: int, new: int) -> bool:
    """Compare as git does on disk: only the owner's execute bit counts (old trees hold 100664)."""
    return stat.S_IFMT(old) == stat.S_IFMT(new) and bool(old & 0o100) == bool(new & 0o100)


def _content(directory: int, name: bytes, size: int) -> bytes | None:
    """Return at most `size` bytes of a regular file, or `None` when it is none any more."""
    try:
        fd = os.open(name, _REGULAR, dir_fd=directory)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = os.read(fd, size + 1)
        while len(content) <= size and (piece := os.read(fd, size + 1 - len(content))):
            content += piece
        return content[:size]
    finally:
        os.close(fd)
