"""The user's checkout: fast-forward it, write single files, read its index, install its hook."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.errors import RefusedError
from chargehand.core.records import Base, Change, Export
from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import GitError
from chargehand.workspace.export import bring_objects
from chargehand.workspace.host.files import replace_file
from chargehand.workspace.host.git import ZERO, Git
from chargehand.workspace.repository import Repository
from chargehand.workspace.tree.attributes import TreeAttributes
from chargehand.workspace.tree.history import read_ref
from chargehand.workspace.tree.objects import ObjectWriter, TreeEntry, edit_tree, object_id


class _Journal(msgspec.Struct, frozen=True):
    branch: str
    at: str
    commit: str


def fast_forward(depot: Depot, commit: str, *, branch: str, at: str) -> Export:
    """Fast-forward the checked-out `branch` from `at` to `commit`, files included.

    If local changes, untracked or ignored files are in the way, the result is `blocked` with the reason, and
    nothing is changed. After a crash the next call resumes. Raises `RepositoryError` (`apply_bare`,
    `apply_detached`).
    """
    depot.check_can_apply()
    ref = f"refs/heads/{branch}"
    git = depot.repository.git
    journal = depot.root / "apply.json"
    current = read_ref(git, ref)
    if current == commit:
        journal.unlink(missing_ok=True)
        return Export(ref=ref, state="done")
    reason = _blocking_reason(depot, git, commit, branch=branch, at=at, current=current)
    reason = reason or bring_objects(depot, commit)
    if reason:
        return Export(ref=ref, state="blocked", reason=reason)
    depot.fault("apply:objects")
    # Git checks every touched path before it writes the first, then writes the files, the index and the ref. The
    # journal comes first, so that files that a crash left half way are known as ours and not as the user's
    # changes.
    wanted = _Journal(branch, at, commit)
    try:
        found = decode_as(journal.read_bytes(), _Journal)
    except (OSError, msgspec.MsgspecError):
        found = None
    if found == wanted:
        changes = depot.diff(depot.tree_of(at), depot.tree_of(commit))
        # Git writes the index after the files: once it has all changes, only the ref is missing. The paths are
        # compared here, since they may be too many for a command line.
        listed = git("diff-index", "--cached", "--name-only", "-z", "--no-ext-diff", commit, "--")
        if {os.fsencode(change.path) for change in changes}.intersection(listed.out.split(b"\0")):
            # Remove files that already have the new content: git treats an absent file as an unchanged one.
            new = {os.fsencode(change.path): change.new_id for change in changes if change.new_id is not None}
            root = os.fsencode(depot.repository.path)
            for path, content in _content_ids(git, root, new).items():
                if content == new[path]:
                    os.unlink(os.path.join(root, path))
    replace_file(journal, msgspec.json.encode(wanted))
    depot.fault("apply:journal")
    # The user's `merge.*` and `mergeOptions` must not apply; by default git overwrites ignored files.
    merged = git.run(
        *("merge", "--ff-only", "--no-squash", "--no-autostash", "--no-overwrite-ignore", "--quiet", commit),
        detached=True,  # Ctrl-C must not stop git between two files
    )
    depot.fault("apply:merged")
    journal.unlink(missing_ok=True)
    if read_ref(git, ref) != commit:
        return Export(ref=ref, state="blocked", reason=f"git refused the fast-forward: {merged.error}")
    return Export(ref=ref, state="done")


def _blocking_reason(depot: Depot, git: Git, commit: str, *, branch: str, at: str, current: str | None) -> str:
    head = git.run("symbolic-ref", "--quiet", "HEAD").text
    if head != f"refs/heads/{branch}":
        return f"{branch!r} is not checked out any more (HEAD is at {head or 'a detached commit'})"
    if current != at:
        return f"branch {branch!r} moved to {current} since the mission began at {at}"
    if not depot.contains(commit, at):
        return f"{commit} does not follow {at}"
    return ""


def _content_ids(git: Git, root: bytes, paths: Iterable[bytes]) -> dict[bytes, str]:
    """Return the ids that git would give to the existing links and files, all in one process."""
    found: dict[bytes, str] = {}
    files: list[bytes] = []
    for path in paths:
        place = os.path.join(root, path)
        with suppress(OSError):
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode):
                found[path] = object_id("blob", os.readlink(place)).hex()
            elif stat.S_ISREG(mode):
                files.append(path)
    # Quoted so that git reads the exact bytes back: a name may hold a line break or a quote.
    lines = b"".join(
        b'"%s"\n' % b"".join(b"\\%03o" % byte if byte < 32 or byte in b'"\\' else bytes((byte,)) for byte in path)
        for path in files
    )
    asked = git.run("hash-object", "--stdin-paths", input=lines)
    if asked.code == 0 and files:
        found |= zip(files, asked.text.split("\n"), strict=True)
    return found


# --- single files


class AppliedFiles(Struct, frozen=True, kw_only=True):
    """The files that were written, and those left because they differ from the content that was worked on."""

    written: tuple[str, ...]
    left: tuple[str, ...]


def apply_files(depot: Depot, changes: Iterable[Change], *, tree: str) -> AppliedFiles:
    """Write each changed file completely, as the attributes of `tree` convert it, and keep its mode.

    Changes no index and no branch. A file stays as it is if it differs from the old content, is a link or behind
    one, or is not a regular file.
    """
    written, left = [], []
    attributes = TreeAttributes(depot.reader, bytes.fromhex(tree))
    for change in changes:
        path = depot.repository.path / change.path
        if (
            change.kind == "modified"
            and change.old_id
            and change.new_id
            and _has_content(
                path,
                depot.repository.path,
                attributes.file(os.fsencode(change.path), bytes.fromhex(change.old_id)),
            )
        ):
            mode = stat.S_IMODE(path.stat().st_mode)
            replace_file(path, attributes.file(os.fsencode(change.path), bytes.fromhex(change.new_id)))
            # `replace_file` makes files readable only for their owner.
            path.chmod(mode)
            written.append(change.path)
        else:
            left.append(change.path)
    return AppliedFiles(written=tuple(written), left=tuple(left))


def _has_content(path: Path, root: Path, content: bytes) -> bool:
    """Return whether this is a regular file with this content, and no link leads to it."""
    if path.parent.resolve() != root.resolve() / path.parent.relative_to(root):
        return False
    try:
        # Non-blocking: opening a fifo would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return regular and file.read(len(content) + 1) == content


# --- the index


class Staged(Struct, frozen=True, kw_only=True):
    """The tree that is staged on a base, and the changed paths without deleted ones."""

    tree: str
    changed: tuple[str, ...]


def staged_tree(depot: Depot, base: Base) -> Staged:
    """Return the staged tree of the user's repository; `GIT_INDEX_FILE` may name another index, as in hooks.

    The user's index and objects are only read. No filter runs and no file of the working tree is opened: the index
    has the content that a commit would have. Raises `RefusedError` (`index_unmerged`) while a merge has conflicts.
    """
    git = depot.repository.git
    # `git commit -a` and `git commit PATH` call hooks with a separate index.
    index = os.environ.get("GIT_INDEX_FILE")
    if index is not None:
        git = git.within(GIT_INDEX_FILE=str(depot.repository.path / index))
    # Without renames, which would be listed with two paths.
    listed = git("diff-index", "--cached", "--raw", "-z", "--no-renames", "--abbrev=40", base.commit, "--")
    fields = listed.out.split(b"\0")[:-1]
    entries: dict[bytes, TreeEntry | None] = {}
    for about, path in zip(fields[::2], fields[1::2], strict=True):
        _, mode, _, new, status = about.decode().lstrip(":").split(" ")
        if status == "U":
            raise RefusedError(
                f"{os.fsdecode(path)!r} is unmerged in the index",
                code="index_unmerged",
                hint="finish the merge first",
            )
        if status != "D" and new != ZERO:  # zero: added by intent only
            entries[path] = TreeEntry(int(mode, 8), bytes.fromhex(new))
        elif status == "D":
            entries[path] = None
    ids = sorted({entry.id for entry in entries.values() if entry is not None and not entry.is_gitlink})
    asked = "".join(f"{each.hex()}\n" for each in ids).encode()
    answer = git("cat-file", "--batch", input=asked).out if ids else b""
    at = 0
    # Staged content need not be in any commit, so no fetch brings it: copy the blobs.
    with ObjectWriter(depot.reader.objects) as writer:
        for _ in ids:
            end = answer.index(b"\n", at)
            words = answer[at:end].split(b" ")
            if len(words) != 3:
                raise GitError(f"git cat-file answered {answer[at:end].decode(errors='replace')!r}", exit_status=0)
            size = int(words[2])
            writer.add("blob", answer[end + 1 : end + 1 + size])
            at = end + 2 + size
        tree = edit_tree(depot.reader, writer, bytes.fromhex(base.tree), list(entries.items())).hex()
    return Staged(tree=tree, changed=tuple(os.fsdecode(path) for path, entry in entries.items() if entry))


# --- the hook

_MARK = "# Made by `chargehand project hook install`; `chargehand project hook remove` takes it away."
_CALL = "format --check --staged"
_SCRIPT = """\
#!/bin/sh
{mark}
# A commit is held back only by files that the project's own formatters would change (exit code 1). If they
# cannot run (Chargehand is not installed, there is no sandbox) it goes through: checks judge, not this.
program={program}
[ -x "$program" ] || program=$(command -v chargehand) || program=
if [ -z "$program" ]; then
    echo "pre-commit: chargehand is not installed here, so formatting was not checked" >&2
    exit 0
fi
"$program" {call}
code=$?
if [ "$code" -eq 1 ]; then
    echo "pre-commit: 'chargehand format --staged --apply' formats them; then 'git add' and commit again" >&2
    exit 1
fi
if [ "$code" -ne 0 ]; then
    echo "pre-commit: formatting could not be checked (exit code $code), and the commit goes on" >&2
fi
exit 0
"""


class Hook(Struct, frozen=True, kw_only=True):
    """The path of the hook, and whether the call changed anything."""

    path: Path
    changed: bool


def install_hook(repository: Repository, program: Path) -> Hook:
    """Write the hook where the repository's git looks for it (also `core.hooksPath`), or update our existing hook.

    Raises `RefusedError`: `hook_exists` (another hook exists), `hook_shared` (the hook directory is outside the
    repository and other repositories use it too).
    """
    path = _hook_path(repository)
    content = _SCRIPT.format(mark=_MARK, program=shlex.quote(str(program)), call=_CALL)
    found = _read_hook(path)
    if found == content:
        return Hook(path=path, changed=False)
    if found is not None and _MARK not in found:
        raise RefusedError(
            f"{str(path)!r} is not a hook that Chargehand installed",
            code="hook_exists",
            hint=f"add this line to it: chargehand {_CALL} || [ $? -ne 1 ] || exit 1",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written completely before it gets its name: a commit at this moment must not run half of it.
    fresh = path.with_name(f".{path.name}.chargehand-{os.getpid()}")
    try:
        fresh.write_text(content)
        fresh.chmod(0o755)
        if found is None:
            os.link(fresh, path)  # unlike a rename it fails if another hook was made meanwhile
        else:
            fresh.replace(path)
    except FileExistsError as problem:
        raise RefusedError(
            f"{str(path)!r} was created just now", code="hook_exists", hint="check it first"
        ) from problem
    finally:
        fresh.unlink(missing_ok=True)
    return Hook(path=path, changed=True)


def remove_hook(repository: Repository) -> Hook:
    """Remove our hook if it exists. Raises `RefusedError` (`hook_exists`) for any other hook."""
    path = _hook_path(repository)
    found = _read_hook(path)
    if found is None:
        return Hook(path=path, changed=False)
    if _MARK not in found:
        raise RefusedError(
            f"{str(path)!r} is not a hook that Chargehand installed",
            code="hook_exists",
            hint="remove Chargehand's line from it yourself",
        )
    path.unlink()
    return Hook(path=path, changed=True)


def _hook_path(repository: Repository) -> Path:
    """Return the hook's path, without the override by which our git disables hooks."""
    listed = repository.git.run("config", "--show-scope", "-z", "--type=path", "--get-all", "core.hooksPath")
    fields = listed.out.split(b"\0")[:-1]
    said = [(scope, value) for scope, value in zip(fields[::2], fields[1::2], strict=True) if scope != b"command"]
    if not said:
        return repository.common_dir / "hooks" / "pre-commit"
    directory = (repository.path / os.fsdecode(said[-1][1])).resolve()
    inside = directory.is_relative_to(repository.path.resolve()) or directory.is_relative_to(repository.common_dir)
    if not inside:
        raise RefusedError(
            f"the hooks of this repository are in {str(directory)!r}, which other repositories use too",
            code="hook_shared",
            hint=f"call `chargehand {_CALL}` from the hook there, or set core.hooksPath for this repository",
        )
    return directory / "pre-commit"


def _read_hook(path: Path) -> str | None:
    if not os.path.lexists(path):
        return None
    try:
        return path.read_text(errors="replace")
    except OSError:  # a dangling link or a directory: still not ours
        return ""
