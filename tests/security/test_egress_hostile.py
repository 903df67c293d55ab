"""Hostile requests from a sandbox to the proxy: all are refused, and the host never sees them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.egress_kit import Names, get, proxy, upstream

from chargehand.network.contract import EgressLimits, EgressRefusal
from chargehand.network.proxy.head import read_head
from chargehand.network.proxy.tls import BadHelloError, read_client_hello, read_server_name

A = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n"
BAD_HEADS = {
    "two hosts": A + b"Host: a.test\r\n",
    "another host": b"GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n",
    "another port": b"GET http://a.test/ HTTP/1.1\r\nHost: a.test:81\r\n",
    "no host": b"GET http://a.test/ HTTP/1.1\r\n",
    "two lengths": A + b"Content-Length: 3\r\nContent-Length: 3\r\n",
    "length list": A + b"Content-Length: 3, 3\r\n",
    "signed length": A + b"Content-Length: +3\r\n",
    "length and chunks": A + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "two codings": A + b"Transfer-Encoding: gzip, chunked\r\n",
    "hidden coding": A + b"Transfer-Encoding: \x0bchunked\r\n",
    "folded": A + b"X: a\r\n b\r\n",
    "folded first": b"GET http://a.test/ HTTP/1.1\r\n Host: a.test\r\n",
    "blank before colon": A + b"Content-Length : 3\r\n",
    "bare line feed": A + b"X: a\nContent-Length: 3\r\n",
    "bare return": A + b"X: a\rContent-Length: 3\r\n",
    "zero byte": A + b"X: a\0b\r\n",
    "no name": A + b": a\r\n",
    "old version": b"GET http://a.test/ HTTP/1.0\r\nHost: a.test\r\n",
    "new version": b"GET http://a.test/ HTTP/2.0\r\nHost: a.test\r\n",
    "no version": b"GET http://a.test/\r\n",
    "origin form": b"GET / HTTP/1.1\r\nHost: a.test\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n",
    "https": b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n",
    "ftp": b"GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n",
    "file": b"GET file:///etc/passwd HTTP/1.1\r\nHost: a.test\r\n",
    "user": b"GET http://a.test@b.test/ HTTP/1.1\r\nHost: a.test\r\n",
    "fragment": b"GET http://a.test#@b.test/ HTTP/1.1\r\nHost: a.test\r\n",
    "backslash": b"GET http://a.test\\@b.test/ HTTP/1.1\r\nHost: a.test\r\n",
    "two blanks": b"GET  http://a.test/ HTTP/1.1\r\nHost: a.test\r\n",
    "small method": b"get http://a.test/ HTTP/1.1\r\nHost: a.test\r\n",
    "trace": b"TRACE http://a.test/ HTTP/1.1\r\nHost: a.test\r\n",
    "short address": b"GET http://127.1/ HTTP/1.1\r\nHost: 127.1\r\n",
    "number address": b"GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n",
    "hexadecimal": b"GET http://0x7f000001/ HTTP/1.1\r\nHost: 0x7f000001\r\n",
    "octal": b"GET http://0177.0.0.1/ HTTP/1.1\r\nHost: 0177.0.0.1\r\n",
    "zone": b"GET http://[fe80::1%25lo]/ HTTP/1.1\r\nHost: [fe80::1%25lo]\r\n",
    "no brackets": b"GET http://::1/ HTTP/1.1\r\nHost: ::1\r\n",
    "port 0": b"CONNECT a.test:0 HTTP/1.1\r\nHost: a.test:0\r\n",
    "port 65536": b"CONNECT a.test:65536 HTTP/1.1\r\nHost: a.test:65536\r\n",
    "no port": b"CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n",
    "connect elsewhere": b"CONNECT a.test:443 HTTP/1.1\r\nHost: b.test:443\r\n",
    "connect with a path": b"CONNECT a.test:443/x HTTP/1.1\r\nHost: a.test:443\r\n",
    "expects more": A + b"Expect: 200-ok\r\n",
    "many fields": A + b"X: y\r\n" * 300,
}


@pytest.mark.parametrize("head", BAD_HEADS.values(), ids=BAD_HEADS.keys())
async def test_a_head_that_two_could_read_differently_is_refused(tmp_path: Path, head: bytes) -> None:
    async with proxy(tmp_path, "a.test", "b.test", "127.0.0.1") as out:
        answer = await out.say(head + b"\r\n")
        (record,) = await out.logged()
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505")), answer
    assert not record.allowed
    assert record.status in (400, 405, 417, 431, 505)


def test_a_valid_request_head_is_read() -> None:
    head = read_head(A + b"\r\n")
    assert (head.method, head.host, head.port, head.target) == ("GET", "a.test", 80, b"/")
    assert (read_head(b"GET http://A.Test.:80?q HTTP/1.1\r\nhost: a.test\r\n\r\n").target) == b"/?q"


async def test_an_endless_head_is_refused(tmp_path: Path) -> None:
    async with proxy(tmp_path) as out:
        answer = await out.say(b"GET http://a.test/ HTTP/1.1\r\nX: " + b"a" * 100_000)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_head_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    async with proxy(tmp_path, limits=EgressLimits(head_seconds=0.05)) as out:
        assert (await out.say(b"GET http://a.test/ HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")


async def test_proxy_and_hop_by_hop_headers_do_not_reach_the_host(tmp_path: Path) -> None:
    async with upstream() as host, proxy(tmp_path, f"127.0.0.1:{host.port}") as out:
        more = (
            *("Proxy-Authorization: Basic c2VjcmV0", "Connection: X-Mine, Upgrade", "X-Mine: 1", "Upgrade: h2c"),
            *(
                "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
                "Proxy-Connection: keep-alive",
                "TE: trailers",
                "X-Good: 1",
            ),
        )
        assert (await out.say(get(f"127.0.0.1:{host.port}", "/", *more))).endswith(b"hello")
        (seen,) = host.got
    names = {line.partition(b":")[0].lower() for line in seen.split(b"\r\n")[1:] if line}
    assert names == {b"host", b"x-good", b"connection"}


async def test_a_second_request_on_a_connection_is_ignored(tmp_path: Path) -> None:
    async with upstream() as host, proxy(tmp_path, f"127.0.0.1:{host.port}") as out:
        place = f"127.0.0.1:{host.port}"
        answer = await out.say(get(place, "/one") + get(place, "/two"))
        assert answer.count(b"HTTP/1.1") == 1
        assert len(host.got) == 1
        assert b"/two" not in host.got[0]


async def test_a_request_smuggled_in_a_body_is_not_sent(tmp_path: Path) -> None:
    async with upstream() as host, proxy(tmp_path, f"127.0.0.1:{host.port}") as out:
        place = f"127.0.0.1:{host.port}"
        hidden = b"0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"
        head = f"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        await out.say(head + hidden)
        await asyncio.sleep(0.05)
        assert not [one for one in host.got if b"hidden" in one]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw",
        b"nonsense\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    ],
)
async def test_an_invalid_response_is_a_502(tmp_path: Path, answer: bytes) -> None:
    async with upstream(answer) as host, proxy(tmp_path, f"127.0.0.1:{host.port}") as out:
        said = await out.say(get(f"127.0.0.1:{host.port}"))
    assert said.startswith(b"HTTP/1.1 502 "), said


async def test_half_an_answer_is_cut(tmp_path: Path) -> None:
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
    async with upstream(half) as host, proxy(tmp_path, f"127.0.0.1:{host.port}") as out:
        await out.say(get(f"127.0.0.1:{host.port}"))
        (record,) = await out.logged()
    assert record.reason


# --- TLS


def hello(name: str | None) -> bytes:
    """Return the ClientHello that a real client sends for a server of that name."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@contextlib.asynccontextmanager
async def tls_ways(place: Path) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a host that accepts any bytes; yield its address and the bytes that it received."""
    async with upstream(b"served") as host:
        yield f"allowed.test:{host.port}", host.got


@pytest.mark.parametrize("pieces", [1, 3, 100])
async def test_tls_for_the_allowed_host_passes_in_any_number_of_pieces(tmp_path: Path, pieces: int) -> None:
    names = Names(allowed_test=[["127.0.0.1"]])
    async with tls_ways(tmp_path) as (place, got), proxy(tmp_path, f"private:{place}", names=names) as out:
        data = hello("allowed.test")
        reader, writer = await out.connect()
        writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        size = max(1, len(data) // pieces)
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.read()).endswith(b"served")
        writer.close()
        await writer.wait_closed()
        assert got == [data]


@pytest.mark.parametrize("name", ["other.test", "evil.allowed.test", None])
async def test_tls_for_another_server_does_not_leave(tmp_path: Path, name: str | None) -> None:
    names = Names(allowed_test=[["127.0.0.1"]])
    async with tls_ways(tmp_path) as (place, got), proxy(tmp_path, f"private:{place}", names=names) as out:
        answer = await out.say(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode() + hello(name))
        assert answer.endswith(bytes((21, 3, 1, 0, 2, 2, 49)))
        (record,) = await out.logged()
        assert b"".join(got) == b""
    assert not record.allowed
    assert record.bytes_out == 0
    assert "TLS" in record.reason


def split(records: bytes, size: int) -> bytes:
    """Return the same handshake spread over records of `size` bytes."""
    body = records[5:]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def test_a_hello_over_many_records_is_read() -> None:
    for size in (1, 7, 100):
        found = read_client_hello(split(hello("a.test"), size))
        assert found is not None
        assert read_server_name(found) == "a.test"


def test_an_incomplete_client_hello_is_not_judged() -> None:
    data = hello("a.test")
    assert {read_client_hello(data[:size]) for size in range(len(data))} == {None}


def test_an_invalid_client_hello_is_refused() -> None:
    whole = read_client_hello(hello("a.test"))
    assert whole is not None
    for size in range(len(whole)):
        with contextlib.suppress(BadHelloError):
            assert read_server_name(whole[:size]) is None
    for data in (
        b"GET / HTTP/1.1",
        b"\x16\x02\x00",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        b"\x80\x2e\x01",
    ):
        with pytest.raises(BadHelloError):
            read_client_hello(data)
    with pytest.raises(BadHelloError):
        read_client_hello(b"\x16\x03\x01\x00\x04\x02\x00\x00\x00")  # a ServerHello


def test_two_names_in_a_hello_are_refused() -> None:
    start = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
    entry = b"\0\0\x06a.test"
    once = b"\0\0" + (len(entry) + 2).to_bytes(2, "big") + len(entry).to_bytes(2, "big") + entry
    twice = b"\0\0" + (2 * len(entry) + 2).to_bytes(2, "big") + (2 * len(entry)).to_bytes(2, "big") + 2 * entry
    assert read_server_name(start + len(once).to_bytes(2, "big") + once) == "a.test"
    for extensions in (once + once, twice):
        with pytest.raises(BadHelloError):
            read_server_name(start + len(extensions).to_bytes(2, "big") + extensions)


def test_a_refusal_does_not_repeat_a_secret() -> None:
    with pytest.raises(EgressRefusal) as caught:
        read_head(b"GET http://user:s3cret@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert "s3cret" not in caught.value.message + caught.value.hint
