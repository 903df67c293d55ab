"""Servers on unix sockets: an accepted connection ends with its server, however early."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from pathlib import Path

import pytest

from chargehand.network.unix_socket import UnixServer


@pytest.mark.parametrize("turns", range(3, 8))
def test_a_connection_does_not_outlive_its_event_loop(turns: int, tmp_path: Path) -> None:
    """The loop ends some turns after a client connected, before or after the first step of its task."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, full: bool) -> None:
        await reader.read()

    async def connect() -> None:
        server = UnixServer(tmp_path / "s", serve, connections=1, most=1, read_limit=1_000)
        await server.start(error_code="unlistenable")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))
            for _ in range(turns):
                await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(connect())
        gc.collect()
    assert not [each.message for each in caught if "unclosed transport" in str(each.message)]
