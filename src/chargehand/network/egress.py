"""The egress proxy: an HTTP proxy on a unix socket of the host that passes only requests on the allow-list.

It serves CONNECT and plain HTTP, resolves names outside the sandbox, checks each address and connects to exactly
the checked one. Its promises are in `docs/reference/network.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Self

from chargehand.network.allow_list import Address, AllowList, is_local_address
from chargehand.network.contract import EgressLimits, EgressRequest, RequestPacer, Resolve
from chargehand.network.proxy.connection import ByteMeter, ClientConnection
from chargehand.network.proxy.dial import Dialer, SystemResolver
from chargehand.network.proxy.http import ProxiedRequest
from chargehand.network.unix_socket import UnixServer

# Connecting to a unix socket fails at once if more than this many wait.
_BACKLOG = 1_024
# This many times the limit of connections get an answer: file descriptors are shared by the whole worker.
_ANSWERED_FACTOR = 4


class EgressProxy:
    """Serves one sandbox's requests on `socket_path`; `log` is called once for each, in the event loop.

    `resolve` looks names up, by default with the host's resolver; `own` returns whether an address is this
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
        self._dialer = Dialer(allowed, resolve=resolve or self._system, limits=self._limits, own=own)
        self._meter = ByteMeter(bytes_out=self._limits.bytes_out, bytes_in=self._limits.bytes_in)
        self._server = UnixServer(
            socket_path,
            self._serve,
            connections=self._limits.connections,
            most=_ANSWERED_FACTOR * self._limits.connections,
            read_limit=self._limits.head_bytes,
            backlog=_BACKLOG,
        )

    async def start(self) -> None:
        """Listen; raises `InfrastructureError` (`network_socket`) if the socket cannot be created."""
        # Not in the constructor: the pacer needs the clock of the event loop that serves.
        self._pacer = RequestPacer(self._limits.requests_per_second, asyncio.get_running_loop().time)
        await self._server.start(error_code="network_socket")

    async def close(self) -> None:
        """Stop listening, cut every tunnel, and return once each request is logged. Idempotent."""
        await self._server.close()
        self._system.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, full: bool) -> None:
        client = ClientConnection(reader=reader, writer=writer, limits=self._limits, meter=self._meter)
        now = asyncio.get_running_loop().time
        began = now()
        try:
            await ProxiedRequest(client=client, dialer=self._dialer, pacer=self._pacer, full=full).run()
        finally:
            # A client that connects and leaves silently made no request, so there is nothing to log.
            if client.trace.began:
                self._log(client.trace.record(now() - began))
