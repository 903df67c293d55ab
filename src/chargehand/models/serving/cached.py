"""Replies that an attempt had in an earlier life: given again for nothing, and kept for the next one."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chargehand.models.contract import CallRecord, Dialect, GatewayFault, Operation, ServedModel, Usage
from chargehand.models.http.server import HttpAnswer
from chargehand.models.replay_cache import Asked, CallLog, KeptCall
from chargehand.models.serving.admission import Clerk, Desk

ONLY_KEPT = "x-chargehand-kept"
"""The header with which a client asks for a kept reply or none: `only`."""
_log = logging.getLogger(__name__)


class Shelf:
    """The kept calls of one gateway: looked at and added to by one thread, in the order of requests."""

    def __init__(self, calls: CallLog) -> None:
        self.calls = calls
        self._clerk = Clerk("gateway-calls")

    async def look(self, tape: Tape) -> KeptCall | None:
        """Return the reply that a request had before; where none is left, the call does not wait for its parts."""
        looking = self._clerk.ask(functools.partial(tape.look, self.calls))
        if self.calls.waiting:
            return await looking
        looking.add_done_callback(_heard)
        return None

    async def keep(self, tape: Tape, reply: Reply) -> asyncio.Future[None]:
        """Return once a reply is in its file, with what ends once the disk has it."""
        written = self._clerk.ask(functools.partial(tape.keep, self.calls, reply))
        on_disk = self._clerk.ask(functools.partial(_sync, self.calls, reply.call))
        await written
        return on_disk

    def close(self) -> None:
        """End the thread once it has done what it was asked. Idempotent."""
        self._clerk.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole reply as its client gets it."""

    served: ServedModel
    call: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    usage: Usage


@dataclass(slots=True, kw_only=True)
class Tape:
    """One request, and its reply once that is there."""

    dialect: Dialect
    operation: Operation
    body: Mapping[str, Any]
    turn: int
    shelf: Shelf
    _asked: Asked | None = None

    def look(self, calls: CallLog) -> KeptCall | None:
        """Take the request apart and return what it was answered before."""
        self._asked = calls.asked(self.dialect, self.operation, self.body, turn=self.turn)
        return calls.find(self._asked)

    def keep(self, calls: CallLog, reply: Reply) -> None:
        """Write the reply; where that cannot be, the client gets it all the same."""
        if self._asked is None:
            return  # what is wrong with it was told then
        served = reply.served
        try:
            calls.keep(
                self._asked,
                call=reply.call,
                model=served.name,
                upstream=served.model,
                status=reply.status,
                headers=reply.headers,
                body=reply.body,
                usage=reply.usage,
            )
        except OSError as error:
            _told(reply.call, error)


def _sync(calls: CallLog, call: str) -> None:
    try:
        calls.sync()
    except OSError as error:
        _told(call, error)


def _told(call: str, error: OSError) -> None:
    _log.error("the reply to call %s cannot be kept: %s", call, error.strerror)


def _heard(looking: asyncio.Future[KeptCall | None]) -> None:
    error = None if looking.cancelled() else looking.exception()
    if error is not None:
        _log.error("a request cannot be kept: %s", error)


class Replayed:
    """Answers one request with what its attempt had for it before; like a `Chain` to whoever runs it."""

    def __init__(
        self, calls: CallLog, kept: KeptCall, answer: HttpAnswer, desk: Desk, *, turn: int, bare: bool = False
    ) -> None:
        self._calls = calls
        self._kept = kept
        self._answer = answer
        self._desk = desk
        self._turn = turn
        self._bare = bare

    def cut(self, fault: GatewayFault) -> None:
        """Do nothing: the reply is whole already."""

    async def run(self) -> None:
        """Answer the client; raises `ClientGoneError` where it is gone."""
        kept = self._kept
        record = CallRecord(
            call=kept.call,
            attempt=self._desk.attempt,
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
            reason="its attempt had this reply before, and paid for it then",
        )
        await self._desk.tell(record)
        shown = {"x-chargehand-call": kept.call, "x-chargehand-replayed": str(kept.turn)}
        await self._answer.send(kept.status, {**kept.headers, **shown}, self._calls.body(kept))
