"""Runs commands of the program as forks of one process that has imported it: real processes, without the start-up.

A command's start is mostly imports, the same in each of the suite's thousands of runs. What a fresh process would do
differently (arguments, environment, directory, descriptors, signals) each fork is given anew; tests about starting,
killing or signalling the program start it for themselves (`Desk.start`).
"""

from __future__ import annotations

import array
import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_SERVER = "import sys; from tests.integration.forked import serve; serve(int(sys.argv[1]))"
_IMPORTED = (
    "chargehand.cli._root",
    "chargehand.cli._run",
    "chargehand.cli._mission_view",
    "chargehand.app._app",
    "chargehand.agents.opening",
    "chargehand.durable._engine",
)
_LONGEST = 1 << 20


def run(words: Sequence[str], *, cwd: Path, environ: Mapping[str, str]) -> tuple[int, str, str]:
    """Run one command to its end; return its exit code (negative: the signal), and what it wrote."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as none:
        code = _server().ask(words, cwd=cwd, environ=environ, files=(none, out, err))
        return code, _text(out), _text(err)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


class _ForkServer:
    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
        atexit.register(self.close)

    def ask(
        self, words: Sequence[str], *, cwd: Path, environ: Mapping[str, str], files: Sequence[IO[bytes]]
    ) -> int:
        request = json.dumps({"words": list(words), "cwd": str(cwd), "environ": dict(environ)}).encode()
        descriptors = array.array("i", [file.fileno() for file in files])
        with tempfile.TemporaryFile() as long:  # an environment or a request may be larger than a datagram
            long.write(request)
            long.flush()
            descriptors.append(long.fileno())
            self._ours.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        answer = self._ours.recv(64)
        assert answer, "the process that commands are forked from has died"
        return os.waitstatus_to_exitcode(int(answer))

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


@functools.cache
def _server() -> _ForkServer:
    return _ForkServer()


def serve(number: int) -> None:
    """Fork a command for each request until the other side closes."""
    for module in _IMPORTED:
        __import__(module)
    channel = socket.socket(fileno=number)
    while True:
        got, descriptors, _, _ = socket.recv_fds(channel, 1, 4)
        if not got:
            return
        child = os.fork()
        if child == 0:
            channel.close()
            _become_command(descriptors)
        for each in descriptors:
            os.close(each)
        _, status = os.waitpid(child, 0)
        channel.send(str(status).encode())


def _become_command(descriptors: Sequence[int]) -> None:
    with open(descriptors[3], "rb", closefd=False) as long:
        long.seek(0)
        request: dict[str, Any] = json.loads(long.read())
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    os.closerange(3, max(descriptors) + 1)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None
    sys.argv = ["chargehand", *request["words"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    from chargehand.cli._root import main

    main()
