"""Runs the program as forks of one process that has imported it: real processes, without the start-up.

A command's start is mostly imports, the same in each of the suite's thousands of runs. What a fresh process would
have of its own (arguments, environment, directory, descriptors, session, terminal) each fork is given. Tests about
starting or importing start the program anew.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[1]
_SERVER = "import sys; sys.path[0] = sys.argv[2]; from tests.forked import serve; serve(int(sys.argv[1]))"
# What nearly every command comes to; libraries that are heavy to import each command imports where it uses them.
_IMPORTED = (
    "cedarpy",
    "chargehand.agents.opening",
    "chargehand.agents.programs.command",
    "chargehand.app.checkpoints",
    "chargehand.app.composition",
    "chargehand.app.missions",
    "chargehand.app.projects",
    "chargehand.app.runs",
    "chargehand.app.storage",
    "chargehand.app.worker",
    "chargehand.cli.audit",
    "chargehand.cli.main",
    "chargehand.cli.mission",
    "chargehand.cli.remote.dispatch",
    "chargehand.cli.run",
    "chargehand.cli.storage",
    "chargehand.cli.terminal.menu",
    "chargehand.cli.terminal.progress",
    "chargehand.credentials.credentials",
    "chargehand.durable.actions",
    "chargehand.durable.engine",
    "chargehand.durable.supervisor",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "dbos",
    "httpx",
    "psycopg",
    "pygit2",
    "tree_sitter_bash",
)
_LOOKS = 0.004


class ForkedProcess:
    """One run of the program, as `subprocess.Popen` has it as far as tests need it."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        module: str = "chargehand",
        session: bool = False,
        terminal: int | None = None,
        mounts: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        request = {
            "module": module,
            "words": list(words),
            "cwd": str(cwd),
            "environ": dict(environ),
            "session": session or terminal is not None,
            "terminal": terminal is not None,
            "mounts": mounts,
        }
        with tempfile.TemporaryFile() as told, open(os.devnull, "rb") as none:
            told.write(json.dumps(request).encode())
            told.flush()
            streams = [none if each is None else each for each in (stdout, stderr)]
            given = [each.fileno() for each in (none, *streams)] if terminal is None else [terminal] * 3
            self.pid = int(_server().ask("start", *given, told.fileno()))

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, `None` while it runs."""
        if self.returncode is None:
            status = _server().ask(f"poll {self.pid}")
            self.returncode = os.waitstatus_to_exitcode(int(status)) if status else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        limit = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if limit is not None and time.monotonic() > limit:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(_LOOKS)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """End it by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()


def run(
    words: Sequence[str], *, cwd: Path, environ: Mapping[str, str], mounts: int | None = None
) -> tuple[int, str, str]:
    """Run one command to its end; return its exit code (negative: the signal), and what it wrote.

    `mounts` is a process whose mount namespace it runs in.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = ForkedProcess(words, cwd=cwd, environ=environ, stdout=out, stderr=err, mounts=mounts).wait()
        return code, _text(out), _text(err)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


class _ForkServer:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            words = [sys.executable, "-c", _SERVER, str(number), str(_ROOT)]
            self._process = subprocess.Popen(words, pass_fds=(number,), cwd=_ROOT, start_new_session=True)
        atexit.register(self.close)

    def ask(self, words: str, *descriptors: int) -> str:
        with self._lock:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            self._ours.sendmsg([words.encode()], ancillary if descriptors else [])
            answer = self._ours.recv(64).decode()
        assert answer, "the process that commands are forked from has died"
        return answer.removesuffix(".")

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


@functools.cache
def _server() -> _ForkServer:
    return _ForkServer()


def warm_up() -> None:
    """Start the process that is forked, for tests that count processes."""
    _server()


def serve(number: int) -> None:
    """Fork a command for each request, and say how it ended, until the other side closes."""
    for module in _IMPORTED:
        __import__(module)
    _compile_patterns()
    _run_mission()
    gc.collect()
    gc.freeze()  # or each fork's first collection would touch, and so copy, every page of what was imported
    channel = socket.socket(fileno=number)
    while True:
        got, descriptors, _, _ = socket.recv_fds(channel, 64, 4)
        match got.decode().split():
            case []:
                return
            case ["start"]:
                child = os.fork()
                if child == 0:
                    channel.close()
                    _become_program(descriptors)
                for each in descriptors:
                    os.close(each)
                channel.send(f"{child}.".encode())
            case ["poll", pid]:
                found, status = os.waitpid(int(pid), os.WNOHANG)
                channel.send(f"{status if found else ''}.".encode())


def _compile_patterns() -> None:
    """Compile what each fork would compile again at its first use of it."""
    from chargehand.core.text import late_pattern

    kind = type(late_pattern(""))
    for each in gc.get_objects():
        if type(each) is kind:
            each.match  # noqa: B018 (to ask for it is to compile it)


def _run_mission() -> None:
    """Run one mission: each process learns once how records are read and what the rules say."""
    from chargehand.core.errors import TierUnavailableError
    from tests.integration.workshop import Workshop

    with tempfile.TemporaryDirectory() as place, contextlib.suppress(TierUnavailableError):
        Workshop(Path(place)).run("true", checks=("true",))
    # What another thread holds at a fork would be held for ever.
    gc.collect()
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join(10)
    assert threading.active_count() == 1, threading.enumerate()


def _become_program(descriptors: Sequence[int]) -> None:
    with open(descriptors[3], "rb", closefd=False) as told:
        told.seek(0)
        request: dict[str, Any] = json.loads(told.read())
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    os.closerange(3, max(descriptors) + 1)
    if request["session"]:
        os.setsid()
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if request["mounts"] is not None:
        with open(f"/proc/{request['mounts']}/ns/mnt") as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
    os.environ.clear()
    os.environ.update(request["environ"])
    tempfile.tempdir = None  # where temporary files lie is remembered, and the environment may say otherwise now
    os.chdir(request["cwd"])
    sys.argv = [request["module"], *request["words"]]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    code = 1
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.exit(code)
