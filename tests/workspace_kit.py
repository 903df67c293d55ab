"""Real repositories, real mounts and real changes for tests of workspaces.

An *agent* here is a shell script or a list of file operations, run in a private mount namespace over the mounted
workspace: as root under the sandbox's own uid, otherwise in a user namespace.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from chargehand.core.ports import DriverName, MountPlan, sandbox_ids
from chargehand.core.records import Base
from chargehand.testing.workspace.harness import FILES, changed, rules, tree_paths
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace
from tests.conftest import git, make_repository

__all__ = [
    "FILES",
    "Disk",
    "Operation",
    "WorkspaceKit",
    "agent",
    "changed",
    "cloning_disk",
    "operate",
    "oracle",
    "rules",
    "tree_paths",
    "write",
]
Disk = Literal["btrfs", "xfs"]
_DISK_MB = 1600  # sparse; the doctor requires a free gigabyte
_own_mounts = threading.local()
_NO_NAMESPACES = 77

# Hundreds of these run, and each import would be a large part of the cost of one.
_INSIDE = r"""
import ctypes, marshal, os, sys
job = marshal.load(sys.stdin.buffer)
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, kind, flags, data):
    code = [None if x is None else os.fsencode(x) for x in (source, target, kind, data)]
    if libc.mount(code[0], code[1], code[2], ctypes.c_ulong(flags), code[3]):
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem), target)
uid, gid = os.getuid(), os.getgid()
try:
    if libc.unshare(0x20000 if uid == 0 else 0x10020000):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid:
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
        open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
    mount(None, "/", None, 0x44000, None)
    mount("tmpfs", "/run", "tmpfs", 0, "mode=755,size=64m")
    os.makedirs("/run/chargehand/objects")
    os.mkdir("/run/ws")
    mount(job["objects"], "/run/chargehand/objects", None, 0x1000, None)
    if job["plain"]:
        mount(job["plain"], "/run/ws", None, 0x1000, None)
    else:
        options = f"lowerdir={':'.join(job['lowers'])}"
        if job["upper"]:
            options += f",upperdir={job['upper']},workdir={job['work']}"
        options += ",redirect_dir=off,metacopy=off,index=off" if uid == 0 else ",userxattr"
        mount("overlay", "/run/ws", "overlay", 0, options)
except OSError as problem:
    print(problem, file=sys.stderr)
    sys.exit(77)
os.chdir("/run/ws")
if job["oracle"]:
    environment = dict(os.environ, GIT_DIR="/run/oracle.git", GIT_WORK_TREE="/run/ws")
    environment["GIT_CONFIG_GLOBAL"] = "/dev/null"
    for name in ("refs", "objects/info"):
        os.makedirs("/run/oracle.git/" + name)
    repository = {
        "HEAD": "ref: refs/heads/main",
        "config": "[core]\nrepositoryformatversion = 0\nfilemode = true\nbare = false",
        "objects/info/alternates": job["oracle"]["objects"],
    }
    for name, text in repository.items():
        with open("/run/oracle.git/" + name, "w") as file:
            file.write(text + "\n")
    for words in (["read-tree", job["oracle"]["tree"]], ["add", "-A"]):
        if code := os.spawnvpe(os.P_WAIT, "git", ["git", *words], environment):
            sys.exit(code)
    os.execvpe("git", ["git", "write-tree"], environment)
if any(kind in ("remove", "move") for kind, *_ in job["operations"]):
    import shutil  # before the user changes, who may not read the interpreter's library
if uid == 0:
    os.setgroups([])
    os.setgid(job["ids"][1])
    os.setuid(job["ids"][0])
os.umask(0o22)
if job["script"] is not None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    os.execve("/bin/sh", ["/bin/sh", "-ec", job["script"]], environment)
for kind, path, *rest in job["operations"]:
    try:
        if kind == "write":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "wb") as file:
                file.write(bytes.fromhex(rest[0]))
        elif kind == "append":
            with open(path, "ab") as file:
                file.write(bytes.fromhex(rest[0]))
        elif kind == "mkdir":
            os.makedirs(path)
        elif kind == "link":
            os.symlink(rest[0], path)
        elif kind == "mode":
            if os.path.isfile(path) and not os.path.islink(path):
                os.chmod(path, rest[0])
        elif kind == "remove":
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        elif kind == "move":
            shutil.move(path, rest[0])
        else:
            raise SystemExit(f"unknown operation {kind}")
    except (OSError, NotImplementedError):  # `shutil.Error` is an `OSError`
        if job["strict"]:
            raise
"""

Operation = Sequence[Any]


class WorkspaceKit:
    """A user's repository, its depot and workspaces on it."""

    def __init__(self, place: Path, files: Mapping[str, str] | None = None) -> None:
        self.place = place
        self.repository = make_repository(place / "repository", FILES if files is None else files)
        self.root = place / "state"
        self._depot: Depot | None = None
        self._base: Base | None = None

    def commit(self, message: str = "more") -> str:
        """Commit all changes in the user's repository."""
        self._base = None
        git(self.repository, "add", "-A")
        git(self.repository, "commit", "-q", "--allow-empty", "-m", message)
        return git(self.repository, "rev-parse", "HEAD")

    def open(self, **options: Any) -> Depot:
        """Open the depot again, as another process would."""
        return Depot.open(self.root, repository=self.repository, **options)

    def depot(self) -> Depot:
        """Return the depot, opened once."""
        if self._depot is None:
            self._depot = self.open()
        return self._depot

    def base(self) -> Base:
        """Return HEAD as it was at the last commit through this kit."""
        if self._base is None:
            self._base = self.depot().resolve_base(None)
        return self._base

    def workspace(self, driver: DriverName = "overlay", **options: Any) -> Workspace:
        """Make a workspace on HEAD."""
        return Workspace.create(self.depot(), self.base(), driver=driver, **options)


def agent(workspace: Workspace, script: str) -> str:
    """Run a shell script over the mounted workspace; return its output."""
    return _inside(workspace.mount_plan(), script=script)


def operate(workspace: Workspace, operations: Sequence[Operation], *, strict: bool = True) -> None:
    """Run file operations over the mounted workspace; without `strict` failing ones are skipped."""
    _inside(workspace.mount_plan(), operations=operations, strict=strict)


def oracle(workspace: Workspace, depot: Depot, *, live: bool = False) -> str:
    """Return the tree that `git add -A` makes of the mounted workspace, from scratch.

    `live` means that a sandbox has it mounted too. An overlay is then mounted read-only, because a second writable
    mount would clear the working directory of the first.
    """
    described = {"objects": str(depot.path / "objects"), "tree": workspace.base.tree}
    plan = workspace.mount_plan()
    if live and plan.upper is not None:
        plan = replace(plan, lowers=(plan.upper, *plan.lowers), upper=None, work=None)
    return _inside(plan, oracle=described).strip()


def write(path: str, content: bytes | str) -> Operation:
    """Return the operation that writes a file."""
    data = content.encode() if isinstance(content, str) else content
    return ("write", path, data.hex())


def _inside(
    plan: MountPlan,
    *,
    script: str | None = None,
    operations: Sequence[Operation] = (),
    oracle: Mapping[str, str] | None = None,
    strict: bool = True,
) -> str:
    job = {
        "plain": str(plan.plain) if plan.plain else "",
        "lowers": [str(lower) for lower in plan.lowers],
        "upper": str(plan.upper) if plan.upper else "",
        "work": str(plan.work),
        "objects": str(plan.binds[0].source),
        "ids": sandbox_ids(),
        "script": script,
        "operations": [list(operation) for operation in operations],
        "oracle": oracle,
        "strict": strict,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _INSIDE],
        input=marshal.dumps(job),
        capture_output=True,
        check=False,
    )
    if done.returncode == _NO_NAMESPACES and not os.environ.get("CI"):
        pytest.skip(f"no overlay mounts here: {done.stderr.decode()}")
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout.decode(errors="surrogateescape")


@contextmanager
def cloning_disk(kind: Disk, place: Path) -> Iterator[Path]:
    """Provide a file system that clones files, in a file below `place`; needs root, skips if it cannot be made.

    It is mounted in a mount namespace that only this thread and its children share, so that no mount outlives the
    tests, however they end. The thread stays there: it no longer sees what other threads mount later.
    """
    mkfs = shutil.which(f"mkfs.{kind}", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if mkfs is None:
        _missing(f"mkfs.{kind} is not installed")
    image, target = place / f"{kind}.img", place / kind
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK_MB << 20)
    _run([str(mkfs), "-q", str(image)])
    _take_own_mounts()
    _run(["mount", "-o", "loop", str(image), str(target)])
    try:
        target.chmod(0o755)
        yield target
    finally:
        _run(["umount", "--lazy", str(target)])  # lazily: a depot may still have its packs mapped
        image.unlink()


def _take_own_mounts() -> None:
    if getattr(_own_mounts, "taken", False):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, recursive_private = 0x00020000, 0x44000
    if libc.unshare(new_namespace) or libc.mount(None, b"/", None, ctypes.c_ulong(recursive_private), None):
        _missing(f"no mount namespace can be had: {os.strerror(ctypes.get_errno())}")
    _own_mounts.taken = True


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        _missing(f"{command[0]}: {done.stderr.strip()}")


def _missing(reason: str) -> None:
    """Skip on a laptop, fail in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
