"""`chargehand up`, as a person starts it: its link, its worker, its end, and its refusals."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from command_line import Cli, repository
from tests.crash_kit import wait_until
from tests.server_kit import API, PASSWORD, environment, serving

from chargehand.app.composition import App
from chargehand.configuration.locations import user_config_path
from chargehand.identity.accounts import create_user, owner, require_accounts


def workers(cli: Cli) -> list[int]:
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        return [member.pid for member in app.workers.members() if member.role == "worker"]


def roles(cli: Cli) -> list[str]:
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        return [member.role for member in app.workers.members()]


def test_up_runs_a_worker_that_ends_with_the_server(tmp_path: Path) -> None:
    # The test must not depend on how full this machine is.
    cli = Cli(tmp_path, CHARGEHAND_ALERTS_DISK_PERCENT="1", CHARGEHAND_ALERTS_MEMORY_PERCENT="1")
    process = cli.start("up", "--port", "0", cwd=repository(tmp_path / "repo"))
    assert process.stdout is not None
    result = json.loads(process.stdout.readline())
    url, _, code = result["login"].partition("/login#")
    assert url == result["url"]
    wait_until(lambda: "worker" in roles(cli))
    with httpx.Client(base_url=url) as client:
        opened = client.post(f"{API}/session", json={"code": code}).json()
        assert opened["session"]["role"] == "admin"
        client.headers["Authorization"] = f"Bearer {opened['secret']}"
        assert [each["name"] for each in client.get(f"{API}/projects").json()["projects"]] == ["repo"]
        # Another link for the same running server.
        port = url.rpartition(":")[2]
        again = cli.say("up", "--link", "--port", port, cwd=tmp_path).document["login"]
        assert client.post(f"{API}/session", json={"code": again.partition("#")[2]}).status_code == 200
        refused = cli.refused("port_taken", 2, "up", "--port", port, cwd=tmp_path)
        assert "--link" in refused["hint"]
    # The server replaces a killed worker.
    (killed,) = workers(cli)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: set(workers(cli)) - {killed})
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr.count("\n")) == (0, 1)
    assert "another one starts" in stderr
    wait_until(lambda: not roles(cli))
    with cli.start("up", "--port", "0", cwd=tmp_path) as process:
        wait_until(lambda: "worker" in roles(cli))
        process.kill()
    wait_until(lambda: not roles(cli))


def test_beyond_loopback_accounts_are_needed(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    error = cli.refused("accounts_needed", 2, "up", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert "user add" in error["hint"]
    cli.refused("listen_invalid", 2, "up", "--host", "192.0.2.1", "--port", "0", cwd=tmp_path)
    with App.open(environ=cli.environ, cwd=tmp_path) as app:
        create_user(app, "ada", role="admin", password=PASSWORD, by=owner(app))
        require_accounts(app, "0.0.0.0")


def break_nothing(cli: Cli) -> None:
    """Break nothing: the options are wrong."""


def break_version(cli: Cli) -> None:
    with App.open(environ=cli.environ, cwd=cli.place) as app, app.store.database.write() as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")


def break_home(cli: Cli) -> None:
    shutil.rmtree(cli.home)
    cli.home.write_text("no directory")


def break_configuration(cli: Cli) -> None:
    file = user_config_path(cli.environ)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[alerts]\ndisk_percent = 'much'\n")


def break_engine(cli: Cli) -> None:
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        (app.store.home / "engine.db").mkdir()


def break_worker(cli: Cli) -> None:
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        (app.store.home / "logs").write_text("no directory")


@pytest.mark.parametrize(
    ("break_it", "words", "code", "exit_code"),
    [
        (break_nothing, ("--proxy", "proxy.example.org"), "listen_invalid", 2),
        (break_nothing, ("--name", "https://chargehand.example.org"), "listen_invalid", 2),
        (break_nothing, ("--host", "nowhere.invalid"), "listen_invalid", 2),
        (break_version, (), "store_newer", 6),
        (break_home, (), "store_not_writable", 6),
        (break_configuration, (), "config_invalid", 2),
        (break_engine, (), "worker_failed", 6),
        (break_worker, (), "worker_failed", 6),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_failed_start_reports_a_single_error_and_leaves_no_process(
    tmp_path: Path, break_it: Callable[[Cli], None], words: tuple[str, ...], code: str, exit_code: int
) -> None:
    cli = Cli(tmp_path)
    break_it(cli)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = cli.start("up", "--port", str(port), *words, cwd=tmp_path)
    _, stderr = process.communicate(timeout=60)
    error = json.loads(stderr)["error"]  # stderr holds nothing else
    assert (process.returncode, error["code"]) == (exit_code, code)
    assert error["message"]
    assert error["hint"]
    with socket.create_server(("127.0.0.1", port)):
        pass  # no process listens any more
    if break_it not in (break_version, break_home, break_configuration):
        assert roles(cli) == []


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
