"""Ctrl-C: the first one ends the work in good order, or offers a menu before that; one more ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from chargehand.cli.terminal.conventions import INTERRUPTED

_T = TypeVar("_T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# rich hides the cursor while its line stands, and what would show it again does not run after `os._exit`.
_SHOW_CURSOR = "\x1b[?25h"


class Stop:
    """Whether a person asked to stop; called once for every signal."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self.asked = False
        self.end: Callable[[], bool] = lambda: False
        """Ends what settles itself when it is asked to; returns whether there is any such work."""
        self.menu: Callable[[], bool] = lambda: False
        """Offers something else to who presses Ctrl-C; returns whether it does."""

    def __call__(self, number: int = signal.SIGTERM) -> None:
        """Cancel the work; when that was asked before, end the process: all that is kept survives that."""
        if number == signal.SIGINT and not self.asked and self.menu():
            return
        # Past all finalisers and threads: one of them may be what hangs.
        if self.asked:
            if sys.stderr.isatty():
                # To the descriptor: rich takes `sys.stderr` over while its line stands.
                os.write(2, f"{_SHOW_CURSOR}\nForced to quit.\n".encode())
            os._exit(INTERRUPTED)
        self.asked = True
        if sys.stderr.isatty():
            os.write(2, b"\nStopping. Press Ctrl-C again to force quit.\n")
        if not self.end():
            self._task.cancel()


def run_loop(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine as `asyncio.run` does; a signal finds the loop whole, or not there.

    In the midst of being made it would end with an exception that the interpreter prints.
    """
    runner, coroutine = asyncio.Runner(), None
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
            coroutine.close()  # one that was never begun would be warned of


def run_async(work: Callable[[Stop], Awaitable[_T]]) -> _T:
    """Run `work` to its end; raises `KeyboardInterrupt` where a signal ended it."""

    async def watched() -> _T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        stop = Stop(task)
        # Kept, since asyncio puts the default handler back and not the one that was there.
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)
        try:
            return await work(stop)
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    try:
        return run_loop(watched)
    # asyncio turns Ctrl-C into `KeyboardInterrupt` only where its own handler is installed, and ours is.
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
