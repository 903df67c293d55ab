"""Idempotency keys: a request that is sent again with its key is answered again, and done once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from chargehand.core.errors import RefusedError, StoreError
from chargehand.store.idempotency import IdempotencyKeys, KnownRequest

# Answers that are kept in memory, those with secrets too.
_MOST_ANSWERS = 1000


class KeyedReply(NamedTuple):
    """What a request was answered: status, body, and the exit code of a command that is refused so."""

    status: int
    content: bytes
    exit_code: str = ""


class KeyedWork(NamedTuple):
    """What was asked for with a key, and the work that answers it."""

    asked: str
    task: asyncio.Task[KeyedReply]


class KeyedRequests:
    """The requests that had a key, and their answers.

    This server keeps its own in memory. The store records a request before its work begins and its answer
    afterwards, so that a request that comes again after a restart gets the same answer. Nobody can say how far a
    request came that a restart broke off: such a request is refused.
    """

    def __init__(self, keys: Callable[[], IdempotencyKeys]) -> None:
        self._keys = keys
        self._known: dict[str, KeyedWork] = {}

    def begin(
        self, key: str, *, user: str, asked: str, is_secret: bool, work: Callable[[], Awaitable[KeyedReply]]
    ) -> asyncio.Task[KeyedReply]:
        """Return the work that answers a request, begun now unless it was before.

        `asked` is all that tells this request from others; an answer that `is_secret` is never written down.
        Raises `RefusedError` (`key_reused`); the work raises it too, `key_unfinished` and `key_used` where the key
        came before this server started, and `StoreError`.
        """
        # The digests are salted with the key, which is not written down: the request may hold a password.
        name = _digest(f"{user} {key}")
        asked = _digest(f"{user} {key} {asked}")
        known = self._known.get(name)
        if known is None:

            async def do() -> KeyedReply:
                try:
                    before = await asyncio.to_thread(self._keys().begin, name, user=user, asked=asked)
                except StoreError:
                    del self._known[name]  # nothing was done: the next try begins anew
                    raise
                if before is not None:
                    return _reply_again(before, asked)
                reply = await work()
                kept = None if is_secret else reply.content
                await asyncio.to_thread(
                    self._keys().finish, name, status=reply.status, exit_code=reply.exit_code, answer=kept
                )
                return reply

            # A task of its own: the work goes on where its client leaves, and answers when the client comes back.
            # It is known before it begins, so that of two requests at once the second waits for the first one.
            known = self._known[name] = KeyedWork(asked, asyncio.create_task(do()))
            known.task.add_done_callback(lambda task: task.cancelled() or task.exception())
            for old in [each for each, work in self._known.items() if work.task.done()][:-_MOST_ANSWERS]:
                del self._known[old]
        elif known.asked != asked:
            raise _key_reused()
        return known.task

    async def close(self) -> None:
        """Break off what is being done, in good order."""
        for known in self._known.values():
            known.task.cancel()
        await asyncio.gather(*(known.task for known in self._known.values()), return_exceptions=True)


def _reply_again(known: KnownRequest, asked: str) -> KeyedReply:
    """Return what was answered before a restart, or say why that is not known."""
    if known.asked != asked:
        raise _key_reused()
    if not known.status:
        raise RefusedError(
            "a request with this key was begun and not finished: the server may have been stopped in the middle",
            code="key_unfinished",
            hint="look at how things stand (`chargehand mission show`); to have it done, ask with a new key",
        )
    if known.answer is None:
        how = "was done" if known.status < 400 else "was refused"
        raise RefusedError(
            f"a request with this key {how}, and its answer is not kept: it is long, old, or held a secret",
            code="key_used",
            hint="look at how things stand (`chargehand mission show`); ask with a new key to have it done again",
        )
    return KeyedReply(known.status, known.answer, known.exit_code)


def _key_reused() -> RefusedError:
    return RefusedError(
        "this key belongs to another request", code="key_reused", hint="use a new key for a new request"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
