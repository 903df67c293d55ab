"""Pictures that the native agent reads: kept by id, shown to models that take them, mentioned to others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_kit import Reply, Scripted, openai_stream
from tests.unit._local_sandbox import LocalSandbox

from chargehand.agents.compaction import compact
from chargehand.agents.contract import Endpoint, EndpointModel
from chargehand.agents.conversation import ConversationEntry, to_messages
from chargehand.agents.native.model_client import open_client
from chargehand.agents.tool_specs import ToolCall
from chargehand.agents.toolbox import Toolbox
from chargehand.core.errors import UpstreamError
from chargehand.models.contract import CallListeners, Price, ServedModel
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.metering import MemoryLedger
from chargehand.models.probes import red_square

PNG = red_square()


@pytest.mark.parametrize(
    ("name", "content", "media"),
    [
        ("a.txt", PNG, "image/png"),
        ("b", b"\xff\xd8\xff\xe0" + b"\0" * 9, "image/jpeg"),
        ("c.png", b"GIF89a" + b"\1" * 9, "image/gif"),
        ("d", b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        ("e.png", b"RIFF\x10\0\0\0WAVEfmt ", None),
        ("f.png", b"\x89PNGno\0", None),
        ("g.png", b"plain words\n", None),
        ("h.png", PNG + b"\0" * 2_000_000, None),
    ],
)
async def test_picture_types_are_detected_by_the_first_bytes(
    tmp_path: Path, name: str, content: bytes, media: str | None
) -> None:
    kept: list[bytes] = []
    tools = Toolbox(LocalSandbox(tmp_path), keep=lambda data: kept.append(data) or "id", seconds=10.0)
    (tmp_path / name).write_bytes(content)
    result = await tools.call("read", {"path": name})
    assert (result.failed, result.image, kept) == (False, media, [content] if media else [])
    assert result.artifact == ("id" if media else None)
    assert len(result.text) < 200
    if name.startswith("h"):
        assert "too large to be shown" in result.text


def entries(count: int = 1) -> list[ConversationEntry]:
    found: list[ConversationEntry] = [ConversationEntry(kind="user", text="look at it", pinned=True)]
    for number in range(count):
        call = ToolCall(index=0, name="read", arguments={"path": f"p{number}.png"})
        parts = [{"part_kind": "tool-call", "tool_name": "read", "args": call.arguments, "tool_call_id": "x"}]
        message = {"parts": parts, "kind": "response"}
        found.append(ConversationEntry(kind="reply", message=message, calls=(call,)))
        found.append(
            ConversationEntry(
                kind="result", call=call, text="[a picture]", artifact=f"id{number}", image="image/png"
            )
        )
    return found


def shown(messages: Any) -> list[Any]:
    contents = [part.content for message in messages for part in message.parts if part.part_kind == "tool-return"]
    return [content for content in contents if not isinstance(content, str)]


def test_only_the_last_pictures_are_shown_to_a_model() -> None:
    asked: list[str] = []

    def picture(artifact: str) -> bytes:
        asked.append(artifact)
        return PNG

    messages, pins = to_messages("system", entries(10), native=True, picture=picture)
    assert asked == [f"id{number}" for number in range(2, 10)]
    assert len(shown(messages)) == 8
    again = [entries(1)[0], *(entry for _ in range(10) for entry in entries(1)[1:])]
    assert len(shown(to_messages("system", again, native=True, picture=picture)[0])) == 8
    gone, _ = to_messages("system", entries(1), native=True, picture=lambda _: None)
    assert (shown(gone), "not shown any more" in str(gone)) == ([], True)
    told, _ = to_messages("system", entries(2), native=True, picture=None)
    assert shown(told) == []
    assert str(told).count("this model does not take it") == 2
    # If the context is too small pictures go first, including all of their bytes.
    fitting = compact(messages, limit=3000, pins=pins)
    assert len(shown(fitting.messages)) < 8


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_picture_reaches_the_model_through_the_gateway(tmp_path: Path, dialect: Any) -> None:
    upstream = Scripted(Reply(headers={"content-type": "text/event-stream"}, pieces=openai_stream("red")))
    price = Price(input=0.0, output=0.0)
    seeing = ServedModel(name="eyes", dialect="openai", model="up", upstream=upstream, price=price)
    blind = ServedModel(name="blind", dialect="openai", model="no", upstream=upstream, price=price, images=False)
    attempt = ServedAttempt(id="a", ledger=MemoryLedger(1.0))
    async with Gateway([seeing, blind], attempt, CallListeners(on_call=lambda _: None)) as gateway:
        await gateway.listen_unix(tmp_path / "s")
        models = tuple(EndpointModel(name=name, dialect=dialect) for name in ("eyes", "blind"))
        endpoint = Endpoint(
            socket=tmp_path / "s", token=gateway.token, models=models, environment={}, revoke=gateway.revoke
        )
        messages, _ = to_messages("system", entries(), native=True, picture=lambda _: PNG)
        async with open_client(endpoint) as client:
            await client.request(models[0], messages, (), on_text=lambda _: None)
            with pytest.raises(UpstreamError, match="it takes no images") as refused:
                await client.request(models[1], messages, (), on_text=lambda _: None)
    assert refused.value.code == "uncarried"
    (call,) = upstream.calls
    assert json.dumps(call.body).count("data:image/png;base64,") == 1
