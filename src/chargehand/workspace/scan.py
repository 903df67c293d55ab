"""Turns the files that an agent left on disk into a tree, reading only files that may have changed.

One walk serves every driver. Over an overlay's upper a directory starts from the base's entries and each entry
edits it (*merged*); below an opaque directory, and in a plain directory, only listed entries exist. Every file is
opened relative to its directory and never through a link.

An entry that breaks a rule is a finding and leaves the base's version at its path. Files become blobs as `git add`
would make them by the attributes in the workspace; only a file that equals its shown content keeps its blob.
"""

from __future__ import annotations

import os
import stat
import threading

from msgspec import Struct, field

from chargehand.core.errors import InfrastructureError
from chargehand.core.ports import DriverName
from chargehand.core.records import Change, Finding
from chargehand.core.text import printable
from chargehand.workspace.tree.attributes import ATTRIBUTE_FILE, AttributeChain, TreeAttributes
from chargehand.workspace.tree.conversion import Conversion, ConversionError
from chargehand.workspace.tree.ignore import IgnoreChain, IgnoreFile
from chargehand.workspace.tree.names import (
    STEERING,
    Findings,
    file_problem,
    is_git_disguise,
    link_problem,
    name_problem,
    passes_for_repository,
)
from chargehand.workspace.tree.objects import (
    EXECUTABLE,
    FILE,
    LINK,
    NOTHING,
    TREE,
    Entries,
    ObjectReader,
    ObjectWriter,
    TreeEntry,
    compare,
    object_id,
    write_tree,
)
from chargehand.workspace.tree.write import StatCache

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: between stat and open an agent may create a fifo there, and opening it would wait for a writer.
_REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MAX_ATTRIBUTES = 1024 * 1024  # bytes


class WorkspaceLimits(Struct, frozen=True, kw_only=True):
    """Limits of one workspace: the size of one file and of all changed files in bytes, their number, the depth."""

    file_bytes: int = 100 * 1024 * 1024
    disk_bytes: int = 1024 * 1024 * 1024
    files: int = 100_000
    depth: int = 128


class Scan(Struct, frozen=True, kw_only=True):
    """The content of a workspace: its tree, its differences from base, and findings for broken rules.

    `files` and `bytes` (on disk) count the entries that differ from base and belong to the tree.
    """

    tree: str
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    files: int
    bytes: int


class ScanRules(Struct, frozen=True, kw_only=True):
    """Raw ids of the base's tree and of the tree the workspace started from, and the rules for membership.

    `environment` is the environment layer, open as a directory; `include` names ignored paths that belong. Once
    `stop` is set the walk ends at its next entry with `InfrastructureError` (`workspace`).
    """

    base: bytes
    start: bytes
    driver: DriverName
    include: IgnoreFile | None = None
    environment: int | None = None
    limits: WorkspaceLimits = field(default_factory=WorkspaceLimits)
    stop: threading.Event | None = None


def scan(
    root: int, rules: ScanRules, *, reader: ObjectReader, cache: StatCache, known: set[bytes]
) -> tuple[Scan, int]:
    """Scan the directory open as `root`; return the result, now in the depot, and the count of newly cached ids.

    `known` holds ids of trees and blobs that are already in the depot. Raises `InfrastructureError` (`no_space`).
    """
    try:
        with ObjectWriter(reader.objects, known=known) as writer:
            scanner = _TreeScanner(rules, reader, cache, writer)
            tree = scanner.scan_root(root)
        # Only now: an id in the cache means "read and stored", and before this line nothing is stored.
        learnt = cache.accept()
    except BaseException:
        cache.forget_proposed()
        raise
    changes = tuple(compare(reader, rules.base, tree))
    findings = scanner.findings.result(changes)
    result = Scan(tree=tree.hex(), changes=changes, findings=findings, files=scanner.files, bytes=scanner.bytes)
    return result, learnt


def opaque_attribute() -> str:
    """Return the attribute that marks a replaced directory in uppers that we mount.

    As root `trusted.`, which no sandbox can write; else `user.` (`userxattr`), which overlayfs keeps from the
    sandbox. An agent can write the other attribute, so it means nothing.
    """
    return "trusted.overlay.opaque" if os.geteuid() == 0 else "user.overlay.opaque"


class _Directory(Struct, frozen=True):
    """One directory during the walk; `path` is empty or ends in '/'."""

    fd: int
    path: bytes
    base: Entries
    start: Entries
    chain: IgnoreChain
    attributes: AttributeChain
    merged: bool
    ignored: bool
    included: bool
    depth: int


class _TreeScanner:
    """One walk over a workspace's files."""

    def __init__(self, rules: ScanRules, reader: ObjectReader, cache: StatCache, writer: ObjectWriter) -> None:
        self.rules = rules
        self.reader = reader
        self.cache = cache
        self.writer = writer
        self.findings = Findings()
        self.files = 0
        self.bytes = 0
        self._overlay = rules.driver == "overlay"
        self._opaque = opaque_attribute()
        # The trees whose attributes were used to write the files: unchanged files come from base, the others from
        # start.
        self._shown = [TreeAttributes(reader, tree) for tree in dict.fromkeys((rules.base, rules.start))]

    def scan_root(self, root: int) -> bytes:
        """Walk everything; return the raw id of the tree."""
        base, start = self.reader.tree(self.rules.base), self.reader.tree(self.rules.start)
        chain = self._enter_ignore_file(IgnoreChain(), b"", base)
        merged = self._overlay and not self._is_opaque(root)
        attributes = self._enter_attribute_file(AttributeChain(), b"", root, base if merged else NOTHING)
        place = _Directory(root, b"", base, start, chain, attributes, merged, False, False, 0)
        entries = self._scan_directory(place)
        return self._write_tree(entries, base, self.rules.base)

    def _write_tree(self, entries: dict[bytes, TreeEntry], before: Entries, before_id: bytes | None) -> bytes:
        # Equal entries keep their tree id: encoded again, a tree that git sorted oddly would get another id.
        if before_id is not None and entries == before:
            return before_id
        raw = write_tree(self.writer, entries)
        self.reader.remember(raw, entries)
        return raw

    def _enter_ignore_file(self, chain: IgnoreChain, path: bytes, base: Entries) -> IgnoreChain:
        # The base's rules, never the workspace's: an agent could hide files by ignoring them.
        entry = base.get(b".gitignore")
        if entry is None or entry.mode not in (FILE, EXECUTABLE):
            return chain
        return chain.enter(path, IgnoreFile(self.reader.blob(entry.id)))

    def _enter_attribute_file(
        self, chain: AttributeChain, path: bytes, fd: int, covered: Entries
    ) -> AttributeChain:
        """Return the chain inside a directory; if it has no attribute file, the file that it covers counts."""
        try:
            info = os.stat(ATTRIBUTE_FILE, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            entry = covered.get(ATTRIBUTE_FILE)
            regular = entry is not None and entry.mode in (FILE, EXECUTABLE)
            return chain.enter(path, self.reader.blob(entry.id)) if entry is not None and regular else chain
        # Git follows no link to attributes; a whiteout is not a file either.
        if not stat.S_ISREG(info.st_mode):
            return chain
        return chain.enter(path, _read_regular(fd, ATTRIBUTE_FILE, min(info.st_size, _MAX_ATTRIBUTES)))

    def _is_opaque(self, fd: int) -> bool:
        try:
            return os.getxattr(fd, self._opaque) == b"y"
        except OSError:
            return False

    def _is_whiteout(self, info: os.stat_result) -> bool:
        return self._overlay and stat.S_ISCHR(info.st_mode) and info.st_rdev == 0

    # --- directories

    def _scan_directory(self, place: _Directory) -> dict[bytes, TreeEntry]:
        out = dict(place.base) if place.merged else {}
        # Sorted, so that a workspace over its limits always omits the same files.
        with os.scandir(place.fd) as listing:
            names = sorted(os.fsencode(entry.name) for entry in listing)
        for name in names:
            if self.rules.stop is not None and self.rules.stop.is_set():
                raise InfrastructureError("the scan was cancelled", code="workspace")
            if not place.path and name == b".git":  # the agent's
                continue
            entry = self._scan_entry(place, name)
            if entry is None:
                out.pop(name, None)
            else:
                out[name] = entry
        return out

    def _scan_entry(self, place: _Directory, name: bytes) -> TreeEntry | None:
        """Return the tree's entry for `name`; `None` for nothing."""
        try:
            info = os.stat(name, dir_fd=place.fd, follow_symlinks=False)
        except FileNotFoundError:  # gone since it was listed
            return None
        if self._is_whiteout(info):
            return None
        before = place.base.get(name)
        start = place.start.get(name)
        path = place.path + name
        directory = stat.S_ISDIR(info.st_mode)
        tracked = _is_tracked(before, directory) or _is_tracked(start, directory)
        if tracked and not directory:
            if before is not None and before.is_gitlink:
                self.findings.add("entry_submodule", "error", path, "replaces a submodule")
                return before
            return self._scan_leaf(place, name, info)
        ignored, included = self._classify(place, path, directory=directory, tracked=tracked)
        if ignored and not tracked:
            include = self.rules.include
            if not (directory and include is not None and include.may_match_below(path)):
                return None
        if not tracked and not ignored:
            disguise = is_git_disguise(name)
            problem = "is, or looks like, a nested repository" if disguise else name_problem(name)
            if problem:
                self.findings.add("entry_nested_git" if disguise else "entry_name", "critical", path, problem)
                return before
        if directory:
            return self._scan_subdirectory(place, name, info, ignored=ignored, included=included)
        return self._scan_leaf(place, name, info)

    def _classify(self, place: _Directory, path: bytes, *, directory: bool, tracked: bool) -> tuple[bool, bool]:
        """Return whether an untracked entry at this path is outside the tree, and whether `include` names it."""
        included = place.included
        if not included and self.rules.include is not None:
            included = self.rules.include.includes(path, directory=directory)
        if included:
            return False, True
        ignored = place.ignored or place.chain.ignores(path, directory=directory)
        if ignored or tracked or self.rules.environment is None:
            # Not checked for a tracked directory: its presence in the environment says nothing about new files in
            # it.
            return ignored, False
        try:
            # A file of the environment that is written to is copied up: setup made it, so it is not a new file.
            os.stat(path, dir_fd=self.rules.environment, follow_symlinks=False)
        except OSError:
            return False, False
        return True, False

    def _scan_subdirectory(
        self, place: _Directory, name: bytes, info: os.stat_result, *, ignored: bool, included: bool
    ) -> TreeEntry | None:
        before = place.base.get(name)
        start = place.start.get(name)
        path = place.path + name
        submodule = next((entry for entry in (before, start) if entry is not None and entry.is_gitlink), None)
        if submodule is not None:
            self._check_submodule(place, name)
            return submodule
        if place.depth >= self.rules.limits.depth and not _is_tracked(before, True):
            self.findings.quota(path, f"is deeper than {self.rules.limits.depth} directories")
            return before
        # As root we could read it; the project's checks, run as its owner, could not.
        if info.st_mode & 0o500 != 0o500:
            self.findings.add("entry_unreadable", "error", path, "cannot be read by its owner")
            return before
        base = self.reader.below(before)
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=place.fd)
        except OSError:  # replaced since it was listed
            return before
        try:
            merged = place.merged and before is not None and before.is_tree and not self._is_opaque(fd)
            inside = _Directory(
                fd,
                path + b"/",
                base,
                self.reader.below(start),
                self._enter_ignore_file(place.chain, path + b"/", base),
                self._enter_attribute_file(place.attributes, path + b"/", fd, base if merged else NOTHING),
                merged,
                ignored,
                included,
                place.depth + 1,
            )
            entries = self._scan_directory(inside)
        finally:
            os.close(fd)
        if not entries:  # git has no empty directories
            return None
        if passes_for_repository(entries):
            if not passes_for_repository(base):
                self.findings.add("entry_nested_git", "critical", path, "looks like a bare repository")
                return before
            self._restore_steering(path, base, entries)
        return TreeEntry(TREE, self._write_tree(entries, base, before.id if before and before.is_tree else None))

    def _restore_steering(self, path: bytes, base: Entries, entries: dict[bytes, TreeEntry]) -> None:
        """Restore what makes git run programs in a bare repository of the base; its other files are ordinary."""
        for name in STEERING:
            if entries.get(name) == base.get(name):
                continue
            message = "changes how git works in a bare repository of the base"
            self.findings.add("entry_nested_git", "critical", path + b"/" + name, message)
            if name in base:
                entries[name] = base[name]
            else:
                del entries[name]

    def _check_submodule(self, place: _Directory, name: bytes) -> None:
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=place.fd)
        except OSError:  # replaced since it was listed, or closed to its owner
            return
        try:
            with os.scandir(fd) as listing:
                # A whiteout hides an entry of the base in place of the submodule.
                filled = any(not self._is_whiteout(entry.stat(follow_symlinks=False)) for entry in listing)
        except FileNotFoundError:  # gone since it was listed, so there was content
            filled = True
        finally:
            os.close(fd)
        if filled:
            message = "has content, but submodules stay as they are"
            self.findings.add("entry_submodule", "warning", place.path + name, message)

    # --- files and links

    def _scan_leaf(self, place: _Directory, name: bytes, info: os.stat_result) -> TreeEntry | None:
        before = place.base.get(name)
        if stat.S_ISLNK(info.st_mode):
            return self._scan_link(place, name, info)
        if not stat.S_ISREG(info.st_mode):
            self.findings.special(place.path + name, info.st_mode)
            return before
        problem = file_problem(info)
        if problem is not None:
            self.findings.add(problem[0], problem[1], place.path + name, problem[2])
            return before
        path = place.path + name
        conversions = [place.attributes.conversion(path), *(tree.conversion(path) for tree in self._shown)]
        # With attributes changed meanwhile a file may be another blob than the cached one.
        blob = self.cache.get(info) if len(set(conversions)) == 1 else None
        if blob is None:
            blob = self._read_file(place, name, info, conversions)
        elif before is None or before.id != blob:
            blob = blob if self._fits_limits(path, info) else None
        if blob is None:
            return before
        named = next((each.filter for each in conversions if each is not None and each.filter), None)
        if named is not None and (before is None or before.id != blob):
            message = (
                f"is kept as it was written: the filter {printable(named)!r} of its attributes is never run here"
            )
            self.findings.add("entry_filter", "warning", path, message, needs_person=True)
        mode = EXECUTABLE if info.st_mode & stat.S_IXUSR else FILE
        # Modes as git compares them on disk: only the owner's execute bit counts, for old trees hold 100664.
        same_mode = before is not None and stat.S_ISREG(before.mode) and not (before.mode ^ mode) & 0o100
        if before is not None and before.id == blob and same_mode:
            return before
        return TreeEntry(mode, blob)

    def _fits_limits(self, path: bytes, info: os.stat_result) -> bool:
        """Count one changed entry; if that exceeds a limit, record it and return false."""
        limits = self.rules.limits
        # The total by blocks, since files may be sparse; one file by its length, since all of it is read.
        size = info.st_blocks * 512
        if info.st_size > limits.file_bytes:
            self.findings.quota(path, f"is larger than {limits.file_bytes} bytes")
        elif self.files >= limits.files:
            self.findings.quota(path, f"is one changed file more than the limit of {limits.files}")
        elif self.bytes + size > limits.disk_bytes:
            self.findings.quota(path, f"makes the changed files exceed the limit of {limits.disk_bytes} bytes")
        else:
            self.files += 1
            self.bytes += size
            return True
        return False

    def _read_file(
        self, place: _Directory, name: bytes, info: os.stat_result, conversions: list[Conversion | None]
    ) -> bytes | None:
        """Return the id of a file's blob, writing it to the depot if missing; `None` if the file is not allowed.

        The first of `conversions` is by the attributes in the workspace, the others by those of the trees shown.
        """
        path = place.path + name
        before = place.base.get(name)
        # Too large to read, unless it may be the base's file, whose size git knows.
        if info.st_size > self.rules.limits.file_bytes and (
            before is None or before.is_tree or self.reader.size(before.id) != info.st_size
        ):
            self._fits_limits(path, info)
            return None
        content = _read_regular(place.fd, name, info.st_size)
        if content is None:
            return None if before is None or before.is_tree else before.id
        shown = blob = self._shown_blob(place, name, content) if any(conversions) else None
        if blob is None:
            stored = before if before is not None and stat.S_ISREG(before.mode) else None
            try:
                if conversions[0] is not None:
                    content = conversions[0].to_blob(
                        content, lambda: self.reader.blob(stored.id) if stored else None
                    )
            except ConversionError as problem:
                self.findings.add("entry_encoding", "error", path, str(problem))
                return None
            blob = object_id("blob", content)
        if before is None or before.id != blob:
            if not self._fits_limits(path, info):
                return None
            if shown is None:
                self.writer.add_as(blob, "blob", content)
        if len(set(conversions)) == 1:
            self.cache.propose(info, blob)
        return blob

    def _shown_blob(self, place: _Directory, name: bytes, content: bytes) -> bytes | None:
        """Return the blob that was shown with exactly this content: an untouched file is not normalised again."""
        for tree, entries in zip(self._shown, (place.base, place.start), strict=False):
            entry = entries.get(name)
            if (
                entry is not None
                and stat.S_ISREG(entry.mode)
                and tree.file(place.path + name, entry.id) == content
            ):
                return entry.id
        return None

    def _scan_link(self, place: _Directory, name: bytes, info: os.stat_result) -> TreeEntry | None:
        before = place.base.get(name)
        start = place.start.get(name)
        path = place.path + name
        try:
            target = os.readlink(name, dir_fd=place.fd)
        except OSError:  # replaced since it was listed
            return before
        entry = TreeEntry(LINK, object_id("blob", target))
        if entry in (before, start):  # wherever the base's links point
            return entry
        problem = link_problem(path, target)
        if problem:
            self.findings.add("entry_link_out", "critical", path, f"is a link whose target {problem}")
            return before
        if not self._fits_limits(path, info):
            return before
        self.writer.add_as(entry.id, "blob", target)
        return entry


def _is_tracked(entry: TreeEntry | None, directory: bool) -> bool:
    """Return whether the tree has this entry with its present kind: a directory, or anything else as a leaf."""
    if entry is None:
        return False
    return entry.is_tree or entry.is_gitlink if directory else not entry.is_tree


def _read_regular(directory: int, name: bytes, size: int) -> bytes | None:
    """Return at most `size` bytes of a regular file, or `None` if it is no longer a regular file."""
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
        # Cut at the counted size: a file that grows while it is read must not exceed the limits.
        return content[:size]
    finally:
        os.close(fd)
