"""One sandbox's view as data: mounts for the launcher, and the bubblewrap command line for them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from chargehand.core.errors import TierUnavailableError
from chargehand.core.ports import Bind, MountPlan, sandbox_ids
from chargehand.network.contract import egress_environment
from chargehand.sandbox.contract import (
    EGRESS_PORT,
    GATEWAY_PORT,
    REGISTRY_PORT,
    SandboxLimits,
    SandboxSpec,
    new_host_name,
)
from chargehand.sandbox.inside import forward
from chargehand.sandbox.process import sandbox_launcher
from chargehand.sandbox.toolchain import SHIMS

# Reads a compiled module of the size given as second argument from the descriptor given as first.
BOOTSTRAP = """
import marshal, os, sys
with open(int(sys.argv[1]), "rb", 0, closefd=False) as stream:
    size, code = int(sys.argv[2]), b""
    while len(code) < size:
        code += stream.read(size - len(code)) or sys.exit(0)
exec(marshal.loads(code))
"""
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
# Files in which the kernel shows the whole machine to every reader of /proc.
HIDDEN = tuple(
    f"/proc/{name}"
    for name in (
        *("keys", "key-users", "interrupts", "timer_list", "sched_debug", "latency_stats", "kcore", "kmsg"),
        *("acpi", "asound", "scsi"),
    )
)
# Package clients' settings, which may hold the user's tokens.
SETTINGS = (
    *("etc/npmrc", "lib/node_modules/npm/npmrc", "npm/npmrc", ".npmrc"),
    *("pip.conf", "etc/pip.conf", ".condarc", "condarc", "uv-receipt.toml", "pipx_metadata.json"),
    *(".cargo/credentials.toml", "gradle.properties"),
)
MAVEN_SETTINGS = ("settings.xml", "conf/settings.xml")
# Maven settings that set nothing: an empty file is not XML.
NO_SETTINGS = "<settings/>\n"
FILES: Mapping[str, str] = {
    "etc-passwd": (
        f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{INSIDE_ID}:{INSIDE_ID}:{USER}:{HOME}:/bin/sh\n"
    ),
    "etc-group": f"root:x:0:\n{USER}:x:{INSIDE_ID}:\n",
    "etc-hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc-nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# --clearenv alone would leave the secrets of our environment in /proc/1/environ, so the launcher starts from an
# empty one; --as-pid-1 makes the exec server process 1.
ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
    *("--cap-drop", "ALL", "--clearenv"),
    *("--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID)),
)


class Layout(Struct):
    """Mounts that the launcher makes below `staging`, in order, and the command that becomes the sandbox."""

    staging: str
    cgroups: Sequence[Path]
    mounts: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def file(self, name: str, text: str, target: str) -> None:
        """Show `text` as a read-only file."""
        self.arguments += ["--ro-bind", self._stage_file(name, text), target]

    def _stage_file(self, name: str, text: str) -> str:
        if not any(entry["name"] == name for entry in self.mounts):
            self.mounts.append({"kind": "file", "name": name, "text": text})
        return f"{self.staging}/{name}"

    def empty(self) -> str:
        """Return the path of an empty file to show in place of another."""
        return self._stage_file("empty", "")

    def bind(self, name: str, bind: Bind) -> None:
        """Show a host path; read-only unless the bind is writable."""
        self.mounts.append({"kind": "bind", "name": name, "sources": [str(bind.source)]})
        self.arguments += ["--bind" if bind.writable else "--ro-bind", f"{self.staging}/{name}", bind.target]

    def tmpfs(self, name: str, target: str, megabytes: int) -> None:
        """Show an empty file system of a fixed size, with at most one inode per 4 KiB."""
        uid, gid = sandbox_ids()
        # Empty files take kernel memory instead of space, so their number is bounded too.
        options = f"size={megabytes}m,nr_inodes={megabytes * 256},mode=1777,uid={uid},gid={gid}"
        self.mounts.append({"kind": "tmpfs", "name": name, "options": options})
        self.arguments += ["--bind", f"{self.staging}/{name}", target]

    def overlay(self, name: str, plan: MountPlan) -> None:
        """Show the layers of a workspace as one tree, writable unless the plan is read-only."""
        sources = [str(path) for path in (plan.upper, plan.work, *plan.lowers)]
        # A distribution may build in other defaults, and readers of the upper do not know their marks. As an
        # unprivileged user overlayfs needs userxattr: without it removing a lower directory fails with EIO.
        options = ",redirect_dir=off,metacopy=off,index=off" if os.geteuid() == 0 else ",userxattr"
        self.mounts.append({"kind": "overlay", "name": name, "sources": sources, "options": options})
        self.arguments += ["--ro-bind" if plan.read_only else "--bind", f"{self.staging}/{name}", plan.target]

    def system_links(self) -> None:
        """Show the host's /usr, and /bin, /lib and similar as they are: links into it, or directories."""
        self.arguments += ["--ro-bind", "/usr", "/usr"]
        for path in (f"/{name}" for name in SYSTEM_LINKS):
            if os.path.islink(path):
                self.arguments += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                self.arguments += ["--ro-bind", path, path]

    def hide_credentials(self, binds: Sequence[Bind], *, root: str = "") -> None:
        """Show package clients' settings below mounted prefixes as empty.

        `root` is the path of the sandbox's root directory, "" for the root directory itself.
        """
        prefixes = [("/usr", "/usr"), ("/usr/local", "/usr/local"), *((str(b.source), b.target) for b in binds)]
        for source, target in prefixes:
            for name in (*SETTINGS, *MAVEN_SETTINGS):
                if os.path.isfile(f"{source}/{name}"):
                    maven = name in MAVEN_SETTINGS
                    nothing = self._stage_file("no-settings", NO_SETTINGS) if maven else self.empty()
                    self.arguments += ["--ro-bind", nothing, f"{root}{target}/{name}"]

    def seal(self) -> None:
        """Make everything read-only that is not mounted writable, and add the system call filter."""
        self.arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--seccomp", "{bpf}"]

    def as_request(self) -> dict[str, Any]:
        """Return the request for the launcher."""
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

    `server_size` is that of the compiled exec server in bytes; `memory_bound` means that a control group limits
    memory, so that no limit per process is needed; `links` are a toolchain's.
    """
    layout = Layout(staging=staging_directory(), cgroups=cgroups)
    layout.arguments = [bwrap, *ISOLATION, "--hostname", new_host_name()]
    _add_system(layout, spec.limits)
    python, libraries = python_inside()
    if libraries:
        # Away from the project's PATH, with the libpython of its directory and no other.
        prefix = Path(os.path.realpath(sys.base_prefix))
        layout.bind("python", Bind(source=prefix, target=f"{RUN}/python"))
        layout.arguments += ["--setenv", "LD_LIBRARY_PATH", libraries]
    limits = spec.limits
    rlimits = {"NPROC": limits.processes, "NOFILE": limits.open_files, "FSIZE": limits.file_mb << 20, "CORE": 0}
    if not memory_bound:
        # For each process. Not RLIMIT_AS: Node, Go and Java reserve far more addresses than they use.
        rlimits["DATA"] = limits.memory_mb << 20
    words = [f"{name}={value}" for name, value in rlimits.items()]
    layout.command = [*python, "-c", BOOTSTRAP, "{sock}", str(server_size), *words]
    for bind in forwarder_binds(spec):
        layout.bind(os.path.basename(bind.target), bind)
    plan = spec.mounts
    if plan.plain is not None:
        layout.bind("workspace", Bind(source=plan.plain, target=plan.target, writable=not plan.read_only))
    else:
        layout.overlay("workspace", plan)
    # After the workspace, which would cover mounts below it.
    for number, bind in enumerate((*plan.binds, *spec.binds)):
        layout.bind(f"bind-{number}", bind)
    for path, target in links:
        layout.arguments += ["--symlink", target, path]
    layout.hide_credentials(spec.binds)
    layout.seal()
    return layout


def _add_system(layout: Layout, limits: SandboxLimits) -> None:
    """Show the system parts common to every sandbox, and its temporary file systems."""
    for directory in ("/etc", "/home", "/opt", "/var", "/run"):
        layout.arguments += ["--perms", "0755", "--dir", directory]
    layout.system_links()
    if os.path.exists("/usr/bin/python3") and not os.path.exists("/usr/bin/python"):
        # Distributions leave `python` to the user, but checks use it, so it comes last on PATH.
        layout.arguments += ["--symlink", "/usr/bin/python3", f"{SHIMS}/python"]
    for name in ETC:
        layout.arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name, text in FILES.items():
        layout.file(name, text, f"/etc/{name.removeprefix('etc-')}")
    layout.arguments += ["--proc", "/proc", "--dev", "/dev"]
    for path in HIDDEN:
        if os.path.isdir(path):
            layout.arguments += ["--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path) and os.stat(path).st_mode & stat.S_IROTH:
            # On a mount without devices a device cannot even be read.
            layout.arguments += ["--ro-bind", "/dev/null", path]
    layout.tmpfs("tmp", "/tmp", limits.tmp_mb)
    layout.tmpfs("home", HOME, limits.tmp_mb)
    layout.tmpfs("shm", "/dev/shm", max(1, limits.tmp_mb // 4))
    layout.arguments += ["--symlink", "/tmp", "/var/tmp", "--dir", RUN]


def forwarded(spec: SandboxSpec) -> tuple[tuple[str, int, Path], ...]:
    """Return the host's sockets that a sandbox sees, each with its name and its port inside."""
    wanted = (
        ("registries", REGISTRY_PORT, spec.registries),
        ("gateway", GATEWAY_PORT, spec.gateway),
        ("egress", EGRESS_PORT, spec.egress),
    )
    return tuple((name, port, socket) for name, port, socket in wanted if socket is not None)


def forwarder_binds(spec: SandboxSpec) -> list[Bind]:
    """Return the mounts that `forwarder_commands` need: the forwarder and each of the host's sockets."""
    sockets = [
        Bind(source=socket, target=f"{RUN}/{name}.sock", writable=True) for name, _, socket in forwarded(spec)
    ]
    return [Bind(source=Path(forward.__file__), target=f"{RUN}/forward.py"), *sockets] if sockets else []


def forwarder_commands(spec: SandboxSpec, python: Sequence[str]) -> list[list[str]]:
    """Return the commands that make a port of each socket inside; each ends once its port is served."""
    # The interpreter's libraries: it does not find them at its path inside without this.
    libraries = f"LD_LIBRARY_PATH={RUN}/python/lib"
    listening = ["/usr/bin/env", libraries, *python, f"{RUN}/forward.py"]
    background = ["/bin/sh", "-c", '{ "$@" & } | head -n 1', "sh", *listening]
    return [[*background, str(port), f"{RUN}/{name}.sock"] for name, port, _ in forwarded(spec)]


def base_environment(
    spec: SandboxSpec, *, path: Sequence[str], tools: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """Return the whole environment of commands: from the host only what its `tools` need."""
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
    """Return the directory to cover in a new mount namespace; raises `TierUnavailableError`."""
    for candidate in sandbox_launcher.STAGING:
        if os.path.isdir(candidate):
            return candidate
    raise TierUnavailableError(
        f"none of {', '.join(sandbox_launcher.STAGING)} exists", hint="make an empty directory /mnt"
    )


def python_inside() -> tuple[list[str], str]:
    """Return the command for the host's interpreter, isolated, and its library directory or ""."""
    executable = Path(os.path.realpath(sys.executable))
    libraries = ""
    if not executable.is_relative_to("/usr"):
        executable = Path(f"{RUN}/python") / executable.relative_to(os.path.realpath(sys.base_prefix))
        libraries = f"{RUN}/python/lib"
    return [str(executable), "-I", "-S", "-E", "-B"], libraries
