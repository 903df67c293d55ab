"""Run the program as forks of one process that has imported it: real processes, without the start-up time.

A command's start is mostly imports, the same in each of the suite's thousands of runs. Each fork receives what a
fresh process would have (arguments, environment, directory, descriptors, session, terminal). Tests about starting
or importing start a new process instead.

A forked program also forks the workers and actions that it starts: it asks the server at `_ADDRESS`.
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
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

REPEATS_ALL = "TESTS_REPEAT_ALL"
"""The variable of programs that repeat what fails on a base as often as the product does."""
_ROOT = Path(__file__).parents[1]
_SERVER = "import sys; sys.path[0] = sys.argv[2]; from tests.forked import serve; serve(int(sys.argv[1]))"
# Imported by nearly every command. A command imports heavy libraries only where it uses them.
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
# Needed only by commands of a person who configured models, and by an MCP server: as much again as all of the
# above, which would slow down each fork. Each kind has its own process to fork, started when it is first needed.
_IMPORTED_FOR = {
    "models": (
        "chargehand.agents.native.loop",
        "chargehand.agents.native.model_client",
    ),
    "mcp": ("chargehand.mcp.http", "chargehand.mcp.server"),
}
_ABOVE = 512
_OWN_MOUNTS = "/proc/thread-self/ns/mnt"


# The process ids of all programs that this process started.
STARTED: set[int] = set()


class ForkedProcess:
    """One run of the program, with the part of `subprocess.Popen`'s interface that tests need."""

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
        with open(os.devnull, "rb") as none:
            streams = [none if each is None else each for each in (stdout, stderr)]
            given = [each.fileno() for each in (none, *streams)] if terminal is None else [terminal] * 3
            self._server = _server_for(words, environ)
            self.pid = self._server.start(request, *given)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, `None` while it runs."""
        if self.returncode is None and (status := self._server.status(self.pid)) is not None:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        if (code := self.poll()) is None:
            self._server.await_end(self.pid, timeout)
            code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # already reaped, but not reported here yet
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


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` of `python -m MODULE ...` with its pipes and exit codes, but the program is forked."""

    # Its parameters are those of the method that it overrides.
    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        stdin: int,
        ours_in: int,
        ours_out: int,
        stdout: int,
        ours_err: int,
        stderr: int,
        restore_signals: Any,
        gid: Any,
        gids: Any,
        uid: Any,
        umask: Any,
        session: bool,
        *others: Any,
    ) -> None:
        assert args[1] == "-m", args
        request = {
            "module": args[2],
            "words": list(args[3:]),
            "cwd": os.fspath(cwd or os.getcwd()),
            "environ": dict(os.environ if env is None else env),
            "session": session,
            "passed": list(pass_fds),
        }
        streams = [number if given == -1 else given for number, given in enumerate((stdin, stdout, stderr))]
        self._server = _server_for(request["words"], request["environ"])
        self.pid = self._server.start(request, *streams, passed=pass_fds)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]  # of the base class, which typeshed does not name
            stdin, ours_in, ours_out, stdout, ours_err, stderr
        )

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None and (status := self._server.status(self.pid)) is not None:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if (status := self._server.status(self.pid)) is None and not wait_flags & os.WNOHANG:
            self._server.await_end(self.pid)
            status = self._server.status(self.pid)
        return (0, 0) if status is None else (self.pid, status)


def fork_detached(*, forked: bool = True) -> None:
    """Make this process fork the workers and actions that the program starts, or start them as new processes."""
    from chargehand.app import actions, worker

    forking = types.SimpleNamespace(**vars(subprocess) | {"Popen": ForkedPopen})
    for module in (actions, worker):
        vars(module)["subprocess"] = forking if forked else subprocess


def repeat_less(*, less: bool = True) -> None:
    """Have missions of this process repeat tests that fail on a base once, or as often as the product does.

    Eight runs tell which tests are flaky. Most missions of the suite begin with red checks that are not.
    """
    from chargehand.missions.verdict import classification, repeats

    vars(classification)["RUNS_ON_BASE"] = 1 if less else repeats.RUNS_ON_BASE


def run(
    words: Sequence[str], *, cwd: Path, environ: Mapping[str, str], mounts: int | None = None
) -> tuple[int, str, str]:
    """Run one command to its end; return its exit code (negative: the signal), stdout and stderr.

    `mounts` is a process whose mount namespace it runs in.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = ForkedProcess(words, cwd=cwd, environ=environ, stdout=out, stderr=err, mounts=mounts).wait()
        return code, _text(out), _text(err)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


class _ForkServer:
    """A client of the fork server, in the process that started the server or in a program forked from it."""

    def __init__(self, kind: str = "") -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._mounts: int = _server()._mounts if kind else os.stat(_OWN_MOUNTS).st_ino
        if _ADDRESS:
            self._ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._ours.connect(_ADDRESS)
            return
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            if kind:
                _server()._ask(f"grow {kind}", number)
                atexit.register(self.close)
                return
            words = [sys.executable, "-c", _SERVER, str(number), str(_ROOT)]
            self._process = subprocess.Popen(words, pass_fds=(number,), cwd=_ROOT, start_new_session=True)
        atexit.register(self.close)

    def start(self, request: Mapping[str, object], *streams: int, passed: Sequence[int] = ()) -> int:
        """Fork the program that the request describes; return its process id.

        The program sees the mounts of this thread, which may have entered another mount namespace since the server
        began.
        """
        if request.get("mounts") is None and os.stat(_OWN_MOUNTS).st_ino != self._mounts:
            request = {**request, "mounts": f"{os.getpid()}/task/{threading.get_native_id()}"}
        with tempfile.TemporaryFile() as told:
            told.write(json.dumps(request).encode())
            told.flush()
            pid = int(self._ask("start", *streams, told.fileno(), *passed))
        STARTED.add(pid)
        return pid

    def status(self, pid: int) -> int | None:
        """Return the status of an ended program, as from waitpid(2), or `None` while it runs."""
        status = self._ask(f"poll {pid}")
        return int(status) if status else None

    def await_end(self, pid: int, timeout: float | None = None) -> None:
        """Sleep until a program has ended, for at most `timeout` seconds."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                # No other process can get its number until its status is known.
                if self.status(pid) is None:
                    waiting = select.poll()
                    waiting.register(descriptor, select.POLLIN)
                    waiting.poll(None if timeout is None else max(0, timeout) * 1000)
            finally:
                os.close(descriptor)

    def _ask(self, words: str, *descriptors: int) -> str:
        with self._lock:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            self._ours.sendmsg([words.encode()], ancillary if descriptors else [])
            answer = self._ours.recv(64).decode()
        assert answer, "the process that commands are forked from has died"
        return answer.removesuffix(".")

    def close(self) -> None:
        self._ours.close()
        if self._process is not None:
            self._process.wait()


# The address at which a forked program asks for another fork. Unused by the process that has the other end of the
# server's channel.
_ADDRESS = ""


@functools.cache
def _server(kind: str = "") -> _ForkServer:
    return _ForkServer(kind)


def _server_for(words: Sequence[str], environ: Mapping[str, str]) -> _ForkServer:
    """Return the server that has already imported the modules that this person's command needs."""
    if _ADDRESS:
        return _server()
    if "mcp" in words[:2]:
        return _server("mcp")
    directory = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME')}/.config"
    with contextlib.suppress(OSError):
        if "[models." in Path(directory, "chargehand/config.toml").read_text():
            return _server("models")
    return _server()


def warm_up() -> None:
    """Start the processes to fork from, for tests that count processes."""
    _server("models")


def serve(number: int) -> None:
    """Fork a command for each request and report exit statuses, until the other side closes."""
    for module in _IMPORTED:
        __import__(module)
    _compile_patterns()
    repeat_less()
    _run_mission()
    fork_detached()
    _serve(socket.socket(fileno=number))


def _serve(channel: socket.socket) -> None:
    global _ADDRESS
    gc.collect()
    gc.freeze()  # otherwise each fork's first collection would touch, and so copy, every page of the imports
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _ADDRESS = f"\0chargehand-tests-{os.getpid()}"
    listening.bind(_ADDRESS)
    listening.listen()
    # Ended programs must be reaped even if no one asks for their status: tests look for processes left behind.
    awake, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    ended: dict[int, int] = {}
    with selectors.DefaultSelector() as ready:
        for each in (channel, listening, awake):
            ready.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listening:
                    ready.register(listening.accept()[0], selectors.EVENT_READ)
                    continue
                if key.fileobj is awake:
                    awake.recv(4096)
                    continue
                asking = key.fileobj
                assert isinstance(asking, socket.socket)
                if not _answer(asking, ended):
                    if asking is channel:
                        return
                    ready.unregister(asking)
                    asking.close()
            _reap(ended)


def _answer(asking: socket.socket, ended: dict[int, int]) -> bool:
    """Handle one packet; return whether there was one."""
    got, descriptors, _, _ = socket.recv_fds(asking, 64, 16)
    match got.decode().split():
        case ["start"]:
            child = os.fork()
            if child == 0:
                _become_program(descriptors)
            for each in descriptors:
                os.close(each)
            ended.pop(child, None)  # of an earlier process that had the same number
            asking.send(f"{child}.".encode())
        case ["grow", kind]:
            if os.fork() == 0:
                signal.set_wakeup_fd(-1)
                os.dup2(descriptors[0], 3)
                os.closerange(4, _ABOVE)
                for module in _IMPORTED_FOR[kind]:
                    __import__(module)
                _serve(socket.socket(fileno=3))
                os._exit(0)
            os.close(descriptors[0])
            asking.send(b"grown.")
        case ["poll", pid]:
            _reap(ended)
            asking.send(f"{ended.get(int(pid), '')}.".encode())
    return bool(got)


def _reap(ended: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[found[0]] = found[1]


def _compile_patterns() -> None:
    """Compile the patterns that each fork would otherwise compile at first use."""
    from chargehand.core.text import late_pattern

    kind = type(late_pattern(""))
    for each in gc.get_objects():
        if type(each) is kind:
            each.match  # noqa: B018 (to ask for it is to compile it)


def _run_mission() -> None:
    """Run one mission, so that forks need not prepare the decoding of records and the policy rules again."""
    from chargehand.core.errors import TierUnavailableError
    from tests.integration.mission_kit import MissionKit

    with tempfile.TemporaryDirectory() as place, contextlib.suppress(TierUnavailableError):
        MissionKit(Path(place)).run("true", checks=("true",))
    # A lock that another thread holds at a fork would stay locked for ever.
    gc.collect()
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join(120)
    assert threading.active_count() == 1, threading.enumerate()


def _become_program(descriptors: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(descriptors[3], "rb", closefd=False) as told:
        told.seek(0)
        request: dict[str, Any] = json.loads(told.read())
    # Copy to numbers above all used ones first, so that no copy overwrites a descriptor that is yet to be copied.
    wanted = (0, 1, 2, *request.get("passed", ()))
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD, _ABOVE) for each in (*descriptors[:3], *descriptors[4:])]
    os.closerange(3, _ABOVE)
    for copy, target in zip(copies, wanted, strict=True):
        os.dup2(copy, target)
    os.closerange(_ABOVE, 2 * _ABOVE)
    if request["session"]:
        os.setsid()
    if request.get("terminal"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if request.get("mounts") is not None:
        with open(f"/proc/{request['mounts']}/ns/mnt") as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
        fork_detached(forked=False)  # otherwise they would run in the server's namespace
    os.environ.clear()
    os.environ.update(request["environ"])
    if REPEATS_ALL in os.environ:
        repeat_less(less=False)
    tempfile.tempdir = None  # Python caches the temporary directory, and the environment may now name another one
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
