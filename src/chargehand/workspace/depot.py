"""The depot: a project's private bare repository, never mounted into a sandbox. Trees, commits, refs, bases."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

from msgspec import Struct

from chargehand.core.errors import NotFoundError, RepositoryError
from chargehand.core.records import Base, Change, Finding
from chargehand.core.text import late_pattern
from chargehand.workspace.bases import BaseLayers, Bases
from chargehand.workspace.errors import Fault, GitError, disk_errors, no_fault
from chargehand.workspace.host.files import (
    Room,
    hold_lock,
    remove_tree,
    room_on_disk,
    sync_file_system,
    write_all,
)
from chargehand.workspace.host.git import NO_GRAFTS, Git, private_git
from chargehand.workspace.identity import BASES as BASES
from chargehand.workspace.merge import IsUnion, MergeResult, merge_commits
from chargehand.workspace.repository import Repository, find_repository, resolve
from chargehand.workspace.tags import read_tags, tags_key
from chargehand.workspace.tree.attributes import find_lfs_pointers, find_stale
from chargehand.workspace.tree.history import (
    NOTES,
    PROVENANCE,
    Author,
    Commit,
    NotesPlace,
    add_notes,
    is_id,
    note_bytes,
    read_commit,
    read_note,
    read_ref,
    read_ref_file,
    swap_ref,
    write_commit,
)
from chargehand.workspace.tree.objects import (
    EXECUTABLE,
    FILE,
    ObjectReader,
    ObjectWriter,
    TreeEntry,
    compare,
    edit_tree,
    read_loose_commit,
)

# Names that need no check of git's rules.
_PLAIN_REF = late_pattern(r"refs(/[A-Za-z0-9_-]+)+")
_LINKED = "refs/chargehand/linked"  # this commit and its ancestors are here: fetches stop at it
# Whatever attributes and configuration say: no program is run, and a rename is a deletion and an addition.
DIFF_OPTIONS = ("--no-textconv", "--no-ext-diff", "--no-renames", "--no-color", "--submodule=short", "-r")
# `allowAnySHA1InWant`: the user's git fetches a commit by its id, which need not be the tip of a ref.
_CONFIG = """\
[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
	logAllRefUpdates = false
[gc]
	auto = 0
[maintenance]
	auto = false
[uploadpack]
	allowAnySHA1InWant = true
"""


class PathEntry(Struct, frozen=True, kw_only=True):
    """One entry of a tree: its path, git's mode, hex id."""

    path: str
    mode: int
    id: str


class LineCount(Struct, frozen=True, kw_only=True):
    """The numbers of lines a path gained and lost; `None` for binary content."""

    path: str
    added: int | None
    removed: int | None


class Depot:
    """A project's trees, commits and refs; made by `open`. Safe to use from several threads and processes.

    Ids are hex, paths are `str` as `os.fsdecode` returns them. Reading a missing id raises `NotFoundError`.
    """

    def __init__(
        self, root: Path, repository: Repository, *, fault: Fault = no_fault, room: Room = room_on_disk
    ) -> None:
        self.root = root
        self.repository = repository
        self.fault = fault
        self.room = room
        self.path = root / "depot.git"
        self.git: Git = private_git(self.path)
        self.reader = ObjectReader(self.path / "objects")
        self.notes_lock = root / "locks" / "notes.lock"
        self._notes = NotesPlace(self.git, self.reader.objects)
        self._in_place = False
        self.bases = Bases(root, reader=self.reader, git=self.git, fault=fault, room=room)

    @classmethod
    def open(
        cls, root: Path, *, repository: Path | Repository, fault: Fault = no_fault, room: Room = room_on_disk
    ) -> Depot:
        """Open the depot of the repository that holds `repository`, making it in `root` if missing.

        `room` is called before a base or a workspace is made. The user's repository is only read.

        Raises `RepositoryError` (`not_a_repository`, `repository_empty`, `repository_owner`, `repository_format`)
        and `InfrastructureError` (`no_space`).
        """
        found = repository if isinstance(repository, Repository) else find_repository(repository)
        root.mkdir(parents=True, exist_ok=True)
        place = root / "depot.git"
        if not place.exists():
            with hold_lock(root / "locks" / "depot.lock"), disk_errors("making the depot"):
                if not place.exists():
                    fresh = place.with_name(".new-depot.git")
                    remove_tree(fresh)
                    try:
                        _write_repository(fresh)
                        head = _find_head(found)
                        if _link_objects(found.common_dir, fresh / "objects") and head is not None:
                            linked = fresh / _LINKED  # written as a plain file: no process sees this depot yet
                            linked.parent.mkdir(parents=True)
                            linked.write_text(f"{head}\n")
                        fault("depot:filled")
                        fresh.rename(place)
                    except BaseException:
                        remove_tree(fresh)
                        raise
        return cls(root, found, fault=fault, room=room)

    @classmethod
    def view(cls, root: Path, *, repository: Repository, room: Room = room_on_disk) -> Depot:
        """Return a depot that reads bases from the repository's objects: it makes no depot and writes nothing.

        If part of the objects is elsewhere (alternates, a partial clone), the depot is opened after all.
        """
        objects = repository.common_dir / "objects"
        if (objects / "info/alternates").exists() or any(objects.glob("pack/*.promisor")):
            return cls.open(root, repository=repository, room=room)
        made = cls(root, repository, room=room)
        made.reader = ObjectReader(objects)
        made._in_place = True
        return made

    # --- bases

    def resolve_base(self, revision: str | None = None, *, recorded: bool = False) -> Base:
        """Return the commit that `revision` (default HEAD) names in the user's repository, now also in the depot.

        A complete id may also name a base that the depot already holds; for a base that was `recorded` before, the
        user's repository is not read again. Raises `RepositoryError` (`base_not_found`, `repository_incomplete`).
        """
        held = revision if revision is not None and is_id(revision) else None
        if recorded and held is not None and self.read_ref(BASES + held) is not None:
            return Base(commit=held, tree=self.tree_of(held), revision=held)
        try:
            base = resolve(self.repository, revision)
        except RepositoryError:
            # The user's repository may lack a base that is a branch fetched from a remote.
            if held is None or self.read_ref(BASES + held) is None:
                raise
            return Base(commit=held, tree=self.tree_of(held), revision=held)
        if self._in_place:
            return base
        # The ref protects the base's objects from git's gc in the depot as long as a workspace may use them.
        ref = BASES + base.commit
        with hold_lock(self.root / "locks" / "depot.lock"):
            if self.read_ref(ref) is not None:
                return base
            if self.read_ref(_LINKED) == base.commit:  # the objects came with the depot
                self.swap(ref, base.commit, None)
                return base
            try:
                self._fetch(f"{base.commit}:{ref}")
            except GitError:
                # Its history has holes: a partial clone, or a lost object.
                try:
                    self._fetch("--depth=1", f"{base.commit}:{ref}")
                except GitError as problem:
                    raise _incomplete(base.commit, problem.message) from problem
        return base

    def keep_base(self, commit: str) -> None:
        """Make a commit of the depot one that `resolve_base` finds by its id, whatever happens to its branch."""
        with hold_lock(self.root / "locks" / "depot.lock"):
            if self.read_ref(BASES + commit) is None:
                self.swap(BASES + commit, commit, None)

    def _fetch(self, *words: str) -> None:
        # `--update-shallow`: a shallow clone is fetched as it is, and makes the depot shallow. The other side also
        # runs without grafts, or it would send a history other than the ids say.
        *options, refspec = words
        self.git(
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--update-shallow"),
            *("--no-recurse-submodules", f"--upload-pack=GIT_GRAFT_FILE={NO_GRAFTS} git-upload-pack"),
            *(*options, str(self.repository.git_dir), refspec),
        )

    def base_layers(self, base: Base) -> BaseLayers:
        """Return the shared layers of a base, making them if missing.

        Raises `InfrastructureError` (`no_space`, `base_differs`) and `RepositoryError` (`base_tree`,
        `repository_incomplete`).
        """
        shallow = self.path / "shallow"
        found = self.repository
        try:
            layers = self.bases.layers(base, shallow=shallow.read_bytes() if shallow.exists() else b"")
        except NotFoundError as problem:
            raise _incomplete(base.commit, problem.message) from problem
        key = tags_key(found)
        if not key:
            return layers
        return self.bases.with_tags(
            base, layers, key, lambda history: read_tags(found, base.commit, history=history)
        )

    def check_can_apply(self) -> None:
        """Raise `RepositoryError` (`apply_bare`, `apply_detached`) if `apply` can never work here."""
        if self.repository.bare:
            raise RepositoryError(
                f"{str(self.repository.path)!r} is bare: there is no working tree to apply to",
                code="apply_bare",
                hint="leave out --apply; the result is exported as a branch",
            )
        if self.repository.branch is None:
            raise RepositoryError(
                f"HEAD is detached in {str(self.repository.path)!r}",
                code="apply_detached",
                hint="check out a branch, or leave out --apply",
            )

    # --- reading trees

    def read_blob(self, id: str, *, limit: int | None = None) -> bytes:
        """Return a blob's content, at most `limit` bytes of it."""
        return self.reader.blob(bytes.fromhex(id))[:limit]

    def blob_size(self, id: str) -> int:
        """Return a blob's size in bytes."""
        return self.reader.size(bytes.fromhex(id))

    def entries(self, tree: str, prefix: str = "", *, most: int | None = None) -> tuple[PathEntry, ...]:
        """Return all files, links and submodules of a tree, or of its directory `prefix`, in git's order."""
        start, path = bytes.fromhex(tree), os.fsencode(prefix.strip("/"))
        if path:
            found = self.reader.find(start, path)
            if found is None or not found.is_tree:
                return ()
            start, path = found.id, path + b"/"
        walked = islice(self.reader.walk(start, path), most)
        return tuple(PathEntry(path=os.fsdecode(name), mode=e.mode, id=e.id.hex()) for name, e in walked)

    def lookup(self, tree: str, path: str) -> PathEntry | None:
        """Return the entry of a tree at `path`, also a directory, or `None`."""
        found = self.reader.find(bytes.fromhex(tree), os.fsencode(path))
        return None if found is None else PathEntry(path=path, mode=found.mode, id=found.id.hex())

    def has_directory(self, tree: str, path: str) -> bool:
        """Return whether a tree has a directory at `path` without any link on the way; "" is its top."""
        found = self.lookup(tree, path) if path else None
        return not path or (found is not None and stat.S_ISDIR(found.mode))

    def find_lfs_pointers(self, tree: str) -> tuple[Finding, ...]:
        """Return a finding that names the files of a tree shown as Git LFS pointers; empty if there are none."""
        return find_lfs_pointers(self.reader, tree)

    def find_stale(self, old: str, new: str) -> tuple[Finding, ...]:
        """Return a finding that names the files that changed attributes leave modified in every fresh checkout."""
        return find_stale(self.reader, old, new, self.diff(old, new))

    def find_obstacle(self, tree: str, path: str) -> str | None:
        """Return in words which entry of a tree prevents laying a file over it at `path`, `None` if nothing does.

        A link is an obstacle too, at `path` or above it: the file would be written to the link's target.
        """
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            found = self.lookup(tree, name)
            if found is None:
                return None
            whole = depth == len(parts)
            if stat.S_ISLNK(found.mode):
                return f"{name!r} is a symbolic link"
            if stat.S_ISREG(found.mode) != whole:
                return f"{name!r} is a directory" if whole else f"{name!r} is not a directory"
        return None

    def diff(self, old: str, new: str) -> tuple[Change, ...]:
        """Return the paths that differ between two trees, sorted; renames are not detected."""
        return tuple(compare(self.reader, bytes.fromhex(old), bytes.fromhex(new)))

    def patch(self, old: str, new: str, paths: Sequence[str] = ()) -> bytes:
        """Return the difference of two trees as a patch that `git apply` accepts, binary files included."""
        return self.git("diff-tree", "-p", "--binary", "--full-index", *DIFF_OPTIONS, old, new, "--", *paths).out

    def numstat(self, old: str, new: str) -> tuple[LineCount, ...]:
        """Return the numbers of lines that each differing path gained and lost."""
        listed = self.git("diff-tree", "--numstat", "-z", *DIFF_OPTIONS, old, new, "--").out.split(b"\0")
        counts = [line.split(b"\t", 2) for line in listed if line]
        return tuple(
            LineCount(
                path=os.fsdecode(path),
                added=None if added == b"-" else int(added),
                removed=None if removed == b"-" else int(removed),
            )
            for added, removed, path in counts
        )

    def renames(self, old: str, new: str) -> dict[str, str]:
        """Return the old name in `old` of each path that is new in `new` if git detects a rename."""
        # In raw fields separated by NUL: a patch would need parsing, and content can look like a patch.
        words = ("diff-tree", "-r", "-z", "-M", "--diff-filter=R", "--name-status", "--submodule=short")
        fields = self.git(*words, "--no-textconv", "--no-ext-diff", old, new).out.split(b"\0")[:-1]
        return {os.fsdecode(fields[i + 2]): os.fsdecode(fields[i + 1]) for i in range(0, len(fields), 3)}

    # --- writing trees and commits

    def replace_paths(
        self, tree: str, paths: Iterable[str], source: str, *, contents: Mapping[str, bytes] | None = None
    ) -> str:
        """Return `tree` with each path as it is in `source` (a directory completely; a missing path is removed).

        Files of the tree that `contents` names by path get that content.
        """
        start, other = bytes.fromhex(tree), bytes.fromhex(source)
        edits: list[tuple[bytes, TreeEntry | None]] = []
        for path in paths:
            name = os.fsencode(path)
            edits.append((name, self.reader.find(other, name)))
        with ObjectWriter(self.reader.objects) as writer:
            for path, content in (contents or {}).items():
                found = self.reader.find(start, os.fsencode(path))
                if found is not None:
                    edits.append((os.fsencode(path), TreeEntry(found.mode, writer.add("blob", content))))
            return edit_tree(self.reader, writer, start, edits).hex()

    def lay_over(self, tree: str, files: Mapping[str, tuple[bytes, bool] | None]) -> str:
        """Return `tree` with each file (content, executable) at its path, replacing any entry in its way.

        `None` removes a path.
        """
        edits: list[tuple[bytes, TreeEntry | None]] = []
        with ObjectWriter(self.reader.objects) as writer:
            for path, file in files.items():
                entry = None
                if file is not None:
                    entry = TreeEntry(EXECUTABLE if file[1] else FILE, writer.add("blob", file[0]))
                edits.append((os.fsencode(path), entry))
            return edit_tree(self.reader, writer, bytes.fromhex(tree), edits).hex()

    def commit(
        self,
        tree: str,
        parents: Sequence[str],
        message: str,
        *,
        author: Author | None = None,
        when: datetime | None = None,
    ) -> str:
        """Write a commit (author is committer); no ref moves. Raises `InfrastructureError` (`no_space`).

        Without an `author` it is Chargehand, at `when` or now.
        """
        author = author or (Author(when=when) if when is not None else Author())
        return write_commit(self.reader, tree=tree, parents=tuple(parents), message=message, author=author)

    def read_commit(self, id: str) -> Commit:
        """Return a commit."""
        return read_commit(self.reader, id)

    def read_ref(self, ref: str) -> str | None:
        """Return the commit that a full ref name points to, or `None`."""
        try:
            return read_ref_file(self.path, ref)
        except LookupError:
            return read_ref(self.git, ref)

    def swap(self, ref: str, new: str | None, old: str | None, *, durable: bool = False) -> None:
        """Move a ref from `old` to `new` in one step (`None`: absent); `durable` also flushes everything to disk.

        Raises `RefMovedError` if the ref is not at `old`.
        """
        # Two syncs, not one: a ref that reached the disk first could name a commit that the disk does not have.
        if durable:
            sync_file_system(self.path)
        if new is None or old is not None or not self._create_ref(ref, new):
            swap_ref(self.git, ref, new=new, old=old)
        if durable:
            sync_file_system(self.path)

    def _create_ref(self, ref: str, new: str) -> bool:
        """Create a ref as git would, in this process; return `False` if git has to do or to refuse it.

        The file appears with its content, or another process was first: no lock is left behind by a kill.
        """
        place = self.path / ref
        if _PLAIN_REF.fullmatch(ref) is None or read_loose_commit(self.reader.objects, new) is None:
            return False
        try:
            if read_ref_file(self.path, ref) is not None or place.with_name(f"{place.name}.lock").exists():
                return False
            place.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            try:
                write_all(fd, f"{new}\n".encode())
                # With a descriptor, or Python would call link(2), which does not follow this symbolic link.
                os.link(f"/proc/self/fd/{fd}", place, src_dir_fd=fd, follow_symlinks=True)
            finally:
                os.close(fd)
        except (LookupError, OSError):  # among others: a full disk, no room for the name, no unnamed files here
            return False
        return True

    def merge(
        self, ours: str, theirs: str, base: str | None = None, *, union: IsUnion | None = None
    ) -> MergeResult:
        """Merge commit `theirs` into `ours` without a working tree (`merge_commits`); only objects are written."""
        return merge_commits(
            self.git, self.path, reader=self.reader, ours=ours, theirs=theirs, base=base, union=union
        )

    def contains(self, commit: str, other: str) -> bool:
        """Return whether `other` is the commit or in its history; a commit that the depot lacks is not."""
        return commit == other or self.git.run("merge-base", "--is-ancestor", other, commit).code == 0

    def merge_base(self, one: str, other: str) -> str | None:
        """Return the best common ancestor of two commits, `None` if their histories have none."""
        return self.git.run("merge-base", one, other).text or None

    def annotate(self, commit: str, text: str, *, provenance: str = "") -> bool:
        """Add the lines of `text` that the note of a commit lacks; return whether any were added.

        The lines of `provenance` go to a separate note, in the same step. The notes are on disk on return, and
        concurrent writers keep each other's notes. Raises `NotFoundError` for an unknown commit, `UsageError`
        (`note_empty`), `InfrastructureError` (`no_space`).
        """
        notes = {NOTES: note_bytes(text)} | ({PROVENANCE: note_bytes(provenance)} if provenance else {})
        with hold_lock(self.notes_lock):
            return add_notes(self._notes, commit, notes, fault=self.fault)

    def annotation(self, commit: str) -> str | None:
        """Return the note of a commit, each line with its newline, `None` if missing."""
        note = read_note(self._notes, commit)
        return None if note is None else note.decode("utf-8", "replace")

    def provenance(self, commit: str) -> str | None:
        """Return the provenance note of a commit, in the form of `annotation`."""
        note = read_note(self._notes, commit, PROVENANCE)
        return None if note is None else note.decode("utf-8", "replace")

    def tree_of(self, commit: str) -> str:
        """Return the tree of a commit."""
        return self.read_commit(commit).tree

    def check_tree(self, tree: str) -> bytes:
        """Return the raw id of a tree of the depot; raises `NotFoundError` code `tree_not_found`."""
        try:
            raw = bytes.fromhex(tree)
            self.reader.tree(raw)
        except (ValueError, NotFoundError) as problem:
            raise NotFoundError(f"no tree {tree!r} in the depot", code="tree_not_found") from problem
        return raw


def _write_repository(place: Path) -> None:
    """Write an empty bare repository, as `git init` does, but without the machine's template and its hooks."""
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (place / name).mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "config").write_text(_CONFIG)


def _find_head(found: Repository) -> str | None:
    """Return the commit of a repository's HEAD, `None` if missing."""
    if found.branch is not None:
        with suppress(LookupError):
            tip = read_ref_file(found.common_dir, f"refs/heads/{found.branch}")
            if tip is not None and read_loose_commit(found.common_dir / "objects", tip) is not None:
                return tip
    return read_ref(found.git, "HEAD^{commit}")


def _incomplete(commit: str, why: str) -> RepositoryError:
    return RepositoryError(
        f"commit {commit!r} could not be read completely: {why}",
        code="repository_incomplete",
        hint="check it out once (a partial clone then fetches what is missing), or see 'git fsck'",
    )


def _link_objects(common_dir: Path, objects: Path) -> bool:
    """Hard-link all objects of a repository into ours; return `False` if that is impossible or incomplete.

    An object is never rewritten, so a shared inode is safe; objects that the user's gc removes stay here.
    """
    # Borrowed objects, a shallow end, or objects that git fetches on demand: links would be incomplete.
    source = common_dir / "objects"
    if (source / "info/alternates").exists() or (common_dir / "shallow").exists():
        return False
    if any((source / "pack").glob("*.promisor")):
        return False
    packs = _pack_names(source)
    try:
        for directory in source.glob("[0-9a-f][0-9a-f]"):
            (objects / directory.name).mkdir(exist_ok=True)
            for file in directory.iterdir():
                os.link(file, objects / directory.name / file.name)
        for name in packs:
            for suffix in (".pack", ".idx"):
                os.link(source / "pack" / (name + suffix), objects / "pack" / (name + suffix))
        # The user's git may repack meanwhile: an object that moved from a loose file to a new pack was seen in
        # neither.
        whole = _pack_names(source) == packs
    except OSError:  # another file system, protected links, or files that the user's gc is removing
        whole = False
    if not whole:
        shutil.rmtree(objects)
        for name in ("pack", "info"):
            (objects / name).mkdir(parents=True)
    return whole


def _pack_names(objects: Path) -> set[str]:
    return {file.name.removesuffix(".idx") for file in (objects / "pack").glob("pack-*.idx")}
