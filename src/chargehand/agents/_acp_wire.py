"""JSON-RPC with an ACP agent over the relay inside its sandbox: requests both ways, and orders to the relay."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from chargehand.agents._lines import JsonLines
from chargehand.agents._look import inner, text_at

METHOD_NOT_FOUND, INVALID_PARAMS, REFUSED = -32601, -32602, -32000
_MOST_AT_ONCE = 64
_LONGEST_ERROR = 500


class AcpError(Exception):
    """An answer that is an error: the agent's to us, or ours to the agent. `number` is that of JSON-RPC."""

    def __init__(self, message: str, *, number: int = REFUSED) -> None:
        super().__init__(message)
        self.message = message
        self.number = number


Handle = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, Any]]


class Wire:
    """One connection. `handle` answers the agent's requests, `told` gets its notifications.

    An `AcpError` of `handle` goes to the agent; anything else that it raises ends the run and comes out of
    `failed`. What the agent sends is malformed or not: lines that are no message are counted and passed over.
    """

    def __init__(self, handle: Handle, told: Callable[[str, Mapping[str, Any]], None]) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handle = handle
        self._told = told
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._ids = itertools.count(1)
        self._waiting: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = bytearray()
        self._lines = JsonLines()
        self._answers = JsonLines()

    @property
    def malformed(self) -> int:
        """How many lines of the agent were no JSON object."""
        return self._lines.malformed

    @property
    def odd(self) -> str:
        """The latest of them, shortened."""
        return self._lines.odd

    async def outgoing(self) -> AsyncIterator[bytes]:
        """Yield what goes to the relay, until `close`."""
        while (line := await self._out.get()) is not None:
            yield line

    def close(self) -> None:
        """End what goes to the relay."""
        self._out.put_nowait(None)

    async def abandon(self) -> None:
        """End every request that is still being answered."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.failed.done():
            self.failed.exception()

    def take(self, piece: bytes) -> None:
        """Take bytes of the relay's standard output."""
        *whole, rest = piece.split(b"\n")
        for part in whole:
            line, self._open = bytes(self._open) + part, bytearray()
            if line[:1] == b"A":
                for message in self._lines.take(line[1:] + b"\n"):
                    self._message(message)
            elif line[:1] == b"R":
                for answer in self._answers.take(line[1:] + b"\n"):
                    self._settle("order", answer)
        self._open += rest

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the agent; raises `AcpError`."""
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        answer = await self._answered("agent", number, b"A", message)
        return answer if isinstance(answer, dict) else {}

    async def order(self, do: str, **more: Any) -> dict[str, Any]:
        """Let the relay do something; raises `AcpError` where it cannot."""
        number = next(self._ids)
        answer = await self._answered("order", number, b"O", {"id": number, "do": do, **more})
        return answer if isinstance(answer, dict) else {}

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Tell the agent something."""
        self._send(b"A", {"jsonrpc": "2.0", "method": method, "params": params})

    def _answered(self, side: str, number: int, kind: bytes, message: Mapping[str, Any]) -> Awaitable[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[side, number] = future
        self._send(kind, message)
        return future

    def _send(self, kind: bytes, message: Mapping[str, Any]) -> None:
        self._out.put_nowait(kind + msgspec.json.encode(message) + b"\n")

    def _message(self, message: Mapping[str, Any]) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            self._settle("agent", message)
            return
        params = inner(message, "params")
        if "id" not in message:
            self._told(method, params)
        elif len(self._tasks) >= _MOST_AT_ONCE:
            self._answer(message["id"], error=AcpError(f"more than {_MOST_AT_ONCE} requests at once"))
        else:
            task = asyncio.get_running_loop().create_task(self._respond(message["id"], method, params))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _respond(self, number: Any, method: str, params: Mapping[str, Any]) -> None:
        try:
            self._answer(number, result=await self._handle(method, params))
        except AcpError as error:
            self._answer(number, error=error)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)

    def _answer(self, number: Any, *, result: Any = None, error: AcpError | None = None) -> None:
        said = {"result": result} if error is None else {"error": {"code": error.number, "message": error.message}}
        self._send(b"A", {"jsonrpc": "2.0", "id": number, **said})

    def _settle(self, side: str, answer: Mapping[str, Any]) -> None:
        number = answer.get("id")
        future = self._waiting.pop((side, number), None) if isinstance(number, int) else None
        if future is None or future.done():
            return
        error = answer.get("error")
        if error is None:
            future.set_result(answer.get("result"))
            return
        detail = inner(answer, "error")
        message = error if isinstance(error, str) else text_at(detail, "message") or "an error without a message"
        more = text_at(inner(detail, "data"), "details", "message")
        code = detail.get("code")
        shown = f"{message}: {more}" if more else message
        future.set_exception(AcpError(shown[:_LONGEST_ERROR], number=code if isinstance(code, int) else REFUSED))
