"""One thread for what may block: the books of one gateway, or the file of its calls."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Clerk:
    """Does one thing after the other in a thread of its own, which is there from the first of them to `close`.

    The executor of the event loop takes twice as long to hand something over and back, and several threads of it
    would only wait for each other: a database takes one writer at a time.
    """

    def __init__(self, name: str = "gateway-books") -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Return the outcome of `work`, which is done also where nobody waits for it."""
        outcome: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put((work, outcome))
        return outcome

    def close(self) -> None:
        """End the thread once it has done what it was asked. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, outcome = job
            try:
                done = work()
            except BaseException as error:  # whatever it is belongs to who asked
                outcome.get_loop().call_soon_threadsafe(_failed, outcome, error)
            else:
                outcome.get_loop().call_soon_threadsafe(_done, outcome, done)


def _done(outcome: asyncio.Future[_T], result: _T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _failed(outcome: asyncio.Future[Any], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
