"""One request of a program in the sandbox, from its head to its record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from chargehand.sandbox._egress_contract import EgressRefusal, Pace
from chargehand.sandbox._egress_dial import Dialler, Far
from chargehand.sandbox._egress_head import Head, read_head
from chargehand.sandbox._egress_line import Line
from chargehand.sandbox._egress_plain import forward
from chargehand.sandbox._egress_tunnel import tunnel


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Answers the one request of a connection; `full` says that too many are open already."""

    line: Line
    dialler: Dialler
    pace: Pace
    full: bool = False

    async def run(self) -> None:
        """Answer and close; what goes wrong is in the line's trace. Raises only for cancellation."""
        line = self.line
        try:
            await self._answer()
        except asyncio.CancelledError:
            line.cut("the sandbox's network was closed")
            raise
        except EgressRefusal as refusal:
            if line.trace.status:
                line.cut(refusal.message)
            else:
                await line.refuse(refusal)
        except TimeoutError:
            line.cut(f"nothing was sent for {line.limits.idle_seconds:g} s")
        except OSError as error:
            line.cut(error.strerror or "the connection broke")
        finally:
            await line.close()

    async def _answer(self) -> None:
        head = await self._head()
        if head is None:
            return
        far = await self._admitted(head)
        try:
            async with self.line.watched():
                await (tunnel(self.line, head, far) if head.tunnel else forward(self.line, head, far))
        finally:
            far.writer.transport.abort()

    async def _head(self) -> Head | None:
        """Return the request, `None` where the client went away without one."""
        line = self.line
        try:
            async with asyncio.timeout(line.limits.head_seconds):
                data = await line.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise self._asked(EgressRefusal(400, "the request is not whole")) from None
        except asyncio.LimitOverrunError:
            message = f"the head is longer than {line.limits.head_bytes} bytes"
            raise self._asked(EgressRefusal(431, message)) from None
        except TimeoutError:
            raise self._asked(EgressRefusal(408, "the request did not come in time")) from None
        line.trace.asked = True
        head = read_head(data)
        line.trace.method, line.trace.host, line.trace.port = head.method, head.host, head.port
        return head

    def _asked(self, refusal: EgressRefusal) -> EgressRefusal:
        self.line.trace.asked = True
        return refusal

    async def _admitted(self, head: Head) -> Far:
        """Return the connection to the host; raises `EgressRefusal`."""
        line, dialler = self.line, self.dialler
        if self.full:
            raise EgressRefusal(503, f"more than {line.limits.connections} connections at once")
        line.meter.spend()
        await self.pace.turn(patience=line.limits.head_seconds)
        rule = dialler.rule(head.host, head.port)
        line.trace.entry = str(rule)
        way = await dialler.way(rule, head.host, head.port)
        line.trace.allowed = True
        far = await dialler.open(way, head.host)
        line.trace.address = str(far.address)
        return far
