"""A provider that repeats its key, in any form and anywhere, reveals it to no one behind the gateway."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.gateway_kit import DONE, PRICE, chunk, event, message, openai_whole

from chargehand.core.redaction import Redactor
from chargehand.models.contract import CallListeners, CallRecord, Dialect, ServedModel
from chargehand.models.gateway import Gateway, GatewayLimits, ServedAttempt
from chargehand.models.http_upstream import HttpUpstream
from chargehand.models.key_filter import KeyFilter, explain_weak_key
from chargehand.models.metering import MemoryLedger
from chargehand.models.recording import RecordingUpstream, RecordingWriter
from chargehand.models.replay_cache import ReplayCache

pytestmark = pytest.mark.usefixtures("shared_trust")
KEY = "sk-canary-7f3Qz9LmX2vB8nTcW4rY6uKp"
Encode = Callable[[str], str]


def _escaped(key: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in key)


ENCODINGS: dict[str, Encode] = {
    "plain": str,
    "upper": str.upper,
    "base64": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64url": lambda key: base64.urlsafe_b64encode(f"?~{key}".encode()).decode(),
    "base64 in lines": lambda key: base64.encodebytes(("x" * 40 + key).encode()).decode().replace("\n", "\r\n "),
    "hex": lambda key: key.encode().hex(),
    "hex of bytes": lambda key: key.encode().hex(":").upper(),
    "url": lambda key: "".join(f"%{byte:02X}" for byte in key.encode()),
    "url in part": lambda key: key.replace("-", "%2d").replace("Q", "%51"),
    "spaced": " ".join,
    "spaced by dots": "·".join,
    "html": lambda key: "".join(f"&#{ord(letter)};" for letter in key),
    "escapes of a program": lambda key: "".join(f"\\x{byte:02x}" for byte in key.encode()),
    "decimal": lambda key: ", ".join(str(byte) for byte in key.encode()),
    "backwards": lambda key: key[::-1],
    "base32": lambda key: base64.b32encode(key.encode()).decode(),
}
# The key is removed before a reply is translated: for translated replies one encoding of each length is enough.
TRANSLATED = ("plain", "base64 in lines", "hex", "spaced", "escapes of a program")


def views(content: str) -> set[str]:
    """Return the ways to read a text: as it is, and its JSON strings joined, each also without separators."""
    texts = list[str]()

    def walk(value: Any) -> None:
        if isinstance(value, str):
            texts.append(value)
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(inner)

    for line in content.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line.removeprefix("data: "))
            walk(
                [piece.get("delta", piece) for piece in found.get("choices", [])] if "choices" in found else found
            )
    with contextlib.suppress(ValueError):
        walk(json.loads(content))
    # A stream has each piece in a separate field: join these alone, and with everything around them.
    deltas = re.findall(r'"(?:content|text|arguments|partial_json)": ?"((?:[^"\\]|\\.)*)"', content)
    plain = {content, "".join(texts), "".join(deltas)}
    plain |= {text.replace("\\u00b7", "").replace("\\", "") for text in plain}
    return {view.lower() for text in plain for view in (text, re.sub(r"[\s:·,]|\\[nr]", "", text))}


def leaks(content: str, encode: Encode) -> bool:
    """Return whether the content shows the key in that encoding."""
    wanted = {re.sub(r"[\s:·,]", "", form).lower() for form in (encode(KEY), _escaped(encode(KEY)))}
    # The test itself writes the text around the key in base64, so the middle is enough.
    wanted |= {form.replace("\\", "") for form in wanted}
    middles = {form[len(form) // 2 - 10 : len(form) // 2 + 10] for form in wanted}
    return any(middle in view for view in views(content) for middle in middles)


@dataclass(frozen=True, kw_only=True)
class Echo:
    """A provider's reply: status, headers, and the pieces of its body as they go over the wire."""

    pieces: tuple[bytes, ...]
    status: int = 200
    kind: str = "application/json"
    headers: str = ""
    stream: bool = False
    cut: bool = False


def whole(text: str, **more: Any) -> bytes:
    return openai_whole(text, **more)


def called(text: str) -> bytes:
    function = {"name": "run", "arguments": json.dumps({"cmd": text})}
    return whole("", tool_calls=[{"id": "c", "type": "function", "function": function}])


def streamed(*pieces: bytes, **more: Any) -> Echo:
    return Echo(pieces=pieces, kind="text/event-stream", stream=True, **more)


def by_letters(text: str) -> list[bytes]:
    return [chunk({"content": letter}) for letter in text]


def split(content: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(content[start : start + size] for start in range(0, len(content), size))


END = chunk({}, finish="stop") + DONE
OK = whole("hello")
PLACES: dict[str, Callable[[str], Echo]] = {
    "request id": lambda said: Echo(pieces=(OK,), headers=f"x-request-id: {said}\r\nrequest-id: {said}\r\n"),
    "content type": lambda said: Echo(pieces=(OK,), kind=f"application/json; was={said}"),
    "retry-after": lambda said: Echo(pieces=(b"{}",), status=400, headers=f"retry-after: {said}\r\n"),
    "left out": lambda said: Echo(pieces=(OK,), headers=f"x-chargehand-left-out: {said}\r\n"),
    "error": lambda said: Echo(pieces=(json.dumps({"error": {"message": said, said: 1}}).encode(),), status=401),
    "error of the server": lambda said: Echo(pieces=(f"<p>{said}</p>".encode(),), status=500, kind="text/html"),
    "redirect": lambda said: Echo(pieces=(said.encode(),), status=307),
    "text": lambda said: Echo(pieces=(whole(f"it is {said}, yes"),)),
    "text in small pieces": lambda said: Echo(pieces=split(whole(said), 3)),
    "name of a field": lambda said: Echo(pieces=(whole("x", **{said: said}),)),
    "tool call": lambda said: Echo(pieces=(called(said),)),
    "unreadable tool call": lambda said: Echo(pieces=(called(said).replace(b'{\\"cmd', b"{"),)),
    "no JSON": lambda said: Echo(pieces=(said.encode(),)),
    "event": lambda said: streamed(chunk({"content": said}), END),
    "event in small pieces": lambda said: streamed(*split(chunk({"content": said}) + END, 5)),
    "letters": lambda said: streamed(b"".join(by_letters(f"so {said} is it")), END),
    "letters between comments": lambda said: streamed(*(one + b": on\n\n" for one in by_letters(said)), END),
    "letters without an end": lambda said: streamed(*by_letters(said[: len(said) * 4 // 5]), cut=True),
    "comment": lambda said: streamed(
        b": %b\n\n" % said.encode().replace(b"\n", b" "), chunk({"content": "a"}), END
    ),
    "name of an event": lambda said: streamed(b"event: %b\n" % said.encode().replace(b"\r\n", b"") + END),
    "error in a stream": lambda said: streamed(chunk({"content": "a"}), event("error", error={"message": said})),
}


@contextlib.asynccontextmanager
async def provider(echo: Echo, key: str = KEY) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert key.lower().encode() in head
            await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0))
            lines = f"HTTP/1.1 {echo.status} X\r\ncontent-type: {echo.kind}\r\n{echo.headers}connection: close\r\n"
            writer.write(lines.encode() + (b"transfer-encoding: chunked\r\n\r\n"))
            for piece in echo.pieces:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"" if echo.cut else b"0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(echo: Echo, tmp_path: Path, *, path: str) -> str:
    """Return everything visible of one call: to the client, in records, the recording and kept replies."""
    records, seen = list[CallRecord](), list[str]()
    cache = ReplayCache(tmp_path / "calls.jsonl", secrets={"CANARY": KEY}, token="cht-token-of-the-attempt")
    writer = RecordingWriter(tmp_path / "session.jsonl")
    async with provider(echo) as url, contextlib.AsyncExitStack() as stack:
        upstream = HttpUpstream(url, KEY, "openai", key_name="CANARY")
        stack.push_async_callback(upstream.close)
        served = ServedModel(
            name="m",
            dialect="openai",
            model="up",
            upstream=RecordingUpstream(upstream, writer, Redactor()),
            price=PRICE,
        )
        gateway = Gateway(
            [served],
            ServedAttempt(id="a-1", ledger=MemoryLedger(1.0), calls=cache),
            CallListeners(on_call=records.append),
            limits=GatewayLimits(retries=0),
        )
        await stack.enter_async_context(gateway)
        await gateway.listen_unix(tmp_path / "gateway.sock")
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "gateway.sock"), verify=False)
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, timeout=30))
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 900}
        reply = await client.post(
            f"http://gateway{path}",
            headers={"authorization": f"Bearer {gateway.token}"},
            json={**body, "stream": echo.stream},
        )
        seen += [reply.text, *(f"{name}: {value}" for name, value in reply.headers.items())]
    cache.close()
    writer.close()
    seen += [repr(records), (tmp_path / "session.jsonl").read_text(), (tmp_path / "calls.jsonl").read_text()]
    return "\n".join(seen)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"], ids=["as it is", "translated"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_key_that_is_repeated_is_seen_nowhere(
    tmp_path: Path, place: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    names = ENCODINGS if path == "/v1/chat/completions" else TRANSLATED
    for number, name in enumerate(names):
        encode = ENCODINGS[name]
        said = encode(KEY)
        if place in ("request id", "content type", "retry-after", "left out"):
            said = re.sub(r"\s+", " ", said).encode("latin-1", "replace").decode("latin-1")
        if place == "letters without an end" and name in ("base64", "base64url", "base64 in lines"):
            continue  # the encoding starts with letters that are not the key's
        echo = PLACES[place](said)
        sent = f"{echo.headers}\n{echo.kind}\n" + b"".join(echo.pieces).decode("utf-8", "replace")
        if "without an end" not in place:
            assert leaks(sent, encode), f"the search does not find {name} in what the provider sends"
        (tmp_path / str(number)).mkdir()
        seen = await ask(echo, tmp_path / str(number), path=path)
        assert not leaks(seen + caplog.text, encode), f"{name}: {seen}"
        caplog.clear()


@pytest.mark.parametrize("dialect", ["anthropic", "gemini", "responses"])
async def test_a_key_in_pieces_is_found_in_every_dialects_stream(dialect: Dialect) -> None:
    pieces: dict[str, Callable[[str], bytes]] = {
        "anthropic": lambda text: event(
            "content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": text}
        ),
        "gemini": lambda text: (
            b"data: %b\n\n"
            % json.dumps({"candidates": [{"index": 0, "content": {"parts": [{"text": text}]}}]}).encode()
        ),
        "responses": lambda text: event("response.output_text.delta", output_index=0, content_index=0, delta=text),
    }
    echo = streamed(*map(pieces[dialect], f"so {KEY} is it"))
    async with provider(echo) as url:
        upstream = HttpUpstream(url, KEY, dialect)
        try:
            reply = await upstream.send(_call(dialect))
            content = b"".join([piece async for piece in reply.chunks]).decode()
        finally:
            await upstream.close()
    said = "".join(re.findall(r'"(?:partial_json|text|delta)": ?"([^"]*)"', content))
    assert re.fullmatch(r"so .{0,4}\[redacted\] is it", said), content


def _call(dialect: Dialect) -> Any:
    from chargehand.models.contract import ModelCall

    body = message([], stream=True)
    return ModelCall(id="c", dialect=dialect, body={**body, "model": "up"}, attempt="a", turn=1)


TEXT = st.text(st.sampled_from('sk-canry7 .\n"\\é%&;{}[]'), max_size=40)


@given(before=TEXT, after=TEXT, name=st.sampled_from(sorted(ENCODINGS)))
@example(before="sk-canary-", after="7f3Qz9", name="plain")
def test_redaction_keeps_the_text_around_a_key_and_valid_json(before: str, after: str, name: str) -> None:
    keys = KeyFilter(KEY, "K")
    said = {"a": [before, before + "|" + ENCODINGS[name](KEY) + "|" + after], "b": after}
    clean = json.loads(keys.scrub(json.dumps(said).encode()))
    assert not leaks(json.dumps(clean), ENCODINGS[name])
    assert clean["b"] == after
    assert clean["a"][0] == before
    assert clean["a"][1].startswith(before + "|")
    assert "[redacted:K]" in clean["a"][1]
    assert clean["a"][1].endswith("|" + after)


@given(text=TEXT)
def test_text_without_a_key_is_unchanged(text: str) -> None:
    content = json.dumps({"content": text}).encode()
    assert KeyFilter(KEY).scrub(content) == content


@pytest.mark.parametrize("key", [None, "", "x", "none", "EMPTY"])
def test_a_missing_or_trivial_key_is_not_redacted(key: str | None) -> None:
    assert not KeyFilter(key).active
    assert KeyFilter(key).scrub(f"say {key}".encode()) == f"say {key}".encode()


WEAK = ["ollama", "dummy-key-1", "sk-no-key-required", "not-needed", "application", "stream"]


@pytest.mark.parametrize("key", WEAK)
@pytest.mark.parametrize("status", [200, 400, 429])
@pytest.mark.parametrize("name", ["plain", "base64", "base64url", "hex", "url", "spaced", "backwards"])
async def test_a_key_that_may_be_a_word_is_taken_out_of_headers_and_errors(
    key: str, status: int, name: str
) -> None:
    said = ENCODINGS[name](key)
    line = re.sub(r"\s+", " ", said).encode("latin-1", "replace").decode("latin-1")
    body = whole(f"I say {said}") if status == 200 else json.dumps({"error": {"message": f"not {said}"}}).encode()
    echo = Echo(pieces=(body,), status=status, headers=f"x-request-id: {line}\r\n")
    async with provider(echo, key) as url:
        upstream = HttpUpstream(url, key, "openai", key_name="WEAK")
        try:
            reply = await upstream.send(_call("openai"))
            content = await reply.read_all()
        finally:
            await upstream.close()
    assert reply.lower_headers["content-type"] == "application/json"
    assert "[redacted:WEAK]" in reply.lower_headers["x-request-id"]
    assert (content == body) == (status == 200), "in an honest reply it is a word"
    if status != 200:
        assert b"[redacted:WEAK]" in content
        assert json.loads(content)


@pytest.mark.parametrize("key", ["ollama", "dummy-key-1", "not-needed", "x"])
def test_a_weak_key_that_cannot_be_redacted_is_explained(key: str) -> None:
    said = explain_weak_key(key)
    assert ("from nothing" if key == "x" else "from errors and headers") in said
    assert key not in said.split()
    assert explain_weak_key(KEY) == explain_weak_key(None) == ""
