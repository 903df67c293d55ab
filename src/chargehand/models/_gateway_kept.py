"""Replies that an attempt had in an earlier life: given again for nothing, and kept for the next one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chargehand.models._call_log import Asked, CallLog, KeptCall
from chargehand.models._contract import CallRecord, ServedModel, Usage
from chargehand.models._gateway_bill import Desk
from chargehand.models._gateway_fault import GatewayFault
from chargehand.models._http import HttpAnswer

ONLY_KEPT = "x-chargehand-kept"
"""The header with which a client asks for a kept reply or none: `only`."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Tape:
    """Keeps the reply to one request."""

    calls: CallLog
    asked: Asked

    async def keep(
        self, served: ServedModel, call: str, status: int, headers: Mapping[str, str], body: bytes, usage: Usage
    ) -> None:
        """Return once the disk has the reply; where it cannot, the client gets it all the same."""
        # Shielded: a client that leaves now must not leave half of what is written to the next life.
        await asyncio.shield(
            asyncio.to_thread(self._keep, served, call, status, headers=headers, body=body, usage=usage)
        )

    def _keep(self, served: ServedModel, call: str, status: int, **reply: Any) -> None:
        try:
            self.calls.keep(
                self.asked, call=call, model=served.name, upstream=served.model, status=status, **reply
            )
        except OSError as error:
            _log.error("the reply to call %s cannot be kept: %s", call, error.strerror)


class Replayed:
    """Answers one request with what its attempt had for it before; like a `Chain` to whoever runs it."""

    def __init__(self, calls: CallLog, kept: KeptCall, answer: HttpAnswer, desk: Desk, *, turn: int) -> None:
        self._calls = calls
        self._kept = kept
        self._answer = answer
        self._desk = desk
        self._turn = turn

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
            reason="its attempt had this reply before, and paid for it then",
        )
        await self._desk.tell(record)
        shown = {"x-chargehand-call": kept.call, "x-chargehand-replayed": str(kept.turn)}
        await self._answer.send(kept.status, {**kept.headers, **shown}, self._calls.body(kept))
