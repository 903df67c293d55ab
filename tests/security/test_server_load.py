"""Limits for one client of the web server: streams, terminals, costly work, half-sent requests."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.crash_kit import wait_until
from tests.server_kit import API, PASSWORD, Served, environment, record_missions, serving
from websockets.sync.client import ClientConnection, connect

from chargehand.core.errors import BusyError
from chargehand.operations.operation import Operation
from chargehand.operations.table import OPERATIONS
from chargehand.server._places import Places


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(environment(tmp_path), tmp_path) as made:
        with made.reader() as reader:
            record_missions(reader, 1)
        yield made


class PlacesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.places = Places("streams", per_account=2, total=4)
        self.held: list[tuple[str, Any]] = []
        self.given_back: list[Any] = []

    @rule(account=st.sampled_from("abc"))
    def take(self, account: str) -> None:
        own = sum(each == account for each, _ in self.held)
        if own < 2 and len(self.held) < 4:
            self.held.append((account, self.places.take(account)))
        else:
            with pytest.raises(BusyError):
                self.places.take(account)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.held:
            each = data.draw(st.sampled_from(self.held))
            self.held.remove(each)
            each[1]()
            self.given_back.append(each[1])

    @rule()
    def give_back_again(self) -> None:
        for again in self.given_back:
            again()

    @invariant()
    def no_account_without_places_is_remembered(self) -> None:
        assert set(self.places._held) == {account for account, _ in self.held}


TestPlaces = PlacesMachine.TestCase
TestPlaces.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def open_stream(client: httpx.Client, stack: contextlib.ExitStack) -> httpx.Response:
    return stack.enter_context(client.stream("GET", f"{API}/events", timeout=30))


def busy(answer: httpx.Response) -> bool:
    if answer.status_code != 503:
        return False
    error = answer.json()["error"]
    assert error["code"] == "busy"
    assert f"{answer.headers['retry-after']} s" in error["hint"]
    return True


@pytest.fixture
def few_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargehand.server.application._MOST_STREAMS_OF_ACCOUNT", 50)


def test_event_streams_are_limited_per_account(few_streams: None, served: Served) -> None:
    viewer, other = served.user("vera", "viewer"), served.user("olaf", "viewer")
    viewer._transport.close()  # with the connection on which it logged in
    viewer._transport = httpx.HTTPTransport(limits=httpx.Limits(max_connections=None))
    with contextlib.ExitStack() as streams:
        answers = [open_stream(viewer, streams) for _ in range(60)]
        assert [each.status_code for each in answers] == [200] * 50 + [503] * 10
        answers[-1].read()
        assert busy(answers[-1])
        # Everything else still works, for that account too.
        assert viewer.get(f"{API}/missions").status_code == 200
        assert open_stream(other, streams).status_code == 200
        assert other.get("/health").status_code == 200
        assert served.owner().get(f"{API}/missions").status_code == 200

    def is_served() -> bool:
        with contextlib.ExitStack() as streams:
            return open_stream(viewer, streams).status_code == 200

    # A stream that its client left frees its place.
    wait_until(is_served)


def test_terminals_are_limited_per_account(served: Served) -> None:
    address = f"ws{served.url.removeprefix('http')}{API}/missions/m-00000/terminal"

    def opened(client: httpx.Client) -> ClientConnection:
        headers = {"Authorization": client.headers["Authorization"]}
        return connect(address, additional_headers=headers, proxy=None)

    viewer = served.user("vera", "viewer")
    with contextlib.ExitStack() as sockets:
        for _ in range(20):
            sockets.enter_context(opened(viewer))
        with pytest.raises(Exception, match="403"):
            opened(viewer)
        sockets.enter_context(opened(served.owner()))


def test_costly_requests_run_one_at_a_time_without_blocking_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    running: list[int] = []

    def verify(*args: Any, **options: Any) -> dict[str, bool]:
        running.append(1)
        begun.set()
        assert may_end.wait(60)
        return {"valid": True}

    (route,) = (each for each in OPERATIONS if each.name == "post_audit_verify")
    assert route.is_costly
    monkeypatch.setattr(Operation, "call", property(lambda each: verify if each is route else CALLS[each.name]))
    owner, operator = served.owner(), served.user("olga", "operator")
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        first = clients.submit(owner.post, f"{API}/audit/verify", json={})
        assert begun.wait(60)
        assert [busy(owner.post(f"{API}/audit/verify", json={})) for _ in range(7)] == [True] * 7
        second = clients.submit(operator.post, f"{API}/audit/verify", json={})
        # Logins, reads and changes still work meanwhile.
        assert served.user("vera", "viewer").get(f"{API}/missions").status_code == 200
        assert owner.post(f"{API}/missions/m-00000/pause", json={}).status_code < 500
        assert len(running) == 1
        may_end.set()
        assert (first.result(60).status_code, second.result(60).status_code) == (200, 200)


CALLS = {each.name: each.call for each in OPERATIONS}


@pytest.mark.parametrize("field", ["shell", "command", "mcp"])
def test_an_action_that_is_too_long_to_take_apart_is_refused(served: Served, field: str) -> None:
    client = served.token("read")
    text = "a;" * 40_000
    given = ["eval", *(text[at : at + 4000] for at in range(0, len(text), 4000))] if field == "command" else text
    answer = client.post(f"{API}/policy/test", json={field: given})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "arguments_invalid")
    assert "16384" in answer.text
    assert client.post(f"{API}/policy/test", json={"shell": "ls; " * 1000}).status_code == 200


def test_half_sent_requests_and_password_floods_do_not_block_others(served: Served) -> None:
    port = served.stranger().base_url.port
    assert port is not None
    with contextlib.ExitStack() as held, concurrent.futures.ThreadPoolExecutor(20) as strangers:
        for _ in range(500):
            half = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            half.sendall(b"GET /health HTTP/1.1\r\nHost: 127")
        given = [{"user": f"user-{number}", "password": PASSWORD} for number in range(20)]
        guesses = [strangers.submit(served.stranger().post, f"{API}/session", json=each) for each in given]
        assert served.stranger().get("/health").status_code == 200
        assert served.owner().get(f"{API}/missions").status_code == 200
        assert {each.result(60).status_code for each in guesses} <= {401, 429, 503}
        # The server ends a connection that sends no complete head.
        half.settimeout(60)
        ended = half.recv(1000)
        assert ended == b"" or b" 408 " in ended
