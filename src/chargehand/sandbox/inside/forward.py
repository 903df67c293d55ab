"""Forwards 127.0.0.1:PORT to a unix socket; run inside a sandbox as `python -I -S forward.py PORT SOCKET`.

Standard library only, and no import of the package: the sandbox may contain only this file. Prints `ready` on
stdout when it listens; runs until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

_CHUNK = 65_536


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _serve(port: int, socket_path: str) -> None:
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(socket_path)
        except OSError:
            writer.close()
            return
        up = asyncio.create_task(_pump(reader, far_writer))
        try:
            # The far side decides when to end: a client that never closes must not hold the pair open.
            await _pump(far_reader, writer)
        finally:
            up.cancel()
            for side in (far_writer, writer):
                side.close()
                with contextlib.suppress(OSError):
                    await side.wait_closed()

    server = await asyncio.start_server(join, "127.0.0.1", port, backlog=128)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


def main(arguments: list[str]) -> int:
    """Forward until killed; return 2 for wrong arguments, 1 if the port is unavailable."""
    if len(arguments) != 2 or not arguments[0].isdecimal():
        sys.stderr.write("usage: forward.py PORT SOCKET_PATH\n")
        return 2
    try:
        asyncio.run(_serve(int(arguments[0]), arguments[1]))
    except OSError as error:
        sys.stderr.write(f"cannot listen on 127.0.0.1:{arguments[0]}: {error}\n")
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
