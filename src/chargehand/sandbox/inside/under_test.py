"""Lets an outside check use the tree under test, which runs in another sandbox.

`under-test [--cwd DIR] [--env NAME=VALUE]... [--listen PORT] [CMD ARG...]` runs a program in the sandbox of the
tree, with this program's standard streams, and ends with its exit code. With `--listen`, connections to
127.0.0.1:PORT here are forwarded to the same port there, as long as the program runs, or without a program until
this one is killed.

Standard library only, and no import of the package: the sandbox may contain only this file. The other half of it
(`--relay`) runs in the sandbox of the tree. Each program and each connection has a separate TCP connection between
the two: a line of JSON, then for a program frames of five bytes and their data (type and length, big endian), for
a connection its raw data.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from typing import Any

_PORT = 8871
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_FRAME = struct.Struct(">BI")
_INPUT, _STDOUT, _STDERR, _EXIT = range(4)
_CHUNK = 65_536  # bytes of one read
_LONGEST_REQUEST = 1 << 20  # bytes
# A service that was just started takes a moment until it listens.
_CONNECT_SECONDS = 10.0
_LAST_OUTPUT_SECONDS = 1.0
_EXIT_POLL_SECONDS = 0.02
# The tree's programs must not see the libraries of the host's interpreter.
_OWN_LIBRARIES = "/run/chargehand/python/"
_NO_TREE = "under-test: the sandbox of the tree under test is gone\n"


# --- in the check's sandbox


def _send_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, _CHUNK):
            connection.sendall(_FRAME.pack(_INPUT, len(data)) + data)
        connection.sendall(_FRAME.pack(_INPUT, 0))


def _run(request: dict[str, Any]) -> int:
    """Run a program in the tree's sandbox; return its exit code, 125 if the tree is gone."""
    try:
        connection = socket.create_connection(("127.0.0.1", _PORT))
        connection.sendall(json.dumps(request).encode() + b"\n")
        answers = connection.makefile("rb")
        threading.Thread(target=_send_input, args=(connection,), daemon=True).start()
        while len(head := answers.read(_FRAME.size)) == _FRAME.size:
            kind, size = _FRAME.unpack(head)
            data = answers.read(size)
            if kind == _EXIT:
                return data[0] if data else 1
            sys.stdout.flush()
            os.write(1 if kind == _STDOUT else 2, data) if data else None
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except OSError:
        pass
    sys.stderr.write(_NO_TREE)
    return 125


async def _listen(port: int, request: dict[str, Any] | None) -> int:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", _PORT)
            far_writer.write(json.dumps({"port": port}).encode() + b"\n")
            await _join((reader, writer), (far_reader, far_writer))
        except OSError:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", port):
        if request is not None:
            return await asyncio.to_thread(_run, request)
        await asyncio.Event().wait()
    return 0


# --- in the tree's sandbox


async def _relay() -> int:
    """Serve requests of the other half until it is gone."""
    reader, writer = await asyncio.open_connection("127.0.0.1", _PORT)
    writer.write(b"relay\n")
    tasks = set()
    while name := await reader.readline():
        task = asyncio.create_task(_serve(name))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return 0


async def _serve(name: bytes) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        reader, writer = await asyncio.open_connection("127.0.0.1", _PORT, limit=_LONGEST_REQUEST)
        try:
            writer.write(name)
            request = json.loads(await reader.readline())
            if "port" in request:
                await _join((reader, writer), await _reach(request["port"]))
            else:
                await _run_beside(request, reader, writer)
        finally:
            writer.close()


async def _reach(port: int) -> Streams:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CONNECT_SECONDS
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            if loop.time() > deadline:
                raise
            await asyncio.sleep(0.05)


async def _run_beside(request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    environ = {name: value for name, value in os.environ.items() if not value.startswith(_OWN_LIBRARIES)}
    try:
        process = await asyncio.create_subprocess_exec(
            *request["argv"],
            cwd=request["cwd"] or None,
            env=environ | request["environ"],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        # As in a shell: 127 if the program is missing, 126 if it cannot be run.
        missing = isinstance(error, FileNotFoundError) and error.filename == request["argv"][0]
        told = f"under-test: {error}\n".encode()
        writer.write(_FRAME.pack(_STDERR, len(told)) + told)
        writer.write(_FRAME.pack(_EXIT, 1) + bytes([127 if missing else 126]))
        await writer.drain()
        await reader.read(-1)
        return
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    feeding = asyncio.create_task(_pass_input(process, process.stdin, reader))
    shown: dict[str, int] = {}
    showing = [
        asyncio.create_task(_show(stream, kind, writer, shown))
        for stream, kind in ((process.stdout, _STDOUT), (process.stderr, _STDERR))
    ]
    # Before Python 3.13 `wait` also waits for the streams, which the program's children may hold open for ever.
    running: set[asyncio.Task[None]] = set(showing)
    while running and process.returncode is None:
        _, running = await asyncio.wait(running, timeout=_EXIT_POLL_SECONDS)
    code = await process.wait() if process.returncode is None else process.returncode
    # The last output may take a moment; stop once no more arrives.
    while (await asyncio.wait(showing, timeout=_LAST_OUTPUT_SECONDS))[1] and shown.pop("new", 0):
        pass
    for task in showing:
        task.cancel()
    writer.write(_FRAME.pack(_EXIT, 1) + bytes([code if code >= 0 else 128 - code]))
    await writer.drain()
    # Closing while data is still in transit would reset the connection, and the other half could lose its end.
    await feeding


async def _pass_input(
    process: asyncio.subprocess.Process, stdin: asyncio.StreamWriter, reader: asyncio.StreamReader
) -> None:
    """Pass input on to a program; end it when the other half has gone."""
    try:
        while True:
            _, size = _FRAME.unpack(await reader.readexactly(_FRAME.size))
            data = await reader.readexactly(size)
            if not size:
                stdin.close()
            elif not stdin.is_closing():
                stdin.write(data)
                # Input that it does not read is dropped, and its end is still awaited.
                with contextlib.suppress(OSError):
                    await stdin.drain()
    except (asyncio.IncompleteReadError, OSError):
        with contextlib.suppress(OSError):
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


async def _show(
    stream: asyncio.StreamReader, kind: int, writer: asyncio.StreamWriter, shown: dict[str, int]
) -> None:
    while data := await stream.read(_CHUNK):
        shown["new"] = len(data)
        writer.write(_FRAME.pack(kind, len(data)) + data)
        await writer.drain()


# --- both


async def _join(one: Streams, other: Streams) -> None:
    """Forward data both ways, until both sides have ended."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    try:
        await asyncio.gather(pump(one[0], other[1]), pump(other[0], one[1]))
    finally:
        for _, writer in (one, other):
            writer.close()


def main(words: list[str]) -> int:
    """Run one of the two halves; return 2 for wrong arguments."""
    if words == ["--relay"]:
        return asyncio.run(_relay())
    port: int | None = None
    cwd = ""
    environ = dict[str, str]()
    try:
        while words and words[0].startswith("-") and (option := words.pop(0)) != "--":
            if option not in ("--cwd", "--env", "--listen") or not words:
                raise ValueError(option)
            value = words.pop(0)
            if option == "--cwd":
                cwd = value
            elif option == "--listen":
                port = int(value)
            else:
                name, _, content = value.partition("=")
                environ[name] = content
        if not words and port is None:
            raise ValueError("no program")
    except ValueError as error:
        sys.stderr.write(f"under-test: {error}\n")
        sys.stderr.write("usage: under-test [--cwd DIR] [--env NAME=VALUE] [--listen PORT] [--] [CMD ARG...]\n")
        return 2
    request = {"argv": words, "cwd": cwd, "environ": environ}
    return _run(request) if port is None else asyncio.run(_listen(port, request if words else None))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Not `sys.exit`: a thread may still wait for input that is no longer needed.
    os._exit(code)
