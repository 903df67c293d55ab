"""The only WebSocket: streams a mission's output. A client that sends anything is disconnected."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from chargehand.core.errors import BusyError, ChargehandError, NotFoundError, RefusedError
from chargehand.identity.accounts import Caller
from chargehand.operations.operation import TerminalQuery, encode_document, read_arguments
from chargehand.reports.reading import StateReader
from chargehand.reports.story import TerminalFollower, TerminalRecord
from chargehand.server._places import Places
from chargehand.server._rights import RightsWatch

_LOG = logging.getLogger("chargehand.server")
# How often new output is read: while the mission runs, and while it rests.
_POLL_SECONDS = 0.2
_REST_POLL_SECONDS = 0.5
# As for the feed: proxies and browsers drop connections that are silent for longer.
_BEAT_SECONDS = 15.0
# A client that accepts nothing for this long loses its place; it can continue from its position.
_SEND_SECONDS = 20.0
_CLOSE_SECONDS = 2.0
_MOST_TERMINALS = 100
_MOST_TERMINALS_OF_ACCOUNT = 20
PROTOCOL = "chargehand.terminal"
# Close codes: below 2000 of the WebSocket protocol, from 4000 on ours, derived from the HTTP statuses.
ENDED = 1000
AWAY = 1001
NOT_TAKEN = 1003
REFUSED = 1008
INTERNAL = 1011
TOO_MANY = 1013
NO_SESSION = 4401
UNKNOWN = 4404
TOO_SLOW = 4408


class TerminalSockets:
    """Serves terminals; each reads the output separately, one bounded part at a time, and holds no more."""

    def __init__(
        self,
        reader: StateReader,
        *,
        authorise: Callable[[HTTPConnection, str], Caller],
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        rights: RightsWatch,
        beat: float = _BEAT_SECONDS,
        patience: float = _SEND_SECONDS,
    ) -> None:
        self._reader = reader
        self._authorise = authorise
        self._in_thread = in_thread
        self._rights = rights
        self._beat = beat
        self._patience = patience
        self._places = Places("terminals", per_account=_MOST_TERMINALS_OF_ACCOUNT, total=_MOST_TERMINALS)
        self._open: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()

    async def close(self) -> None:
        """End all terminals with a close code, so that their clients reconnect to the next server."""
        self._closing.set()
        if self._open:
            await asyncio.wait(self._open, timeout=_CLOSE_SECONDS)

    async def serve(self, socket: WebSocket) -> None:
        """Answer one WebSocket: refuse it before it is accepted, or send records until it ends."""
        try:
            caller = await self._in_thread(lambda: self._authorise(socket, "mission.output"))
            call = read_arguments(
                TerminalQuery, path=socket.path_params, query=socket.query_params.multi_items(), body={}
            )
            give_back = self._places.take(caller.user)
        except ChargehandError as error:
            await socket.close(_close_code(error), error.code)
            return
        try:
            with self._rights.watching():
                await self._serve(socket, call)
        finally:
            give_back()

    async def _serve(self, socket: WebSocket, call: TerminalQuery) -> None:
        try:
            follower = await self._in_thread(
                lambda: TerminalFollower(self._reader, call.mission, after=call.after)
            )
        except ChargehandError as error:
            await socket.close(_close_code(error), error.code)
            return
        task = asyncio.current_task()
        assert task is not None
        with follower:
            if self._closing.is_set():
                await socket.close(TOO_MANY, "the server stops")
                return
            # A browser drops a socket that does not accept one of the protocols it named.
            await socket.accept(PROTOCOL if PROTOCOL in socket.scope.get("subprotocols", ()) else None)
            sending = asyncio.create_task(self._send(socket, follower))
            hearing = asyncio.create_task(_wait_for_end(socket))
            stopping = asyncio.create_task(self._closing.wait())
            tasks = {sending, hearing, stopping}
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                code, reason = _ending(sending, hearing)
            finally:
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await socket.close(code, reason)
            except (RuntimeError, TimeoutError, WebSocketDisconnect):
                pass  # the client is already gone, or accepts nothing any more

    async def _send(self, socket: WebSocket, follower: TerminalFollower) -> tuple[int, str]:
        """Send new output until the mission ends; return the close code and its reason."""
        checked = said = time.monotonic()
        rights = self._rights.version
        while True:
            if rights != self._rights.version or time.monotonic() - checked >= self._beat:
                rights = self._rights.version
                try:
                    await self._in_thread(lambda: self._authorise(socket, "mission.output"))
                except ChargehandError as error:
                    return _close_code(error), error.code
                checked = time.monotonic()
            records = await self._in_thread(follower.look)
            if not records and time.monotonic() - said >= self._beat:
                records = [TerminalRecord(kind="alive")]
            for record in records:
                try:
                    async with asyncio.timeout(self._patience):
                        await socket.send_text(encode_document(record).decode())
                except TimeoutError:
                    return TOO_SLOW, "too slow"
                said = time.monotonic()
            if follower.ended:
                return ENDED, "ended"
            if not records:
                await asyncio.sleep(_REST_POLL_SECONDS if follower.at_rest else _POLL_SECONDS)


async def _wait_for_end(socket: WebSocket) -> tuple[int, str]:
    """Return the close code once the client leaves, or sends something: a terminal accepts no input."""
    message = await socket.receive()
    return (AWAY, "") if message["type"] == "websocket.disconnect" else (NOT_TAKEN, "a terminal accepts no input")


def _ending(sending: asyncio.Task[tuple[int, str]], hearing: asyncio.Task[tuple[int, str]]) -> tuple[int, str]:
    for task in (sending, hearing):
        if task.done():
            error = task.exception()
            if error is None:
                return task.result()
            if isinstance(error, ChargehandError):
                _LOG.warning("%s", error)
                return _close_code(error), error.code
            if not isinstance(error, WebSocketDisconnect):
                _LOG.error("a terminal failed", exc_info=error)
                return INTERNAL, "internal"
    return AWAY, "the server stops"


def _close_code(error: ChargehandError) -> int:
    if isinstance(error, NotFoundError):
        return UNKNOWN
    if error.code == "login_needed":
        return NO_SESSION
    if isinstance(error, BusyError):
        return TOO_MANY
    return REFUSED if isinstance(error, RefusedError) else INTERNAL
