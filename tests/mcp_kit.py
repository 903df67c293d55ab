"""`chargehand mcp` as outside programs use it: a server process, official clients, a stand-in orchestrator.

`python -m tests.mcp_kit URL TOKEN_FILE REPOSITORY COUNT RESULTS` is the orchestrator: it assigns that many tasks,
each under its own key, and appends a line to RESULTS for each that ends. It may be killed and restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from chargehand.app.composition import App
from chargehand.mcp.server import mission_server
from tests.crash_kit import wait_until
from tests.forked import ForkedPopen
from tests.server_kit import start_worker

_AT_ONCE = 6
_PATIENCE = 120.0


class Service:
    """An HTTP server that can be killed and restarted at the same address."""

    def __init__(self, *, environ: Mapping[str, str], cwd: Path, token_file: Path) -> None:
        self.environ, self.cwd, self.token_file = dict(environ), cwd, token_file
        self.url = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the server, at its previous port if there was one, and wait until it listens."""
        port = self.url.removesuffix("/mcp").rpartition(":")[2] or "0"
        words = ("--json", "mcp", "--http", f"127.0.0.1:{port}", "--token-file", str(self.token_file))
        self.process = ForkedPopen(
            [sys.executable, "-m", "chargehand", *words],
            cwd=self.cwd,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the server a signal and return its exit code."""
        assert self.process is not None
        with self.process as process:
            process.send_signal(number)
            return process.wait()

    @property
    def token(self) -> str:
        """The token that clients need."""
        return self.token_file.read_text().strip()

    def client(self, mode: str = "auto", **more: Any) -> contextlib.AbstractAsyncContextManager[Client]:
        """Connect the official client."""
        return connected(self.url, self.token, mode, **more)


@contextlib.asynccontextmanager
async def connected(url: str, token: str, mode: str = "auto", **more: Any) -> AsyncIterator[Client]:
    """Connect the official client over HTTP."""
    async with (
        create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **more) as client,
    ):
        yield client


def over_stdio(environ: Mapping[str, str], cwd: Path, mode: str = "auto") -> Client:
    """Return an official client that starts its server itself."""
    words = ["-m", "chargehand", "mcp"]
    server = StdioServerParameters(command=sys.executable, args=words, cwd=cwd, env=dict(environ))
    return Client(stdio_client(server), mode=mode)


@contextlib.asynccontextmanager
async def in_process(environ: Mapping[str, str], cwd: Path) -> AsyncIterator[Client]:
    """Connect the official client to a server of this process, with a worker; for tests that need no wire."""
    with start_worker(environ), App.open(environ=environ, cwd=cwd) as app:
        # Once it has joined, the server starts no worker.
        wait_until(app.workers.members)
        async with (
            mission_server(environ=environ, cwd=cwd, keep_traceback=lambda error: "") as server,
            Client(server) as client,
        ):
            yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that must succeed; return its structured result."""
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done
    found: dict[str, Any] = done.structured_content
    assert json.loads(done.content[0].text) == found
    return found


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, str]:
    """Call a tool that must refuse; return the error."""
    done = await client.call_tool(tool, arguments)
    assert done.is_error, done
    assert "Traceback" not in done.content[0].text
    error: dict[str, str] = done.structured_content["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["message"] in done.content[0].text
    return error


class Orchestrator:
    """Assigns tasks and records how each ended. It knows only its keys and its records."""

    def __init__(self, url: str, token: str, repository: str, count: int, results: Path) -> None:
        self._url, self._token, self._repository, self._results = url, token, repository, results
        done = (
            {json.loads(line)["key"] for line in results.read_text().splitlines()} if results.exists() else set()
        )
        self._open = [number for number in range(count) if f"task-{number}" not in done]
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def work(self) -> None:
        """Work until each task has its result."""
        async with asyncio.TaskGroup() as group:
            for number in self._open:
                group.create_task(self._assign(number))

    async def _assign(self, number: int) -> None:
        async with self._places:
            begun = time.monotonic()
            while True:
                try:
                    view = await self._result(number)
                    break
                except Exception:  # the server is unreachable; the client raises various errors for this
                    if time.monotonic() - begun > _PATIENCE:
                        raise
                    await asyncio.sleep(0.2)
        line = json.dumps({"key": f"task-{number}", "mission": view["mission"], "status": view["status"]}) + "\n"
        with self._results.open("a") as file:
            file.write(line)

    async def _result(self, number: int) -> dict[str, Any]:
        async with connected(self._url, self._token) as client:
            started = await call(
                client,
                "run_mission",
                request=f"do task {number}",
                repo=self._repository,
                agent=f"command:touch done-{number}",
                checks=["true"],
                key=f"task-{number}",
            )
            view: dict[str, Any] = started["mission"]
            while not view["settled"]:
                view = await call(client, "wait_mission", mission=view["mission"], seconds=20)
            return view


def orchestrator(service: Service, repository: Path, count: int, results: Path) -> subprocess.Popen[bytes]:
    """Start the orchestrator in a separate process."""
    words = [service.url, str(service.token_file), str(repository), str(count), str(results)]
    root = Path(__file__).parents[1]
    return ForkedPopen(
        [sys.executable, "-m", "tests.mcp_kit", *words], cwd=root, env={**os.environ, **service.environ}
    )


if __name__ == "__main__":
    _url, _token_file, _repository, _count, _out = sys.argv[1:]
    _token = Path(_token_file).read_text().strip()
    asyncio.run(Orchestrator(_url, _token, _repository, int(_count), Path(_out)).work())
