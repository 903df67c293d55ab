"""The real web server on a state directory: its threads, a real socket, and logged-in clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from chargehand.core.mission_events import MissionCreated
from chargehand.core.records import MissionRequest
from chargehand.identity.accounts import create_login_code, create_user, owner
from chargehand.identity.providers import ConfiguredProvider
from chargehand.identity.tokens import create_token
from chargehand.policy.access import AccessScope
from chargehand.reports.reading import StateReader
from chargehand.server.serving import ServeOptions, bind, serve, url_at
from tests.forked import ForkedPopen

API = "/api/v1"
PASSWORD = "a rather long password"


class Served:
    """A running server; each client acts as a separate browser."""

    def __init__(self, url: str, environ: Mapping[str, str], cwd: Path) -> None:
        self.url = url
        self.environ = dict(environ)
        self.cwd = cwd
        self._clients: list[httpx.Client] = []

    def close(self) -> None:
        """Close all clients."""
        for client in self._clients:
            client.close()

    @contextlib.contextmanager
    def reader(self) -> Iterator[StateReader]:
        """Open the state directory in parallel to the server, as a command does."""
        with StateReader.open(environ=self.environ, cwd=self.cwd) as reader:
            yield reader

    def command(self, *words: str) -> str:
        """Run a command of the product on the state directory, and return its output."""
        argv = [sys.executable, "-m", "chargehand", *words]
        return subprocess.run(
            argv, cwd=self.cwd, env=self.environ, check=True, capture_output=True, text=True, timeout=120
        ).stdout

    def stranger(self) -> httpx.Client:
        """Return a client that is not logged in."""
        client = httpx.Client(base_url=self.url, timeout=60, verify=False)  # it uses no TLS
        self._clients.append(client)
        return client

    def owner(self) -> httpx.Client:
        """Return a client of the person who started the server, logged in by the link."""
        with self.reader() as reader:
            return self.logged_in({"code": create_login_code(reader).secret})

    def user(self, name: str, role: str) -> httpx.Client:
        """Return a client logged in to an account, creating it if missing."""
        with self.reader() as reader:
            if all(row.name != name for row in reader.store.accounts.list()):
                create_user(reader, name, role=role, password=PASSWORD, by=owner(reader))
        return self.logged_in({"user": name, "password": PASSWORD})

    def logged_in(self, credentials: Mapping[str, str]) -> httpx.Client:
        """Return a client with a session; it sends the session's secret as a page does."""
        client = self.stranger()
        answer = client.post(f"{API}/session", json=credentials)
        assert answer.status_code == 200, answer.text
        client.headers["Authorization"] = f"Bearer {answer.json()['secret']}"
        return client

    def token(self, *scopes: AccessScope, days: int = 1) -> httpx.Client:
        """Return a client with an owner's token of these scopes."""
        with self.reader() as reader:
            made = create_token(reader, "a test", scopes=scopes, days=days, by=owner(reader))
        client = self.stranger()
        client.headers["Authorization"] = f"Bearer {made.secret}"
        return client


@contextlib.contextmanager
def serving(
    environ: Mapping[str, str],
    cwd: Path,
    *,
    port: int = 0,
    names: tuple[str, ...] = (),
    proxies: tuple[str, ...] = (),
    worker: bool = False,
    sign_in: Sequence[ConfiguredProvider] | None = None,
) -> Iterator[Served]:
    """Serve a state directory during the block, on the event loop of a thread."""
    listening = bind("127.0.0.1", port)
    beside = start_worker(environ) if worker else contextlib.nullcontext()
    answering = threading.Event()
    ends: list[Callable[[], bool]] = []
    loops: list[asyncio.AbstractEventLoop] = []
    failed: list[BaseException] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())
        await serve(
            ServeOptions(names=names, proxies=proxies, worker=False),
            listening,
            environ=environ,
            cwd=cwd,
            on_signal=ends.append,
            announce=answering.set,
            keep_traceback=lambda error: "",
            sign_in=sign_in,
        )

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # raised again below: an exception of a thread would only be printed
            failed.append(error)
            answering.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert answering.wait(120)
        if not failed:
            with beside, contextlib.closing(Served(url_at(*listening.getsockname()[:2]), environ, cwd)) as served:
                yield served
    finally:
        if ends and not failed:
            loops[0].call_soon_threadsafe(ends[0])
        thread.join(120)
        listening.close()
    assert not failed, failed
    assert not thread.is_alive()


@contextlib.contextmanager
def start_worker(environ: Mapping[str, str]) -> Iterator[None]:
    """Run a worker during the block, as the server does, but forked."""
    words = [sys.executable, "-m", "chargehand", "worker"]
    with ForkedPopen(
        words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    ) as worker:
        try:
            yield
        finally:
            worker.terminate()


def environment(place: Path) -> dict[str, str]:
    """Return the environment of a person with a separate state directory."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "CHARGEHAND_HOME": str(place / "state"),
        "LANG": "C.UTF-8",
    }


def record_missions(reader: StateReader, count: int, *, text: str = "mend it") -> list[str]:
    """Record missions that no worker runs, of a project registered at the reader's directory."""
    project = reader.store.projects.register(reader.cwd)
    names = [f"m-{number:05}" for number in range(count)]
    for number, name in enumerate(names):
        request = MissionRequest(
            text=f"{text} {number}", agent="command:true", command=("true",), slug=f"m-{number}"
        )
        reader.store.log.append(
            name, MissionCreated(project=project.id, repository=str(project.path), request=request)
        )
    return names


def frames(client: httpx.Client, address: str, count: int, **headers: str) -> list[tuple[str, dict[str, Any]]]:
    """Return so many events of a feed, each as name and data; the data contains the event's id as `id`."""
    found: list[tuple[str, dict[str, Any]]] = []
    event, number = "", 0
    with client.stream("GET", f"{API}{address}", headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                found.append((event, json.loads(line[6:]) | {"id": number}))
            if len(found) == count:
                return found
    return found
