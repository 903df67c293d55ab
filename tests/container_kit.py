"""Container engines for tests: the installed podman, and docker with a private daemon."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from chargehand.sandbox.container.guard import container_names, container_pid, owner_prefix
from chargehand.sandbox.container_engine import ContainerEngine, find_engine

_START_SECONDS = 60.0


def missing(*, docker: bool = False) -> str:
    """Return the names of the missing programs for containers, or ""."""
    wanted = ("podman", "runc", *(("dockerd", "docker") if docker else ()))
    absent = [name for name in wanted if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@functools.cache
def engine(program: str) -> ContainerEngine:
    """Return a probed engine; probed once per process."""
    if program == "docker":
        _daemon()
    return find_engine(program=program, environ=environment())


def environment() -> dict[str, str]:
    """Return the environment of the engines' clients in tests."""
    return {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "DOCKER_HOST": f"unix://{_place()}/d.sock"}


def pid_of(engine: ContainerEngine, sandbox: str) -> int:
    """Return the process id of a sandbox's first process."""
    return container_pid(engine.argv, f"{owner_prefix()}{sandbox}")


def containers(program: str) -> list[str]:
    """Return the names of all containers of this process."""
    return container_names(engine(program).argv, owner_prefix())


@functools.cache
def _place() -> Path:
    """Return the daemon's directory, which the daemon creates; a socket's path must be short."""
    return Path(tempfile.gettempdir(), f"dkr-{os.getpid()}")


@functools.cache
def _daemon() -> None:
    """Start a dockerd without networks or firewall rules; it ends with this process."""
    place = _place()
    place.mkdir(mode=0o700)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    os.environ.setdefault("DOCKER_HOST", f"unix://{place}/d.sock")
    options = ["--data-root", f"{place}/data", "--exec-root", f"{place}/exec", "--pidfile", f"{place}/pid"]
    options += ["--iptables=false", "--ip6tables=false", "--bridge=none", "-H", f"unix://{place}/d.sock"]
    log = (place / "log").open("wb")
    daemon = subprocess.Popen(["dockerd", *options], stdout=log, stderr=log, start_new_session=True)
    log.close()
    atexit.register(_end, daemon)
    deadline = time.monotonic() + _START_SECONDS
    while subprocess.run(["docker", "version"], env=environment(), capture_output=True, check=False).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"dockerd did not start: {(place / 'log').read_text()[-2000:]}")
        time.sleep(0.2)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(_START_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
