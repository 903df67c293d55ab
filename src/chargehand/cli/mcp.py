"""`chargehand mcp`: starts the MCP server on stdin and stdout, or over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import json_option, repo_option

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from chargehand.cli.terminal.interrupt import Stop
    from chargehand.cli.terminal.output import Output

_TOKEN = Path("mcp", "token")


@click.command()
@click.option("--http", metavar="HOST:PORT", help="Serve over HTTP at this loopback address (port 0: any free).")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of the token for --http, created if missing (default: mcp/token of the state directory).",
)
@repo_option
@json_option
def mcp(http: str | None, token_file: Path | None, repo: Path | None, out: Output) -> int:
    """Let other agents and orchestrators run missions here, over the Model Context Protocol.

    Serves stdin and stdout until they close; with --http, until a signal. A client may do what you may, but cannot
    grant trust. Missions run in a background worker and outlive the server.

    \b
    Example:
      chargehand mcp --http 127.0.0.1:8765
    """
    import logging

    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.mcp.server import server_directory

    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    cwd = server_directory(repo)
    if http is None:
        run_async(lambda stop: _serve_stdio(stop, cwd))
        return 0
    _serve_http_at(out, http, token_file=token_file, cwd=cwd)
    return 0


def _serve_http_at(out: Output, http: str, *, token_file: Path | None, cwd: Path) -> None:
    """Serve over HTTP until a signal. Raises `UsageError`, `ConfigError` before anything is served."""
    import contextlib
    import os

    from chargehand.app.locations import state_home
    from chargehand.cli.terminal.interrupt import run_async
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

        run_async(lambda stop: _serve_http(stop, listening, token, cwd, announce))


async def _serve_http(
    stop: Stop, listening: socket.socket, token: str, cwd: Path, announce: Callable[[], None]
) -> None:
    import os

    from chargehand.cli.terminal.failures import keep_traceback
    from chargehand.mcp.http import serve_http
    from chargehand.mcp.server import mission_server

    async with mission_server(environ=os.environ, cwd=cwd, keep_traceback=keep_traceback) as server:
        await serve_http(server, listening, token=token, stop=stop, announce=announce)


async def _serve_stdio(stop: Stop, cwd: Path) -> None:
    import asyncio
    import contextlib
    import os

    from chargehand.cli.terminal.failures import keep_traceback
    from chargehand.mcp.server import mission_server
    from chargehand.mcp.stdio import serve_stdio

    async with mission_server(environ=os.environ, cwd=cwd, keep_traceback=keep_traceback) as server:
        serving = asyncio.create_task(serve_stdio(server))
        stop.end = serving.cancel
        with contextlib.suppress(asyncio.CancelledError):
            await serving
