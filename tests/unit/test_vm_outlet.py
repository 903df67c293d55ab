"""The host's side of a virtual machine's relay, against machines that violate its protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chargehand.sandbox.inside.vm_relay import COUNT, DATA, END, FRAME, GRANT, OPEN, PORT, RESET, WINDOW
from chargehand.sandbox.vm.host_relay import HostRelay

SERVED = 8080
OPENED = FRAME.pack(OPEN, 1, PORT.size) + PORT.pack(SERVED)


def frame(kind: bytes, channel: int, body: bytes = b"") -> bytes:
    return FRAME.pack(kind, channel, len(body)) + body


class Machine:
    """The far end, which may send anything; `connected` counts connections that reached the host's socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.connected = 0
        self.release = asyncio.Event()

    async def host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Echo the data, once the test permits."""
        self.connected += 1
        await self.release.wait()
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    async def read(self) -> tuple[bytes, int, bytes]:
        kind, channel, size = FRAME.unpack(await self.reader.readexactly(FRAME.size))
        return kind, channel, await self.reader.readexactly(size)


@asynccontextmanager
async def machine(place: Path) -> AsyncIterator[Machine]:
    ours, theirs = socket.socketpair()
    outlet = HostRelay(ours, {SERVED: place / "host.sock"})
    far = Machine(*await asyncio.open_connection(sock=theirs))
    async with await asyncio.start_unix_server(far.host, str(place / "host.sock")):
        await outlet.start()
        try:
            yield far
        finally:
            far.release.set()
            await outlet.close()
            far.writer.close()


async def test_a_channel_is_a_connection(tmp_path: Path) -> None:
    async with machine(tmp_path) as far:
        far.release.set()
        far.writer.write(OPENED + frame(DATA, 1, b"to the host"))
        assert await far.read() == (GRANT, 1, COUNT.pack(len(b"to the host")))
        far.writer.write(frame(END, 1))
        assert await far.read() == (DATA, 1, b"to the host")
        assert await far.read() == (END, 1, b"")
        assert far.connected == 1


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(frame(OPEN, 1, PORT.pack(22)), id="a port that is not served"),
        pytest.param(frame(OPEN, 1, b"\x1f"), id="no port"),
        pytest.param(OPENED + OPENED, id="the same channel again"),
        pytest.param(OPENED + frame(GRANT, 1, COUNT.pack(1)), id="more granted than there is"),
        pytest.param(OPENED + frame(GRANT, 1, b"1"), id="a grant that is none"),
        pytest.param(OPENED + frame(b"?", 1), id="an unknown kind"),
        pytest.param(OPENED + frame(DATA, 1, b"x" * 65535) * (WINDOW // 65535 + 1), id="more than was granted"),
        pytest.param(b"".join(frame(OPEN, n, PORT.pack(SERVED)) for n in range(2000)), id="too many channels"),
        pytest.param(FRAME.pack(DATA, 1, 100) + b"cut", id="a frame that is cut off"),
    ],
)
async def test_a_machine_that_breaks_the_protocol_is_left_alone(tmp_path: Path, said: bytes) -> None:
    async with machine(tmp_path) as far:
        far.writer.write(said)
        far.writer.write_eof()
        async with asyncio.timeout(60):
            while await far.reader.read(65536):
                pass


async def test_frames_of_unknown_channels_are_ignored(tmp_path: Path) -> None:
    async with machine(tmp_path) as far:
        far.release.set()
        far.writer.write(frame(DATA, 7, b"lost") + frame(RESET, 8) + frame(END, 9))
        far.writer.write(OPENED + frame(DATA, 1, b"here"))
        assert await far.read() == (GRANT, 1, COUNT.pack(4))
