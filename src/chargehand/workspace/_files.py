"""Files and directories of our own state: whole or absent, rightly owned, removed whatever they hold."""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chargehand.core.errors import InfrastructureError
from chargehand.core.ports import sandbox_ids


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock `path`, against other processes and other threads of this one.

    The file is never removed: a lock that is unlinked while someone waits on it lets two in.
    """
    fd = _lock_file(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def locked_now(path: Path) -> Iterator[bool]:
    """Hold the lock `path` if nobody has it, and tell whether that is so: never waits."""
    fd = _lock_file(path)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _lock_file(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def replace_file(path: Path, content: bytes) -> None:
    """Make `path` hold `content`: after a crash it is wholly the old or wholly the new one."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(fresh, path)
    except BaseException:
        with suppress(FileNotFoundError):
            fresh.unlink()
        raise


def write_all(fd: int, content: bytes) -> None:
    """Write all of `content`, however many calls that takes."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def remove_tree(path: Path) -> None:
    """Remove `path` and all below it, directories that deny their owner included; absent is fine.

    Done by `rm`: names, depth and modes are an agent's choice, and a recursion here would be at their mercy.
    """
    if not os.path.lexists(path):
        return
    if os.geteuid() != 0:  # overlayfs leaves work/work with mode 000, agents may do the same
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], capture_output=True, check=False)
    done = subprocess.run(["rm", "-rf", "--one-file-system", "--", str(path)], capture_output=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"could not remove {str(path)!r}: {os.fsdecode(done.stderr).strip()}")


def discard_tree(path: Path) -> None:
    """Make `path` vanish at once (by a rename beside it), then remove what it held."""
    trash = path.with_name(f".trash-{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(trash)
    except FileNotFoundError:
        return
    remove_tree(trash)


def give_tree(path: Path) -> None:
    """Give `path` and all below it to the sandbox's user, where that is not us already."""
    if os.geteuid() != 0:
        return
    uid, gid = sandbox_ids()
    os.chown(path, uid, gid, follow_symlinks=False)
    for directory, subdirectories, files in os.walk(path):
        for name in (*subdirectories, *files):
            os.chown(os.path.join(directory, name), uid, gid, follow_symlinks=False)


def make_owned(path: Path) -> None:
    """Make the directory `path` (mode 755), owned by the sandbox's user."""
    path.mkdir(mode=0o755, parents=True)
    path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(path, *sandbox_ids())


def tree_bytes(
    path: Path, *, shared: bool = True, stop: tuple[int, int] | None = None, closed: list[str] | None = None
) -> tuple[int, int]:
    """Return how many entries lie below `path` and the bytes they take on disk; what vanishes counts nothing.

    Allocated blocks count, not apparent sizes, and a file of several names once; without `shared` a file that has
    other names counts nothing at all. Ends early with more than `stop` (entries, bytes). Directories that may not
    be looked into count nothing and are added to `closed`.
    """
    entries = size = 0
    most = stop or (sys.maxsize, sys.maxsize)
    linked: set[tuple[int, int]] = set()
    pending = [str(path)]
    while pending and entries <= most[0] and size <= most[1]:
        for entry, info in _entries(pending.pop(), [] if closed is None else closed):
            entries += 1
            if stat.S_ISDIR(info.st_mode):
                pending.append(entry.path)
            elif info.st_nlink > 1:
                if not shared or (info.st_dev, info.st_ino) in linked:
                    continue
                linked.add((info.st_dev, info.st_ino))
            size += info.st_blocks * 512
            if entries > most[0] or size > most[1]:
                break
    return entries, size


def _entries(directory: str, closed: list[str]) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    try:
        with os.scandir(directory) as listing:
            for entry in listing:
                with suppress(FileNotFoundError):
                    yield entry, entry.stat(follow_symlinks=False)
    except PermissionError:
        closed.append(directory)
    except OSError:
        return


def sync_file_system(path: Path) -> None:
    """Bring everything written to the file system of `path` onto the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            problem = ctypes.get_errno()
            raise OSError(problem, os.strerror(problem), str(path))
    finally:
        os.close(fd)
