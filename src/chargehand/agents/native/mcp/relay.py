"""Runs inside the sandbox and keeps an MCP server alive between commands, which the host runs one after another.

The host sends this file to `python3 -I -S -c` for every exchange, so it imports only the standard library, and
slow modules only when a server is started. `talk DIRECTORY PROGRAM ARG` connects standard input and output to the
server's, and starts the server first if it is not running. The relay's own messages go to standard error, one line
each: `new` or `old` (whether it was started now), `absent REASON`, `flood`, `ended JSON`. `kill DIRECTORY` ends
the server. All of it has the rights of programs in the sandbox, and its output is no more trustworthy than theirs.
"""

from __future__ import annotations

import _socket
import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    import subprocess
    from typing import IO

# Bytes that a server may send in one talk.
MOST = 16 << 20
KILL = 9
_PIECE = 65536
_TAIL = 4096
_LAST_WORDS_SECONDS = 1.0
_START_SECONDS = 2.0


class ServerKeeper:
    """Owns the server's process and its streams, and lends them to one talk after another."""

    def __init__(self, directory: str, listener: socket.socket, server: subprocess.Popen[bytes]) -> None:
        import threading

        self._directory = directory
        self._listener = listener
        self._server = server
        self._talk: socket.socket | None = None
        self._changed = threading.Condition()
        self._stderr = b""
        # Threads that copy until their stream ends; `_watch` waits for both before it reports the end.
        self._readers = [threading.Thread(target=work) for work in (self._copy_output, self._keep_stderr)]

    def serve(self) -> None:
        """Accept talks until the server ends."""
        for reader in self._readers:
            reader.start()
        _thread.start_new_thread(self._watch, ())
        stdin = self._server.stdin
        while True:
            talk, _ = self._listener.accept()
            # One talk at a time: the host runs one exchange after another, and answers go to the open one.
            self._switch_talk(talk)
            # The host's data is passed on until its end.
            try:
                while stdin is not None and (piece := talk.recv(_PIECE)):
                    if not self._pass_on(piece, stdin):
                        break
            except OSError:
                pass  # the host is gone: the talk is over
            self._switch_talk(None)
            talk.close()

    def _pass_on(self, piece: bytes, stdin: IO[bytes]) -> bool:
        """Write to the server; return `False` if it accepts no input."""
        import time

        try:
            stdin.write(piece)
            stdin.flush()
        except OSError:
            # If it has ended, `_watch` ends this process within that time. The talk stays open until then: its end
            # tells the host to read the report.
            time.sleep(3 * _LAST_WORDS_SECONDS)
            return False
        return True

    def _switch_talk(self, talk: socket.socket | None) -> None:
        with self._changed:
            self._talk = talk
            self._changed.notify_all()

    def _copy_output(self) -> None:
        """Pass on the server's output; without a talk it waits in its pipe."""
        stdout = self._server.stdout
        assert stdout is not None
        while piece := os.read(stdout.fileno(), _PIECE):
            # Kept until a talk takes it: output between two talks belongs to the next one.
            taken = False
            while not taken:
                with self._changed:
                    self._changed.wait_for(lambda: self._talk is not None)
                    talk = self._talk
                try:
                    if talk is not None:
                        talk.sendall(piece)
                    taken = True
                except OSError:
                    with self._changed:
                        while self._talk is talk:
                            self._changed.wait()
        if self._server.returncode is None:  # it closed its output: no talk is possible any more
            os.killpg(self._server.pid, KILL)

    def _keep_stderr(self) -> None:
        stderr = self._server.stderr
        assert stderr is not None
        while piece := os.read(stderr.fileno(), _PIECE):
            self._stderr = (self._stderr + piece)[-_TAIL:]

    def _watch(self) -> None:
        import json

        code = self._server.wait()
        for reader in self._readers:  # its last output may still be in the pipes, which others can hold open
            reader.join(_LAST_WORDS_SECONDS)
        ended = {"code": code if code >= 0 else 128 - code, "stderr": self._stderr.decode(errors="replace")}
        write(f"{self._directory}/ended", json.dumps(ended))
        os._exit(0)


def write(path: str, text: str) -> None:
    """Write a file, whole or not at all."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def read(path: str) -> str:
    """Return a file's text, or "" if it is missing."""
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def keep(directory: str, program: list[str], listener: socket.socket, ready: int) -> None:
    """Become the keeper of a new server; write the reason to `ready` if it cannot start, else nothing."""
    import subprocess

    # A daemon: in a new session and forked twice, so that no exchange is its parent and waits for it.
    os.setsid()
    if os.fork():
        os._exit(0)
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(quiet, number)
    try:
        pipe = subprocess.PIPE
        server = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    except OSError as error:
        os.write(ready, f"{error.strerror}: {program[0]}".encode(errors="replace"))
        os._exit(1)
    write(f"{directory}/pids", f"{server.pid} {os.getpid()}")
    os.close(ready)
    ServerKeeper(directory, listener, server).serve()


def start(directory: str, program: list[str]) -> str:
    """Start a server and its keeper; return the reason for a failure, or "" on success."""
    import socket

    os.makedirs(directory, mode=0o700, exist_ok=True)
    for name in os.listdir(directory):
        os.unlink(f"{directory}/{name}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{directory}/socket")
    listener.listen(4)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        keep(directory, program, listener, write)
        os._exit(0)
    os.close(write)
    listener.close()
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as ready:
        return ready.read().decode(errors="replace")


def connect(directory: str) -> _socket.socket | None:
    """Return a connection to the keeper, or `None` if it is not running."""
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        link.connect(f"{directory}/socket")
    except OSError:
        link.close()
        return None
    return link


def say(word: str) -> None:
    """Report a word to the host on standard error."""
    sys.stderr.write(word + "\n")
    sys.stderr.flush()


def send(link: _socket.socket) -> None:
    """Pass on the host's data, and its end."""
    try:
        while piece := os.read(0, _PIECE):
            link.sendall(piece)
        link.shutdown(_socket.SHUT_RDWR)
    except OSError:
        return


def talk(directory: str, program: list[str]) -> int:
    """Connect the host to the server until one of them ends it."""
    link = connect(directory)
    if link is None:
        problem = start(directory, program)
        link = None if problem else connect(directory)
        if link is None:
            say(f"absent {problem or 'it ended at once'}")
            return 1
        say("new")
    else:
        say("old")
    # Not `threading`: every exchange would pay for its import.
    _thread.start_new_thread(send, (link,))
    said = 0
    try:
        while piece := link.recv(_PIECE):
            said += len(piece)
            if said > MOST:
                say("flood")
                return 1
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except OSError:
        said = 0  # the connection is gone, and the server with it
    if ended := read(f"{directory}/ended"):
        say(f"ended {ended}")
    return 0


def kill(directory: str) -> int:
    """End the server with everything in its session, and its keeper; return once they are gone."""
    import time

    deadline = time.monotonic() + _START_SECONDS
    while not (pids := read(f"{directory}/pids").split()):
        if not os.path.exists(f"{directory}/socket") or time.monotonic() > deadline:
            return 1
        time.sleep(0.02)  # it is being started
    try:
        server, keeper = map(int, pids)
    except ValueError:
        return 1
    # The keeper first: otherwise it would report the end of the server, which was killed on purpose.
    for end, number in ((os.kill, keeper), (os.killpg, server)):
        try:
            end(number, KILL)
            while time.monotonic() < deadline:
                end(number, 0)  # raises once no process is left
                time.sleep(0.005)
        except ProcessLookupError:
            continue
    return 0


def main(argv: list[str]) -> int:
    """Carry out the host's order."""
    return talk(argv[1], argv[2:]) if argv[0] == "talk" else kill(argv[1])


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.buffer.flush()
    os._exit(code)  # a thread still waits for input that is no longer needed
