"""A throw-away PostgreSQL cluster: its own directory, a socket and a loopback port, removed after the tests."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_USER = "postgres"
_QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
_SETTINGS = ("max_connections=100", "shared_buffers=32MB", "autovacuum=off", "logging_collector=off")


def programs() -> Path | None:
    """Return the directory of the server's programs: Debian keeps them off the search path."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    found += [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    return max(found, key=lambda path: int((re.findall(r"\d+", str(path)) or ["0"])[0]), default=None)


@functools.cache
def _template() -> Path:
    """Return a directory for a cluster to copy: copying takes a tenth of the time of creating one."""
    directory = tempfile.mkdtemp(prefix="chargehand-pg-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if os.geteuid() == 0:
        shutil.chown(directory, _USER)
    return Path(directory)


class Postgres:
    """A server for tests; it starts empty and trusts every user of this machine."""

    def __init__(self, directory: Path, *, quick: bool = True) -> None:
        found = programs()
        assert found is not None, "no PostgreSQL server: run scripts/bootstrap"
        self._programs = found
        self._server: subprocess.Popen[bytes] | None = None
        self._data = directory / "data"
        self._directory = directory
        self._settings = (*_SETTINGS, *(_QUICK if quick else ()))
        self.port = free_port()
        if os.geteuid() == 0:
            shutil.chown(directory, _USER)
        empty = _template() / "data"
        if not empty.exists():
            arguments = ("--no-sync", "-A", "trust", "-U", "chargehand", "-E", "UTF8", "--locale=C")
            self._run("initdb", "-D", str(empty), *arguments)
        subprocess.run(["cp", "-a", empty, self._data], check=True)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [word for setting in self._settings for word in ("-c", setting)]
        place = ["-p", str(self.port), "-k", str(self._directory), "-h", "127.0.0.1"]
        # Started as our child, unlike pg_ctl's: a killed server must be reaped before the next can start.
        with (self._directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._programs / "postgres", *settings, *place], stdout=log, stderr=log, **self._as_its_user()
            )
        while not self._answers():
            assert self._server.poll() is None, (self._directory / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server as an administrator does: connections are cut, committed data stays."""
        self._end(signal.SIGINT)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill the server with all its processes, as a power cut would; `start` recovers it."""
        pid = self._server.pid if self._server else 0
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        self._end(signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            while _runs(child):
                time.sleep(0.01)

    def close(self) -> None:
        """Stop the server if it runs."""
        if self._server is not None:
            self.stop()

    def _end(self, how: signal.Signals) -> None:
        assert self._server is not None, "the server does not run"
        self._server.send_signal(how)
        self._server.wait()
        self._server = None

    def _answers(self) -> bool:
        asked = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    def database(self, encoding: str = "UTF8", *, like: str = "") -> str:
        """Make a database and return its URL; it is empty, or a copy of the one at the URL `like`."""
        name = f"test_{uuid.uuid4().hex}"
        kind = ("--encoding", encoding, "--template", like.rpartition("/")[2] or "template0")
        self._run("createdb", *kind, "-h", "127.0.0.1", "-p", str(self.port), "-U", "chargehand", name)
        return f"postgresql://chargehand@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, check=True, **quiet, **self._as_its_user())

    def _as_its_user(self) -> dict[str, Any]:
        own: dict[str, Any] = {"user": _USER, "group": _USER, "extra_groups": []} if os.geteuid() == 0 else {}
        environment = {"PATH": os.environ["PATH"], "PGDATA": str(self._data), "LC_ALL": "C"}
        return {"env": environment, "cwd": self._directory, "stdin": subprocess.DEVNULL, **own}


@contextlib.contextmanager
def cluster(*, quick: bool = True) -> Iterator[Postgres]:
    """Run a private server for a test that stops or kills it, or needs commits on disk (`quick=False`).

    Skips if no server is installed, but fails in CI.
    """
    if programs() is None and not os.environ.get("CI"):
        pytest.skip("no PostgreSQL server is installed")
    # Not below pytest's directories: the server's user may not enter them, and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="chargehand-pg-", ignore_cleanup_errors=True) as directory:
        server = Postgres(Path(directory), quick=quick)
        try:
            server.start()
            yield server
        finally:
            server.close()


def free_port() -> int:
    """Return a free loopback port that stays free while its user is stopped.

    Not an ephemeral port: the kernel may assign that to any connection that begins meanwhile.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
