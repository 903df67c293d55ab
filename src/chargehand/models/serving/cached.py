"""Answers requests from the replay cache, and keeps new replies in it."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from chargehand.models.contract import CallRecord, Dialect, GatewayFault, Operation
from chargehand.models.dialects.left_out import read_left_out
from chargehand.models.http.server import HttpAnswer
from chargehand.models.replay_cache import CachedReply, ReplayCache, RequestFingerprint, WholeReply
from chargehand.models.serving.admission import BudgetAdmission, SerialExecutor

# The header with which a client accepts only a kept reply: `only`.
ONLY_KEPT = "x-chargehand-kept"
_SMALL_BYTES = 16_384
_log = logging.getLogger(__name__)


class CacheWorker:
    """The replay cache of one gateway: read and written by one thread, in the order of requests."""

    def __init__(self, cache: ReplayCache) -> None:
        self.cache = cache
        self._executor = SerialExecutor("gateway-calls")

    async def look_up(self, entry: CacheEntry) -> CachedReply | None:
        """Return an earlier reply to a request; if no reply is left, the call does not wait for its parts."""
        if self.cache.waiting:
            return await self._executor.submit(entry.find)
        # The fingerprint is still taken, in the order of requests: ids get their names in that order.
        self._executor.start(entry.find, failure="cannot keep a request")
        return None

    async def write(self, entry: CacheEntry, reply: WholeReply) -> asyncio.Future[None]:
        """Return once a reply is in its file; the returned future ends once it is on disk."""

        def sync() -> None:
            try:
                self.cache.sync()
            except OSError as error:
                _log_failed_write(reply.call, error)

        if self._executor.idle and len(reply.body) <= _SMALL_BYTES:
            entry.write(reply)  # handing it over and back takes as long
            return self._executor.submit(sync)
        written = self._executor.submit(functools.partial(entry.write, reply))
        # Submitted at once, so that the disk works while the call is settled.
        on_disk = self._executor.submit(sync)
        await written
        return on_disk

    async def note_bound(self, call: str, usd: float, *, durable: bool) -> None:
        """Record that a call under way costs at most `usd`; `durable`: wait until it survives a power cut."""

        def write() -> None:
            try:
                self.cache.note_bound(call, usd)
                if durable:
                    self.cache.sync()
            except OSError as error:
                _log.error("cannot record the maximum cost of call %s: %s", call, error.strerror)

        await self._executor.submit(write)

    def close(self) -> None:
        """End the thread once it has done the submitted work. Idempotent."""
        self._executor.close()


class CacheEntry(Struct, kw_only=True):
    """One request in the replay cache, and its reply once it exists."""

    dialect: Dialect
    operation: Operation
    body: Mapping[str, Any]
    turn: int
    worker: CacheWorker
    _fingerprint: RequestFingerprint | None = None

    def find(self) -> CachedReply | None:
        """Split the request into parts and return its earlier reply."""
        cache = self.worker.cache
        self._fingerprint = cache.fingerprint(self.dialect, self.operation, self.body, turn=self.turn)
        return cache.find(self._fingerprint)

    def write(self, reply: WholeReply) -> None:
        """Write the reply; if that fails, the client still gets it."""
        if self._fingerprint is None:
            return  # the lookup failed, which was logged then
        try:
            self.worker.cache.keep(self._fingerprint, reply)
        except OSError as error:
            _log_failed_write(reply.call, error)


def _log_failed_write(call: str, error: OSError) -> None:
    _log.error("cannot keep the reply to call %s: %s", call, error.strerror)


class CachedReplyHandler:
    """Answers one request with its attempt's earlier reply; has the interface of a `FallbackChain`."""

    def __init__(
        self,
        cache: ReplayCache,
        kept: CachedReply,
        answer: HttpAnswer,
        admission: BudgetAdmission,
        *,
        turn: int,
        bare: bool = False,
    ) -> None:
        self._cache = cache
        self._kept = kept
        self._answer = answer
        self._admission = admission
        self._turn = turn
        self._bare = bare

    def cut(self, fault: GatewayFault) -> None:
        """Do nothing: the reply is already complete."""

    async def run(self) -> None:
        """Answer the client; raises `ClientGoneError` if it left."""
        kept = self._kept
        record = CallRecord(
            call=kept.call,
            attempt=self._admission.attempt,
            turn=self._turn,
            model=kept.model,
            upstream=kept.upstream,
            status="replayed",
            http_status=kept.status,
            seconds=0.0,
            usage=kept.usage,
            cost_usd=0.0,
            booked_usd=0.0,
            bare=self._bare,
            left_out=self._admission.name_once(kept.upstream, read_left_out(kept.headers)),
            reason="its attempt had this reply before, and paid for it then",
        )
        await self._admission.report(record)
        shown = {"x-chargehand-call": kept.call, "x-chargehand-replayed": str(kept.turn)}
        await self._answer.send(kept.status, {**kept.headers, **shown}, self._cache.body(kept))
