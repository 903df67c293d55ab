"""Orders reach a worker and return an answer or the worker's own error."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from chargehand.core.errors import RefusedError
from chargehand.durable.orders import Order, give_order, taking_orders


async def echo(order: Order) -> Order:
    if order.get("order") == "refuse":
        raise RefusedError("no", code="because", hint="try again")
    return {"seen": order}


def raw(path: Path, line: bytes) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(path))
        sock.sendall(line)
        answer: dict[str, object] = json.loads(sock.makefile("rb").readline())
        return answer


async def test_an_order_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    async with taking_orders(path, echo):
        assert await asyncio.to_thread(give_order, path, {"order": "x"}) == {"seen": {"order": "x"}}
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


async def test_a_refusal_is_the_senders_error(tmp_path: Path) -> None:
    async with taking_orders(tmp_path / "k.sock", echo):
        with pytest.raises(RefusedError, match="no") as caught:
            await asyncio.to_thread(give_order, tmp_path / "k.sock", {"order": "refuse"})
    assert (caught.value.code, caught.value.hint) == ("because", "try again")


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"\xff\n", b"\n"])
async def test_a_malformed_order_is_refused_and_the_next_order_answered(tmp_path: Path, line: bytes) -> None:
    async with taking_orders(tmp_path / "k.sock", echo):
        answer = await asyncio.to_thread(raw, tmp_path / "k.sock", line)
        assert (answer["ok"], answer["code"]) == (False, "malformed_order")
        assert await asyncio.to_thread(give_order, tmp_path / "k.sock", {"order": "x"}) is not None


async def test_an_order_without_a_listener_returns_no_answer(tmp_path: Path) -> None:
    assert give_order(tmp_path / "k.sock", {"order": "x"}) is None
    assert give_order(tmp_path / "gone" / "k.sock", {"order": "x"}) is None
    (tmp_path / "k.sock").touch()
    assert give_order(tmp_path / "k.sock", {"order": "x"}) is None


async def test_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with taking_orders(deep / "k.sock", echo):
        assert await asyncio.to_thread(give_order, deep / "k.sock", {}) == {"seen": {}}
