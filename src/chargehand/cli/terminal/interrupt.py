"""Ctrl-C: the first ends the work in good order, or opens a menu before that; the second ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from chargehand.cli.terminal.failures import INTERRUPTED

_T = TypeVar("_T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# rich hides the cursor while it shows a line, and cannot restore it after `os._exit`.
_SHOW_CURSOR = "\x1b[?25h"


class Stop:
    """A request to stop; called once for every signal."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self.asked = False
        self.end: Callable[[], bool] = lambda: False
        """Ask work that can settle itself to end; return whether there is any such work."""
        self.release: Callable[[], bool] | None = None
        """The same for SIGTERM, which is no person's decision to end the work; by default `end`."""
        self.menu: Callable[[], bool] = lambda: False
        """Open a menu for the person who pressed Ctrl-C; return whether it opened."""

    def __call__(self, number: int = signal.SIGTERM) -> None:
        """Cancel the work, or end the process at the second request: everything recorded survives that."""
        if number == signal.SIGINT and not self.asked and self.menu():
            return
        self.stop(self.end if number == signal.SIGINT or self.release is None else self.release)

    def stop(self, end: Callable[[], bool]) -> None:
        """Ask the work to `end`, or end the process if that was asked before."""
        if self.asked and end == self.end:
            end()  # a person's wish to cancel is recorded even if SIGTERM came first
        # `os._exit` skips finalisers and threads, which may be hanging.
        if self.asked:
            if sys.stderr.isatty():
                # To the descriptor: rich replaces `sys.stderr` while it shows a line.
                os.write(2, f"{_SHOW_CURSOR}\nForced to quit.\n".encode())
            os._exit(INTERRUPTED)
        self.asked = True
        if sys.stderr.isatty():
            os.write(2, b"\nStopping. Press Ctrl-C again to force quit.\n")
        if not end():
            self._task.cancel()


def run_loop(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine as `asyncio.run` does; a signal finds the event loop either complete or absent.

    A signal while the loop is being created would end in an exception that the interpreter prints.
    """
    runner = asyncio.Runner()
    coroutine = None
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        try:
            for number in _SIGNALS:
                signal.signal(number, lambda received, frame: came.append(received))
            runner.get_loop()
            coroutine = work()
        finally:
            for number in _SIGNALS:
                signal.signal(number, before[number])
        if came:
            raise KeyboardInterrupt
        return runner.run(coroutine)
    finally:
        runner.close()
        if coroutine is not None:
            coroutine.close()  # Python warns of a coroutine that was never awaited


def _hang_up(stop: Stop) -> None:
    """End the work as SIGTERM does, and stop writing to the closed terminal."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    stop(signal.SIGTERM)


def run_async(work: Callable[[Stop], Awaitable[_T]]) -> _T:
    """Run `work` until it ends; raises `KeyboardInterrupt` if a signal ended it."""

    async def watched() -> _T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        stop = Stop(task)
        # Saved here: asyncio restores the default handler, not the earlier one.
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)
        hangs_up = signal.getsignal(signal.SIGHUP) == signal.SIG_DFL  # not under `nohup`
        if hangs_up:
            loop.add_signal_handler(signal.SIGHUP, _hang_up, stop)
        try:
            return await work(stop)
        finally:
            if hangs_up:
                loop.remove_signal_handler(signal.SIGHUP)
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    try:
        return run_loop(watched)
    # asyncio turns Ctrl-C into `KeyboardInterrupt` only with its own handler, which `Stop` has replaced.
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
