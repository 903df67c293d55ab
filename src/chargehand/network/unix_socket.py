"""Servers on unix sockets of the host: binding at any path, limits on connections, closing without loss."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from chargehand.core.errors import InfrastructureError

_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20
_READ_BYTES = 65_536


class ServeConnection(Protocol):
    """Serves one connection; `full` means that the limit of connections is passed, so it may only refuse."""

    def __call__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, full: bool
    ) -> Coroutine[Any, Any, None]:
        """Serve one connection to its end."""
        ...


class UnixServer:
    """Serves each connection to the socket at `path` in a separate task, at most `connections` of them fully.

    Those beyond `connections` are served with `full`, those beyond `most` are dropped silently: answering each
    connection of a flood would use up this process's files and memory. `on_drop` is called for each dropped one.
    `read_limit` is that of the stream reader in bytes.
    """

    def __init__(
        self,
        path: Path,
        serve: ServeConnection,
        *,
        connections: int,
        most: int,
        read_limit: int,
        backlog: int = 100,
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._serve = serve
        self._connections = connections
        self._most = most
        self._read_limit = read_limit
        self._backlog = backlog
        self._on_drop = on_drop
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, *, error_code: str) -> None:
        """Listen; raises `InfrastructureError` with `error_code` if the socket cannot be created."""
        try:
            listener = bind_listener(self._path)
        except OSError as error:
            raise InfrastructureError(
                f"cannot listen on {str(self._path)!r}: {error.strerror or error}",
                code=error_code,
                hint="its directory must exist and be writable, and the name must be free",
            ) from error
        self._server = await asyncio.start_unix_server(
            self._accept, sock=listener, limit=self._read_limit, backlog=self._backlog
        )

    async def close(self) -> None:
        """Stop listening, cancel every connection, remove the socket; return once all have ended. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            # Accepted while `close` ran, which has already read its list of tasks and would not end this one.
            writer.transport.abort()
        elif len(self._tasks) >= self._most:
            writer.transport.abort()
            self._on_drop()
        else:
            full = len(self._tasks) >= self._connections
            task = start_serving(self._serve(reader, writer, full=full), writer)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def bind_listener(path: Path) -> socket.socket:
    """Return a listening socket at `path` of any length; a stale socket is replaced.

    Any user may connect: the sandbox runs under another uid, and the directory keeps others out.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if path.is_socket():
                path.unlink()
            # The kernel accepts 107 bytes; a path by descriptor is short, wherever the state directory is.
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        path.chmod(0o666)
        # asyncio accepts only non-blocking sockets.
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def start_serving(serving: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> asyncio.Task[None]:
    """Serve an accepted connection in a task, with which the connection ends.

    A coroutine that is given to `asyncio.start_server` as it is may be cancelled before its first step, and would
    then leave its connection open.
    """

    def end(_: asyncio.Task[None]) -> None:
        if not writer.transport.is_closing():  # one that is may still send what was written
            writer.transport.abort()

    task = asyncio.create_task(serving)
    task.add_done_callback(end)
    return task


async def end_writing(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, most: int = _LINGER_BYTES
) -> None:
    """End the reply and discard further data from the client, up to `most` bytes and one second.

    Closing a socket with unread bytes resets it, and after a reset a client may lose a reply that it has not read
    yet.
    """
    left = most
    with contextlib.suppress(OSError):  # TimeoutError is one
        async with asyncio.timeout(_LINGER_SECONDS):
            await writer.drain()
            writer.write_eof()
            while left > 0 and (data := await reader.read(_READ_BYTES)):
                left -= len(data)


async def close_writer(writer: asyncio.StreamWriter, *, seconds: float) -> None:
    """Close a connection once written data is sent, or abort it after `seconds`."""
    writer.close()
    try:
        async with asyncio.timeout(seconds):
            await writer.wait_closed()
    except OSError:  # TimeoutError is one
        writer.transport.abort()
