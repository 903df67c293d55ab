"""The mirror's HTTP server against hostile clients, and its life from start to close."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from test_mirror_support import FORWARDER, Answer, forwarded_mirror, registry, running, user_config
from tests.postgres import free_port

from chargehand.core.errors import InfrastructureError
from chargehand.network.contract import MirrorLimits, MirrorRequest
from chargehand.network.registries import RegistryMirror

GOOD = b"GET /pypi/simple/alpha/ HTTP/1.1\r\nHost: x\r\n"
BIG = 8 * 1024 * 1024
QUICK = MirrorLimits(head_seconds=0.2, write_seconds=0.2)


def local_index(home: Path, *, size: int = 100) -> dict[str, str]:
    """Put one file of `size` bytes into a find-links directory; return the configuration that names it."""
    (home / "wheels").mkdir()
    (home / "wheels/alpha-1.0.tar.gz").write_bytes(b"x" * size)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(home / "wheels")}


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (GOOD + b"\r\n", 200),
        (b"GET /pypi/simple/alpha/ HTTP/1.0\r\n\r\n", 200),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /pypi/simple/alpha/ HTTP/1.1\r\n\r\n", 400),
        (GOOD + b"Host: y\r\n\r\n", 400),
        (GOOD + b"Content-Length: 5\r\n\r\nhello", 400),
        (GOOD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (GOOD + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (GOOD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (GOOD + b"Transfer-Encoding: xchunked\r\n\r\n", 501),
        (GOOD + b"Bad Name: 1\r\n\r\n", 400),
        (GOOD + b"Folded: 1\x00\r\n\r\n", 400),
        (GOOD + b"Half", 400),
        (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 100_000 + b"\r\n", 431),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET /" + b"a" * 5_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    ],
)
async def test_every_request_gets_a_single_reply_and_log_record(
    tmp_path: Path, request_bytes: bytes, status: int
) -> None:
    async with running(user_config(tmp_path, **local_index(tmp_path))) as reached:
        answer = await reached.raw(request_bytes)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert answer.count(b"HTTP/1.1 ") == 1
        assert (await reached.client.get("/pypi/simple/alpha/")).status_code == 200
    assert [record.status for record in reached.log] == [status, 200]


async def test_a_second_request_on_a_connection_is_not_read(tmp_path: Path) -> None:
    async with running(user_config(tmp_path, **local_index(tmp_path))) as reached:
        answer = await reached.raw(2 * (GOOD + b"\r\n"))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()
    assert len(reached.log) == 1


async def test_a_silent_client_times_out(tmp_path: Path) -> None:
    async with running(user_config(tmp_path, PIP_NO_INDEX="1"), limits=QUICK) as reached:
        assert (await reached.raw(b"GET / HT", close=False)).startswith(b"HTTP/1.1 408 ")
        assert await reached.raw(b"") == b""
    assert [record.status for record in reached.log] == [408, 0]


async def test_a_client_that_does_not_read_is_cut(tmp_path: Path) -> None:
    async with running(user_config(tmp_path, **local_index(tmp_path, size=BIG)), limits=QUICK) as reached:
        href = (await reached.client.get("/pypi/simple/alpha/")).text.partition('href="')[2].partition('"')[0]
        _, writer = await asyncio.open_unix_connection(reached.mirror.socket_path, limit=1024)
        writer.write(f"GET {href} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        while len(reached.log) < 2:
            await asyncio.sleep(0.02)
        writer.close()
    assert reached.log[1].problem == "the client did not read in time"
    assert reached.log[1].bytes_sent < BIG


async def test_connections_over_the_limit_are_refused_until_others_close(tmp_path: Path) -> None:
    limits = MirrorLimits(connections=2)
    async with running(user_config(tmp_path, **local_index(tmp_path)), limits=limits) as reached:
        waiting = [await asyncio.open_unix_connection(reached.mirror.socket_path) for _ in range(2)]
        assert (await reached.raw(GOOD + b"\r\n")).startswith(b"HTTP/1.1 503 ")
        for reader, writer in waiting:
            writer.close()
            assert await reader.read() == b""
        while len(reached.log) < 3:
            await asyncio.sleep(0.02)
        assert (await reached.raw(GOOD + b"\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_the_total_is_limited(tmp_path: Path) -> None:
    config = user_config(tmp_path, **local_index(tmp_path, size=BIG))
    async with running(config, limits=MirrorLimits(total_bytes=BIG // 2)) as reached:
        href = (await reached.client.get("/pypi/simple/alpha/")).text.partition('href="')[2].partition('"')[0]
        answer = await reached.raw(f"GET {href} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert len(answer) < BIG
        answer = await reached.raw(GOOD + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"used up" in answer


async def test_a_page_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with registry() as upstream:
        upstream.pages["/simple/alpha/"] = Answer(b" " * 2000)
        config = user_config(tmp_path, PIP_INDEX_URL=f"{upstream.url}/simple")
        async with running(config, limits=MirrorLimits(page_bytes=1000)) as reached:
            answer = await reached.client.get("/pypi/simple/alpha/")
    assert (answer.status_code, "larger than" in answer.text) == (502, True)


async def test_a_failing_log_does_not_reach_the_client(tmp_path: Path) -> None:
    def failing(record: MirrorRequest) -> None:
        raise RuntimeError(record.kind)

    config = user_config(tmp_path, **local_index(tmp_path))
    async with RegistryMirror(tmp_path / "s", config=config, log=failing) as mirror:
        for _ in range(2):
            reader, writer = await asyncio.open_unix_connection(mirror.socket_path)
            writer.write(GOOD + b"\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()


async def test_closing_cuts_connections_and_removes_the_socket(tmp_path: Path) -> None:
    async with running(user_config(tmp_path, **local_index(tmp_path))) as reached:
        reader, writer = await asyncio.open_unix_connection(reached.mirror.socket_path)
        writer.write(b"GET /pypi")
        await asyncio.sleep(0)
        await reached.mirror.close()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert not reached.mirror.socket_path.exists()
        await reached.mirror.close()
        await reached.mirror.start()
        assert (await reached.client.get("/pypi/simple/alpha/")).status_code == 200


async def test_a_socket_path_of_any_length_and_a_stale_socket(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    config = user_config(tmp_path, **local_index(tmp_path))
    first = RegistryMirror(directory / "mirror.sock", config=config)
    await first.start()
    async with RegistryMirror(directory / "mirror.sock", config=config) as second:
        assert second.socket_path.is_socket()
        assert second.socket_path.stat().st_mode & 0o777 == 0o666
    await first.close()
    with pytest.raises(InfrastructureError, match="nowhere") as caught:
        await RegistryMirror(tmp_path / "nowhere/mirror.sock", config=config).start()
    assert caught.value.code == "registry_socket"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InfrastructureError):
        await RegistryMirror(tmp_path / "file", config=config).start()
    assert (tmp_path / "file").read_text() == "mine"


async def test_the_forwarder_carries_both_ways_and_many_at_once(tmp_path: Path) -> None:
    port = free_port()
    config = user_config(tmp_path, **local_index(tmp_path, size=BIG))
    through = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False)
    async with forwarded_mirror(config, port) as reached, through as client:
        page = await client.get("/pypi/simple/alpha/")
        href = page.text.partition('href="')[2].partition('"')[0]
        answers = await asyncio.gather(*(client.get(href) for _ in range(8)))
        assert all(answer.content == b"x" * BIG for answer in answers)
        await reached.mirror.close()
        with pytest.raises(httpx.TransportError):
            await client.get(href)
        await reached.mirror.start()
        assert (await client.get("/pypi/simple/alpha/")).status_code == 200


def test_the_forwarder_reports_errors(tmp_path: Path) -> None:
    def forward(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(FORWARDER), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert forward().returncode == forward("port", "socket").returncode == 2
    with registry() as taken:
        done = forward(taken.host.rpartition(":")[2], str(tmp_path / "s"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot listen" in done.stderr


def test_the_forwarder_does_not_import_the_package() -> None:
    source = FORWARDER.read_text()
    assert "chargehand" not in source
    assert len(source.splitlines()) < 80
