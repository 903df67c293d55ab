"""llama.cpp's own OpenAI server with a tiny random model: chat, streams and tools through the gateway."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import tiny_model

from chargehand.models.contract import CallListeners, CallRecord, Price, ServedModel
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.http_upstream import HttpUpstream
from chargehand.models.metering import MemoryLedger

pytestmark = [pytest.mark.real, pytest.mark.soak]
ASK: dict[str, Any] = {"model": "m", "max_tokens": 12, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {
    "name": "look",
    "parameters": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"]},
}
CALL = {
    **ASK,
    "max_tokens": 800,
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "required",
    "logit_bias": tiny_model.CALLS,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Install `xllamacpp` if it is missing, and serve the model."""
    place = tmp_path_factory.mktemp("llama")
    argv = [_python(place), tiny_model.__file__, str(place)]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        yield address
        process.communicate(timeout=60)  # it ends when its input closes
    assert address.startswith("http://"), (place / "log").read_text()


def _python(place: Path) -> str:
    if importlib.util.find_spec("xllamacpp") is not None:
        return sys.executable
    made = place / "bin/python"
    install = [str(made), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "xllamacpp"]
    try:
        for argv in ([sys.executable, "-m", "venv", str(place)], install):
            subprocess.run(argv, check=True, capture_output=True, timeout=250)
    except (OSError, subprocess.SubprocessError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"xllamacpp cannot be installed here: {error}")
    return str(made)


@asynccontextmanager
async def running(server: str, tmp_path: Path) -> AsyncIterator[tuple[httpx.AsyncClient, list[CallRecord]]]:
    upstream, records = HttpUpstream(server, None, "openai"), list[CallRecord]()
    price = Price(input=1.0, output=2.0)
    served = ServedModel(name="m", dialect="openai", model="tiny", upstream=upstream, price=price)
    attempt = ServedAttempt(id="a", ledger=MemoryLedger(1.0))
    async with Gateway([served], attempt, CallListeners(on_call=records.append)) as gateway:
        await gateway.listen_unix(tmp_path / "g.sock")
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "g.sock"), verify=False)
        headers = {"authorization": f"Bearer {gateway.token}"}
        made = httpx.AsyncClient(transport=transport, base_url="http://g", headers=headers, timeout=60)
        async with made as client:
            yield client, records
    await upstream.close()


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_whole_and_streamed_chats_are_metered_as_reported(server: str, tmp_path: Path) -> None:
    async with running(server, tmp_path) as (client, records):
        whole = await client.post("/v1/chat/completions", json=ASK)
        stream = await client.post("/v1/chat/completions", json={**ASK, "stream": True})
    assert (whole.status_code, stream.status_code) == (200, 200)
    used = whole.json()["usage"]
    assert used["completion_tokens"] == 12
    assert stream.text.rstrip().endswith("data: [DONE]")
    assert [record.status for record in records] == ["ok", "ok"]
    for record in records:
        assert (record.usage.input, record.usage.output) == (used["prompt_tokens"], 12)
    assert records[0].cost_usd == pytest.approx((used["prompt_tokens"] + 24) / 1e6)


async def test_anthropic_clients_get_the_anthropic_dialect(server: str, tmp_path: Path) -> None:
    async with running(server, tmp_path) as (client, records):
        whole = await client.post("/v1/messages", json=ASK)
        stream = await client.post("/v1/messages", json={**ASK, "stream": True})
    said = whole.json()
    assert (said["type"], said["stop_reason"], said["usage"]["output_tokens"]) == ("message", "max_tokens", 12)
    kinds = [event["type"] for event in events(stream)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert [record.usage.output for record in records] == [12, 12]


async def test_tools_are_called_whole_and_in_pieces(server: str, tmp_path: Path) -> None:
    async with running(server, tmp_path) as (client, records):
        whole = await client.post("/v1/chat/completions", json={**CALL, "seed": 1})
        stream = await client.post("/v1/chat/completions", json={**CALL, "seed": 1, "stream": True})
    choice = whole.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]
    assert (call["function"]["name"], call["id"] != "") == ("look", True)
    assert type(json.loads(call["function"]["arguments"])["deep"]) is bool
    deltas = [
        part
        for event in events(stream)
        for choice in event["choices"]
        for part in choice["delta"].get("tool_calls", ())
        if part["index"] == 0
    ]
    assert deltas[0]["function"]["name"] == "look"
    arguments = "".join(part["function"].get("arguments", "") for part in deltas)
    assert type(json.loads(arguments)["deep"]) is bool
    assert [record.status for record in records] == ["ok", "ok"]
