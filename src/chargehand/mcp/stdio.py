"""The MCP server on stdin and stdout: one message per line, until EOF or a signal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, BinaryIO, TextIO

import anyio
import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

_LARGEST_MESSAGE_BYTES = 1 << 20
# Lines read ahead: a client that writes faster than it is answered has to wait, and uses no memory.
_MOST_LINES_AHEAD = 16


async def serve_stdio(server: Server[Any]) -> None:
    """Serve the one client on stdin and stdout until it closes stdin.

    A line that is not a message, or longer than 1 MiB, is answered with a protocol error.
    """
    with _wire() as (source, target):
        # No buffer in between: a message waits until the server takes it.
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

        async def take() -> None:
            async with incoming:
                async for line in _lines(source):
                    message = _parse_message(line)
                    if isinstance(message, types.JSONRPCError):
                        await write.send(SessionMessage(message))
                    else:
                        await incoming.send(SessionMessage(message))

        async def give() -> None:
            async with outgoing:
                async for each in outgoing:
                    # Not `exclude_none`: the answer to an invalid message has to carry `"id": null`.
                    text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                    # In a thread: a client that reads slowly fills the pipe, and a write there blocks.
                    await asyncio.to_thread(print, text, file=target, flush=True)

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            group.start_soon(give)
            await server.run(read, write, server.create_initialization_options())
            group.cancel_scope.cancel()


def _parse_message(line: bytes | None) -> Any:
    """Return a message, or the error for an invalid one."""
    if line is None:
        return _refusal(types.INVALID_REQUEST, f"the message has more than {_LARGEST_MESSAGE_BYTES} bytes")
    try:
        # Only by the protocol's names: the SDK's own field names are not part of the protocol.
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        is_json = error.errors(include_input=False, include_url=False)[0]["type"] != "json_invalid"
        if is_json:
            return _refusal(types.INVALID_REQUEST, "this is not a JSON-RPC 2.0 message")
        return _refusal(types.PARSE_ERROR, "this is not JSON")


def _refusal(number: int, message: str) -> types.JSONRPCError:
    document = {"jsonrpc": "2.0", "id": None, "error": {"code": number, "message": message}}
    return types.JSONRPCError.model_validate(document)


async def _lines(source: BinaryIO) -> AsyncIterator[bytes | None]:
    """Yield the received lines, `None` for a line that is too long."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | type[EOFError] | None] = asyncio.Queue(_MOST_LINES_AHEAD)

    def read() -> None:
        # A daemon thread: a blocked read cannot be interrupted, and must not keep a signal from ending the
        # process.
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):  # the loop is gone
            while line := source.readline(_LARGEST_MESSAGE_BYTES + 1):
                piece = line
                # The rest of a line that is too long is read and dropped, so that the next line is a message
                # again.
                while len(line) > _LARGEST_MESSAGE_BYTES and piece and not piece.endswith(b"\n"):
                    piece = source.readline(_LARGEST_MESSAGE_BYTES)
                if line.strip() or len(line) > _LARGEST_MESSAGE_BYTES:
                    given = line if len(line) <= _LARGEST_MESSAGE_BYTES else None
                    asyncio.run_coroutine_threadsafe(queue.put(given), loop).result()
            asyncio.run_coroutine_threadsafe(queue.put(EOFError), loop).result()

    threading.Thread(target=read, name="mcp-stdin", daemon=True).start()
    while True:
        line = await queue.get()
        if isinstance(line, type):
            return
        yield line


@contextlib.contextmanager
def _wire() -> Iterator[tuple[BinaryIO, TextIO]]:
    """Reserve stdin and stdout for the protocol: child processes and prints meanwhile get other descriptors."""
    # Copies from descriptor 3 up: 0 and 1 are replaced below, and 2 stays as it is.
    source = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    target = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        # closefd=False: the thread may still read from the descriptor when the server ends.
        yield (
            os.fdopen(source, "rb", closefd=False),
            os.fdopen(target, "w", encoding="utf-8", newline="\n", closefd=False),
        )
    finally:
        # The command line flushes stdout when the command ends.
        os.dup2(target, 1)
