"""The repository map as an MCP server at an attempt's gateway: protocol, roles, errors, and bounds."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import Client
from mcp_types import TextContent
from tests.mcp_kit import connected

from chargehand.agents.map_service import MapService
from chargehand.agents.roles import NO_ROLE, Role
from chargehand.core.errors import InfrastructureError, NotFoundError
from chargehand.models.contract import CallListeners
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.metering import MemoryLedger

QUERIES = {"search_code", "who_calls", "impact_of", "tests_for"}


class Answers:
    """A `CodeMap` that repeats each question; questions about `lost`, `broken` and `many` end in other ways."""

    def __init__(self, *, has_library: bool = False) -> None:
        self.has_library = has_library
        self.together = self.most_together = 0
        self.begun, self.released = threading.Semaphore(0), threading.Semaphore(0)
        self._lock = threading.Lock()

    def render(self, tree: str, request: str, /) -> str:
        return ""

    def answer(self, tree: str, question: str, words: Sequence[str], /, *, directory: str = "") -> str:
        with self._lock:
            self.together += 1
            self.most_together = max(self.most_together, self.together)
        try:
            self.begun.release()
            if "hold" in words:
                self.released.acquire()
            if "lost" in words:
                raise NotFoundError("no symbol 'lost'", code="symbol_not_found")
            if "broken" in words:
                raise InfrastructureError("the disk is full", code="map_failed")
            return "a line of an answer\n" * 10_000 if "many" in words else f"{tree} {question} {list(words)}"
        finally:
            with self._lock:
                self.together -= 1


@asynccontextmanager
async def served(service: MapService | None) -> AsyncIterator[tuple[Gateway, str]]:
    attempt = ServedAttempt(id="a-1", ledger=MemoryLedger(None), tools=service)
    async with Gateway((), attempt, CallListeners(on_call=lambda _: None)) as gateway:
        yield gateway, f"http://127.0.0.1:{await gateway.listen_tcp()}/mcp"


def opened(code_map: Answers | None = None, role: Role = NO_ROLE) -> MapService:
    async def tree() -> str:
        return "tree-1"

    return MapService(code_map or Answers(), tree, role)


@asynccontextmanager
async def client_of(service: MapService) -> AsyncIterator[Client]:
    async with served(service) as (gateway, address), connected(address, gateway.token) as client:
        yield client


async def said(client: Client, name: str, /, **arguments: object) -> tuple[str, bool]:
    result = await client.call_tool(name, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text, bool(result.is_error)


async def test_a_client_lists_and_calls_the_tools() -> None:
    async with client_of(opened()) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == QUERIES
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert await said(client, "who_calls", symbol="add") == ("tree-1 who_calls ['add']", False)
        assert await said(client, "tests_for", targets=["a.py", "b"]) == ("tree-1 tests_for ['a.py', 'b']", False)


async def test_the_library_is_offered_if_it_is_not_empty() -> None:
    async with client_of(opened(Answers(has_library=True))) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {*QUERIES, "search_library"}


async def test_a_role_without_search_is_offered_nothing() -> None:
    role = Role(name="narrow", summary="", prompt="", tools=("read", "who_calls"), writes=True)
    async with client_of(opened(role=role)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"who_calls"}
        with pytest.raises(Exception, match="no tool 'search_code'"):
            await said(client, "search_code", words="add")


async def test_mistakes_and_failures_are_results_that_a_model_reads() -> None:
    async with client_of(opened()) as client:
        text, failed = await said(client, "who_calls", name="add")
        assert failed
        assert "'symbol' is missing" in text
        assert await said(client, "who_calls", symbol="lost") == ("no symbol 'lost': use search", True)
        assert await said(client, "search_code", words="broken") == (
            "the map could not be read: the disk is full. Use search.",
            True,
        )


async def test_a_long_answer_is_shortened() -> None:
    async with client_of(opened()) as client:
        text, failed = await said(client, "search_code", words="many")
    assert not failed
    assert len(text) < 11_000
    assert "ask a narrower question" in text


async def test_one_query_runs_at_a_time() -> None:
    code_map = Answers()
    service = opened(code_map)
    message = {
        "jsonrpc": "2.0",
        "method": "tools/call",
        "params": {"name": "who_calls", "arguments": {"symbol": "hold"}},
    }
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(service.answer, {**message, "id": number})
        for _ in range(3):
            await anyio.to_thread.run_sync(code_map.begun.acquire)
            code_map.released.release()
    assert code_map.most_together == 1


async def test_only_the_token_of_the_attempt_opens_it_and_only_while_it_is_valid() -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with served(opened()) as (gateway, address), httpx.AsyncClient() as client:
        right, wrong = ({"authorization": f"Bearer {token}"} for token in (gateway.token, "cht-other"))
        assert (await client.post(address, json=message)).status_code == 401
        assert (await client.post(address, json=message, headers=wrong)).status_code == 401
        assert (await client.post(address, json=message, headers=right)).json()["result"] == {}
        gateway.revoke()
        assert (await client.post(address, json=message, headers=right)).status_code == 401


@pytest.mark.parametrize(
    ("method", "content", "status"),
    [
        ("GET", b"", 405),
        ("DELETE", b"", 405),
        ("POST", b"", 400),
        ("POST", b"[]", 400),
        ("POST", b"{", 400),
        ("POST", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', 202),
        ("POST", b'{"jsonrpc":"2.0","id":1,"result":{}}', 202),
        ("POST", b'{"jsonrpc":"2.0","id":1,"method":"server/discover"}', 200),
    ],
)
async def test_each_message_has_the_status_of_the_transport(method: str, content: bytes, status: int) -> None:
    async with served(opened()) as (gateway, address), httpx.AsyncClient() as client:
        headers = {"authorization": f"Bearer {gateway.token}"}
        answer = await client.request(method, address, content=content, headers=headers)
    assert answer.status_code == status
    assert (answer.content == b"") is (status == 202)


async def test_a_gateway_without_tools_has_no_such_path() -> None:
    async with served(None) as (gateway, address), httpx.AsyncClient() as client:
        headers = {"authorization": f"Bearer {gateway.token}"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await client.post(address, json=message, headers=headers)).status_code == 404


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
METHODS = st.sampled_from(["initialize", "ping", "tools/list", "tools/call"]) | JSON


@given(st.fixed_dictionaries({}, optional={"id": JSON, "method": METHODS, "params": JSON}))
async def test_any_message_has_a_reply_with_its_id_or_none(message: dict[str, Any]) -> None:
    reply = await opened().answer(message)
    if "id" not in message or "method" not in message:
        assert reply is None
    else:
        assert reply is not None
        assert reply["id"] == message["id"]
        assert ("result" in reply) != ("error" in reply)
