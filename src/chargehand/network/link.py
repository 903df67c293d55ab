"""Joins connections from one sandbox with connections from another if neither can reach the other."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Self

from chargehand.network.proxy.connection import copy_stream
from chargehand.network.unix_socket import UnixServer

_CONNECTIONS = 128
_READ_BYTES = 65_536
_WAIT_SECONDS = 30.0
_RELAY = b"relay\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SandboxLink:
    """Two unix sockets: each connection to `near` is joined with a connection that a relay opens to `far`.

    The relay's first connection to `far` says `relay`. On it the name of each new connection to `near` is sent as
    a line, and the relay opens another connection to `far` that begins with that line. Bytes are forwarded as they
    come, at the reader's pace; this process does not interpret them, so neither side can deceive it. The first
    client on `far` is taken for the relay: start it before anything that is not trusted.
    """

    def __init__(self, directory: Path) -> None:
        self.near = directory / "near.sock"
        self.far = directory / "far.sock"
        self._servers = [
            UnixServer(path, serve, connections=_CONNECTIONS, most=2 * _CONNECTIONS, read_limit=_READ_BYTES)
            for path, serve in ((self.near, self._serve_near), (self.far, self._serve_far))
        ]
        self._relay: asyncio.Future[asyncio.StreamWriter] | None = None
        self._waiting: dict[bytes, asyncio.Future[Streams]] = {}
        self._names = itertools.count(1)

    async def __aenter__(self) -> Self:
        self._relay = asyncio.get_running_loop().create_future()
        for server in self._servers:
            await server.start(error_code="link_failed")
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            await server.close()

    async def until_relayed(self) -> None:
        """Wait for the relay; raises `TimeoutError`."""
        assert self._relay is not None
        async with asyncio.timeout(_WAIT_SECONDS):
            await asyncio.shield(self._relay)

    async def _serve_near(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, full: bool) -> None:
        assert self._relay is not None
        name = b"%d\n" % next(self._names)
        far: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
        try:
            if full or not self._relay.done() or self._relay.result().is_closing():
                return
            self._waiting[name] = far
            self._relay.result().write(name)
            with contextlib.suppress(OSError):  # TimeoutError is one
                async with asyncio.timeout(_WAIT_SECONDS):
                    await far
                far_reader, far_writer = far.result()
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(copy_stream(reader, far_writer))
                        group.create_task(copy_stream(far_reader, writer))
                except* OSError:
                    pass  # one side was cut: so is the other
                finally:
                    far_writer.close()
        finally:
            self._waiting.pop(name, None)
            writer.close()

    async def _serve_far(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, full: bool) -> None:
        assert self._relay is not None
        try:
            with contextlib.suppress(OSError, ValueError):
                async with asyncio.timeout(_WAIT_SECONDS):
                    name = await reader.readline()
                if name == _RELAY and not self._relay.done():
                    self._relay.set_result(writer)
                    await reader.read(1)
                # A connection that has just given up waiting is done, but still in the table.
                elif (near := self._waiting.pop(name, None)) and not near.done():
                    near.set_result((reader, writer))
                    await writer.wait_closed()
        finally:
            writer.close()
