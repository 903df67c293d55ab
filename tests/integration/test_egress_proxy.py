"""A sandbox's proxy alone, over real sockets: allowed hosts, addresses, limits and the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.egress_kit import OK, Names, get, proxy, upstream

from chargehand.network.contract import EgressLimits


async def test_an_allowed_host_answers_and_others_are_refused_and_both_are_logged(tmp_path: Path) -> None:
    names = Names(allowed_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    async with upstream() as host, proxy(tmp_path, f"private:allowed.test:{host.port}", names=names) as out:
        there = f"allowed.test:{host.port}"
        assert (await out.say(get(there, "/a?token=s3cret"))).endswith(b"\r\n\r\nhello")
        refused = await out.say(get(f"other.test:{host.port}"))
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert f"other.test:{host.port} is not allowed".encode() in refused.partition(b"\r\n\r\n")[2]
        assert b"[sandbox] network" in refused
        assert (await out.say(get("allowed.test:1"))).startswith(b"HTTP/1.1 403 ")
        first, second, third = await out.logged(3)
        assert host.got[0].startswith(b"GET /a?token=s3cret HTTP/1.1\r\n")
    assert (first.method, first.host, first.allowed, first.status) == ("GET", "allowed.test", True, 200)
    assert first.entry == f"private:allowed.test:{host.port}"
    assert (first.address, first.bytes_in, first.reason) == ("127.0.0.1", len(OK), "")
    assert first.bytes_out == len(host.got[0])
    assert [(one.allowed, one.status, one.entry, one.address) for one in (second, third)] == [
        (False, 403, "", "")
    ] * 2
    assert not [one for one in (first, second, third) if "s3cret" in repr(one)]
    # A name that is not allowed is never resolved: a look-up can carry data to the name's DNS server.
    assert names.asked == ["allowed.test"]


async def test_a_tunnel_passes_bytes_both_ways_and_is_counted(tmp_path: Path) -> None:
    async with upstream(b"and back") as host, proxy(tmp_path, f"127.0.0.1:{host.port}") as out:
        connect = f"CONNECT 127.0.0.1:{host.port} HTTP/1.0\r\n\r\n".encode()
        answer = await out.say(connect + b"SSH-2.0-there")
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\nand back"
        assert host.got == [b"SSH-2.0-there"]
        (record,) = await out.logged()
    assert (record.method, record.bytes_out, record.bytes_in, record.allowed) == ("CONNECT", 13, 8, True)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "169.254.169.254", "100.64.0.1", "::1", "fd00::1", "fe80::1", "fec0::1"),
        *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2001:0:7f00:1::"),
        *("0.0.0.0", "224.0.0.1", "192.0.2.1", "255.255.255.255", "::"),
    ],
)
async def test_a_name_that_leads_elsewhere_than_to_the_public_is_refused(tmp_path: Path, address: str) -> None:
    names = Names(inside_test=[["1.1.1.1", address]])
    async with proxy(tmp_path, "inside.test", names=names) as out:
        refused = await out.say(get("inside.test"))
        assert refused.startswith(b"HTTP/1.1 403 ")
        (record,) = await out.logged()
    assert not record.allowed
    assert record.address == ""
    assert "leads to" in record.reason


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "0.0.0.0", "192.0.2.1", "224.0.0.1"])
async def test_a_private_grant_by_name_covers_no_metadata_service(tmp_path: Path, address: str) -> None:
    async with proxy(tmp_path, "private:inside.test", names=Names(inside_test=[[address]])) as out:
        refused = await out.say(get("inside.test"))
    assert refused.startswith(b"HTTP/1.1 403 ")
    assert b"the very address" in refused


async def test_an_answer_that_changes_is_never_used(tmp_path: Path) -> None:
    """A rebinding name resolves first to a public address, then to loopback; each connection resolves it once."""
    async with upstream() as host:
        names = Names(rebind_test=[["127.0.0.1"], ["10.0.0.1"]])
        async with proxy(tmp_path, f"private:rebind.test:{host.port}", names=names) as out:
            assert (await out.say(get(f"rebind.test:{host.port}"))).endswith(b"hello")
        assert names.asked == ["rebind.test"]
        turned = Names(rebind_test=[["127.0.0.1"]])
        async with proxy(tmp_path, f"rebind.test:{host.port}", names=turned) as out:
            assert (await out.say(get(f"rebind.test:{host.port}"))).startswith(b"HTTP/1.1 403 ")
        assert len(host.got) == 1


async def test_an_unresolvable_name_or_unreachable_host_gets_502(tmp_path: Path) -> None:
    async with proxy(
        tmp_path, "nowhere.test", "private:closed.test:1", names=Names(closed_test=[["127.0.0.1"]])
    ) as out:
        assert (await out.say(get("nowhere.test"))).startswith(b"HTTP/1.1 502 ")
        answer = await out.say(get("closed.test:1"))
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"cannot connect to closed.test:1" in answer


async def test_closing_the_proxy_cuts_and_logs_every_tunnel(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, proxy(tmp_path, f"127.0.0.1:{port}") as out:
        reader, writer = await out.connect()
        writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await held.wait()
        assert out.running is not None
        await out.running.close()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        assert [one.reason for one in out.log] == ["the sandbox's network was closed"]
        assert not out.path.exists()


async def test_bytes_are_limited_over_all_requests(tmp_path: Path) -> None:
    big = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + bytes(100_000)
    limits = EgressLimits(bytes_in=150_000)
    async with upstream(big) as host, proxy(tmp_path, f"127.0.0.1:{host.port}", limits=limits) as out:
        assert len(await out.say(get(f"127.0.0.1:{host.port}"))) > 100_000
        assert len(await out.say(get(f"127.0.0.1:{host.port}"))) < 100_000
        last = await out.say(get(f"127.0.0.1:{host.port}"))
        assert last.startswith(b"HTTP/1.1 403 ")
        assert b"network_mb_in" in last
        assert [bool(one.reason) for one in await out.logged(3)] == [False, True, True]
        assert sum(one.bytes_in for one in out.log) <= 150_000


async def test_an_idle_tunnel_is_closed(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, proxy(tmp_path, f"127.0.0.1:{port}", limits=EgressLimits(idle_seconds=0.05)) as out:
        await out.say(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        (record,) = await out.logged()
    assert record.reason == "nothing was sent for 0.05 s"


async def test_connections_at_once_are_limited(tmp_path: Path) -> None:
    async with upstream() as host:
        limits = EgressLimits(connections=2)
        async with proxy(tmp_path, f"127.0.0.1:{host.port}", limits=limits) as out:
            open_ones = [await out.connect() for _ in range(2)]
            assert (await out.say(get(f"127.0.0.1:{host.port}"))).startswith(b"HTTP/1.1 503 ")
            for _, writer in open_ones:
                writer.close()
                await writer.wait_closed()
            async with asyncio.timeout(60):  # the proxy must first notice that they are closed
                while not (await out.say(get(f"127.0.0.1:{host.port}"))).endswith(b"hello"):
                    await asyncio.sleep(0.01)


async def test_requests_are_paced_and_then_refused(tmp_path: Path) -> None:
    limits = EgressLimits(requests_per_second=5, head_seconds=0.1)
    async with proxy(tmp_path, limits=limits) as out:
        answers = await asyncio.gather(*[out.say(get("a.test")) for _ in range(40)])
    said = sorted(answer.split(b" ")[1] for answer in answers)
    assert said.count(b"429") >= 5
    assert said.count(b"403") >= 5
