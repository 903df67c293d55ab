"""Pictures and files for text-only models: the next model, text, or an error that names both."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_kit import Reply, Scripted
from tests.unit._model_clients import DIALECTS

from chargehand.models.contract import CallListeners, CallRecord, Dialect, Price, ServedModel
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.metering import MemoryLedger
from chargehand.models.scripted_replies import ScriptedReply, render

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0").decode()
PDF = base64.b64encode(b"%PDF-1.7 words").decode()
NOTES = base64.b64encode("grüße\nüber alles".encode()).decode()
BINARY = base64.b64encode(b"a\0b").decode()
LINK = "https://example.org/a.png"
PATHS: dict[str, str] = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/m:generateContent",
}


def _openai(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}


def _anthropic(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": list(parts)}]}


def _responses(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "input": [{"role": "user", "content": list(parts)}]}


def _gemini(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": list(parts)}]}


def _base64(kind: str, media: str, data: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "media_type": media, "data": data}}


def _file(media: str, data: str) -> dict[Dialect, dict[str, Any]]:
    url = f"data:{media};base64,{data}"
    return {
        "openai": _openai({"type": "file", "file": {"filename": "n.bin", "file_data": url}}),
        "anthropic": _anthropic(_base64("document", media, data)),
        "responses": _responses({"type": "input_file", "filename": "n.bin", "file_data": url}),
        "gemini": _gemini({"inlineData": {"mimeType": media, "data": data}}),
    }


_USED = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
_RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": [_base64("image", "image/png", PNG)]}
_CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
_OUTPUT = {"type": "function_call_output", "call_id": "c1"}
_FUNCTION = {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]}
_ANSWER = {
    "name": "look",
    "response": {"output": ""},
    "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}],
}
BODIES: dict[str, dict[Dialect, dict[str, Any]]] = {
    "image": {
        "openai": _openai({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}),
        "anthropic": _anthropic(_base64("image", "image/png", PNG)),
        "responses": _responses({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}),
        "gemini": _gemini({"inline_data": {"mime_type": "image/png", "data": PNG}}),
    },
    "link": {
        "openai": _openai({"type": "image_url", "image_url": {"url": LINK}}),
        "anthropic": _anthropic({"type": "image", "source": {"type": "url", "url": LINK}}),
        "responses": _responses({"type": "input_image", "image_url": LINK}),
        "gemini": _gemini({"fileData": {"mimeType": "image/png", "fileUri": LINK}}),
    },
    "result": {
        # Chat completions put pictures of results into a user message after them.
        "openai": _openai({"type": "image_url", "image_url": {"url": LINK}}),
        "anthropic": {
            "model": "m",
            "max_tokens": 50,
            "messages": [{"role": "assistant", "content": [_USED]}, {"role": "user", "content": [_RESULT]}],
        },
        "responses": {
            "model": "m",
            "input": [_CALL, {**_OUTPUT, "output": [{"type": "input_image", "image_url": LINK}]}],
        },
        "gemini": {"contents": [_FUNCTION, {"role": "user", "parts": [{"functionResponse": _ANSWER}]}]},
    },
    "pdf": _file("application/pdf", PDF),
    "binary": _file("application/octet-stream", BINARY),
    "notes": _file("text/plain", NOTES),
}
SAYS = {"image": "images", "link": "images", "result": "images", "pdf": "files", "binary": "files"}
NAMES: tuple[Dialect, ...] = ("openai", "anthropic", "responses", "gemini")


def _upstream(dialect: Dialect) -> Scripted:
    return Scripted(
        Reply(pieces=tuple(render(DIALECTS[dialect], ScriptedReply(text="seen"), model="up", stream=False)))
    )


@asynccontextmanager
async def chain(
    place: Path, dialect: Dialect, *, behind: bool
) -> AsyncIterator[tuple[httpx.AsyncClient, Scripted, Scripted, list[CallRecord]]]:
    """Serve a model that takes only text, with a fallback that takes everything."""
    blind, seeing, records = _upstream(dialect), _upstream(dialect), list[CallRecord]()
    price = Price(input=1.0, output=1.0)
    other = ServedModel(name="eyes", dialect=dialect, model="big", upstream=seeing, price=price)
    first = ServedModel(
        name="m",
        dialect=dialect,
        model="small",
        upstream=blind,
        price=price,
        images=False,
        files=False,
        fallback=(other,) if behind else (),
    )
    attempt = ServedAttempt(id="a", ledger=MemoryLedger(9.0))
    async with Gateway([first], attempt, CallListeners(on_call=records.append)) as gateway:
        await gateway.listen_unix(place / "s")
        transport = httpx.AsyncHTTPTransport(uds=str(place / "s"), verify=False)
        headers = {"authorization": f"Bearer {gateway.token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://g", headers=headers) as client:
            yield client, blind, seeing, records


@pytest.mark.parametrize("dialect", NAMES)
async def test_unsupported_content_is_sent_to_the_next_model(tmp_path: Path, dialect: Dialect) -> None:
    async with chain(tmp_path, dialect, behind=True) as (client, blind, seeing, records):
        for what, words in SAYS.items():
            reply = await client.post(PATHS[dialect], json=BODIES[what][dialect])
            assert (reply.status_code, reply.headers["x-chargehand-model"]) == (200, "eyes"), (what, reply.text)
            assert records[-1].skipped == (f"m (small): it takes no {words}",), what
        reply = await client.post(PATHS[dialect], json=BODIES["notes"][dialect])
    assert (reply.status_code, reply.headers["x-chargehand-model"]) == (200, "m")
    assert (len(blind.calls), len(seeing.calls)) == (1, len(SAYS))
    # The model that takes it receives the client's content unchanged, except that Gemini's two spellings become
    # one.
    turns = {"responses": "input", "gemini": "contents"}.get(dialect, "messages")
    sent = json.dumps([BODIES[what][dialect][turns] for what in SAYS])
    sent = sent.replace("inline_data", "inlineData").replace("mime_type", "mimeType")
    assert [call.body[turns] for call in seeing.calls] == json.loads(sent)


@pytest.mark.parametrize("dialect", NAMES)
async def test_unsupported_content_is_an_error_that_names_model_and_content(
    tmp_path: Path, dialect: Dialect
) -> None:
    async with chain(tmp_path, dialect, behind=False) as (client, blind, _, records):
        for what, words in SAYS.items():
            reply = await client.post(PATHS[dialect], json=BODIES[what][dialect])
            assert reply.status_code == 400, what
            assert "uncarried" in reply.text
            assert f"m (small): it takes no {words}" in reply.text, what
    assert (blind.calls, records) == ([], [])


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_text_file_is_sent_as_text(tmp_path: Path, dialect: Dialect) -> None:
    async with chain(tmp_path, dialect, behind=False) as (client, blind, _, records):
        reply = await client.post(PATHS[dialect], json=BODIES["notes"][dialect])
    assert (reply.status_code, reply.headers["x-chargehand-converted"]) == (200, "1")
    (call,) = blind.calls
    assert "grüße\nüber alles" in str(call.body).replace("\\n", "\n")
    assert NOTES not in str(call.body)
    (record,) = records
    assert "(text/plain, 16 characters) as text" in record.converted[0]
    assert record.first_seconds is not None
    assert record.first_seconds <= record.seconds


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("to", NAMES)
async def test_a_text_file_reaches_a_model_of_any_dialect_as_words(
    tmp_path: Path, dialect: Dialect, to: Dialect
) -> None:
    async with chain(tmp_path, to, behind=False) as (client, blind, _, _records):
        reply = await client.post(PATHS[dialect], json=BODIES["notes"][dialect])
        assert reply.status_code == 200, reply.text
    assert NOTES not in str(blind.calls[0].body)
    assert "über alles" in str(blind.calls[0].body)


async def test_arguments_of_tools_are_never_taken_for_content(tmp_path: Path) -> None:
    part = {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": NOTES}}
    used = {"type": "tool_use", "id": "c", "name": "n", "input": {"type": "document", "content": [part]}}
    body = _anthropic({"type": "text", "text": "go on"})
    body["messages"].append({"role": "assistant", "content": [used]})
    async with chain(tmp_path, "anthropic", behind=False) as (client, blind, _, records):
        reply = await client.post(PATHS["anthropic"], json=body)
        assert reply.status_code == 200, reply.text
    assert (blind.calls[0].body["messages"], records[0].converted) == (body["messages"], ())


async def test_a_dialect_specific_request_is_sent_to_a_text_only_model(
    tmp_path: Path,
) -> None:
    async with chain(tmp_path, "openai", behind=False) as (client, blind, _, _records):
        body = {"model": "m", "n": 2, "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post(PATHS["openai"], json=body)).status_code == 200
    assert blind.calls[0].body["n"] == 2
