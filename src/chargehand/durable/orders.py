"""Orders to a running worker over its socket: one line of JSON each way.

A request is `{"mission": ID, "order": NAME, ...}`, a reply `{"ok": true, ...}` or `{"ok": false, "code": CODE,
"message": TEXT, "hint": TEXT}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from chargehand.core.errors import ChargehandError, RefusedError
from chargehand.network.unix_socket import start_serving

Order = dict[str, Any]
Take = Callable[[Order], Awaitable[Order]]
_LINE = 1 << 20
_ANSWER_SECONDS = 30.0


@contextlib.asynccontextmanager
async def taking_orders(path: Path, take: Take) -> AsyncIterator[None]:
    """Answer orders at the socket `path` while the block runs; `ChargehandError`s go back to the sender."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A line that is too long (ValueError) and a sender that left get no answer.
        with contextlib.suppress(ConnectionError, ValueError):
            line = await reader.readline()
            try:
                order = json.loads(line)
                if not isinstance(order, dict):
                    raise ValueError("an order is a JSON object")
                reply = {"ok": True, **await take(order)}
            except ChargehandError as error:
                reply = {"ok": False, "code": error.code, "message": error.message, "hint": error.hint}
            except ValueError as error:
                reply = {"ok": False, "code": "malformed_order", "message": str(error), "hint": ""}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        writer.close()

    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    _at_path(sock.bind, path)
    path.chmod(0o600)
    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = start_serving(serve(reader, writer), writer)
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_unix_server(accept, sock=sock, limit=_LINE)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


def give_order(path: Path, order: Order) -> Order | None:
    """Send an order and return the reply; `None` if no worker listens. Raises `RefusedError`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_ANSWER_SECONDS)
        try:
            _at_path(sock.connect, path)
            sock.sendall(json.dumps(order).encode() + b"\n")
            line = sock.makefile("rb").readline(_LINE)
        except OSError:
            return None
    if not line:
        return None
    reply: Order = json.loads(line)
    if not reply.pop("ok"):
        raise RefusedError(reply["message"], code=reply["code"], hint=reply["hint"])
    return reply


def _at_path(use: Callable[[str], None], path: Path) -> None:
    """Use a socket path of any length: the kernel allows 107 bytes, so go through the directory's descriptor."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{fd}/{path.name}")
    finally:
        os.close(fd)
