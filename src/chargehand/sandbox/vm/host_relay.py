"""The host's side of a virtual machine's relay: each channel becomes a connection to one of the host's sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path

from chargehand.sandbox.inside.vm_relay import COUNT, DATA, END, FRAME, GRANT, OPEN, PIECE, PORT, RESET, WINDOW

# More than our relay opens: a channel that is already gone there may still be ending here.
_MOST_CHANNELS = 1024


class _HostConnection:
    """One connection: the data received for it, and the number of bytes that the machine still accepts."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.unread = 0
        self.credit = WINDOW
        self.granted = asyncio.Event()
        self.granted.set()
        self.task: asyncio.Task[None] | None = None

    def take(self, kind: bytes, body: bytes) -> None:
        """Handle one frame from the machine; raises `_ProtocolViolation`."""
        if kind == DATA:
            self.unread += len(body)
            if self.unread > WINDOW:
                raise _ProtocolViolation
            self.incoming.put_nowait(body)
        elif kind == GRANT and len(body) == COUNT.size:
            self.credit += COUNT.unpack(body)[0]
            if self.credit > WINDOW:
                raise _ProtocolViolation
            self.granted.set()
        elif kind == END:
            self.incoming.put_nowait(None)
        elif kind == RESET and self.task is not None:
            self.task.cancel()
        else:
            raise _ProtocolViolation


class HostRelay:
    """Joins a machine's relay to the host's sockets by port, from `start` until `close`.

    A machine that breaks the protocol, or sends more than it was granted, loses the host's sockets.
    """

    def __init__(self, sock: socket.socket, sockets: Mapping[int, Path]) -> None:
        self._sock = sock
        self._sockets = sockets
        self._channels: dict[int, _HostConnection] = {}
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept channels from now on."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._sock)
        self._serving = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """End every connection. Idempotent."""
        if self._serving is None:
            self._sock.close()
            return
        tasks = [self._serving, *(each.task for each in self._channels.values() if each.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _serve(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, _ProtocolViolation):
            while True:
                kind, number, size = FRAME.unpack(await self._reader.readexactly(FRAME.size))
                body = await self._reader.readexactly(size)
                if kind == OPEN:
                    if number in self._channels or len(self._channels) >= _MOST_CHANNELS or len(body) != PORT.size:
                        raise _ProtocolViolation
                    path = self._sockets.get(PORT.unpack(body)[0])
                    if path is None:
                        raise _ProtocolViolation
                    channel = self._channels[number] = _HostConnection()
                    channel.task = asyncio.create_task(self._join(number, channel, path))
                elif number in self._channels:
                    self._channels[number].take(kind, body)
        for channel in self._channels.values():
            channel.incoming.put_nowait(None)
            if channel.task is not None:
                channel.task.cancel()
        self._writer.transport.abort()

    async def _join(self, number: int, channel: _HostConnection, path: Path) -> None:
        """Join a channel and a socket until the socket's end; see `inside/forward.py`."""

        async def copy_to_host(writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while (data := await channel.incoming.get()) is not None:
                    writer.write(data)
                    await writer.drain()
                    channel.unread -= len(data)
                    await self._send(GRANT, number, COUNT.pack(len(data)))
                writer.write_eof()

        async def copy_to_machine(reader: asyncio.StreamReader) -> None:
            await channel.granted.wait()
            while data := await reader.read(min(PIECE, channel.credit)):
                channel.credit -= len(data)
                if channel.credit == 0:
                    channel.granted.clear()
                await self._send(DATA, number, data)
                await channel.granted.wait()

        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(path)
            up = asyncio.create_task(copy_to_host(writer))
            try:
                await copy_to_machine(reader)
            finally:
                up.cancel()
                await asyncio.wait([up])
            await self._send(END, number)
        except OSError:
            await self._send(RESET, number)
        finally:
            self._channels.pop(number, None)
            if writer is not None:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _send(self, kind: bytes, number: int, body: bytes = b"") -> None:
        with contextlib.suppress(OSError):
            self._writer.write(FRAME.pack(kind, number, len(body)) + body)
            await self._writer.drain()


class _ProtocolViolation(Exception):
    """The machine violated the protocol."""
