"""Injects deliberate faults before or into the replies of another upstream."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec.structs import replace

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import (
    DerivedChunks,
    ModelCall,
    ModelUpstream,
    UpstreamReply,
    reply_from_pieces,
)
from chargehand.models.conversation import UntranslatableError
from chargehand.models.event_stream import EVENT_STREAM
from chargehand.models.faults import Fault, Faults
from chargehand.models.registries import DIALECTS
from chargehand.models.scripted_replies import ScriptedCall, decode_body, error_reply, render_for

# The length of a `big` reply without a given size.
_BIG_BYTES = 1_000_000
_PIECE_BYTES = 64_000
# Attempt, operation and turn of a call.
_Place = tuple[str, str, int]
_Ask = Callable[[], Awaitable[UpstreamReply]]


class FaultyUpstream:
    """An upstream that injects faults before or into the replies of another upstream.

    An entry with a turn fires once in each attempt, so that a retried call gets through; of two entries with the
    same turn the second fires at the second try. Counts of tokens and embeddings have their own turns.
    """

    def __init__(self, inner: ModelUpstream, faults: Faults, *, seed: int = 0) -> None:
        self._inner = inner
        self._faults = faults
        # Seeded, so that a run with faults can be repeated.
        self._chance = random.Random(seed)
        self._tries: Counter[_Place] = Counter()
        self._swallowed: set[_Place] = set()

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Answer with the fault that is due, or pass the call on; raises `UpstreamError` as the inner one does."""
        place = (call.attempt, call.operation, call.turn)
        here = [fault for fault in self._faults.entries if fault.turn == call.turn]
        tried = self._tries[place]
        self._tries[place] += 1
        if tried < len(here):
            fault: Fault | None = here[tried]
        else:
            chances = (one for one in self._faults.entries if one.probability is not None)
            fault = next((one for one in chances if self._chance.random() < (one.probability or 0)), None)
        if fault is not None and fault.replaces:
            self._swallowed.add(place)
        else:
            self._swallowed.discard(place)
        # The inner upstream counts only the calls that it gets, so a script continues at its own turn.
        earlier = sum(one[:2] == place[:2] and one[2] < call.turn for one in self._swallowed)
        behind = replace(call, turn=call.turn - earlier)
        if fault is None:
            return await self._inner.send(behind)
        return await answer_with_fault(fault, call, lambda: self._inner.send(behind))

    async def close(self) -> None:
        """Close the inner upstream."""
        await self._inner.close()


async def answer_with_fault(fault: Fault, call: ModelCall, ask: _Ask) -> UpstreamReply:
    """Answer a call with a fault; `ask` fetches the reply to spoil."""
    dialect = DIALECTS[call.dialect]
    if fault.status is not None:
        headers = {} if fault.argument is None else {"retry-after": f"{fault.argument:g}"}
        message = f"the provider answers {fault.kind} on purpose"
        return error_reply(dialect, fault.status, "fault", message, headers=headers)
    if fault.kind == "malformed":
        half = b'{"id": "half", "choices": [{'
        if call.stream:
            return reply_from_pieces(200, [b"data: " + half + b"\n\n"], content_type=EVENT_STREAM)
        return reply_from_pieces(200, [half])
    reply = await ask()
    if fault.kind not in ("twin-ids", "big"):
        return replace(reply, chunks=DerivedChunks(_spoil(fault, call, reply.chunks), reply.chunks))
    # The reply changes: a very long text, or tool calls that share one id.
    body = await reply.read_all()
    stream = reply.headers.get("content-type", "").startswith(EVENT_STREAM)
    pieces = [body[start : start + _PIECE_BYTES] for start in range(0, len(body), _PIECE_BYTES)]
    whole = replace(reply_from_pieces(reply.status, pieces), headers=reply.headers)
    if reply.status != 200:
        return whole
    try:
        said = decode_body(dialect, body, stream=stream)
    except ValueError:
        return whole
    if fault.kind == "big":
        size = _BIG_BYTES if fault.argument is None else int(fault.argument)
        said = replace(said, text="x" * size)
    else:
        tools = said.tools
        with contextlib.suppress(UntranslatableError):  # a request that cannot be read offers nothing
            offered = dialect.read_request(call.body).tools
            tools = tools or tuple(ScriptedCall(name=tool.name, arguments={}) for tool in offered)[:1]
        tools = tools * 2 if len(tools) == 1 else tools
        said = replace(
            said, tools=tuple(replace(tool, id=tools[0].id or "call_twin") for tool in tools), stop=None
        )
    return render_for(dialect, said, call.body, id=call.id)


async def _spoil(fault: Fault, call: ModelCall, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a body that breaks off (`cut`), arrives byte by byte (`drip`), or too late (`stall`)."""
    if fault.kind == "cut":
        # The middle is known only after the whole body arrived.
        body = b"".join([chunk async for chunk in chunks])
        yield body[: len(body) // 2 if fault.argument is None else int(fault.argument)]
        raise UpstreamError(f"the reply to call {call.id!r} broke off on purpose", code="upstream_cut")
    if fault.kind == "stall":
        wait = call.seconds if fault.argument is None else min(fault.argument, call.seconds)
        await asyncio.sleep(wait)
        if wait >= call.seconds:
            raise UpstreamError(f"no piece came for {call.seconds:g} seconds", code="upstream_timeout")
    size = 1 if fault.kind == "drip" else _PIECE_BYTES
    async for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]
