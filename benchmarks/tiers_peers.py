"""Other ways to isolate a command: an engine's own containers, Anthropic's sandbox-runtime."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNTIME = "@anthropic-ai/sandbox-runtime"
_PROGRAMS = ("true", "sleep", "head")
_SECONDS = 300.0
_WORDS = ("--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""Without explicit limits engines request some that a machine may not grant."""


class PeerMissingError(Exception):
    """A peer is not available here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """An engine with an image of a few programs and one open container of it."""

    name: str
    argv: tuple[str, ...]
    image: str
    open: str

    def fresh(self, *command: str) -> list[str]:
        """Return a command in a new container, without network."""
        return [*self.argv, "run", "--rm", *_WORDS, self.image, *command]

    def inside(self, *command: str) -> list[str]:
        """Return a command in the open container."""
        return [*self.argv, "exec", self.open, *command]


@contextlib.contextmanager
def containers(name: str, argv: Sequence[str], place: Path) -> Iterator[Containers]:
    """Make an image of the machine's own programs and open a container; raises `PeerMissingError`."""
    root = place / "peer-image"
    _fill(root)
    archive = place / "peer-image.tar"
    _run("tar", "-C", str(root), "-cf", str(archive), ".")
    tag, opened = f"localhost/chargehand-benchmark-{os.getpid()}:1", f"chargehand-benchmark-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        stack.callback(_quietly, *argv, "rmi", "-f", tag)
        _run(*argv, "import", str(archive), tag)
        stack.callback(_quietly, *argv, "rm", "-f", opened)
        _run(*argv, "run", "-d", "--name", opened, *_WORDS, tag, "/usr/bin/sleep", "100000")
        yield Containers(name=name, argv=tuple(argv), image=tag, open=opened)


def _fill(root: Path) -> None:
    """Copy a few programs with the libraries that they are linked against."""
    programs = [Path("/usr/bin", name) for name in _PROGRAMS]
    linked = _run("ldd", *map(str, programs))
    for path in (*programs, *{Path(found) for found in re.findall(r"(/\S+\.so\S*) \(", linked)}):
        target = root / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def runtime(place: Path) -> tuple[str, ...]:
    """Install Anthropic's sandbox-runtime below `place`; return the start of its command lines.

    Raises `PeerMissingError` if npm cannot install it, or it does not run.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise PeerMissingError("npm is not installed")
    place.mkdir()
    _run(npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), RUNTIME)
    settings = place / "settings.json"
    denied: dict[str, list[str]] = {"allowedDomains": [], "deniedDomains": []}
    files: dict[str, list[str]] = {"denyRead": [], "allowWrite": ["."], "denyWrite": []}
    settings.write_text(json.dumps({"network": denied, "filesystem": files}))
    argv = (str(place / "node_modules/.bin/srt"), "--settings", str(settings))
    _run(*argv, "true")
    return argv


def _run(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissingError(str(error)) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise PeerMissingError(f"{Path(argv[0]).name}: {' '.join(said[-3:])[:200]}")
    return done.stdout


def _quietly(*argv: str) -> None:
    subprocess.run(argv, capture_output=True, check=False, timeout=_SECONDS)
