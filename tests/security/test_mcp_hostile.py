"""A hostile client of `chargehand mcp`: the server refuses it with a readable error and keeps running."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import make_repository
from tests.integration.command_line import Cli
from tests.mcp_kit import Service

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


def request(method: str, number: int = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mcp")
    make_repository(place / "repo", {"f.txt": "a\n"})
    return place


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[Service]:
    cli = Cli(place)
    made = Service(environ=cli.environ, cwd=place / "repo", token_file=place / "token")
    made.start()
    yield made
    assert made.stop() == 0


class Hostile:
    """A client that sends arbitrary requests."""

    def __init__(self, service: Service) -> None:
        self._url = service.url
        self._with_token = HEADERS | {"Authorization": f"Bearer {service.token}"}
        hello = self.send(json.dumps(request("initialize", **HELLO)))
        assert hello.status_code == 200, hello.text
        self._with_token["mcp-session-id"] = hello.headers["mcp-session-id"]
        self.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def send(self, body: str | bytes, **headers: str) -> httpx.Response:
        with httpx.Client(trust_env=False) as client:
            return client.post(self._url, content=body, headers=self._with_token | headers, timeout=60)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        answer = self.send(json.dumps(request(method, **params)))
        assert answer.status_code == 200, answer.text
        assert "Traceback" not in answer.text
        (line,) = (line for line in answer.text.splitlines() if line.startswith("data: {"))
        found: dict[str, Any] = json.loads(line.removeprefix("data: "))
        return found

    def refused(self, tool: str, **arguments: Any) -> str:
        result = self.ask("tools/call", name=tool, arguments=arguments)["result"]
        assert result["isError"], result
        code: str = result["structuredContent"]["error"]["code"]
        return code


@pytest.fixture(scope="module")
def hostile(service: Service) -> Hostile:
    return Hostile(service)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Authorization": ""}, 401, "wrong_token"),
        ({"Authorization": "Bearer wrong"}, 401, "wrong_token"),
        ({"Authorization": "Basic {token}"}, 401, "wrong_token"),
        ({"Authorization": "Bearer {token}x"}, 401, "wrong_token"),
        ({"Origin": "http://evil.example"}, 403, "wrong_origin"),
        ({"Origin": "null"}, 403, "wrong_origin"),
        ({"Origin": "http://localhost.evil.example:{port}"}, 403, "wrong_origin"),
        ({"Origin": "http://localhost:{port}"}, 200, None),
        ({"Host": "evil.example"}, 421, "wrong_host"),
        ({"Host": "localhost.evil.example:{port}"}, 421, "wrong_host"),
        ({"Host": "localhost:1"}, 421, "wrong_host"),
        ({"Host": "localhost:{port}"}, 200, None),
    ],
)
def test_requests_are_checked_for_token_origin_and_host(
    service: Service, hostile: Hostile, headers: dict[str, str], status: int, code: str | None
) -> None:
    port = service.url.removesuffix("/mcp").rpartition(":")[2]
    given = {name: value.format(token=service.token, port=port) for name, value in headers.items()}
    answer = hostile.send(json.dumps(request("ping")), **given)
    assert answer.status_code == status, answer.text
    assert code is None or answer.json()["error"]["code"] == code


@pytest.mark.parametrize(
    "body",
    [
        "{nope",
        "[]",
        "null",
        '{"jsonrpc":"1.0"}',
        b"\xff\xfe",
        '{"jsonrpc":"2.0","id":{},"method":1}',
        "[" * 100_000,
    ],
)
def test_an_invalid_message_gets_an_error_reply(hostile: Hostile, body: str | bytes) -> None:
    answer = hostile.send(body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in (-32700, -32600, -32602)
    assert "Traceback" not in answer.text
    assert hostile.ask("ping")["result"] == {}


def test_a_huge_body_is_refused(hostile: Hostile) -> None:
    assert hostile.send(b"x" * ((1 << 20) + 1)).status_code == 413
    assert hostile.ask("ping")["result"] == {}


def test_unknown_tools_and_methods_are_errors_of_the_protocol(hostile: Hostile) -> None:
    error = hostile.ask("tools/call", name="run_misson\x1b[2J", arguments={})["error"]
    assert error["code"] == -32602
    assert "did you mean 'run_mission'?" in error["message"]
    assert "\x1b" not in error["message"]
    assert hostile.ask("no/such")["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("run_mission", {}, "usage"),
        ("run_mission", {"request": "x" * 100_001}, "usage"),
        ("run_mission", {"request": "é" * 60_000}, "request_too_long"),
        ("run_mission", {"request": " "}, "usage"),
        ("run_mission", {"request": "x", "sandbox": "none"}, "usage"),
        ("run_mission", {"request": "x", "checks": ["true"] * 51}, "usage"),
        ("run_mission", {"request": "x", "budget": -1}, "usage"),
        ("run_mission", {"request": "x", "repo": "/"}, "not_a_repository"),
        ("run_mission", {"request": "x", "repo": "/etc/passwd"}, "not_a_repository"),
        ("run_mission", {"request": "x", "repo": "a\0b"}, "usage"),
        ("run_mission", {"request": "x", "base": "--upload-pack=x", "agent": "command:true"}, "base_not_found"),
        ("run_mission", {"request": "x", "agent": "no-such"}, "not_found"),
        ("mission_status", {"mission": "../../etc/passwd"}, "not_found"),
        ("mission_status", {"mission": ["m"]}, "usage"),
        ("wait_mission", {"mission": "m-1", "seconds": 1e9}, "usage"),
        ("show_log", {"mission": "m-1", "after": -1}, "usage"),
        ("list_missions", {"cursor": "' OR 1=1 --"}, "not_found"),
        ("promote", {"mission": "m-1"}, "not_found"),
    ],
)
def test_wrong_arguments_are_refused_with_a_code(
    hostile: Hostile, tool: str, arguments: dict[str, Any], code: str
) -> None:
    assert hostile.refused(tool, **arguments) == code


@pytest.mark.parametrize(
    "content", ['[sandbox]\ntier = "none"\n', '[sandbox]\ntoolchain = ["/opt"]\n'], ids=["tier none", "toolchain"]
)
def test_no_client_grants_trust(hostile: Hostile, tmp_path: Path, content: str) -> None:
    repo = make_repository(tmp_path / "greedy", {"chargehand.toml": content, "f.txt": "a\n"})
    code = hostile.refused("run_mission", request="x", repo=str(repo), agent="command:true")
    assert code in ("trust_needed", "sandbox_unavailable")
    assert hostile.ask("tools/call", name="list_missions", arguments={"repo": str(repo)})["result"][
        "structuredContent"
    ] == {"missions": [], "next_cursor": None}


def test_stdio_answers_invalid_messages_with_errors_and_ends_at_eof(place: Path) -> None:
    cli = Cli(place)
    lines = [
        b"{nope",
        b'{"jsonrpc":"2.0"}',
        b"x" * ((1 << 20) + 1),
        b"",
        json.dumps(request("initialize", 7, **HELLO)).encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        json.dumps(request("tools/call", 8, name="mission_status", arguments={"mission": "m-1"})).encode(),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "chargehand", "mcp"],
        cwd=place / "repo",
        env=cli.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n".join(lines) + b"\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(5)]
        process.stdin.close()
        rest, result = process.stdout.read(), process.stderr.read() if process.stderr else b""
        assert process.wait() == 0, result
    assert rest == b""
    assert [answer.get("error", {}).get("code") for answer in answers[:3]] == [-32700, -32600, -32600]
    assert [answer["id"] for answer in answers] == [None, None, None, 7, 8]
    assert answers[4]["result"]["structuredContent"]["error"]["code"] == "not_found"
    assert result == b""
