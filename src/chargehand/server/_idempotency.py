"""Changes that are asked for with a key: a request that is sent again is answered, and done once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from chargehand.core.errors import InfrastructureError, RefusedError

# Answers that are remembered, and for how long a key is known to have been used.
_ANSWERS, _KEPT_SECONDS = 1000, 86_400.0
_SWEEP_SECONDS = 3600.0


class KeyedAnswer(NamedTuple):
    """What was asked for with a key, and the work that answers it."""

    asked: str
    task: asyncio.Task[Any]


class KeyedRequests:
    """The requests that had a key, and their answers as long as the server runs.

    An answer may hold a secret, and so is in memory alone. That there was a request is in a file before it is
    done: one that comes again after a restart is refused, since nobody can say how far it came.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._answers: dict[str, KeyedAnswer] = {}
        self._swept: float | None = None

    def begin(self, key: str, asked: str, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Return the work that answers a request, begun now unless it was before.

        `key` is the client's with who it is, `asked` all that tells this request from others. Raises
        `RefusedError` (`key_reused`); the work raises it too (`key_used`, where the key came before this server
        started), and `InfrastructureError`.
        """
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        known = self._answers.get(name)
        if known is None:

            async def do() -> Any:
                try:
                    await asyncio.to_thread(self._note, name)
                except InfrastructureError:
                    del self._answers[name]  # nothing was done: the next try begins anew
                    raise
                return await work()

            # A task of its own: it goes on where its client leaves, and answers the same one later. Known before
            # it begins, so that of two requests at once the second waits for the first one's answer.
            known = self._answers[name] = KeyedAnswer(asked, asyncio.create_task(do()))
            known.task.add_done_callback(lambda task: task.cancelled() or task.exception())
            for old in [each for each, answer in self._answers.items() if answer.task.done()][:-_ANSWERS]:
                del self._answers[old]
        elif known.asked != asked:
            raise RefusedError(
                "this key belongs to another request", code="key_reused", hint="use a new key for a new request"
            )
        return known.task

    async def close(self) -> None:
        """Break off what is being done, in good order."""
        for answer in self._answers.values():
            answer.task.cancel()
        await asyncio.gather(*(answer.task for answer in self._answers.values()), return_exceptions=True)

    def _note(self, name: str) -> None:
        if self._swept is None or time.monotonic() - self._swept > _SWEEP_SECONDS:
            self._swept = time.monotonic()
            self._forget_old()
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._directory / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError as error:
            raise RefusedError(
                "a request with this key came before, and what became of it is not known any more",
                code="key_used",
                hint="look at how things stand (`chargehand mission show`); then ask with a new key",
            ) from error
        except OSError as error:
            raise InfrastructureError(
                f"cannot note the request in {self._directory}: {error.strerror}",
                code="store_io",
                hint="free some space, or make the state directory writable",
            ) from error

    def _forget_old(self) -> None:
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._directory):
                if entry.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    os.unlink(entry.path)
