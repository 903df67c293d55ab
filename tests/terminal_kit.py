"""A program on a pseudo terminal, and a person who reads and types there."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

from tests import forked
from tests.crash_kit import wait_until

WAIT = 120.0
COMMAND = (sys.executable, "-m", "chargehand")


class Terminal:
    """A program on a pseudo terminal."""

    def __init__(self, words: tuple[str, ...], *, cwd: Path, environment: dict[str, str]) -> None:
        environment = environment | {"TERM": "xterm"}
        self._forked: forked.ForkedProcess | None = None
        self._code: int | None = None
        if words[: len(COMMAND)] == COMMAND:
            self.terminal, inside = pty.openpty()
            self._forked = forked.ForkedProcess(
                words[len(COMMAND) :], cwd=cwd, environ=environment, terminal=inside
            )
            os.close(inside)
            self.process_id = self._forked.pid
        else:
            self.process_id, self.terminal = pty.fork()
            if self.process_id == 0:
                os.chdir(cwd)
                os.execve(words[0], words, environment)
        self.raw = ""

    @property
    def shown(self) -> str:
        """The output so far, without escape sequences."""
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", self.raw)

    def until(self, text: str) -> None:
        """Read until `text` is shown; fail if the program ends or time is up before."""
        deadline = time.monotonic() + WAIT
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), self.shown

    def say(self, text: str) -> None:
        """Type a line, or a control character."""
        os.write(self.terminal, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C until it is seen: a press just before a read begins is seen only after the read."""
        deadline = time.monotonic() + WAIT
        while not self._ended():
            assert time.monotonic() < deadline, self.shown
            with contextlib.suppress(OSError):
                os.write(self.terminal, b"\x03")
            again = time.monotonic() + 0.5
            while not self._ended() and time.monotonic() < again:
                if not self._read(0.1):
                    time.sleep(0.02)

    def end(self) -> int:
        """Read to the end and return the exit code."""
        while self._read():
            pass
        wait_until(self._ended)
        os.close(self.terminal)
        assert self._code is not None
        return self._code

    def close(self) -> None:
        """End the program of a test that failed half way."""
        if not self._ended():
            os.kill(self.process_id, signal.SIGKILL)
            wait_until(self._ended)

    def _ended(self) -> bool:
        if self._forked is not None:
            self._code = self._forked.poll()
        elif self._code is None:
            done, status = os.waitpid(self.process_id, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if done else None
        return self._code is not None

    def _read(self, seconds: float = WAIT) -> bool:
        ready, _, _ = select.select([self.terminal], [], [], seconds)
        try:
            piece = os.read(self.terminal, 65536) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.raw += piece.decode(errors="replace")
        return bool(piece)
