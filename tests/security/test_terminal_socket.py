"""The terminal's WebSocket against unauthorised clients, hostile output and hostile clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection
from starlette.types import Message
from starlette.websockets import WebSocket
from tests.server_kit import API, Served, environment, record_missions, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.clock import SystemClock
from chargehand.core.errors import RefusedError
from chargehand.core.mission_events import MissionFinished
from chargehand.identity.accounts import Caller, owner, set_user_disabled
from chargehand.policy.access import SCOPES
from chargehand.reports.live_output import OutputWriter
from chargehand.reports.progress.terminal import TerminalFollower
from chargehand.reports.reading import StateReader
from chargehand.server._rights import RightsWatch
from chargehand.server._terminal import TerminalSockets

MISSION = "m-00000"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
HOSTILE = (
    b"\x1b]0;a new title\x07\x1b]52;c;c2VjcmV0\x07\x1b[2J\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\\n",
    b"\xff\xfe\xc3(\n",
    b"\x00\x1bPq\x1b\\\x9b31m\n",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    with serving(environment(place), place) as made:
        with made.reader() as reader:
            record_missions(reader, 4)
        yield made


@contextlib.contextmanager
def printing(served: Served, mission: str = MISSION) -> Iterator[OutputWriter]:
    with served.reader() as reader:
        writer = OutputWriter(reader.home, mission, clock=SystemClock())
        with contextlib.closing(writer):
            yield writer


def address(served: Served, mission: str = MISSION, after: str = "") -> str:
    return f"ws{served.url.removeprefix('http')}{API}/missions/{mission}/terminal{after}"


def opened(
    served: Served, client: httpx.Client, *, mission: str = MISSION, after: str = "", origin: str | None = "own"
) -> ClientConnection:
    headers = {name: client.headers[name] for name in ("Authorization",) if name in client.headers}
    protocols = None
    if origin is not None:
        headers["Origin"] = served.url if origin == "own" else origin
        # Like a page, which can set no other header.
        secret = headers.pop("Authorization", "").removeprefix("Bearer ")
        protocols = [Subprotocol("chargehand.terminal"), Subprotocol(f"chargehand.session.{secret}")]
    where = address(served, mission, after)
    return connect(where, additional_headers=headers, subprotocols=protocols, proxy=None)


def secret_of(client: httpx.Client) -> str:
    return client.headers["Authorization"].removeprefix("Bearer ")


def status_of(served: Served, client: httpx.Client, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as refused, opened(served, client, **options):
        pass
    return refused.value.response.status_code


def received(socket: ClientConnection, kind: str = "line") -> dict[str, Any]:
    """Return the next record of a kind."""
    while True:
        record: dict[str, Any] = json.loads(socket.recv(timeout=60))
        if record["kind"] == kind:
            return record


def code_at_end(socket: ClientConnection) -> int:
    """Read to the end, and return the close code."""
    try:
        while True:
            socket.recv(timeout=60)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else 0


# --- access


def test_only_same_origin_pages_and_tokens_open_a_terminal(served: Served) -> None:
    client = served.owner()
    with opened(served, client) as socket:
        assert received(socket, "status")["mission_status"] == "planned"
    for origin in (
        "https://evil.example",
        "null",
        "http://localhost:1",
        served.url.replace("http", "https"),
    ):
        assert status_of(served, client, origin=origin) == 403, origin
    assert status_of(served, served.stranger(), origin=None) == 403
    # A session counts as a protocol or as a header, never as a cookie.
    cookie = {"Cookie": f"chargehand_session={secret_of(client)}", "Origin": served.url}
    assert served.stranger().get(f"{API}/missions/{MISSION}/terminal", headers=UPGRADE | cookie).status_code == 403
    token = served.token("read")
    with opened(served, token, origin=None) as socket:
        assert received(socket, "status")
    # A foreign page is refused even with a valid token.
    assert status_of(served, token, origin="https://evil.example") == 403


def test_the_access_policy_is_enforced_before_accepting_a_socket(served: Served) -> None:
    assert status_of(served, served.stranger()) == 403
    for scope in SCOPES:
        client = served.token(scope)
        if scope == "read":
            with opened(served, client, origin=None) as socket:
                assert received(socket, "status")
        else:
            assert status_of(served, client, origin=None) == 403, scope
    with opened(served, served.user("looker", "viewer")) as socket:
        assert received(socket, "status")


def test_an_invalid_mission_or_position_is_refused(served: Served) -> None:
    client = served.token("read")
    assert status_of(served, client, mission="m-none") == 403
    for after in ("?after=-1", "?after=x", "?after=1&after=2", "?more=1"):
        assert status_of(served, client, after=after) == 403, after


def test_another_host_reaches_no_socket(served: Served) -> None:
    headers = {"Host": "evil.example", "Authorization": served.token("read").headers["Authorization"]}
    answer = served.stranger().get(f"{API}/missions/{MISSION}/terminal", headers=headers | UPGRADE)
    assert answer.status_code == 403


def test_a_client_that_sends_data_is_disconnected(served: Served) -> None:
    with opened(served, served.token("read"), origin=None) as socket:
        socket.send("rm -rf /")
        assert code_at_end(socket) == 1003


# --- content


def test_lines_arrive_live_and_resume_from_a_position(served: Served) -> None:
    client = served.token("read")
    with printing(served, "m-00001") as writer, opened(served, client, mission="m-00001", origin=None) as socket:
        writer.write("stdout", b"before any attempt\nhalf of ")
        first = received(socket)
        assert (first["text"], first["attempt"]) == ("before any attempt", 0)
        with served.reader() as reader:
            started = AttemptStarted(attempt="a-1", number=1, agent="command:true", workspace="w-1", tree="0" * 40)
            reader.store.log.append("m-00001", started)
        writer.write("stdout", b"a line\n")
        second = received(socket)
        assert (second["text"], second["attempt"], second["source"]) == ("half of a line", 1, "agent")
        writer.write_check("stderr", b"checked\n")
        third = received(socket)
        assert (third["text"], third["source"]) == ("checked", "check")
        after = f"?after={second['position']}"
        with opened(served, client, mission="m-00001", after=after, origin=None) as again:
            assert received(again) == third
        # A position beyond the file belongs to another file: the client gets a reset, and reads from the start.
        with opened(served, client, mission="m-00001", after="?after=9999999", origin=None) as other:
            assert received(other, "reset")
            assert received(other)["text"] == "before any attempt"


def test_hostile_output_arrives_as_text_and_in_bounded_lines(served: Served) -> None:
    with printing(served, "m-00002") as writer:
        for piece in HOSTILE:
            writer.write("stdout", piece)
        writer.write("stdout", "é".encode() * 500_000 + b"\nafter\n")
        with opened(served, served.token("read"), mission="m-00002", origin=None) as socket:
            texts = [received(socket)["text"]]
            while texts[-1] != "after":
                texts.append(received(socket)["text"])
    assert texts[0].endswith("\x1b\\")
    assert texts[1] == "\ufffd\ufffd\ufffd("
    assert max(map(len, texts)) <= 10_000
    assert "".join(texts).count("é") == 500_000


def test_a_client_far_behind_gets_the_count_of_dropped_lines(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as served:
        with served.reader() as reader:
            record_missions(reader, 1)
        with printing(served) as writer:
            for number in range(100_000):
                writer.write("stdout", b"line %d\n" % number)
            with opened(served, served.token("read"), origin=None) as socket:
                dropped = received(socket, "dropped")
                first = received(socket)
                assert first["text"] == f"line {dropped['count']}"
                assert dropped["count"] > 50_000
        with served.reader() as reader, TerminalFollower(reader, MISSION) as follower:
            # However large the output, one look holds a bounded part of it.
            assert len(follower.look()) < 5_000


def test_a_terminal_socket_ends_with_its_mission_and_server(tmp_path: Path) -> None:
    with contextlib.ExitStack() as sockets:
        with serving(environment(tmp_path), tmp_path) as served:
            with served.reader() as reader:
                record_missions(reader, 2)
            client = served.token("read")
            with opened(served, client, origin=None) as socket:
                with served.reader() as reader:
                    reader.store.log.append(MISSION, MissionFinished(status="failed"))
                assert code_at_end(socket) == 1000
            left = sockets.enter_context(opened(served, client, mission="m-00001", origin=None))
            assert received(left, "status")
        assert code_at_end(left) == 1001


def test_a_silent_terminal_ends_at_once_with_its_rights(served: Served) -> None:
    client = served.user("wanda", "viewer")
    with opened(served, client) as socket:
        assert received(socket, "status")
        with served.reader() as reader:
            set_user_disabled(reader, "wanda", True, by=owner(reader))
        # At its next beat the server would have sent a sign of life first.
        with pytest.raises(ConnectionClosed) as ended:
            received(socket, "alive")
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == 4401


async def test_a_terminal_socket_ends_if_its_session_ends_or_sending_stalls(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        record_missions(reader, 1)
        asked = iter((True, False))

        def authorise(connection: HTTPConnection, action: str) -> Caller:
            if not next(asked):
                raise RefusedError("a session or a token is needed", code="login_needed")
            return owner(reader)

        async def in_thread(work: Callable[[], Any]) -> Any:
            return work()

        async def closed_with(terminals: TerminalSockets, *, takes: bool) -> int:
            codes: list[int] = []

            async def receive() -> Message:
                if not connected:
                    connected.append(True)
                    return {"type": "websocket.connect"}
                await asyncio.Event().wait()
                raise AssertionError

            async def send(message: Message) -> None:
                if message["type"] == "websocket.close":
                    codes.append(message["code"])
                elif message["type"] == "websocket.send" and not takes:
                    await asyncio.Event().wait()

            connected: list[bool] = []
            params = {"mission": MISSION}
            scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "path_params": params}
            await terminals.serve(WebSocket(scope, receive, send))
            return codes[0]

        make = partial(
            TerminalSockets,
            reader,
            authorise=authorise,
            in_thread=in_thread,
            rights=RightsWatch(reader, on_change=lambda: None),
        )
        assert await closed_with(make(beat=0.0), takes=True) == 4401
        asked = iter((True,))
        assert await closed_with(make(patience=0.0), takes=False) == 4408
