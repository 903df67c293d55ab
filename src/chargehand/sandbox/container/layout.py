"""The content of one container as data: its root directory, its mounts, and the engine's command line."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from chargehand.core.errors import TierUnavailableError
from chargehand.core.ports import Bind, MountPlan, sandbox_ids
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec, new_host_name
from chargehand.sandbox.process.layout import (
    BOOTSTRAP,
    ETC,
    FILES,
    HOME,
    INSIDE_ID,
    MAVEN_SETTINGS,
    NO_SETTINGS,
    RUN,
    SETTINGS,
    SYSTEM_LINKS,
    forwarder_binds,
    python_inside,
)
from chargehand.sandbox.toolchain import SHIMS

# Name of the container's root directory below the staging directory.
ROOT = "root"
_DIRECTORIES = ("proc", "dev", "sys", "etc", "home", "opt", "var", "run", "tmp", "usr")


class ContainerContents(Struct):
    """A container's content: `write_root` makes its root directory, `staged_mounts` or `direct_mounts` its mounts.

    `scratch` maps a directory to its size in MiB.
    """

    binds: list[Bind] = field(default_factory=list)
    scratch: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    plan: MountPlan | None = None
    python: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)

    def hide_settings(self, root: Path) -> None:
        """Show package clients' settings below mounted prefixes as empty, by files made in `root`."""
        empty = root / "etc/.empty"
        empty.touch()
        no_settings = root / "etc/.no-settings"
        no_settings.write_text(NO_SETTINGS)
        prefixes = {bind.source: bind.target for bind in self.binds if bind.source.is_dir()}
        if Path("/usr") in prefixes:
            prefixes[Path("/usr/local")] = "/usr/local"
        for source, target in prefixes.items():
            for names, shown in ((SETTINGS, empty), (MAVEN_SETTINGS, no_settings)):
                found = [name for name in names if (source / name).is_file()]
                self.binds += [Bind(source=shown, target=f"{target}/{name}") for name in found]


def plan_contents(spec: SandboxSpec, *, image: str, fd: int, code_size: int) -> ContainerContents:
    """Return the content of a container of `spec`: the host's /usr, or with `image` that image's files instead.

    The exec server listens on descriptor `fd` and gets `code_size` bytes of code there.
    """
    uid, gid = sandbox_ids()
    contents = ContainerContents()
    for name, text in FILES.items():
        own = text.replace(f"x:{INSIDE_ID}:{INSIDE_ID}:", f"x:{uid}:{gid}:")
        contents.texts[f"/etc/{name.removeprefix('etc-')}"] = own.replace(f"x:{INSIDE_ID}:\n", f"x:{gid}:\n")
    if image:
        contents.python = ["python3", "-I", "-S", "-E", "-B"]
    else:
        contents.binds.append(Bind(source=Path("/usr"), target="/usr"))
        for path in (f"/{name}" for name in SYSTEM_LINKS):
            if os.path.islink(path):
                contents.links[path] = os.readlink(path)
            elif os.path.isdir(path):
                contents.binds.append(Bind(source=Path(path), target=path))
        found = [f"/etc/{name}" for name in ETC if os.path.exists(f"/etc/{name}")]
        contents.binds += [Bind(source=Path(os.path.realpath(path)), target=path) for path in found]
        contents.links["/var/tmp"] = "/tmp"
        if os.path.exists("/usr/bin/python3") and not os.path.exists("/usr/bin/python"):
            contents.links[f"{SHIMS}/python"] = "/usr/bin/python3"
        contents.python, libraries = python_inside()
        if libraries:  # away from the project's PATH
            prefix = Path(os.path.realpath(sys.base_prefix))
            contents.binds.append(Bind(source=prefix, target=f"{RUN}/python"))
            contents.variables["LD_LIBRARY_PATH"] = libraries
    limits = spec.limits
    contents.scratch = {"/tmp": limits.tmp_mb, HOME: limits.tmp_mb, "/dev/shm": max(1, limits.tmp_mb // 4)}
    contents.binds += forwarder_binds(spec)
    # Limits of each process; the engine's control groups limit memory and processes.
    rlimits = [f"NOFILE={limits.open_files}", f"FSIZE={limits.file_mb << 20}", "CORE=0"]
    contents.command = ["-c", BOOTSTRAP, str(fd), str(code_size), *rlimits]
    if spec.mounts.plain is not None:
        writable = not spec.mounts.read_only
        contents.binds.append(Bind(source=spec.mounts.plain, target=spec.mounts.target, writable=writable))
    else:
        contents.plan = spec.mounts
    contents.binds += [*spec.mounts.binds, *spec.binds]
    return contents


def write_root(contents: ContainerContents, root: Path) -> None:
    """Make the container's root directory: links, small files, and a mount point for every mount.

    Adds mounts to `contents` that show package clients' settings below mounted prefixes as empty.
    """
    root.mkdir(mode=0o755)
    for name in _DIRECTORIES:
        (root / name).mkdir(mode=0o755)
    for path, target in contents.links.items():
        place = _below(root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    for path, text in contents.texts.items():
        _below(root, path).write_text(text)
    contents.hide_settings(root)
    places = [(bind.target, bind.source.is_dir()) for bind in contents.binds]
    places += [(path, True) for path in contents.scratch]
    places += [(contents.plan.target, True)] if contents.plan else []
    for path, directory in places:
        place = _below(root, path)
        if place.exists() or place.is_symlink():
            continue
        # A path below a link of the root is inside another mount, and needs no mount point.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir() if directory else place.touch()
    for path in contents.scratch:
        if _below(root, path).is_dir():
            _below(root, path).chmod(0o1777)  # runc gives a file system the mode of the directory it covers


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def staged_mounts(contents: ContainerContents, root: Path, staging: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the mounts for the launcher's `stage` and the engine's words that show them inside."""
    uid, gid = sandbox_ids()
    mounts: list[dict[str, Any]] = [{"kind": "bind", "name": ROOT, "sources": [str(root)]}]
    words: list[str] = []
    for number, bind in enumerate(contents.binds):
        mounts.append({"kind": "bind", "name": f"bind-{number}", "sources": [str(bind.source)]})
        words += _mount(f"{staging}/bind-{number}", bind.target, writable=bind.writable)
    for number, (target, megabytes) in enumerate(contents.scratch.items()):
        options = f"size={megabytes}m,nr_inodes={megabytes * 256},mode=1777,uid={uid},gid={gid}"
        mounts.append({"kind": "tmpfs", "name": f"scratch-{number}", "options": options})
        words += _mount(f"{staging}/scratch-{number}", target, writable=True)
    if contents.plan is not None:
        plan = contents.plan
        sources = [str(path) for path in (plan.upper, plan.work, *plan.lowers)]
        # Staged only by root, so without `userxattr`; for the rest see `Layout.overlay`.
        options = ",redirect_dir=off,metacopy=off,index=off"
        mounts.append({"kind": "overlay", "name": "workspace", "sources": sources, "options": options})
        words += _mount(f"{staging}/workspace", plan.target, writable=not plan.read_only)
    return mounts, words


def direct_mounts(contents: ContainerContents, *, inodes: bool) -> list[str]:
    """Return the mount words for an engine that mounts everything itself; layers are refused.

    `inodes` means that the engine accepts a limit on the files of a temporary file system.
    """
    if contents.plan is not None:
        raise TierUnavailableError(
            "this container engine cannot mount a workspace of layers",
            hint='set project.strategy = "direct", or let chargehand doctor choose the driver',
        )
    # The engine mounts everything, in a namespace without our mounts.
    words: list[str] = []
    for bind in contents.binds:
        words += _mount(str(bind.source), bind.target, writable=bind.writable)
    for target, megabytes in contents.scratch.items():
        files = f",nr_inodes={megabytes * 256}" if inodes else ""
        words += ["--tmpfs", f"{target}:rw,nosuid,nodev,exec,size={megabytes}m{files},mode=1777"]
    return words


def _mount(source: str, target: str, *, writable: bool) -> list[str]:
    """Return a bind mount as both engines read it: fields of CSV, so any path without a newline works."""
    # The long form: the short form splits at colons, which paths may contain.
    fields = ["type=bind", f"source={source}", f"target={target}", *([] if writable else ["readonly"])]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return ["--mount", line.getvalue()]


def isolation_words(limits: SandboxLimits, *, name: str, words: Sequence[str] = ()) -> list[str]:
    """Return the engine's words that every container gets, whatever the engine."""
    uid, gid = sandbox_ids()
    # The same limit with swap as without: no swap on top. Never pull an image. /sys would show the host's devices.
    # Output of programs comes through the exec server, so the engine keeps no log of it.
    memory = f"{limits.memory_mb}m"
    return [
        *(
            "run",
            "--rm",
            "--name",
            name,
            "--hostname",
            new_host_name(),
            "--workdir",
            "/",
            "--user",
            f"{uid}:{gid}",
        ),
        *("--network", "none", "--ipc", "private", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--read-only", "--pids-limit", str(limits.processes), "--memory", memory, "--memory-swap", memory),
        *("--log-driver", "none", "--restart", "no", "--pull", "never", "--tmpfs", "/sys:ro,size=64k,mode=555"),
        *(() if limits.cpu_percent is None else ("--cpus", f"{limits.cpu_percent / 100:g}")),
        *("--ulimit", f"nofile={limits.open_files}:{limits.open_files}", "--ulimit", "core=0:0"),
        *words,
    ]
