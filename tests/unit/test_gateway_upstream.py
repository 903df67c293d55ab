"""A provider over HTTP: the requests sent to it, and the handling of its faults."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.clock_kit import AheadClock

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import Dialect, ModelCall, UpstreamReply
from chargehand.models.http_upstream import HttpUpstream

KEY = "sk-very-secret"
LOCAL = "http://127.0.0.1"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def call(dialect: Dialect = "openai", seconds: float = 5.0, **headers: str) -> ModelCall:
    body = {"model": "up", "text": "é"}
    return ModelCall(id="c", dialect=dialect, body=body, attempt="a", turn=1, seconds=seconds, headers=headers)


@asynccontextmanager
async def provider(
    answer: bytes, *, hold: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve `answer` to every request; without `hold` close the connection if it is incomplete."""
    seen: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            seen.append(head + await reader.readexactly(size))
            writer.write(answer)
            if answer != OK:
                break
        if not hold:
            writer.close()

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await connected(reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    server = await asyncio.start_server(quiet, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@asynccontextmanager
async def upstream(url: str, dialect: Dialect = "openai", **more: Any) -> AsyncIterator[HttpUpstream]:
    made = HttpUpstream(url, KEY, dialect, **more)
    try:
        yield made
    finally:
        await made.close()
        await made.close()


async def whole(reply: UpstreamReply) -> bytes:
    return b"".join([piece async for piece in reply.chunks])


@pytest.mark.parametrize(
    ("dialect", "base", "path"),
    [
        ("openai", "", "/v1/chat/completions"),
        ("openai", "/v1", "/v1/chat/completions"),
        ("openai", "/v1/", "/v1/chat/completions"),
        ("openai", "/api/v1", "/api/v1/chat/completions"),
        ("openai", "/v1beta/openai", "/v1beta/openai/chat/completions"),
        ("openai", "/proxy", "/proxy/v1/chat/completions"),
        ("anthropic", "", "/v1/messages"),
        ("anthropic", "/v1", "/v1/messages"),
    ],
)
async def test_a_call_is_sent_to_its_path_with_its_key(dialect: Dialect, base: str, path: str) -> None:
    async with provider(OK) as (url, seen), upstream(url + base, dialect, headers={"x-title": "t"}) as up:
        for _ in range(2):
            reply = await up.send(call(dialect, **{"anthropic-beta": "b"}))
            assert (reply.status, await whole(reply)) == (200, b"{}")
    head, _, body = seen[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == f"POST {path} HTTP/1.1"
    assert json.loads(body) == {"model": "up", "text": "é"}
    own = f"authorization: Bearer {KEY}" if dialect == "openai" else f"x-api-key: {KEY}"
    assert {own, "x-title: t", "anthropic-beta: b"} <= set(lines)
    assert ("anthropic-version: 2023-06-01" in lines) == (dialect == "anthropic")


async def test_the_clients_version_counts_over_ours() -> None:
    async with provider(OK) as (url, seen), upstream(url, "anthropic") as up:
        await whole(await up.send(call("anthropic", **{"anthropic-version": "2099-01-01"})))
    assert seen[0].count(b"anthropic-version") == 1
    assert b"2099-01-01" in seen[0]


async def test_a_connection_is_reused_until_closed() -> None:
    async with provider(OK) as (url, _), upstream(url) as up:
        (line,) = [await lines_after(up) for _ in range(3)][-1]
        assert [await lines_after(up)] == [[line]]
        side = [await up.send(call()) for _ in range(3)]
        assert [await whole(reply) for reply in side] == [b"{}"] * 3
        assert len(idle(up)) == 3  # each call used a separate connection, and all are free again
        for kept in idle(up):
            kept.transport.abort()
        (new,) = await lines_after(up)
        assert new is not line
    assert idle(up) == []


def idle(up: HttpUpstream) -> list[Any]:
    return [each for wire in up._clients.values() for each in vars(wire)["_idle"]]


async def lines_after(up: HttpUpstream) -> list[Any]:
    assert await whole(await up.send(call())) == b"{}"
    return idle(up)


async def test_a_proxy_of_the_environment_is_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "all_proxy", "no_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with provider(OK) as (url, seen):
        monkeypatch.setenv("http_proxy", url)
        async with upstream("http://model.invalid/v1") as up:
            for _ in range(2):
                assert await whole(await up.send(call())) == b"{}"
            assert await up.probe(1.0) is False  # the probe waits for a body
    assert seen[0].startswith(b"POST http://model.invalid/v1/chat/completions HTTP/1.1\r\n")


@pytest.mark.parametrize("trusted", [True, False])
async def test_certificates_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    self_signed(key, certificate, host="localhost")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with provider(OK, tls=context) as (url, seen), upstream(url.replace(LOCAL, "https://localhost")) as up:
        if trusted:
            assert [await whole(await up.send(call())) for _ in range(3)] == [b"{}"] * 3
            assert len(idle(up)) == 1
        else:
            with pytest.raises(UpstreamError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                await up.send(call())
            assert caught.value.code == "upstream_untrusted"
    assert len(seen) == 3 * trusted


def self_signed(key: Path, certificate: Path, *, host: str) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    start = datetime.now(UTC) - timedelta(days=1)
    made = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, form, plain))
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


async def test_redirects_are_not_followed() -> None:
    answer = b"HTTP/1.1 307 X\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n"
    async with provider(answer) as (url, seen), upstream(url) as up:
        assert (await up.send(call())).status == 307
    assert len(seen) == 1


async def test_a_provider_that_does_not_listen_is_unreachable() -> None:
    async with provider(OK) as (url, _):
        pass
    async with upstream(url) as up:
        with pytest.raises(UpstreamError, match="cannot reach") as caught:
            await up.send(call())
    assert caught.value.code == "upstream_unreachable"
    assert KEY not in f"{caught.value!r} {caught.value.message} {up!r} {vars(caught.value)}"


async def test_a_call_cancelled_while_connecting_leaves_no_socket() -> None:
    async with provider(OK) as (url, _):
        for turns in range(12):
            async with upstream(url) as up:
                sending = asyncio.ensure_future(up.send(call()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await sending).close()
    gc.collect()  # a socket left open warns here, and every warning fails a test


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 20", OK[:-1]])
async def test_a_reply_that_breaks_off_is_cut(answer: bytes) -> None:
    async with provider(answer) as (url, _), upstream(url) as up:
        with pytest.raises(UpstreamError) as caught:
            await whole(await up.send(call()))
    assert caught.value.code == "upstream_cut"


@pytest.mark.parametrize("answer", [b"", OK[:-1]])
async def test_a_reply_that_stalls_is_late(answer: bytes) -> None:
    async with provider(answer, hold=True) as (url, seen), upstream(url) as up:
        asking = asyncio.ensure_future(up.send(call(seconds=300)))
        waiting = asyncio.ensure_future(whole(await asking)) if answer else asking
        while not (seen and waiting.done()):
            if seen:
                AheadClock().put_forward(300)
            await asyncio.sleep(0.01)
        with pytest.raises(UpstreamError) as caught:
            await waiting
    assert caught.value.code == "upstream_timeout"


async def test_an_unread_reply_can_be_closed() -> None:
    async with provider(OK[:-1], hold=True) as (url, _), upstream(url) as up:
        reply = await up.send(call())
        await reply.chunks.aclose()


@pytest.mark.parametrize(
    ("url", "key"),
    [("http://a\x7fb", KEY), ("ftp://a", KEY), ("http://127.0.0.1:1", KEY + "\n"), ("http://a", "é")],
)
async def test_an_unsendable_request_is_an_error_without_the_key(url: str, key: str) -> None:
    made = HttpUpstream(url, key, "openai")
    try:
        with pytest.raises(UpstreamError) as caught:
            await made.send(call())
    finally:
        await made.close()
    assert key.strip() not in f"{caught.value!r} {caught.value.message} {caught.value.hint}"


def test_importing_the_package_loads_no_heavy_modules() -> None:
    heavy = ("httpx", "httpx2", "openai", "anthropic", "pydantic_ai", "genai_prices")
    code = f"import sys, chargehand.models; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
