"""Environment layers: files that a setup command left in addition to tracked ones, kept as a lower layer."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.records import Base
from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import disk_errors
from chargehand.workspace.host.files import discard_tree, hold_lock, remove_tree, replace_file, tree_bytes
from chargehand.workspace.tree.objects import Entries, ObjectReader
from chargehand.workspace.tree.write import open_directory
from chargehand.workspace.workspace import Workspace

DEFAULT_INPUTS = (
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "requirements*.txt",
    "constraints*.txt",
    "Pipfile",
    "*.lock",
    "package.json",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "pnpm-lock.yaml",
    "Cargo.toml",
    "go.mod",
    "go.sum",
    "pom.xml",
    "build.gradle",
    "build.gradle.kts",
    "libs.versions.toml",
    "Gemfile",
    "composer.json",
    "environment.yml",
    ".python-version",
    ".nvmrc",
)
"""File names whose content is part of an environment's key, in any directory."""
_VERSION = 1
_DESCRIBED = "described 1"
_Input = tuple[str, int, str]
"""A path, git's mode, the hex id."""
Describe = Callable[[str, int | None, str | None], str]
"""Describes the packages that a file (path, mode, hex id) installs.

Equal texts mean the same packages, "" means no packages.
"""


CACHES = ".chargehand/cache"
"""The directory below a workspace in which compilers are made to keep their caches."""
_CACHE_NAMES = frozenset({".mypy_cache"})


class CompilerCaches(Struct, frozen=True, kw_only=True):
    """A layer of compilers' caches from a base.

    With `by_content` every entry is looked up by the content of its inputs, so the layer also fits trees on other
    bases and trees without some of the base's files. Otherwise builders compare times: the layer fits only its own
    base.
    """

    path: Path
    by_content: bool


class _CachesMeta(Struct, frozen=True):
    by_content: bool = False


class FrozenLayer(Struct, frozen=True, kw_only=True):
    """A layer, and the tracked paths that setup changed: those changes were dropped."""

    path: Path
    dropped: tuple[str, ...]


class EnvironmentLayers:
    """The `layers` directory of one project."""

    def __init__(self, depot: Depot) -> None:
        self._depot = depot
        self._directory = depot.root / "layers"

    def key(
        self,
        base: Base,
        *,
        command: str,
        inputs: Iterable[str] = (),
        toolchain: str = "",
        tier: str = "",
        tree: str | None = None,
        directory: str = "",
        describe: Describe | None = None,
    ) -> str:
        """Return the key of the layer that `command` makes on `tree` (default: the base's tree), as hex.

        It covers the command, its start `directory`, the toolchain, the tier and every input in that tree:
        `inputs`, complete paths or glob patterns, by their content; files of the default names by the text of
        `describe`, or by their content without it.
        """
        patterns = tuple(inputs)
        # Cached with the base, in git's order: walking a large tree takes seconds.
        asked = json.dumps([_VERSION, base.tree, DEFAULT_INPUTS, patterns])
        name = f"inputs-{hashlib.sha256(asked.encode()).hexdigest()[:40]}.json"
        kept = self._depot.bases.kept(base.commit, name)
        inputs_of_base = None
        if kept is not None:
            with suppress(msgspec.MsgspecError):
                inputs_of_base = decode_as(kept, list[_Input])
        if inputs_of_base is None:
            inputs_of_base = [
                (entry.path, entry.mode, entry.id)
                for entry in self._depot.entries(base.tree)
                if _is_input(entry.path, patterns)
            ]
            with suppress(UnicodeEncodeError):  # a path that is not UTF-8: computed again each time
                content = json.dumps(inputs_of_base, ensure_ascii=False).encode()
                self._depot.bases.keep(base.commit, name, content)
        by_path = {entry[0]: entry for entry in inputs_of_base}
        for change in self._depot.diff(base.tree, tree or base.tree):
            if change.new_mode is None or change.new_id is None:
                by_path.pop(change.path, None)
            elif _is_input(change.path, patterns):
                by_path[change.path] = (change.path, change.new_mode, change.new_id)
        found = [by_path[path] for path in sorted(by_path, key=os.fsencode)]
        described: list[object] = [_DESCRIBED] if describe else []
        for path, mode, blob in found:
            if describe is None or _is_named(path, patterns):
                described.append((path, mode, blob))
            elif said := describe(path, mode, blob):
                described.append((path, said))
        place = [directory] if directory else []
        text = json.dumps([_VERSION, command, toolchain, tier, sorted(patterns), described, *place])
        # Includes the tier, because a setup that ran as another user, or in an image, makes other files.
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def changed(
        self, base: Base, tree: str, *, inputs: Iterable[str] = (), describe: Describe | None = None
    ) -> tuple[str, ...]:
        """Return the inputs in which `tree` differs from the base: if any does, the base's layer does not fit it.

        A file of a default name does not differ if `describe` says that it installs the same as before.
        """
        patterns = tuple(inputs)
        return tuple(
            change.path
            for change in self._depot.diff(base.tree, tree)
            if _is_input(change.path, patterns)
            and (
                describe is None
                or _is_named(change.path, patterns)
                or describe(change.path, change.old_mode, change.old_id)
                != describe(change.path, change.new_mode, change.new_id)
            )
        )

    def find(self, key: str) -> Path | None:
        """Return the layer of that key, or `None`; record its use."""
        place = self._place(key)
        with hold_lock(self._lock(key)):  # otherwise `gc` could remove it before it is used
            try:
                os.utime(place / "meta.json")
            except FileNotFoundError:
                return None
        return place / "tree"

    def freeze(self, workspace: Workspace, key: str, *, tree: str | None = None) -> FrozenLayer:
        """Turn the files that setup left in a closed workspace into the layer of that key; discard the workspace.

        Tracked paths, whiteouts, `.git`, fifos, sockets and devices are dropped, setuid bits cleared. An existing
        layer is kept and returned. With `tree`, the (candidate's) tree that the workspace was made to show, the
        layer is private: it cannot be found by its key, and its maker calls `remove`. Raises `InfrastructureError`
        (`no_space`).
        """
        place = self._place(key if tree is None else f"{key}.{workspace.id}")
        shown = tree or workspace.base.tree
        changes = self._depot.diff(shown, workspace.scan().tree)
        dropped = tuple(change.path for change in changes if change.old_id is not None)
        with hold_lock(self._lock(place.name)), disk_errors("keeping the environment"):
            # Two missions may run the same setup at once: the first to finish wins, the files of the other are
            # discarded.
            if not (place / "meta.json").exists():
                self._make(place, workspace, dropped, shown)
        workspace.discard()
        return FrozenLayer(path=place / "tree", dropped=dropped)

    def caches_key(self, base: Base, *parts: str) -> str:
        """Return the key of compilers' caches for a base, as hex; `parts` are their other dependencies."""
        text = json.dumps([_VERSION, "caches", base.tree, *parts])
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def keep_caches(self, workspace: Workspace, key: str, *parts: str) -> None:
        """Turn compilers' caches in a closed workspace into the layer of that key; discard the workspace.

        Keeps `CACHES`, cargo's `target` in the directory of a manifest of the base, and the state of mypy: no
        files that a program could take for its input or its result. Keeps nothing if none of these exist, or if
        the layer exists. `find_inherited` finds the layer by `parts`. Raises `InfrastructureError` (`no_space`),
        `OSError`.
        """
        place = self._place(key)
        paths = (entry.path for entry in self._depot.entries(workspace.base.tree))
        cargo = frozenset(
            path.removesuffix("Cargo.toml") for path in paths if path.rpartition("/")[2] == "Cargo.toml"
        )
        with hold_lock(self._lock(place.name)), disk_errors("storing compiler caches"):
            if not (place / "meta.json").exists() and _keep_only_caches(workspace.scan_root(), cargo):
                by_content = not _has_builds(workspace.scan_root())
                self._make(place, workspace, (), workspace.base.tree, by_content=by_content)
        workspace.discard()
        self._depot.bases.keep(workspace.base.commit, _caches_name(parts), key.encode())

    def find_caches(self, key: str) -> CompilerCaches | None:
        """Return the caches of that key, or `None`; record their use."""
        path = self.find(key)
        if path is None:
            return None
        try:
            meta = decode_as((path.parent / "meta.json").read_bytes(), _CachesMeta)
        except (OSError, msgspec.MsgspecError):
            meta = _CachesMeta()
        return CompilerCaches(path=path, by_content=meta.by_content)

    def find_inherited(self, base: Base, *parts: str) -> CompilerCaches | None:
        """Return the `by_content` caches kept with `parts` on a base, or else on its nearest ancestor."""
        key = self._depot.bases.nearest_kept(base.commit, _caches_name(parts))
        found = None if key is None else self.find_caches(key.decode(errors="replace"))
        return found if found is not None and found.by_content else None

    def remove(self, layer: FrozenLayer) -> None:
        """Remove a layer; no workspace may use it any more. Idempotent."""
        with hold_lock(self._lock(layer.path.parent.name)):
            discard_tree(layer.path.parent)

    def _make(
        self, place: Path, workspace: Workspace, dropped: tuple[str, ...], shown: str, *, by_content: bool = False
    ) -> None:
        fresh = place.with_name(f".new-{place.name}")
        remove_tree(place)
        remove_tree(fresh)
        fresh.mkdir(parents=True)
        self._depot.fault("layer:begin")
        workspace.scan_root().rename(fresh / "tree")  # moved, not copied: an environment may be gigabytes
        self._depot.fault("layer:moved")
        # Against both trees: a file that a candidate removed from the base must not come back by the layer below
        # it.
        for tree in dict.fromkeys((workspace.base.tree, shown)):
            with open_directory(fresh / "tree") as fd:
                _clean(fd, self._depot.reader.tree(bytes.fromhex(tree)), self._depot.reader, top=True)
        # Set to the time of making: files shown above it have to be newer for builders that compare times.
        os.utime(fresh / "tree")
        names = [os.fsencode(path).hex() for path in dropped]
        meta = {"dropped": names, "disk": tree_bytes(fresh)[1], "by_content": by_content}
        replace_file(fresh / "meta.json", json.dumps(meta).encode())
        fresh.rename(place)
        self._depot.fault("layer:made")

    def _lock(self, key: str) -> Path:
        return self._depot.root / "locks" / f"layer-{key}.lock"

    def _place(self, key: str) -> Path:
        return self._directory / key


def _caches_name(parts: Iterable[str]) -> str:
    """Return the name under which the key of a base's caches is stored with the base."""
    return f"caches-{hashlib.sha256(json.dumps([_VERSION, *parts]).encode()).hexdigest()[:40]}"


def _has_builds(root: Path) -> bool:
    """Return whether caches hold builds that compare times (cargo's)."""
    for directory, names, files in os.walk(root, onerror=_raise):
        if files:
            return True
        inside = f"{directory}/".removeprefix(f"{root}/")
        names[:] = [name for name in names if f"{inside}{name}" != CACHES and name not in _CACHE_NAMES]
    return False


def _keep_only_caches(root: Path, cargo: frozenset[str]) -> bool:
    """Remove all files but caches from those written in a workspace; return whether any cache is left."""
    found = False
    # Bottom-up, to remove directories that became empty; one that cannot be listed cannot be cleared, and raises.
    for directory, names, files in os.walk(root, topdown=False, onerror=_raise):
        inside = f"{directory}/".removeprefix(f"{root}/")
        if _is_in_cache(inside, cargo):
            found = True
            continue
        for name in files:
            os.unlink(os.path.join(directory, name))
        for name in names:
            path = os.path.join(directory, name)
            if os.path.islink(path):
                os.unlink(path)
            else:
                with suppress(OSError):  # not empty: it holds a cache
                    os.rmdir(path)
    # Test results are no cache of a compiler: go would show them again although files that a test ran have
    # changed.
    go = root / CACHES / "go-build"
    if go.is_dir() and not go.is_symlink():
        replace_file(go / "testexpire.txt", f"{time.time_ns()}\n".encode())
        # The sandbox runs as another user, and go ignores files that it cannot read.
        (go / "testexpire.txt").chmod(0o644)
    return found


def _raise(error: OSError) -> None:
    raise error


def _is_in_cache(directory: str, cargo: frozenset[str]) -> bool:
    """Return whether a directory (path with a final slash) is a cache or inside one."""
    if directory.startswith(f"{CACHES}/") or not _CACHE_NAMES.isdisjoint(directory.split("/")):
        return True
    before, found, _ = directory.partition("target/")
    while found:
        if before in cargo:
            return True
        more, found, _ = directory[len(before) + len(found) :].partition("target/")
        before += f"target/{more}"
    return False


def _is_input(path: str, patterns: tuple[str, ...]) -> bool:
    name = path.rpartition("/")[2]
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in DEFAULT_INPUTS):
        return True
    return _is_named(path, patterns)


def _is_named(path: str, patterns: tuple[str, ...]) -> bool:
    return any(path == pattern or fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _clean(fd: int, tracked: Entries, reader: ObjectReader, *, top: bool) -> bool:
    """Remove what may not be in a layer: tracked paths, `.git`, special files; return whether it is empty.

    Every entry is reached relative to its directory and never through a link: setup ran a project's code.
    """
    with os.scandir(fd) as listing:
        names = [os.fsencode(entry.name) for entry in listing]
    empty = True
    for name in names:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        entry = tracked.get(name)
        kind = stat.S_IFMT(info.st_mode)
        is_tracked = entry is not None and not (kind == stat.S_IFDIR and entry.is_tree)
        if (top and name == b".git") or is_tracked or kind not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK):
            try:
                os.unlink(name, dir_fd=fd)
            except IsADirectoryError:
                # `rm` is another process: our /proc entry leads it to exactly this directory, wherever that is.
                remove_tree(Path(f"/proc/{os.getpid()}/fd/{fd}") / os.fsdecode(name))
            continue
        if kind == stat.S_IFREG and info.st_mode & (stat.S_ISUID | stat.S_ISGID):
            os.chmod(name, info.st_mode & 0o777, dir_fd=fd)
        if kind == stat.S_IFDIR:
            if info.st_mode & 0o700 != 0o700:
                # A directory closed to its owner could be neither cleaned nor used by a later sandbox.
                os.chmod(name, 0o755, dir_fd=fd)
            with open_directory(name, at=fd) as below:
                nothing_left = _clean(below, reader.below(entry), reader, top=False)
            if nothing_left and entry is not None:
                os.rmdir(name, dir_fd=fd)  # a tracked directory in which setup left no files
                continue
        empty = False
    return empty
