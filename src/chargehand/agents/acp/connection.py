"""The connection with an ACP agent over the relay in its sandbox: requests both ways, and orders to the relay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from chargehand.agents._json_rpc import JsonLines, RpcChannel, RpcError, object_at

# Requests of the agent that are answered concurrently.
_MOST_AT_ONCE = 64
# The first byte of a line to or from the relay; see `acp/relay.py`.
_AGENT, _ORDER, _ANSWER, _NOT_STARTED = b"A", b"O", b"R", b"N"

Handle = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, Any]]


class AcpConnection:
    """One connection. `handle` answers the agent's requests, `on_notification` gets its notifications.

    An `RpcError` of `handle` goes to the agent; any other error ends the run and is raised by `failed`. Lines of
    the agent that are not messages are counted and ignored. `started` turns false if the relay could not run the
    agent's program.
    """

    def __init__(self, handle: Handle, on_notification: Callable[[str, Mapping[str, Any]], None]) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.messages = JsonLines()
        self.started = True
        self.channel = RpcChannel()
        self._handle = handle
        self._on_notification = on_notification
        # Separate from the agent's messages, whose malformed lines are counted as the agent's own.
        self._answers = JsonLines()
        self._open = bytearray()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send the agent a request and return its result; raises `RpcError`."""
        return await self.channel.request(method, params, _AGENT)

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send the agent a notification."""
        self.channel.notify(method, params, _AGENT)

    async def order(self, do: str, **more: Any) -> dict[str, Any]:
        """Send the relay an order and return its answer; raises `RpcError` if it fails."""
        return await self.channel.order({"do": do, **more}, _ORDER)

    def take(self, piece: bytes) -> None:
        """Take bytes of the relay's standard output."""
        *complete, rest = piece.split(b"\n")
        for part in complete:
            line, self._open = bytes(self._open) + part, bytearray()
            if line[:1] == _AGENT:
                for message in self.messages.take(line[1:] + b"\n"):
                    self._take_message(message)
            elif line[:1] == _ANSWER:
                for answer in self._answers.take(line[1:] + b"\n"):
                    self.channel.settle(answer, _ORDER)
            elif line[:1] == _NOT_STARTED:
                self.started = False
        self._open += rest

    async def cancel_handlers(self) -> None:
        """Cancel every request of the agent that is still being answered."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.failed.done():
            self.failed.exception()  # otherwise asyncio warns of an unretrieved exception

    def _take_message(self, message: Mapping[str, Any]) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            self.channel.settle(message, _AGENT)
            return
        params = object_at(message, "params")
        if "id" not in message:
            self._on_notification(method, params)
        # Refused instead of queued: a hostile agent would fill the queue, an honest one never gets here.
        elif len(self._tasks) >= _MOST_AT_ONCE:
            refusal = RpcError(f"more than {_MOST_AT_ONCE} requests at once")
            self.channel.answer(message["id"], refusal, _AGENT)
        else:
            task = asyncio.get_running_loop().create_task(self._respond(message["id"], method, params))
            self._tasks.add(task)
            task.add_done_callback(self._handler_ended)

    async def _respond(self, number: Any, method: str, params: Mapping[str, Any]) -> None:
        try:
            self.channel.answer(number, await self._handle(method, params), _AGENT)
        except RpcError as error:
            self.channel.answer(number, error, _AGENT)

    def _handler_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)
