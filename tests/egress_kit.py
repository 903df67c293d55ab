"""Shared by the tests of the proxy: local servers, a scripted resolver, and a proxy to talk to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from chargehand.network.allow_list import Address, AllowList, is_local_address
from chargehand.network.contract import EgressLimits, EgressRequest
from chargehand.network.egress import EgressProxy


class Names:
    """A scripted resolver: each name has a list of answers for each time that it is resolved."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        self.asked.append(host)
        given = self._answers.get(host)
        if not given:
            raise OSError(f"no such name: {host}")
        answer = given.pop(0) if len(given) > 1 else given[0]
        return [ipaddress.ip_address(text) for text in answer]


class Proxy:
    """A running proxy and its log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: list[EgressRequest] = []
        self.running: EgressProxy | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self.path))

    async def say(self, data: bytes, *, end: bool = False) -> bytes:
        """Send data on a new connection and return everything received."""
        reader, writer = await self.connect()
        writer.write(data)
        if end:
            writer.write_eof()
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def logged(self, count: int = 1) -> Sequence[EgressRequest]:
        """Wait for that many log records."""
        async with asyncio.timeout(60):
            while len(self.log) < count:
                await asyncio.sleep(0.005)
        return self.log


@contextlib.asynccontextmanager
async def proxy(
    place: Path, *rules: str, names: Names | None = None, limits: EgressLimits | None = None, own: bool = True
) -> AsyncIterator[Proxy]:
    """Run a proxy with these rules."""
    made = Proxy(place / "egress.sock")
    running = EgressProxy(
        made.path,
        AllowList.parse(rules),
        log=made.log.append,
        limits=limits,
        resolve=names or Names(),
        own=is_local_address if own else lambda _: False,
    )
    async with running:
        made.running = running
        yield made


class Upstream:
    """A server on loopback that records what it receives and sends a fixed answer."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.got: list[bytes] = []
        self.port = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(65_536)
        self.got.append(data)
        writer.write(self.answer)
        with contextlib.suppress(OSError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


@contextlib.asynccontextmanager
async def upstream(answer: bytes = OK) -> AsyncIterator[Upstream]:
    """Run an `Upstream`."""
    made = Upstream(answer)
    server = await asyncio.start_server(made.connected, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


def get(host: str, path: str = "/", *more: str) -> bytes:
    """Return a plain GET as a client of a proxy sends it."""
    lines = [f"GET http://{host}{path} HTTP/1.1", f"Host: {host}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
