"""`chargehand mcp`: missions for other agents and outside orchestrators, by the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from chargehand.app.locations import state_home
from chargehand.cli.interrupt import Stop, run_async
from chargehand.cli.output import Output
from chargehand.core.errors import RepositoryError

_TOKEN = Path("mcp", "token")


def serve(out: Output, *, http: str | None, token_file: Path | None, repo: Path | None) -> int:
    """Serve on stdin and stdout until EOF, or over HTTP until a signal; return the exit code.

    Raises `UsageError`, `ConfigError` before anything is served.
    """
    from chargehand.workspace._repository import find_repository

    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    cwd = Path.cwd()
    if repo is not None:
        cwd = (cwd / repo).resolve()
        if not cwd.is_dir():
            raise RepositoryError(f"--repo: {str(repo)!r} is no directory", hint="name a git repository")
        find_repository(cwd)
    if http is None:
        run_async(lambda stop: _stdio(stop, cwd))
        return 0
    from chargehand.mcp.http import bound, parsed_address, token_of, url_of

    address = parsed_address(http)
    place = token_file or state_home(os.environ) / _TOKEN
    token = token_of(place)
    with contextlib.closing(bound(address)) as listening:

        def announce() -> None:
            url = url_of(listening)
            out.document({"url": url, "token_file": str(place)})
            out.text(f"serving   {url}")
            out.text(f"token     in {place}; clients send it as Authorization: Bearer TOKEN")

        run_async(lambda stop: _http(stop, listening, token, cwd, announce))
    return 0


async def _http(stop: Stop, listening: socket.socket, token: str, cwd: Path, announce: Callable[[], None]) -> None:
    from chargehand.mcp.http import serve_http
    from chargehand.mcp.server import mission_server

    async with mission_server(environ=os.environ, cwd=cwd) as server:
        await serve_http(server, listening, token=token, stop=stop, announce=announce)


async def _stdio(stop: Stop, cwd: Path) -> None:
    from chargehand.mcp.server import mission_server
    from chargehand.mcp.stdio import serve_stdio

    async with mission_server(environ=os.environ, cwd=cwd) as server:
        serving = asyncio.create_task(serve_stdio(server))
        stop.end = serving.cancel
        with contextlib.suppress(asyncio.CancelledError):
            await serving
