"""Idempotency keys: a repeated request with the same key gets the same answer, and is carried out once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from chargehand.core.errors import RefusedError, StoreError
from chargehand.store.idempotency import IdempotencyKeys, KnownRequest

# Answers kept in memory, including those with secrets.
_MOST_ANSWERS = 1000


class KeyedReply(NamedTuple):
    """The answer to a request: status, body, and the exit code of a command that is refused this way."""

    status: int
    content: bytes
    exit_code: str = ""


class KeyedWork(NamedTuple):
    """A request with a key, and the work that answers it."""

    asked: str
    task: asyncio.Task[KeyedReply]


class KeyedRequests:
    """The requests with a key, and their answers.

    This server keeps its answers in memory. The store records a request before its work begins and its answer
    afterwards, so that a request repeated after a restart gets the same answer. The progress of a request that a
    restart interrupted is unknown: such a request is refused.
    """

    def __init__(self, keys: Callable[[], IdempotencyKeys]) -> None:
        self._keys = keys
        self._known: dict[str, KeyedWork] = {}

    def begin(
        self, key: str, *, user: str, asked: str, is_secret: bool, work: Callable[[], Awaitable[KeyedReply]]
    ) -> asyncio.Task[KeyedReply]:
        """Return the work that answers a request, started now unless it was before.

        `asked` identifies the request; an answer that `is_secret` is never stored on disk. Raises `RefusedError`
        (`key_reused`); so does the work, with `key_unfinished` and `key_used` if the key was used before this
        server started, and `StoreError`.
        """
        # The digests are salted with the key, which is not stored: the request may contain a password.
        name = _digest(f"{user} {key}")
        asked = _digest(f"{user} {key} {asked}")
        known = self._known.get(name)
        if known is None:

            async def do() -> KeyedReply:
                try:
                    before = await asyncio.to_thread(self._keys().begin, name, user=user, asked=asked)
                except StoreError:
                    del self._known[name]  # nothing was done: the next try starts again
                    raise
                if before is not None:
                    return _reply_again(before, asked)
                reply = await work()
                kept = None if is_secret else reply.content
                await asyncio.to_thread(
                    self._keys().finish, name, status=reply.status, exit_code=reply.exit_code, answer=kept
                )
                return reply

            # A separate task: the work continues if its client leaves, and answers when the client comes back. It
            # is registered before it begins, so that of two simultaneous requests the second waits for the first.
            known = self._known[name] = KeyedWork(asked, asyncio.create_task(do()))
            known.task.add_done_callback(lambda task: task.cancelled() or task.exception())
            for old in [each for each, work in self._known.items() if work.task.done()][:-_MOST_ANSWERS]:
                del self._known[old]
        elif known.asked != asked:
            raise _key_reused()
        return known.task

    async def close(self) -> None:
        """Cancel running work and wait for its clean-up."""
        for known in self._known.values():
            known.task.cancel()
        await asyncio.gather(*(known.task for known in self._known.values()), return_exceptions=True)


def _reply_again(known: KnownRequest, asked: str) -> KeyedReply:
    """Return the answer from before a restart, or raise why it is unknown."""
    if known.asked != asked:
        raise _key_reused()
    if not known.status:
        raise RefusedError(
            "a request with this key was started and not finished: the server may have been stopped meanwhile",
            code="key_unfinished",
            hint="check the state (`chargehand mission show`); to repeat the request, use a new key",
        )
    if known.answer is None:
        how = "was done" if known.status < 400 else "was refused"
        raise RefusedError(
            f"a request with this key {how}, and its answer is not stored: it is long, old, or had a secret",
            code="key_used",
            hint="check the state (`chargehand mission show`); to repeat the request, use a new key",
        )
    return KeyedReply(known.status, known.answer, known.exit_code)


def _key_reused() -> RefusedError:
    return RefusedError(
        "this key belongs to another request", code="key_reused", hint="use a new key for a new request"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
