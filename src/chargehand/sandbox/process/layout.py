"""What one sandbox sees, as data: mounts for the launcher and the bubblewrap command line over them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chargehand.core.errors import TierUnavailableError
from chargehand.core.ports import Bind, MountPlan, sandbox_ids
from chargehand.sandbox._egress_contract import egress_environment
from chargehand.sandbox.contract import EGRESS_PORT, GATEWAY_PORT, REGISTRY_PORT, SandboxLimits, SandboxSpec
from chargehand.sandbox.inside import forward as _forward
from chargehand.sandbox.process import sandbox_launcher as _launcher
from chargehand.sandbox.toolchain import SHIMS

BOOTSTRAP = """
import marshal, os, sys
with open(int(sys.argv[1]), "rb", 0, closefd=False) as stream:
    size, code = int(sys.argv[2]), b""
    while len(code) < size:
        code += stream.read(size - len(code)) or sys.exit(0)
exec(marshal.loads(code))
"""
"""Reads a compiled module of the size given as second argument from the descriptor given as first."""
HOME = "/home/agent"
USER = "agent"
INSIDE_ID = 1000
RUN = "/run/chargehand"
SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates",
    "pki",
    "protocols",
    "services",
)
HIDDEN = tuple(
    f"/proc/{name}"
    for name in (
        *("keys", "key-users", "interrupts", "timer_list", "sched_debug", "latency_stats", "kcore", "kmsg"),
        *("acpi", "asound", "scsi"),
    )
)
SETTINGS = (
    *("etc/npmrc", "lib/node_modules/npm/npmrc", "npm/npmrc", ".npmrc"),
    *("pip.conf", "etc/pip.conf", ".condarc", "condarc", "uv-receipt.toml", "pipx_metadata.json"),
    *(".cargo/credentials.toml", "gradle.properties"),
)
MAVEN_SETTINGS = ("settings.xml", "conf/settings.xml")
NO_SETTINGS = "<settings/>\n"
"""Maven settings that set nothing: an empty file would be no XML."""
FILES: Mapping[str, str] = {
    "etc-passwd": (
        f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{INSIDE_ID}:{INSIDE_ID}:{USER}:{HOME}:/bin/sh\n"
    ),
    "etc-group": f"root:x:0:\n{USER}:x:{INSIDE_ID}:\n",
    "etc-hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc-nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(slots=True)
class Layout:
    """Mounts that the launcher makes below `staging`, in order, and the command that becomes the sandbox."""

    staging: str
    cgroups: Sequence[Path]
    mounts: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    python: list[str] = field(default_factory=list)
    forwarders: list[list[str]] = field(default_factory=list)

    def file(self, name: str, text: str, target: str) -> None:
        """Show `text` as a read-only file."""
        self.mounts.append({"kind": "file", "name": name, "text": text})
        self.arguments += ["--ro-bind", f"{self.staging}/{name}", target]

    def empty(self) -> str:
        """Return the path of an empty file to show in place of another."""
        path = f"{self.staging}/empty"
        if not any(entry["name"] == "empty" for entry in self.mounts):
            self.mounts.append({"kind": "file", "name": "empty", "text": ""})
        return path

    def no_settings(self) -> str:
        """Return the path of Maven settings that set nothing."""
        path = f"{self.staging}/no-settings"
        if not any(entry["name"] == "no-settings" for entry in self.mounts):
            self.mounts.append({"kind": "file", "name": "no-settings", "text": NO_SETTINGS})
        return path

    def bind(self, name: str, bind: Bind) -> None:
        """Show a host path; read-only unless it says otherwise."""
        self.mounts.append({"kind": "bind", "name": name, "sources": [str(bind.source)]})
        self.arguments += ["--bind" if bind.writable else "--ro-bind", f"{self.staging}/{name}", bind.target]

    def tmpfs(self, name: str, target: str, megabytes: int) -> None:
        """Show an empty file system of a fixed size, of at most one inode for 4 KiB of it."""
        uid, gid = sandbox_ids()
        options = f"size={megabytes}m,nr_inodes={megabytes * 256},mode=1777,uid={uid},gid={gid}"
        self.mounts.append({"kind": "tmpfs", "name": name, "options": options})
        self.arguments += ["--bind", f"{self.staging}/{name}", target]

    def overlay(self, name: str, plan: MountPlan) -> None:
        """Show the layers of a workspace as one tree, writable unless the plan says otherwise."""
        sources = [str(path) for path in (plan.upper, plan.work, *plan.lowers)]
        # A distribution may build other defaults in, and whoever reads the upper knows none of these marks.
        options = ",redirect_dir=off,metacopy=off,index=off" if os.geteuid() == 0 else ",userxattr"
        self.mounts.append({"kind": "overlay", "name": name, "sources": sources, "options": options})
        self.arguments += ["--ro-bind" if plan.read_only else "--bind", f"{self.staging}/{name}", plan.target]

    def as_request(self) -> dict[str, Any]:
        """Return what the launcher needs."""
        return {
            "staging": self.staging,
            "mounts": self.mounts,
            "cgroups": [str(path) for path in self.cgroups],
            "argv": [*self.arguments, "--", *self.command],
        }


def plan_layout(
    spec: SandboxSpec,
    *,
    bwrap: str,
    server_size: int,
    cgroups: Sequence[Path] = (),
    memory_bound: bool = False,
    links: Sequence[tuple[str, str]] = (),
) -> Layout:
    """Return the layout of one sandbox; raises `TierUnavailableError` on a system without a usual directory.

    `server_size` is that of the compiled exec server in bytes; `memory_bound` says that a control group limits
    memory, so that no limit per process is needed; `links` are a toolchain's.
    """
    layout = Layout(staging=staging_directory(), cgroups=cgroups)
    layout.arguments = [bwrap, *ISOLATION]
    _system(layout)
    _scratch(layout, spec.limits)
    layout.python = _host_python(layout)
    rlimits = _rlimits(spec.limits, memory_bound=memory_bound)
    layout.command = [*layout.python, "-c", BOOTSTRAP, "{sock}", str(server_size), *rlimits]
    _forwarded(layout, spec)
    _workspace(layout, spec.mounts)
    for number, bind in enumerate((*spec.mounts.binds, *spec.binds)):
        layout.bind(f"bind-{number}", bind)
    for path, target in links:
        layout.arguments += ["--symlink", target, path]
    hide_credentials(layout, spec.binds)
    layout.arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--seccomp", "{bpf}"]
    return layout


def forwarded(spec: SandboxSpec) -> tuple[tuple[str, int, Path], ...]:
    """Return the host's sockets that a sandbox sees, each with its name and the port it has inside."""
    wanted = (
        ("registries", REGISTRY_PORT, spec.registries),
        ("gateway", GATEWAY_PORT, spec.gateway),
        ("egress", EGRESS_PORT, spec.egress),
    )
    return tuple((name, port, socket) for name, port, socket in wanted if socket is not None)


def forwarder(python: Sequence[str], port: int, target: str) -> list[str]:
    """Return the command that makes a port of a socket inside; it ends once something listens there."""
    # The interpreter's own libraries: it is not linked against them by the place where it is shown.
    libraries = f"LD_LIBRARY_PATH={RUN}/python/lib"
    listening = ["/usr/bin/env", libraries, *python, f"{RUN}/forward.py", str(port), target]
    return ["/bin/sh", "-c", '{ "$@" & } | head -n 1', "sh", *listening]


def _forwarded(layout: Layout, spec: SandboxSpec) -> None:
    """Show the host's sockets, and what makes ports of them inside."""
    for name, port, socket in forwarded(spec):
        if not layout.forwarders:
            layout.bind("forward.py", Bind(source=Path(_forward.__file__), target=f"{RUN}/forward.py"))
        target = f"{RUN}/{name}.sock"
        layout.bind(name, Bind(source=socket, target=target, writable=True))
        layout.forwarders.append(forwarder(layout.python, port, target))


ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
    *("--cap-drop", "ALL", "--clearenv", "--hostname", "sandbox"),
    *("--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID)),
)


def base_environment(
    spec: SandboxSpec, *, path: Sequence[str], tools: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """Return the whole environment that commands start with: nothing of the host's but what its `tools` need."""
    return {
        "PATH": ":".join((*spec.path, *path, SHIMS)),
        "HOME": HOME,
        "USER": USER,
        "LOGNAME": USER,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(egress_environment(EGRESS_PORT) if spec.egress else {}),
        "CARGO_HOME": f"{HOME}/.cargo",
        "GOPATH": f"{HOME}/go",
        "GOTOOLCHAIN": "local",  # there is no network to fetch another from
        **dict(tools),
        **spec.environment,
    }


def staging_directory() -> str:
    """Return the directory that is covered in a mount namespace of its own; raises `TierUnavailableError`."""
    for candidate in _launcher.STAGING:
        if os.path.isdir(candidate):
            return candidate
    raise TierUnavailableError(
        f"none of {', '.join(_launcher.STAGING)} exists", hint="make an empty directory /mnt"
    )


def _system(layout: Layout) -> None:
    for directory in ("/etc", "/home", "/opt", "/var", "/run"):
        layout.arguments += ["--perms", "0755", "--dir", directory]
    layout.arguments += ["--ro-bind", "/usr", "/usr"]
    if os.path.exists("/usr/bin/python3") and not os.path.exists("/usr/bin/python"):
        # Distributions leave `python` to the user; checks are written with it, so it comes last on PATH.
        layout.arguments += ["--symlink", "/usr/bin/python3", f"{SHIMS}/python"]
    for name in SYSTEM_LINKS:
        path = f"/{name}"
        if os.path.islink(path):
            layout.arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            layout.arguments += ["--ro-bind", path, path]
    for name in ETC:
        layout.arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name, text in FILES.items():
        layout.file(name, text, f"/etc/{name.removeprefix('etc-')}")


def _scratch(layout: Layout, limits: SandboxLimits) -> None:
    layout.arguments += ["--proc", "/proc", "--dev", "/dev"]
    _hide(layout)
    layout.tmpfs("tmp", "/tmp", limits.tmp_mb)
    layout.tmpfs("home", HOME, limits.tmp_mb)
    layout.tmpfs("shm", "/dev/shm", max(1, limits.tmp_mb // 4))
    layout.arguments += ["--symlink", "/tmp", "/var/tmp", "--dir", RUN]


def _hide(layout: Layout) -> None:
    """Cover what the kernel shows of the whole machine to anybody: on a mount without devices none can be read."""
    for path in HIDDEN:
        if os.path.isdir(path):
            layout.arguments += ["--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path) and os.stat(path).st_mode & stat.S_IROTH:
            layout.arguments += ["--ro-bind", "/dev/null", path]


def hide_credentials(layout: Layout, binds: Sequence[Bind], *, root: str = "") -> None:
    """Show package clients' own settings below mounted prefixes as empty: they may hold the user's tokens.

    `root` is where the root directory of the sandbox lies, "" for the root directory itself.
    """
    prefixes = [("/usr", "/usr"), ("/usr/local", "/usr/local"), *((str(b.source), b.target) for b in binds)]
    for source, target in prefixes:
        for name in SETTINGS:
            if os.path.isfile(f"{source}/{name}"):
                layout.arguments += ["--ro-bind", layout.empty(), f"{root}{target}/{name}"]
        for name in MAVEN_SETTINGS:
            if os.path.isfile(f"{source}/{name}"):
                layout.arguments += ["--ro-bind", layout.no_settings(), f"{root}{target}/{name}"]


def python_inside() -> tuple[list[str], str]:
    """Return how a command starts the host's interpreter, isolated, and where its libraries lie or ""."""
    executable = Path(os.path.realpath(sys.executable))
    libraries = ""
    if not executable.is_relative_to("/usr"):
        executable = Path(f"{RUN}/python") / executable.relative_to(os.path.realpath(sys.base_prefix))
        libraries = f"{RUN}/python/lib"
    return [str(executable), "-I", "-S", "-E", "-B"], libraries


def _host_python(layout: Layout) -> list[str]:
    """Show the interpreter that runs Chargehand, away from the project's PATH; return how to start it isolated."""
    command, libraries = python_inside()
    if libraries:
        prefix = Path(os.path.realpath(sys.base_prefix))
        layout.bind("python", Bind(source=prefix, target=f"{RUN}/python"))
        # Where the interpreter is linked against a libpython, the one beside it and no other may be found.
        layout.arguments += ["--setenv", "LD_LIBRARY_PATH", libraries]
    return command


def _rlimits(limits: SandboxLimits, *, memory_bound: bool) -> list[str]:
    values = {
        "NPROC": limits.processes,
        "NOFILE": limits.open_files,
        "FSIZE": limits.file_mb << 20,
        "CORE": 0,
    }
    if not memory_bound:
        values["DATA"] = limits.memory_mb << 20  # per process; node, Go and Java reserve more than they use
    return [f"{name}={value}" for name, value in values.items()]


def _workspace(layout: Layout, plan: MountPlan) -> None:
    if plan.plain is not None:
        layout.bind("workspace", Bind(source=plan.plain, target=plan.target, writable=not plan.read_only))
    else:
        layout.overlay("workspace", plan)
