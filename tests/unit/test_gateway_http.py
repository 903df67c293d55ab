"""The endpoint itself: authorization, permitted requests, and answers to broken ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway_kit import Reply, gateway, openai_whole

from chargehand.core.errors import InfrastructureError
from chargehand.models.contract import CallListeners, HttpLimits
from chargehand.models.event_stream import EventSplitter
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.metering import MemoryLedger
from chargehand.network.unix_socket import bind_listener

ASK: dict[str, Any] = {"model": "m", "messages": [], "max_tokens": 20}
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
GOOD = Reply(pieces=[openai_whole()])


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/models"])
async def test_requests_require_the_token(tmp_path: Path, path: str) -> None:
    async with gateway(tmp_path, GOOD) as running:
        for wrong in ("", "Bearer", "Bearer cht-x", f"Basic {running.gateway.token}", "Bearer \xe9"):
            reply = await running.client.post(
                path, content=b"{}", headers={"authorization": wrong.encode("latin-1")}
            )
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "token_invalid")
            assert reply.json().get("type") == ("error" if path == MESSAGES else None)
        for right in ({"authorization": f"bearer {running.gateway.token}"}, {"x-api-key": running.gateway.token}):
            del running.client.headers["authorization"]
            assert (await running.client.get("/v1/models", headers=right)).status_code == 200
            running.client.headers["authorization"] = "none"
    assert running.records == []


def test_every_gateway_has_a_unique_token() -> None:
    made = {_gateway().token for _ in range(5)}
    assert len(made) == 5
    assert all(token.startswith("cht-") and len(token) > 40 for token in made)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (CHAT, b"{", 400, "bad_request"),
        (CHAT, b"[" * 100_000, 400, "bad_request"),
        (CHAT, b"[]", 400, "bad_request"),
        (CHAT, b"\xff", 400, "bad_request"),
        (CHAT, b"{}", 400, "bad_request"),
        (CHAT, b'{"model": "mm"}', 404, "model_not_found"),
        (MESSAGES, b'{"model": "m", "messages": [{"content": [{"type": "x"}]}]}', 400, "uncarried"),
        (MESSAGES, b"", 400, "bad_request"),
        ("/v1/messages/count_tokens", b"{}", 400, "bad_request"),
        ("/v1/responses", b'{"model": "m", "previous_response_id": "r"}', 400, "bad_request"),
        ("/v1/responses/r_1", b"{}", 404, "not_found"),
        ("/v1/models", b"{}", 405, "method_not_allowed"),
    ],
)
async def test_a_wrong_request_gets_an_error_of_its_dialect(
    tmp_path: Path, path: str, body: bytes, status: int, code: str
) -> None:
    async with gateway(tmp_path, GOOD) as running:
        reply = await running.post(body, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
        assert ("type" in reply.json()) == path.startswith(MESSAGES)
        # The connection stays open.
        assert (await running.post(ASK)).status_code == 200
    assert len(running.records) == 1


async def test_unknown_models_and_dialects_name_the_way_out(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD) as running:
        unknown = (await running.post({**ASK, "model": "mm"})).json()["error"]["message"]
        translated = await running.post(ASK, MESSAGES)
    assert "known: m" in unknown
    assert translated.json()["content"][0]["text"] == "hello"


async def test_paths_without_a_version_and_with_a_query_are_known(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD) as running:
        assert (await running.post(ASK, "/chat/completions")).status_code == 200
        assert (await running.post(ASK, f"{CHAT}?beta=true")).status_code == 200
        listed = (await running.client.get("/models")).json()
        assert (await running.client.head("/models")).status_code == 200
        assert (await running.client.get(CHAT)).status_code == 405
    assert [entry["id"] for entry in listed["data"]] == ["m"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(tmp_path: Path, chunked: bool) -> None:
    async with gateway(tmp_path, GOOD, http=HttpLimits(body_bytes=1_000)) as running:

        async def pieces() -> Any:
            for _ in range(100):
                yield b" " * 20

        content = pieces() if chunked else b" " * 1_001
        reply = await running.client.post(MESSAGES, content=content)
        assert (reply.status_code, reply.json()["error"]["type"]) == (413, "request_too_large")
        assert (await running.post(ASK)).status_code == 200


async def test_compressed_bodies_are_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD) as running:
        reply = await running.client.post(CHAT, content=b"x", headers={"content-encoding": "gzip"})
    assert reply.status_code == 415


async def test_more_connections_than_allowed_are_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD, http=HttpLimits(connections=1)) as running:
        _, first = await asyncio.open_unix_connection(str(tmp_path / "gateway.sock"))
        await asyncio.sleep(0.01)
        assert (await running.client.get("/v1/models")).status_code == 503
        first.close()
        await first.wait_closed()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", b"HTTP/1.1 4"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n", b"HTTP/1.1 400"),
        (b"", b""),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab", b"HTTP/1.1 400"),
    ],
)
async def test_malformed_requests_are_answered_or_dropped(tmp_path: Path, sent: bytes, status: bytes) -> None:
    async with gateway(tmp_path, GOOD) as running:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "gateway.sock"))
        writer.write(sent)
        writer.write_eof()
        reply = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert reply.startswith(status)
        assert bool(reply) == bool(status)
        assert (await running.post(ASK)).status_code == 200


async def test_a_question_for_the_head_gets_no_body(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD) as running:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "gateway.sock"))
        one = b"HEAD / HTTP/1.1\r\nhost: g\r\n"
        writer.write(one + b"\r\n" + one + b"connection: close\r\n\r\n")
        reply = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert (reply.count(b"HTTP/1.1 401"), reply.count(b"{")) == (2, 0)
        assert (await running.post(ASK)).status_code == 200


async def test_requests_sent_ahead_are_answered_in_turn(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD) as running:
        body = json.dumps(ASK).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nx-api-key: {running.gateway.token}\r\n"
        one = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        last = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "gateway.sock"))
        writer.write(one + last)
        reply = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert reply.count(b"HTTP/1.1 200") == 2
    assert [record.turn for record in running.records] == [1, 2]


async def test_a_client_that_waits_to_be_asked_is_asked(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD) as running:
        body = json.dumps(ASK).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nx-api-key: {running.gateway.token}\r\nconnection: close\r\n"
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "gateway.sock"))
        writer.write(f"{head}expect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
        writer.write(body)
        assert b"HTTP/1.1 200" in await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_does_not_read_is_cut(tmp_path: Path) -> None:
    large = Reply(pieces=[openai_whole("x" * 4_000_000)])
    async with gateway(tmp_path, large, http=HttpLimits(write_seconds=0.03)) as running:
        body = json.dumps(ASK).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nx-api-key: {running.gateway.token}\r\n"
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "gateway.sock"), limit=1_000)
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        record = await running.settled()
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    # The whole reply arrived, and it was paid for.
    assert record.status == "ok"


async def test_a_stale_socket_with_a_long_path_is_replaced_and_removed(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    bind_listener(deep / "g.sock").close()  # as a killed process leaves it
    assert (deep / "g.sock").is_socket()
    for _ in range(2):
        first = _gateway()
        await first.listen_unix(deep / "g.sock")
        assert (deep / "g.sock").is_socket()
        await first.close()
    assert not (deep / "g.sock").exists()


async def test_a_failure_to_listen_names_the_path_or_port(tmp_path: Path) -> None:
    async with _gateway() as unlucky:
        with pytest.raises(InfrastructureError, match="missing") as caught:
            await unlucky.listen_unix(tmp_path / "missing" / "g.sock")
        assert caught.value.code == "gateway_socket"
        port = await unlucky.listen_tcp()
        with pytest.raises(InfrastructureError, match=str(port)):
            await unlucky.listen_tcp(port=port)


async def test_an_error_of_a_listener_is_not_swallowed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: object) -> None:
        raise OSError(28, "disk full")

    async with gateway(tmp_path, GOOD, on_call=fails) as running:
        reply = await running.post(ASK)
    assert reply.status_code == 500
    assert "disk full" in caplog.text


def _gateway() -> Gateway:
    attempt = ServedAttempt(id="a", ledger=MemoryLedger(None))
    return Gateway([], attempt, CallListeners(on_call=lambda _: None))


@given(
    events=st.lists(
        st.binary(min_size=1, max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"") + b"x")
    ),
    size=st.integers(1, 30),
    blank=st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]),
)
def test_events_are_split_from_arbitrary_pieces(events: list[bytes], size: int, blank: bytes) -> None:
    whole = b"".join(event + blank for event in events) + b"rest"
    split = EventSplitter()
    found = [event for i in range(0, len(whole), size) for event in split.feed(whole[i : i + size])]
    assert found == [event + blank for event in events]
    assert split.rest() == b"rest\n\n"
