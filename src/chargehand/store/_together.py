"""One piece of slow work for all who wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Together:
    """Does `work` for each who waits, once for all who came before it began; safe between threads."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._asked = self._done = 0

    def wait(self) -> None:
        """Return after a run of the work that began after this was called; raises what that run raised.

        Where a run fails, each of those who waited for it tries again for itself and the others.
        """
        with self._count:
            self._asked += 1
            mine = self._asked
        with self._turn:
            if self._done >= mine:
                return
            with self._count:
                served = self._asked
            self._work()
            self._done = served
