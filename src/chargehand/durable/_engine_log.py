"""What DBOS has to say goes to our own logger, never to the terminal."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = "chargehand.durable"
_REPEAT_SECONDS = 30.0
_REMEMBERED = 256


class _Forward(logging.Handler):
    """Hands records on, the same one once in 30 s: a database that is away is reported by every poll."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._target = logging.getLogger(LOGGER)
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record to our logger."""
        text, now = record.getMessage(), time.monotonic()
        if record.exc_info is None:
            if now - self._said.get(text, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
                return
            if len(self._said) >= _REMEMBERED:
                self._said.clear()
            self._said[text] = now
        self._target.handle(record)


@contextmanager
def forwarded_log() -> Iterator[None]:
    """Take over the logger of DBOS while the block runs.

    DBOS adds a handler that prints only where its logger has none yet.
    """
    ours, theirs = logging.getLogger(LOGGER), logging.getLogger("dbos")
    if not ours.handlers:
        ours.addHandler(logging.NullHandler())  # without one, logging itself prints warnings on stderr
    before, forward = (theirs.propagate, theirs.level, theirs.handlers[:]), _Forward()
    theirs.propagate, theirs.handlers[:] = False, [forward]
    try:
        yield
    finally:
        theirs.propagate, theirs.level, theirs.handlers[:] = before
