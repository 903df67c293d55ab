"""The egress proxy: an HTTP proxy on a unix socket of the host that passes only what the allow-list names.

It answers CONNECT and plain HTTP, resolves names outside the sandbox, judges each address and connects to the very
one that it judged. Its promises are in `docs/reference/network.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from chargehand.network._unix_socket import bound_socket, cannot_listen
from chargehand.network.allow_list import Address, AllowList, is_local_address
from chargehand.network.contract import EgressLimits, EgressRequest, RequestPacer, Resolve
from chargehand.network.proxy.connection import ByteMeter, ClientConnection
from chargehand.network.proxy.dial import Dialer, SystemResolver
from chargehand.network.proxy.http import ProxiedRequest

_BACKLOG = 1_024
"""Connecting to a unix socket fails at once where more than that wait."""
_MOST = 4
"""Connections beyond the limit get an answer, up to so many times as many: files are the whole worker's."""


class EgressProxy:
    """Serves one sandbox's requests on `socket_path`; `log` is called once for each, in the event loop.

    `resolve` looks names up, the host's own resolver where it is not given; `own` tells which addresses are this
    machine's. An async context manager.
    """

    def __init__(
        self,
        socket_path: Path,
        allowed: AllowList,
        *,
        log: Callable[[EgressRequest], None],
        limits: EgressLimits | None = None,
        resolve: Resolve | None = None,
        own: Callable[[Address], bool] = is_local_address,
    ) -> None:
        self.socket_path = socket_path
        self._log = log
        self._limits = limits or EgressLimits()
        self._system = SystemResolver()
        self._dialler = Dialer(allowed, resolve=resolve or self._system, limits=self._limits, own=own)
        self._meter = ByteMeter(bytes_out=self._limits.bytes_out, bytes_in=self._limits.bytes_in)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; raises `InfrastructureError` (`network_socket`) where the socket cannot be made."""
        try:
            listener = bound_socket(self.socket_path)
        except OSError as error:
            raise cannot_listen(self.socket_path, error, code="network_socket") from error
        self._pace = RequestPacer(self._limits.requests_per_second, asyncio.get_running_loop().time)
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listener, limit=self._limits.head_bytes, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Stop listening, cut every tunnel, and return once each request is logged. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self.socket_path.unlink(missing_ok=True)
        self._system.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        most = _MOST * self._limits.connections
        if task is None or self._server is None or len(self._connections) >= most:
            # More than can be answered, or accepted while the proxy was being closed: nobody would cut it later.
            writer.transport.abort()
            return
        self._connections.add(task)
        line = ClientConnection(reader=reader, writer=writer, limits=self._limits, meter=self._meter)
        full = len(self._connections) > self._limits.connections
        began = asyncio.get_running_loop().time()
        try:
            await ProxiedRequest(line=line, dialler=self._dialler, pace=self._pace, full=full).run()
        except asyncio.CancelledError:
            # Only `close` cancels, and the streams of Python 3.11 report a cancelled connection as an error.
            pass
        finally:
            self._connections.discard(task)
            if line.trace.asked:
                self._log(line.trace.record(asyncio.get_running_loop().time() - began))
