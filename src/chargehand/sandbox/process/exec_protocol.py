"""The host's half of the exec protocol: frames over one socket, commands out, results back.

The other half is `inside/exec_server.py`. This code decodes only fixed structs: an attacker who took over the
sandbox may have written the data.
"""

from __future__ import annotations

import asyncio
import marshal
import math
import os
import posixpath
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chargehand.core.errors import UsageError
from chargehand.sandbox.contract import ExecResult, LimitName, OnOutput
from chargehand.sandbox.inside import exec_server

_LARGEST_FRAME = 1 << 20
_BUFFER_BYTES = 1 << 18


class ExecChannel(asyncio.BufferedProtocol):
    """The socket to the exec server; `on_frame` gets kind and body of each frame as it arrives.

    A protocol and not a pair of streams, which would cost each command a task switch and several turns of the
    event loop. `lost` is done when the other end is gone; `violated` means that it sent data that our exec server
    never sends.
    """

    def __init__(self, sock: socket.socket, on_frame: Callable[[bytes, bytes], None]) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.violated = False
        self._sock = sock
        self._on_frame = on_frame
        self._inbox = bytearray()
        # One buffer for all received data: otherwise asyncio would map and unmap 256 KiB for every frame.
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        # Only `converse` waits for it: data that `exec` sends is in memory already.
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    async def open(self) -> None:
        """Read and write from now on."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102 -- asyncio's
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: D102 -- asyncio's
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:  # noqa: D102 -- asyncio's
        inbox = self._inbox
        head = exec_server.FRAME.size
        inbox += self._buffer[:nbytes]
        while len(inbox) >= head:
            kind, size = exec_server.FRAME.unpack_from(inbox)
            # The host must not buffer as much as a compromised sandbox announces.
            if size > _LARGEST_FRAME:
                self.violated = True
                self.abort()
                return
            if len(inbox) < head + size:
                return
            body = bytes(inbox[head : head + size])
            del inbox[: head + size]
            self._on_frame(kind, body)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 -- asyncio's
        self._writable.set()
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:  # noqa: D102 -- asyncio's
        self._writable.clear()

    def resume_writing(self) -> None:  # noqa: D102 -- asyncio's
        self._writable.set()

    def send(self, data: bytes) -> None:
        """Send bytes, buffering if the exec server reads slowly; do nothing if the socket is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def send_frame(self, kind: bytes, body: bytes = b"") -> None:
        """Send one frame, see `send`."""
        self.send(exec_server.FRAME.pack(kind, len(body)) + body)

    async def drain(self) -> None:
        """Wait until little of the sent data is still buffered."""
        await self._writable.wait()

    def abort(self) -> None:
        """Close the socket at once and drop buffered data. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
        elif not self.lost.done():
            self._sock.close()
            self.lost.set_result(None)


def encode_request(
    nonce: bytes,
    argv: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[bytes, bytes],
    timeout: float,
    output_limit: int,
    output_most: int,
    stdin: int,
) -> bytes:
    """Return the body of an EXEC frame; raises `UsageError` (`command_invalid`) if no kernel would accept it.

    `stdin` is the size of the input in bytes, negative if input arrives while the program runs.
    """
    if not argv:
        raise UsageError("a command needs at least a program", code="command_invalid")
    if math.isnan(timeout) or output_limit < 0:
        raise UsageError(f"wrong limits: timeout {timeout!r}, output {output_limit!r}", code="command_invalid")
    request: dict[str, Any] = {
        "nonce": nonce,
        "argv": [encode_word(word) for word in argv],
        "cwd": encode_word(cwd),
        "environment": environment,
        "timeout": float(timeout),
        "output_limit": output_limit,
        "output_most": output_most,
        "stdin": stdin,
    }
    return marshal.dumps(request)


def encode_environment(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return variables as the kernel takes them; raises `UsageError` (`command_invalid`)."""
    for name in environment:
        if not name or "=" in name:
            raise UsageError(f"{name!r} is not a name for an environment variable", code="command_invalid")
    return {encode_word(name): encode_word(value) for name, value in environment.items()}


def encode_word(word: str) -> bytes:
    """Return an argument or a path as the kernel takes it; raises `UsageError` (`command_invalid`)."""
    try:
        data = os.fsencode(word)
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise UsageError(
            f"{word!r} cannot be passed to a program",
            code="command_invalid",
            hint="leave out NUL characters and lone surrogates",
        )
    return data


def decode_opened(body: bytes, directories: Sequence[str]) -> Iterator[str]:
    """Yield the files that an OPENED frame names, each below its directory; skip an incomplete end."""
    at = 0
    head = exec_server.OPENED_FILE.size
    while at + head <= len(body):
        index, length = exec_server.OPENED_FILE.unpack_from(body, at)
        at += head + length
        if index >= len(directories) or at > len(body):
            return
        yield posixpath.join(directories[index], os.fsdecode(body[at - length : at]))


class ExecReply:
    """The reply so far to the running command.

    `result` is its outcome, `failure` the exception that its listener raised; both are `None` at first. `ended`
    means that the command's last frame has arrived, `stopped` names the limit for which we had everything killed.
    """

    def __init__(self, nonce: bytes, on_output: OnOutput | None) -> None:
        self.nonce = nonce
        self.result: ExecResult | None = None
        self.failure: Exception | None = None
        self.ended = False
        self.stopped: LimitName | None = None
        self._on_output = on_output
        self._output: dict[bytes, list[bytes]] = {exec_server.OUT: [], exec_server.ERR: []}
        self._waiter: asyncio.Future[None] | None = None

    def take(self, kind: bytes, body: bytes) -> None:
        """Add one frame that carried our nonce."""
        if kind == exec_server.DONE:
            self.ended = True
            code, seconds, truncated, timed_out, flooded, _, written = exec_server.OUTCOME.unpack(body)
            if self.failure is None:
                self.result = ExecResult(
                    exit_code=code,
                    stdout=b"".join(self._output[exec_server.OUT]),
                    stderr=b"".join(self._output[exec_server.ERR]),
                    seconds=seconds,
                    truncated=truncated,
                    timed_out=timed_out,
                    limit="wall_time" if timed_out else "output" if flooded else None,
                    written=written,
                )
            self.wake()
            return
        self._output[kind].append(body)
        if self._on_output and self.failure is None:
            try:
                self._on_output("stdout" if kind == exec_server.OUT else "stderr", body)
            except Exception as error:  # the listener's fault: reported to the caller that passed it
                self.failure = error
                self.wake()

    def abandon(self) -> None:
        """Ignore the listener from now on: one that fails again must not end the wait for the command's end."""
        self._on_output = None
        self.failure = None

    async def wait(self, seconds: float) -> None:
        """Return when there is a result or a failure, when `wake` is called, or after some seconds."""
        if self.result is not None or self.failure is not None:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def wake(self) -> None:
        """End a wait, after a change of state."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
