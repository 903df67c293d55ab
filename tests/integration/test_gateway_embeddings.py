"""Embeddings of OpenAI, Gemini and Ollama models through the official clients of OpenAI and Google."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.late import LateModule
from tests.provider_kit import Provider, serving

from chargehand.models.contract import CallListeners, CallRecord, Dialect, ModelUpstream, Price, ServedModel
from chargehand.models.gateway import Gateway, GatewayLimits, ServedAttempt
from chargehand.models.http_upstream import HttpUpstream
from chargehand.models.metering import MemoryLedger
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.models.scripted_replies import ScriptedReply
from chargehand.models.scripts import Script

openai, genai = LateModule("openai"), LateModule("google.genai")
errors, types = LateModule("google.genai.errors"), LateModule("google.genai.types")

pytestmark = pytest.mark.usefixtures("shared_trust")
TEXTS = ["alpha", "beta", "gamma"]
PRICE = Price(input=1.0, output=0.0)
SCRIPT = Script.of(ScriptedReply(text="never said"))


@asynccontextmanager
async def served(
    dialect: Dialect, upstream: ModelUpstream, *, ollama: bool = False, limit: float = 1.0
) -> AsyncIterator[tuple[str, str, list[CallRecord]]]:
    records: list[CallRecord] = []
    model = ServedModel(name="m", dialect=dialect, model="up", upstream=upstream, price=PRICE, ollama=ollama)
    async with Gateway(
        [model],
        ServedAttempt(id="a", ledger=MemoryLedger(limit)),
        CallListeners(on_call=records.append),
        limits=GatewayLimits(retries=0),
    ) as gateway:
        yield f"http://127.0.0.1:{await gateway.listen_tcp()}", gateway.token, records


async def by_openai(url: str, token: str, **more: Any) -> list[list[float]]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client:
        made = await client.embeddings.create(model="m", input=TEXTS, **more)
    return [one.embedding for one in made.data]


async def by_google(url: str, token: str, **more: Any) -> list[list[float]]:
    client = genai.Client(api_key=token, http_options=types.HttpOptions(base_url=url))
    try:
        made = await client.aio.models.embed_content(
            model="m", contents=TEXTS, config=types.EmbedContentConfig(**more) if more else None
        )
    finally:
        await client.aio.aclose()
        client.close()
    return [one.values or [] for one in made.embeddings or []]


CLIENTS: dict[str, Callable[..., Any]] = {"openai": by_openai, "google": by_google}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("upstream", ["openai", "responses", "gemini"])
async def test_each_client_gets_the_vectors_of_each_upstream(client: str, upstream: Dialect) -> None:
    async with served(upstream, ScriptUpstream(SCRIPT)) as (url, token, records):
        made = await CLIENTS[client](url, token)
    assert [len(vector) for vector in made] == [8, 8, 8]
    assert made[0] != made[1] != made[2]
    (record,) = records
    assert (record.operation, record.status, record.usage.output) == ("embed", "ok", 0)
    assert record.usage.input
    assert record.cost_usd == pytest.approx(record.usage.input / 1e6)


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_exhausted_budget_refuses_embeddings(client: str) -> None:
    async with served("gemini", ScriptUpstream(SCRIPT), limit=1e-6) as (url, token, records):
        with pytest.raises((openai.APIStatusError, errors.APIError)) as refused:
            await CLIENTS[client](url, token)
    assert "402" in str(refused.value)
    assert [record.status for record in records] == ["refused"]


@pytest.mark.parametrize("client", CLIENTS)
async def test_embeddings_from_anthropic_are_an_error(client: str) -> None:
    async with served("anthropic", ScriptUpstream(SCRIPT)) as (url, token, records):
        with pytest.raises((openai.BadRequestError, errors.ClientError), match="have no embeddings"):
            await CLIENTS[client](url, token)
    assert records == []


class Maker(Provider):
    """A provider that makes embeddings in one form and answers 404 to every other path."""

    form = "ollama"
    status = 200

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append((path, body))
        if self.status != 200:
            return self.status, {"error": {"message": "not today"}}
        if self.form == "ollama" and path == "/api/embed":
            rows = [[float(len(text)), 0.5] for text in body["input"]]
            return 200, {"model": body["model"], "embeddings": rows, "prompt_eval_count": 11}
        if self.form == "gemini" and path == "/v1beta/models/up:batchEmbedContents":
            rows = [{"values": [float(len(one["content"]["parts"][0]["text"])), 0.5]} for one in body["requests"]]
            return 200, {"embeddings": rows}
        return 404, {"error": {"message": f"no {path}"}}


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_old_ollama_is_called_by_its_native_interface(client: str) -> None:
    with serving(Maker()) as maker:
        upstream = HttpUpstream(f"{maker.address}/v1", None, "openai")
        async with served("openai", upstream, ollama=True) as (url, token, records):
            made = await CLIENTS[client](url, token)
        await upstream.close()
    assert made == [[5.0, 0.5], [4.0, 0.5], [5.0, 0.5]]
    assert [path for path, _ in maker.asked] == ["/v1/embeddings", "/api/embed"]
    assert records[0].usage.input == 11


async def test_gemini_embeddings_are_requested_as_a_batch_with_the_model_name() -> None:
    with serving(Maker()) as maker:
        maker.form = "gemini"
        upstream = HttpUpstream(maker.address, "k", "gemini")
        async with served("gemini", upstream) as (url, token, records):
            assert (await by_openai(url, token, dimensions=2, encoding_format="float"))[1] == [4.0, 0.5]
            assert (await by_google(url, token, output_dimensionality=2, task_type="CLUSTERING"))[1] == [4.0, 0.5]
            # The provider does not report its input, so the reserve stays booked and the cost is unknown.
            assert [record.cost_usd for record in records] == [None, None]
            maker.status = 400
            with pytest.raises(openai.BadRequestError, match="not today"):
                await by_openai(url, token)
        await upstream.close()
    first, second, _ = (body for _, body in maker.asked)
    assert {one["model"] for one in [*first["requests"], *second["requests"]]} == {"models/up"}
    assert [one["outputDimensionality"] for one in first["requests"]] == [2, 2, 2]
    assert second["requests"][0]["taskType"] == "CLUSTERING"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/embeddings", {"model": "m", "input": [[1, 2, 3]]}, "embeddings of tokens"),
        (
            "/v1beta/models/m:embedContent",
            {"content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}},
            "only text can be embedded",
        ),
    ],
)
async def test_unsupported_embedding_requests_are_refused(path: str, body: dict[str, Any], words: str) -> None:
    import httpx

    dialect: Dialect = "gemini" if path.endswith("embeddings") else "openai"
    async with served(dialect, ScriptUpstream(SCRIPT)) as (url, token, _), httpx.AsyncClient() as client:
        reply = await client.post(url + path, json=body, headers={"authorization": f"Bearer {token}"})
        assert (reply.status_code, words in reply.text) == (400, True), reply.text
        single = await client.post(
            f"{url}/v1beta/models/m:embedContent",
            json={"content": {"parts": [{"text": "a"}]}, "title": "t"},
            headers={"x-goog-api-key": token},
        )
    assert len(json.loads(single.text)["embedding"]["values"]) == 8
    assert single.headers.get("x-chargehand-left-out") == (None if dialect == "gemini" else "title")
