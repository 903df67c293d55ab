"""Files, locks and free space of the state directory."""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from chargehand.core.errors import InfrastructureError
from chargehand.core.ports import sandbox_ids

INODE = 512
"""Disk usage in bytes of a file whose content is shared: its inode."""
_MARGIN = 10  # a tenth more than the estimate: directories, journals, additions by the agent's git


# --- locks


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Wait for the exclusive lock `path` and hold it, against other processes and threads of this process."""
    fd = _open_lock(path)
    try:
        # flock(2) belongs to the open file; an fcntl(2) lock belongs to the process and admits all its threads.
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock `path` if it is free, without waiting; yield whether it was free."""
    fd = _open_lock(path)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _open_lock(path: Path) -> int:
    # Lock files are never removed: unlinking one while another process waits on it would let two processes in.
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


# --- files and directories


def replace_file(path: Path, content: bytes) -> None:
    """Make `path` hold `content`: after a crash it has either the complete old or the complete new content."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, content)
            # Before the rename: a file system may write the rename to disk first, and leave the file empty.
            os.fsync(fd)
        finally:
            os.close(fd)
        # The directory is not synced: a power loss may bring the old file back, which is also complete.
        os.replace(fresh, path)
    except BaseException:
        with suppress(FileNotFoundError):
            fresh.unlink()
        raise


def write_all(fd: int, content: bytes) -> None:
    """Write all of `content`, in as many calls as needed."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def remove_tree(path: Path) -> None:
    """Remove `path` and all below it, also directories that deny their owner access; it may be missing.

    Raises `InfrastructureError`.
    """
    if not os.path.lexists(path):
        return
    # By `rm` and not by `shutil.rmtree`: an agent chooses names, depth and modes, and could break a recursion in
    # Python. Overlayfs leaves `work/work` with mode 000; agents may do the same.
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], capture_output=True, check=False)
    # On one file system: a mount left below must not be emptied.
    done = subprocess.run(["rm", "-rf", "--one-file-system", "--", str(path)], capture_output=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"could not remove {str(path)!r}: {os.fsdecode(done.stderr).strip()}")


def discard_tree(path: Path) -> None:
    """Make `path` vanish at once (by a rename in its directory), then remove its content; it may be missing."""
    trash = path.with_name(f".trash-{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(trash)
    except FileNotFoundError:
        return
    remove_tree(trash)


def give_tree(path: Path) -> None:
    """Give `path` and all below it to the sandbox's user, unless that is the present user."""
    if os.geteuid() != 0:
        return
    uid, gid = sandbox_ids()
    os.chown(path, uid, gid, follow_symlinks=False)
    for directory, subdirectories, files in os.walk(path):
        for name in (*subdirectories, *files):
            os.chown(os.path.join(directory, name), uid, gid, follow_symlinks=False)


def make_owned(path: Path) -> None:
    """Make the directory `path` (mode 755, whatever the umask), owned by the sandbox's user."""
    path.mkdir(mode=0o755, parents=True)
    path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(path, *sandbox_ids())


def sync_file_system(path: Path) -> None:
    """Flush everything written to the file system of `path` to disk (`syncfs`). Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Python has only `os.sync`, which waits for every disk of the machine.
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            problem = ctypes.get_errno()
            raise OSError(problem, os.strerror(problem), str(path))
    finally:
        os.close(fd)


# --- space


def tree_bytes(
    path: Path, *, shared: bool = True, stop: tuple[int, int] | None = None, closed: list[str] | None = None
) -> tuple[int, int]:
    """Return the number of entries below `path` and their size on disk; vanishing entries count nothing.

    Allocated blocks count, not apparent sizes, and a file with several names once; without `shared` a file with
    other names counts nothing at all. Stops early above `stop` (entries, bytes). Unreadable directories count
    nothing and are added to `closed`.
    """
    entries = size = 0
    most = stop or (sys.maxsize, sys.maxsize)
    linked: set[tuple[int, int]] = set()
    pending = [str(path)]
    while pending and entries <= most[0] and size <= most[1]:
        for entry, info in _stat_entries(pending.pop(), [] if closed is None else closed):
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


def _stat_entries(directory: str, closed: list[str]) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    try:
        with os.scandir(directory) as listing:
            for entry in listing:
                with suppress(FileNotFoundError):
                    yield entry, entry.stat(follow_symlinks=False)
    except PermissionError:
        closed.append(directory)
    except OSError:
        return


Room = Callable[[Path, "Need", str], None]
"""Checks that `what` fits below a directory before it is made; raises `no_space` if it does not."""


class Need(Struct, frozen=True, kw_only=True):
    """Space needed for something new: bytes on disk, and the number of files and directories."""

    bytes: int
    files: int = 0

    def with_margin(self) -> Need:
        """Return the need plus a tenth, for parts that cannot be known beforehand."""
        return Need(bytes=self.bytes + self.bytes // _MARGIN, files=self.files + self.files // _MARGIN)


def room_on_disk(place: Path, need: Need, what: str) -> None:
    """Check only the free space of the file system: the simplest `Room`."""
    problem = describe_lack(place, need)
    if problem is not None:
        raise no_room(what, need, problem)


def describe_lack(place: Path, need: Need) -> str | None:
    """Return in words what the file system of `place` lacks for `need`; `None` if it has enough."""
    free = os.statvfs(nearest_directory(place))
    room = free.f_bavail * free.f_frsize
    if room < need.bytes:
        return f"{megabytes(room)} are free at {str(place)!r}"
    if free.f_files and free.f_favail < need.files:  # file systems that create inodes on demand report 0
        return f"{free.f_favail} more files are possible at {str(place)!r}, {need.files} are needed"
    return None


def nearest_directory(place: Path) -> Path:
    """Return `place`, or its nearest existing ancestor directory."""
    return next((path for path in (place, *place.parents) if path.is_dir()), Path("/"))


def no_room(what: str, need: Need, problem: str) -> InfrastructureError:
    """Return the error for something that will not fit, raised before any of it is written."""
    return InfrastructureError(
        f"no space left for {what}: it takes about {megabytes(need.bytes)}, and {problem}",
        code="no_space",
        hint="free some space, or run 'chargehand gc'; 'chargehand gc --dry-run' shows the items that stay",
    )


def megabytes(size: int) -> str:
    """Return a number of bytes in readable form."""
    return f"{max(0, size) / 1e6:.1f} MB"
