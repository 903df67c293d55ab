"""Makes, once per base commit, the layers that every workspace on it shares and that never change."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError
from chargehand.core.records import Base
from chargehand.workspace.errors import Fault, disk_errors
from chargehand.workspace.host.files import (
    Need,
    Room,
    discard_tree,
    give_tree,
    hold_lock,
    make_owned,
    remove_tree,
    replace_file,
    room_on_disk,
    tree_bytes,
)
from chargehand.workspace.host.git import Git, GitResult
from chargehand.workspace.tags import Tags
from chargehand.workspace.tree.attributes import TreeAttributes
from chargehand.workspace.tree.objects import LINK, ObjectReader, TreeEntry, check_depth, object_id
from chargehand.workspace.tree.write import IndexEntry, TreeWriter, encode_index, open_directory, tree_need

# A fixed path in every sandbox: the shared `.git` names it in `alternates` before any sandbox is known.
OBJECTS_TARGET = "/run/chargehand/objects"
_VERSION = 2  # 2: files as attributes convert them
_MAX_PACKS = 20  # a base that links more is not linked again: git searches every pack for each object
_NEAR = 2_000  # commits; within this distance one command finds an earlier base
_WHAT = "the files of the base"
# `checkStat=minimal`: the index is written without reading the files, so it holds only their size and second.
_CONFIG = """\
[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = true
	checkStat = minimal
	fsmonitor = false
[user]
	name = agent
	email = agent@localhost
[gc]
	auto = 0
[maintenance]
	auto = false
"""


class BaseLayers(Struct, frozen=True, kw_only=True):
    """The shared layers of one base commit: its files, the agent's `.git`, the objects that an agent may read.

    Every file carries the second that `base_mtime` gives for the base for which it was first written, so that
    caches keyed by time and size never confuse two contents. `submodules` stay links to commits in every tree and
    are empty directories on disk; with `lfs` the files kept by Git LFS are their pointers, as stored.
    """

    tree: Path
    git: Path
    objects: Path
    files: int
    bytes: int
    submodules: tuple[str, ...] = ()
    lfs: bool = False


class _Meta(msgspec.Struct, frozen=True):
    version: int
    commit: str
    tree: str
    files: int
    bytes: int
    submodules: list[str]
    lfs: bool
    # Bytes on disk without packs and without the files in `linked`; unknown in bases of older versions.
    disk: int = 0
    # Bases whose files are hard-linked here, by commit, with the bytes of each.
    linked: dict[str, int] = {}


class Bases:
    """The `bases` directory of one project; calls `room` before it makes a base."""

    def __init__(
        self, root: Path, *, reader: ObjectReader, git: Git, fault: Fault, room: Room = room_on_disk
    ) -> None:
        self.directory = root / "bases"
        self._root = root
        self._room = room
        self._locks = root / "locks"
        self._reader = reader
        self._git = git
        self._fault = fault

    def lock(self, commit: str) -> Path:
        """Return the lock file under which this base is made or removed."""
        return self._locks / f"base-{commit}.lock"

    def layers(self, base: Base, *, shallow: bytes) -> BaseLayers:
        """Return the layers of a base, making them if missing; record their use.

        `shallow` is the content of the depot's `shallow` file. Raises `InfrastructureError` (`no_space`, `depot`,
        `base_differs`).
        """
        place = self.directory / base.commit
        with hold_lock(self.lock(base.commit)):
            found = self._load(place)
            if found is None:
                self._make(place, base, shallow)
                found = self._load(place)
            if found is None:
                raise InfrastructureError(f"base {base.commit!r} could not be made", code="depot")
            # `gc` uses this time to find old items, and reads it again under this lock before it removes anything.
            os.utime(place / "meta.json")
        return found

    def with_tags(self, base: Base, layers: BaseLayers, key: str, read: Callable[[bool], Tags]) -> BaseLayers:
        """Return the layers with a `.git` that also has tags; `key` differs whenever the tags may differ.

        `read` gets whether the base has its history, and is called once for each key.
        """
        place = self.directory / base.commit
        tagged, fresh = place / f"git-{key}", place / f".new-git-{key}"
        with hold_lock(self.lock(base.commit)), disk_errors("writing the tags of the base"):
            if not tagged.exists():
                remove_tree(fresh)
                # Its files are never changed, so they can be shared.
                shutil.copytree(layers.git, fresh, symlinks=True, copy_function=os.link)
                shallow = layers.git / ".git/shallow"
                cut = shallow.exists() and base.commit in shallow.read_text().split()
                read(not cut).write(fresh / ".git")
                give_tree(fresh)
                fresh.rename(tagged)
        return msgspec.structs.replace(layers, git=tagged)

    def kept(self, commit: str, name: str) -> bytes | None:
        """Return the content that `keep` stored with a base, `None` if missing."""
        try:
            return (self.directory / commit / name).read_bytes()
        except OSError:
            return None

    def keep(self, commit: str, name: str, content: bytes) -> None:
        """Store content computed from a base with that base, for its lifetime; do nothing if the base is missing.

        A full disk is no error either: the content only saves time.
        """
        place = self.directory / commit
        with hold_lock(self.lock(commit)), suppress(OSError):
            if (place / "meta.json").exists():
                replace_file(place / name, content)

    def nearest_kept(self, commit: str, name: str) -> bytes | None:
        """Return the content that `keep` stored under that name with a base, or with its nearest ancestor."""
        if (own := self.kept(commit, name)) is not None:
            return own
        having = {path.parent.name for path in self.directory.glob(f"*/{name}")}
        if not having:
            return None
        near = self._git.run("rev-list", f"--max-count={_NEAR}", commit)
        found = next((each for each in near.text.split() if each in having), None) if near.code == 0 else None
        return None if found is None else self.kept(found, name)

    def _load(self, place: Path) -> BaseLayers | None:
        meta = _read_meta(place)
        if meta is None:
            return None
        return BaseLayers(
            tree=place / "tree",
            git=place / "git",
            objects=place / "objects",
            files=meta.files,
            bytes=meta.bytes,
            submodules=tuple(os.fsdecode(bytes.fromhex(name)) for name in meta.submodules),
            lfs=meta.lfs,
        )

    # --- making one

    def _make(self, place: Path, base: Base, shallow: bytes) -> None:
        discard_tree(place)  # made by an older version, or damaged
        # Left from a crash: any process that is making it now would hold the lock.
        fresh = self.directory / f".new-{base.commit}"
        remove_tree(fresh)
        try:
            with disk_errors("making the base"):
                self.directory.mkdir(parents=True, exist_ok=True)
                check_depth(self._reader, bytes.fromhex(base.tree))
                earlier = self._ensure_room(base)
                try:
                    self._fill(fresh, base, shallow, earlier)
                except FileNotFoundError:  # part of the earlier base is gone, which harms only that base
                    if earlier is None:
                        raise
                    remove_tree(fresh)
                    self._fill(fresh, base, shallow, None)
                self._fault("base:filled")
                fresh.rename(place)
        except BaseException:
            remove_tree(fresh)
            raise
        self._fault("base:made")

    def _ensure_room(self, base: Base) -> _Meta | None:
        """Ensure that there is room; return the older base whose packs and files are to be linked, if any."""
        earlier = self._nearest(base.commit)
        if earlier is not None:
            # Mark it as used, so that no `gc` removes it meanwhile. If it takes the room that the new base needs,
            # it may be removed after all, and its content is copied from the depot.
            meta = self.directory / earlier.commit / "meta.json"
            before = meta.stat()
            os.utime(meta)
            try:
                self._room(self.directory, self._need(base, earlier), _WHAT)
            except InfrastructureError as problem:
                if problem.code != "no_space":
                    raise
                os.utime(meta, ns=(before.st_atime_ns, before.st_mtime_ns))
            else:
                return earlier
        self._room(self.directory, self._need(base, None), _WHAT)
        return None

    def _nearest(self, commit: str) -> _Meta | None:
        """Return the base nearest to `commit` among its ancestors whose packs and files can be linked."""
        # Bases of another version have other files; damaged ones are unreadable.
        found = {place.name: _read_meta(place) for place in self.directory.iterdir() if _lends_packs(place)}
        usable = {name: meta for name, meta in found.items() if meta is not None}
        if not usable:
            return None
        # Only ancestors: this base reaches everything that they reach, so their packs reveal nothing more. Near
        # ones come first: there are many bases if each of many commits becomes one.
        near = self._git.run("rev-list", f"--max-count={_NEAR}", commit)
        listed = near.text.split() if near.code == 0 else []
        nearest = next((usable[each] for each in listed if each in usable), None)
        if nearest is not None or 0 < len(listed) < _NEAR:
            return nearest
        best: tuple[int, str] | None = None
        for name in usable:
            if self._git.run("merge-base", "--is-ancestor", name, commit).code:
                continue
            distance = int(self._git("rev-list", "--count", f"{name}..{commit}").text)
            best = min(best, (distance, name)) if best else (distance, name)
        return usable[best[1]] if best else None

    def _need(self, base: Base, earlier: _Meta | None) -> Need:
        """Return the space for a base: the files and objects that no older base has."""
        older = None if earlier is None else bytes.fromhex(earlier.tree)
        files = tree_need(self._reader, bytes.fromhex(base.tree), besides=older, linked=older is not None)
        if earlier is None:
            # An upper bound, without a walk over the history: the depot holds more than this base reaches.
            objects = tree_bytes(self._root / "depot.git" / "objects")[1]
        else:
            asked = self._git.run("rev-list", "--objects", "--disk-usage", base.commit, f"^{earlier.commit}")
            objects = int(asked.text) if asked.code == 0 else 0  # a history with holes: only the commit is packed
        return Need(bytes=files.bytes + objects, files=files.files)

    def _fill(self, fresh: Path, base: Base, shallow: bytes, earlier: _Meta | None) -> None:
        from concurrent.futures import ThreadPoolExecutor  # imports `logging` too; most runs make no base

        make_owned(fresh)
        mtime = base_mtime(base.commit)
        tree = bytes.fromhex(base.tree)
        attributes = TreeAttributes(self._reader, tree)
        # Git packs the objects in a separate process while the files are written: each takes half of the time.
        with ThreadPoolExecutor(1) as pool:
            packed = pool.submit(self._write_objects, fresh / "objects", base.commit, earlier)
            files: list[IndexEntry] = []

            def record(path: bytes, entry: TreeEntry, info: os.stat_result) -> None:
                size, seconds = (0, mtime) if entry.is_gitlink else (info.st_size, int(info.st_mtime))
                files.append(IndexEntry(path, entry.mode, size, entry.id, seconds))

            writer = TreeWriter(self._reader, attributes=attributes, mtime=mtime, on_file=record)
            self._write_files(fresh / "tree", writer, tree, earlier)
            self._fault("base:tree")
            # Opened again: a btrfs directory lists only the entries that it had when it was opened.
            with open_directory(fresh / "tree") as fd:
                _verify(fd, tree, self._reader, attributes, b"")
            index = encode_index(files, reader=self._reader, tree=tree)
            if not packed.result():
                shallow = f"{base.commit}\n".encode()
        _write_git(fresh / "git", base, index=index, shallow=shallow)
        self._fault("base:git")
        disk = tree_bytes(fresh, shared=False)[1] - tree_bytes(fresh / "objects/pack", shared=False)[1]
        meta = _Meta(
            version=_VERSION,
            commit=base.commit,
            tree=base.tree,
            files=len(files),
            bytes=sum(entry.size for entry in files),
            submodules=[entry.path.hex() for entry in files if stat.S_IFMT(entry.mode) == 0o160000],
            lfs=any(
                b"filter=lfs" in self._reader.blob(entry.id)
                for entry in files
                if entry.path.rpartition(b"/")[2] == b".gitattributes" and stat.S_ISREG(entry.mode)
            ),
            disk=disk,
            linked={} if earlier is None else {**earlier.linked, earlier.commit: earlier.disk},
        )
        replace_file(fresh / "meta.json", msgspec.json.encode(meta))

    def _write_files(self, place: Path, writer: TreeWriter, tree: bytes, earlier: _Meta | None) -> None:
        """Write the files of a tree; link files that are equal in an earlier base."""
        reader = self._reader
        make_owned(place)
        with open_directory(place) as fd:
            if earlier is None:
                writer.tree(fd, reader.tree(tree))
                return
            older = bytes.fromhex(earlier.tree)
            with open_directory(self.directory / earlier.commit / "tree") as source:
                attributes = TreeAttributes(reader, older)
                writer.tree_linked(fd, reader.tree(tree), source, attributes, reader.tree(older))

    def _write_objects(self, objects: Path, commit: str, earlier: _Meta | None) -> bool:
        """Write the objects; return whether the history is complete. A history with holes is left out."""
        make_owned(objects)
        pack = objects / "pack"
        make_owned(pack)
        make_owned(objects / "info")
        wanted = commit
        if earlier is not None:  # hard links, so a base costs only what is new since the nearest older one
            for file in (self.directory / earlier.commit / "objects" / "pack").iterdir():
                os.link(file, pack / file.name)
            wanted = f"{commit}\n^{earlier.commit}"
        whole = pack_objects(self._git, pack, wanted).code == 0
        # A `--shallow ID` among the revisions ends the history there, so that git does not meet its holes.
        if not whole and pack_objects(self._git, pack, f"--shallow {commit}\n{commit}").code:
            pack_objects(self._git, pack, wanted, ok=(0,))  # raises the reason
        for file in pack.iterdir():
            file.chmod(0o444)
        # A store per base and not the depot itself: an agent may read what its base reaches, but no other work.
        give_tree(objects)
        return whole


def pack_objects(git: Git, pack: Path, wanted: str, *, ok: tuple[int, ...] = tuple(range(256))) -> GitResult:
    """Write the objects that the revisions `wanted` (a line each) reach as one pack into the directory `pack`."""
    # No new deltas: time matters here, and the depot's deltas are kept.
    return git(
        *("pack-objects", "--revs", "--delta-base-offset", "--window=0", "--quiet", str(pack / "pack")),
        input=f"{wanted}\n".encode(),
        ok=ok,
    )


def _read_meta(place: Path) -> _Meta | None:
    """Return the stored properties of a base, `None` if they are damaged or of another version."""
    try:
        meta = decode_as((place / "meta.json").read_bytes(), _Meta)
    except (OSError, msgspec.MsgspecError):
        return None
    return meta if meta.version == _VERSION and meta.commit == place.name else None


def _lends_packs(place: Path) -> bool:
    """Return whether another base may link the packs of this base."""
    if len(list((place / "objects/pack").glob("*.pack"))) >= _MAX_PACKS:
        return False
    with suppress(OSError):
        # A history that ends at the base itself: no other base can build on it.
        return place.name not in (place / "git/.git/shallow").read_text().split()
    return True


def base_mtime(commit: str) -> int:
    """Return the second (2001 to 2010) that files written for a base carry as their time.

    In the past, so that git never takes an entry of the prepared index for one written at the same moment.
    """
    return 1_000_000_000 + int(commit[:7], 16)


def _verify(fd: int, tree: bytes, reader: ObjectReader, attributes: TreeAttributes, prefix: bytes) -> None:
    """Read everything back and compare it with the tree: names, kinds, execute bits and content.

    A file system that folds case or normalises names loses files without an error.
    """
    expected = reader.tree(tree)
    if {os.fsencode(name) for name in os.listdir(fd)} != set(expected):
        raise _mismatch(prefix)
    for name, entry in expected.items():
        if entry.is_tree:
            with open_directory(name, at=fd) as below:
                _verify(below, entry.id, reader, attributes, prefix + name + b"/")
        elif not entry.is_gitlink and not _is_written(fd, prefix + name, entry, attributes):
            raise _mismatch(prefix + name)


def _is_written(fd: int, path: bytes, entry: TreeEntry, attributes: TreeAttributes) -> bool:
    name = path[path.rfind(b"/") + 1 :]
    if entry.mode == LINK:
        return object_id("blob", os.readlink(name, dir_fd=fd)) == entry.id
    linked = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if linked.st_nlink > 1:  # an earlier base's file, verified when that base was made
        return stat.S_ISREG(linked.st_mode) and bool(linked.st_mode & stat.S_IXUSR) == bool(entry.mode & 0o100)
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        info = os.fstat(file)
        content = os.read(file, info.st_size + 1)
        while piece := (os.read(file, 1 << 24) if len(content) < info.st_size else b""):
            content += piece
    finally:
        os.close(file)
    same_bit = bool(info.st_mode & stat.S_IXUSR) == bool(entry.mode & 0o100)
    conversion = attributes.conversion(path)
    if conversion is not None and conversion.changes_files:
        return same_bit and content == attributes.file(path, entry.id)
    return same_bit and object_id("blob", content) == entry.id


def _mismatch(path: bytes) -> InfrastructureError:
    return InfrastructureError(
        f"the base on disk differs from its commit at {os.fsdecode(path)!r}",
        code="base_differs",
        hint="does the file system fold case or normalise names? Keep CHARGEHAND_HOME on another one",
    )


def _write_git(layer: Path, base: Base, *, index: bytes, shallow: bytes) -> None:
    make_owned(layer)
    git = layer / ".git"
    branch = base.branch or "main"
    files = {
        "HEAD": f"ref: refs/heads/{branch}\n".encode(),
        "config": _CONFIG.encode(),
        "objects/info/alternates": f"{OBJECTS_TARGET}\n".encode(),
        f"refs/heads/{branch}": f"{base.commit}\n".encode(),
        "index": index,
        # Files that setup and compilers leave there are not the project's: a check for a clean tree must pass.
        "info/exclude": b"/.chargehand/\n/.venv/\n",
    }
    if shallow:
        files["shallow"] = shallow
    for name, content in files.items():
        path = git / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name in ("objects/pack", "refs/tags", "hooks"):
        (git / name).mkdir(parents=True, exist_ok=True)
    give_tree(layer)


def copy_git(layers: BaseLayers, target: Path) -> None:
    """Copy the agent's `.git` into the plain directory `target`, keeping times so that its index stays valid."""
    shutil.copytree(layers.git / ".git", target / ".git", symlinks=True)
    give_tree(target / ".git")
