"""`chargehand up`, as a person starts it: its link, its worker, its end, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import httpx
from desk import Desk
from test_cli_terminal import wait_for
from tests.server_kit import API, PASSWORD, environment, serving

from chargehand.app.accounts import create_user, owner, require_accounts
from chargehand.app.composition import App


def roles(desk: Desk) -> list[str]:
    with App.open(environ=desk.environ, cwd=desk.place) as app:
        return [member.role for member in app.workers.members()]


def test_up_runs_a_worker_and_ends_it_with_itself(tmp_path: Path) -> None:
    # The machine that tests run on may be as full as it likes.
    desk = Desk(tmp_path, CHARGEHAND_ALERTS_DISK_PERCENT="1", CHARGEHAND_ALERTS_MEMORY_PERCENT="1")
    process = desk.start("up", "--port", "0", cwd=tmp_path)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    url, _, code = said["login"].partition("/login#")
    assert url == said["url"]
    wait_for(lambda: "worker" in roles(desk))
    with httpx.Client(base_url=url) as client:
        assert client.post(f"{API}/session", json={"code": code}).json()["role"] == "admin"
        # Another link of the same server, asked for beside it.
        port = url.rpartition(":")[2]
        again = desk.say("up", "--link", "--port", port, cwd=tmp_path).document["login"]
        assert client.post(f"{API}/session", json={"code": again.partition("#")[2]}).status_code == 200
        refused = desk.refused("port_taken", 2, "up", "--port", port, cwd=tmp_path)
        assert "--link" in refused["hint"]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    wait_for(lambda: not roles(desk))


def test_beyond_loopback_accounts_are_needed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    error = desk.refused("accounts_needed", 2, "up", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert "user add" in error["hint"]
    desk.refused("listen_invalid", 2, "up", "--host", "192.0.2.1", "--port", "0", cwd=tmp_path)
    with App.open(environ=desk.environ, cwd=tmp_path) as app:
        create_user(app, "ada", role="admin", password=PASSWORD, by=owner(app))
        require_accounts(app, "0.0.0.0")


async def test_more_pages_follow_than_are_served_at_once(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served:
        token = served.token("read").headers["Authorization"]
        host, port = served.url.removeprefix("http://").split(":")
        head = f"GET {API}/events HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: {token}\r\n\r\n"
        writers = []
        for _ in range(200):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head.encode())
            await reader.readuntil(b": connected")
            writers.append(writer)
        async with httpx.AsyncClient(base_url=served.url) as client:
            assert (await client.get("/health")).status_code == 200
        for writer in writers:
            writer.close()
