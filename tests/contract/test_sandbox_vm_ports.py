"""A virtual machine reaches the host's sockets at ports of its loopback, and nothing else of the host."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from _places import toolchain, workspace
from msgspec.structs import replace
from tests import vm_kit

from chargehand.sandbox.contract import EGRESS_PORT, GATEWAY_PORT
from chargehand.sandbox.vm_tier import VmTier

pytestmark = [pytest.mark.needs_vm, pytest.mark.soak]
CLIENT = """
import hashlib, socket, sys, threading
def talk(size, answers):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
        def send():
            line.sendall(bytes(range(256)) * (size // 256))
            line.shutdown(socket.SHUT_WR)
        sender = threading.Thread(target=send)
        sender.start()
        data = b""
        while piece := line.recv(65536):
            data += piece
        sender.join()
        answers.append((len(data), hashlib.sha256(data).hexdigest()))
answers = []
threads = [threading.Thread(target=talk, args=(size, answers)) for size in (0, 256, 1 << 20, 1 << 20)]
for each in threads: each.start()
for each in threads: each.join()
print(sorted(answers))
idle = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
try:
    print(socket.create_connection(("127.0.0.1", int(sys.argv[2]))))
except OSError as error:
    print(type(error).__name__)
"""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_the_gateways_socket_is_a_port_inside(tmp_path: Path) -> None:
    """Both ways carry more at once than either side may have in flight; a port that was not given is closed."""
    server = await asyncio.start_unix_server(echo, tmp_path / "s")
    async with server, VmTier(toolchain(), vm_kit.machine()) as tier:
        with workspace(tmp_path / "place") as spec:
            sandbox = await tier.open(replace(spec, gateway=tmp_path / "s"))
            words = ["python3", "-I", "-c", CLIENT, str(GATEWAY_PORT), str(EGRESS_PORT)]
            done = await sandbox.exec(words, timeout=120)
            await sandbox.close()
    sizes = [0, 256, 1 << 20, 1 << 20]
    hashes = [hashlib.sha256(bytes(range(256)) * (size // 256)).hexdigest() for size in sizes]
    assert done.stderr == b""
    expected = sorted(zip(sizes, hashes, strict=True))
    assert done.stdout.decode().splitlines() == [str(expected), "ConnectionRefusedError"]


async def test_a_missing_socket_ends_the_connection(tmp_path: Path) -> None:
    async with VmTier(toolchain(), vm_kit.machine()) as tier:
        with workspace(tmp_path / "place") as spec:
            sandbox = await tier.open(replace(spec, egress=tmp_path / "none"))
            program = (
                f"import socket; s = socket.create_connection(('127.0.0.1', {EGRESS_PORT}))\n"
                "try: print(s.recv(10))\n"
                "except ConnectionResetError: print(b'')"
            )
            done = await sandbox.exec(["python3", "-I", "-c", program], timeout=120)
            await sandbox.close()
    assert (done.stdout, done.stderr) == (b"b''\n", b"")
