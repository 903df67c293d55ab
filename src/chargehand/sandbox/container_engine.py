"""Finds this machine's container engine, podman or docker, by actually running a container."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import TierUnavailableError
from chargehand.core.ports import MountPlan
from chargehand.sandbox.container import guard
from chargehand.sandbox.container.layout import (
    ContainerContents,
    direct_mounts,
    isolation_words,
    plan_contents,
    write_root,
)
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.sandbox.process.layout import HIDDEN

Kind = Literal["podman", "docker"]
# Variables by which a client finds its store, its daemon and, rootless, the user's systemd.
_KEPT = ("PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST")
_SECONDS = 120.0
_MOST_PROCESSES = 32_768
_INSTALL = {
    "apt-get": "apt-get install podman crun uidmap",
    "dnf": "dnf install podman",
    "pacman": "pacman -S podman crun",
    "zypper": "zypper install podman",
    "apk": "apk add podman",
}
# Remedies by the text of the engines' errors; the first that applies.
_HINTS = (
    (
        ("Cannot connect to the Docker daemon", "permission denied"),
        "start the daemon (systemctl start docker) and let your user reach it, or install podman",
    ),
    (
        ("subuid", "newuidmap"),
        "give your user subordinate ids: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER",
    ),
    (
        ("No such image", "no such image", "image not known"),
        "pull or build the image of sandbox.container_image first: Chargehand never pulls one",
    ),
)
# Options of podman to try, the user's settings first: some machines need one of the last two.
_VARIANTS: tuple[tuple[str, ...], ...] = (
    (),
    ("--runtime", "runc"),
    ("--cgroup-manager", "cgroupfs"),
    ("--cgroup-manager", "cgroupfs", "--runtime", "runc"),
)


class ContainerEngine(Struct, frozen=True, kw_only=True):
    """An engine that ran a container: its program with the required options, and its images.

    `image` is the user's image, "" if containers show the host's /usr; `path` is that image's PATH; `base` the
    empty image that docker starts from.
    """

    kind: Kind
    program: str
    options: tuple[str, ...] = ()
    image: str = ""
    path: tuple[str, ...] = ()
    base: str = ""
    version: str = ""

    @property
    def argv(self) -> list[str]:
        """The beginning of its command line."""
        return [self.program, *self.options]

    @property
    def stages(self) -> bool:
        """Whether we make the mounts, in the engine's mount namespace: podman as root has no daemon."""
        return self.kind == "podman" and os.geteuid() == 0

    @property
    def fd(self) -> int:
        """The descriptor at which the exec server finds its socket."""
        # podman passes a descriptor on (`--preserve-fds`); a client of docker only copies its standard streams.
        return 3 if self.kind == "podman" else 0

    def run(
        self,
        contents: ContainerContents,
        limits: SandboxLimits,
        *,
        name: str,
        root: str,
        mounts: Sequence[str],
        served: bool = True,
    ) -> list[str]:
        """Return the whole command that runs a container over the root directory `root`.

        `served` means that the client has the exec server's socket to pass on.
        """
        own = ["-i"]
        if self.kind == "podman":
            # A limit per user on the whole machine, so it bounds no sandbox; by default podman asks for more than
            # it may give.
            hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            most = _MOST_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, _MOST_PROCESSES)
            masked = ":".join((*HIDDEN, "/sys/fs/cgroup"))
            # Otherwise the user inside is a subordinate user on this machine, who does not own the workspace.
            rootless = [] if os.geteuid() == 0 else ["--userns", "keep-id"]
            own = [
                # By default podman adds writable file systems of no set size, and the host's proxy variables.
                *("--read-only-tmpfs=false", "--systemd=false", "--http-proxy=false", "--no-hosts"),
                *("--security-opt", f"mask={masked}", "--ulimit", f"nproc={most}:{most}"),
                *rootless,
            ]
        words = [*isolation_words(limits, name=name, words=own), *mounts]
        if self.kind == "podman" and served:
            words += ["--preserve-fds", "1"]
        for variable, value in contents.variables.items():
            words += ["--env", f"{variable}={value}"]
        program, *arguments = [*contents.python, *contents.command]
        if self.kind == "podman" and not self.image:
            return [*self.argv, *words, "--rootfs", root, program, *arguments]
        return [*self.argv, *words, "--entrypoint", program, self.image or self.base, *arguments]


def engine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the host's variables that an engine's client needs; containers do not see them."""
    return {name: environ[name] for name in _KEPT if name in environ}


def find_engine(*, program: str = "", image: str = "", environ: Mapping[str, str]) -> ContainerEngine:
    """Return the first engine that really runs a container; blocks, about 0.5 s with podman.

    `program` is the user's choice, a name or a path; without it podman is tried before docker. `image` is an image
    that the engine has. Raises `TierUnavailableError` with each engine's error and the remedy.
    """
    said: list[str] = []
    for wanted in [program] if program else ["podman", "docker"]:
        path = shutil.which(wanted, path=environ.get("PATH", os.defpath))
        if path is None:
            said.append(f"{wanted}: not found")
            continue
        kind: Kind = "docker" if "docker" in Path(path).name else "podman"
        for options in _VARIANTS if kind == "podman" else ((),):
            engine = ContainerEngine(kind=kind, program=path, options=options, image=image)
            try:
                return _prove(engine, environ)
            except _RefusedError as error:
                said.append(f"{' '.join((wanted, *options))}: {error}")
    text = "; ".join(said)
    hints = [hint for words, hint in _HINTS if any(word in text for word in words)]
    hint = hints[0] if hints else "run that command yourself to see more, or use --sandbox process"
    if all("not found" in each for each in said):
        tools = [command for tool, command in _INSTALL.items() if shutil.which(tool)]
        hint = f"install podman: {tools[0] if tools else 'with your package manager'}"
    raise TierUnavailableError(f"no container engine works here: {text}", hint=hint)


class _RefusedError(Exception):
    """An engine did not run; carries its error text."""


def _prove(engine: ContainerEngine, environ: Mapping[str, str]) -> ContainerEngine:
    """Return the engine with its detected properties after a container ran; raises `_RefusedError`."""
    variables = engine_environment(environ)
    version = _run([*engine.argv, "--version"], variables).strip()
    path: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory(prefix="chargehand-root-") as name:
        root = Path(name, "root")
        spec = SandboxSpec(mounts=MountPlan(target="/workspace", plain=Path(name)))
        contents = plan_contents(spec, image=engine.image, fd=engine.fd, code_size=0)
        write_root(contents, root)
        os.chmod(name, 0o755)
        base = ""
        if engine.image:
            inspect = [*engine.argv, "image", "inspect", "--format", "{{json .Config.Env}}", engine.image]
            with contextlib.suppress(ValueError):
                for each in json.loads(_run(inspect, variables)) or []:
                    if not path and str(each).startswith("PATH="):
                        path = tuple(str(each).removeprefix("PATH=").split(":"))
            path = path or ("/usr/local/bin", "/usr/bin", "/bin")
        elif engine.kind == "docker":
            base = _import_empty_image(engine, contents, root, variables)
        engine = replace(engine, path=path, base=base, version=version)
        contents.command = ["-c", "pass"]
        # Named after its owner, like sandboxes: the remains of a killed owner are swept.
        label = f"{guard.owner_prefix()}probe"
        mounts = direct_mounts(contents, inodes=engine.kind == "docker")
        limits = SandboxLimits(tmp_mb=4)
        _run(engine.run(contents, limits, name=label, root=str(root), mounts=mounts, served=False), variables)
    return engine


def _import_empty_image(
    engine: ContainerEngine, contents: ContainerContents, root: Path, variables: Mapping[str, str]
) -> str:
    """Return an image of directories, links and small files over which docker mounts everything else."""
    parts = [sorted(contents.links.items()), sorted(contents.texts.items())]
    parts.append([(str(path.relative_to(root)), f"{path.lstat().st_mode:o}") for path in sorted(root.rglob("*"))])
    # Named by its content, so that it is made once and another version makes another.
    key = json.dumps(parts)
    tag = f"chargehand-root:{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if _run([*engine.argv, "images", "-q", tag], variables).strip():
        return tag
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, str(path.relative_to(root)))
            # Without owners and times, so that equal content gives the same image.
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            tar.addfile(info, io.BytesIO(path.read_bytes()) if info.isreg() else None)
    _run([*engine.argv, "import", "-", tag], variables, archive.getvalue())
    return tag


def _run(argv: Sequence[str], environment: Mapping[str, str], data: bytes = b"") -> str:
    try:
        done = subprocess.run(
            argv, input=data, capture_output=True, env=environment, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _RefusedError(str(error)) from error
    if done.returncode != 0:
        raise _RefusedError(done.stderr.decode(errors="replace").strip()[-500:] or f"exit {done.returncode}")
    return done.stdout.decode(errors="replace")
