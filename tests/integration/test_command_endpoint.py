"""A command agent with a model: its endpoint in the sandbox, its cost, and its limits."""

from __future__ import annotations

import asyncio
import http.client
import json
import shlex
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import git
from tests.native_kit import ModelServer, NativeKit, says

from chargehand.agents.contract import Endpoint
from chargehand.app.providers.served import provider_limits
from chargehand.app.wiring.gateways import AttemptGateways
from chargehand.core.attempt_events import CommandFinished, ModelCalled
from chargehand.core.clock import SteppedClock
from chargehand.core.events import decode
from chargehand.core.state import MissionState
from chargehand.missions.causes import attempt_cause
from chargehand.missions.services import EndpointRequest
from chargehand.reports.documents import mission_document, to_json
from chargehand.sandbox.contract import GATEWAY_PORT

pytestmark = pytest.mark.needs_bwrap
COST = (1000 + 100) * 10 / 1e6
SOUND = "true"
CLIENT = """
import json, os, socket, subprocess, sys, time, urllib.error, urllib.request

def ask(token=None, path="/chat/completions", base=None, **more):
    body = {"model": os.environ.get("OPENAI_MODEL", "served"), "messages": [{"role": "user", "content": "hi"}]}
    request = urllib.request.Request(
        (base or os.environ["OPENAI_BASE_URL"]) + path,
        json.dumps({**body, **more}).encode(),
        {"authorization": "Bearer " + (token or os.environ["OPENAI_API_KEY"]), "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)

def connected(host, port):
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        return type(error).__name__
    return "connected"

def told(**found):
    os.makedirs("out", exist_ok=True)
    # Put together: a file that a check's command names is check surface.
    with open("out/" + "told.json", "w") as file:
        json.dump(found, file)
"""


class EndpointKit(NativeKit):
    """Missions whose agent `asker` is a Python script with access to the model `served`."""

    def __init__(self, place: Path, address: str) -> None:
        super().__init__(place)
        self.model("served", base_url=address, model="words")

    def ask(
        self, script: str, *, model: str | None = "served", checks: Sequence[str] = (SOUND,), more: str = ""
    ) -> MissionState:
        """Run a mission whose configured agent runs `CLIENT` and then `script`."""
        named = "" if model is None else f'model = "{model}"\n'
        self.write(f"[agents.asker]\ncommand = {json.dumps(['python3', '-c', CLIENT + script])}\n{named}", more)
        wanted = {"agent": "asker", "model": model, "only_checks": tuple(checks), "attempts": 1}
        return self.work(lambda session: self.create(session, **wanted))

    def told(self, state: MissionState) -> Any:
        """Return the agent's findings from the tree that it left."""
        assert state.status == "promoted", state.reasons
        return json.loads(git(self.repository, "show", f"{state.exported}:out/told.json"))

    def events(self, state: MissionState) -> list[Any]:
        """Return the payloads of a mission's events."""
        with self.opened() as app:
            return [decode(line.type, line.payload) for line in app.store.log.read(state.id) if line.payload]

    def calls(self, state: MissionState) -> list[ModelCalled]:
        """Return the metered calls."""
        return [event for event in self.events(state) if isinstance(event, ModelCalled)]


@pytest.fixture
def server() -> ModelServer:
    return ModelServer([says("the word is: mend")])


@pytest.fixture
def kit(tmp_path: Path, server: ModelServer) -> Iterator[EndpointKit]:
    with server.running() as address:
        yield EndpointKit(tmp_path, address)


def test_a_command_agent_reaches_the_model_and_its_cost_is_recorded(kit: EndpointKit, server: ModelServer) -> None:
    state = kit.ask(
        """
first, wrong, other = ask(), ask("cht-wrong"), ask(model="gpt-none")
body = {"model": "served", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as reply:
    stream = reply.read().decode()
told(first=first, wrong=wrong, other=other, stream=stream)
"""
    )
    told = kit.told(state)
    assert told["stream"].rstrip().endswith("data: [DONE]")
    assert told["first"][0] == 200
    assert told["first"][1]["choices"][0]["message"]["content"] == "the word is: mend"
    assert [told["wrong"][0], told["wrong"][1]["error"]["code"]] == [401, "token_invalid"]
    assert told["other"][0] == 404
    assert [body["model"] for body in server.bodies] == ["words", "words"]  # the provider's name for the model
    calls = kit.calls(state)
    assert [(call.model, call.status, call.turn) for call in calls] == [("served", "ok", 1), ("served", "ok", 2)]
    assert all(call.attempt == state.attempts[0].id for call in calls)
    result = to_json(mission_document(state))
    assert result["cost_usd"] == pytest.approx(2 * COST)
    assert result["cost_known"] is True
    with kit.opened() as app:
        assert app.store.spending.total(mission=state.id).booked_usd == pytest.approx(2 * COST)


LOOKS = """
with open("/proc/net/dev") as file:
    devices = [line.partition(":")[0].strip() for line in list(file)[2:]]
with open("/proc/net/route") as file:
    routes = list(file)[1:]
names = [name for name in os.environ if "API" in name or "GATEWAY" in name or "BASE_URL" in name]
ports = [connected("127.0.0.1", port) for port in PORTS]
told(devices=devices, routes=routes, ports=ports, names=len(names))
"""


def test_only_the_endpoint_is_reachable_and_only_with_a_model(kit: EndpointKit, server: ModelServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as near:
        looks = f"PORTS = [{GATEWAY_PORT}, {near.getsockname()[1]}]\n{LOOKS}"
        given, bare = kit.ask(looks), kit.ask(looks, model=None)
    alone = {"devices": ["lo"], "routes": []}
    refused = "ConnectionRefusedError"
    assert kit.told(given) == {**alone, "ports": ["connected", refused], "names": 8}
    assert kit.told(bare) == {**alone, "ports": [refused, refused], "names": 0}
    assert kit.calls(bare) == []
    assert server.asked == []


def test_a_program_left_behind_and_the_checks_cannot_call(kit: EndpointKit, server: ModelServer) -> None:
    """The agent's token is in the tree; it is useless to anyone who reads it later."""
    daemon = """
number = 0
while True:
    answer = ask()
    number += 1
    with open("/tmp/calls", "w") as file:
        file.write(f"{number:04d}")
"""
    state = kit.ask(
        f"""
with open("/tmp/daemon.py", "w") as file:
    file.write({(CLIENT + daemon)!r})
subprocess.Popen([sys.executable, "/tmp/daemon.py"], start_new_session=True)
while not os.path.exists("/tmp/calls") or open("/tmp/calls").read() < "0003":
    time.sleep(0.01)
told(token=os.environ["OPENAI_API_KEY"], base=os.environ["OPENAI_BASE_URL"])
""",
        checks=(SOUND, f"python3 -c {shlex.quote(CLIENT + LATE)}"),
    )
    assert state.status == "promoted", state.reasons
    events = kit.events(state)
    calls = kit.calls(state)
    ended = next(
        number
        for number, event in enumerate(events)
        if isinstance(event, CommandFinished) and event.argv == ("asker",)
    )
    assert len(calls) >= 3
    sent = [call for call in calls if not call.reason.endswith("before it was sent")]
    assert len(server.asked) == len(sent)  # each call that came through was metered, and no call came later
    late = [event for event in events[ended:] if isinstance(event, ModelCalled)]
    # The daemon makes one call at a time: at the end, one reply may be complete but not yet booked.
    assert sum(event.status == "ok" for event in late) <= 1
    with kit.opened() as app:
        assert app.store.spending.total(mission=state.id).booked_usd == pytest.approx(
            sum(call.booked_usd for call in calls)
        )


LATE = """
(kept,) = [name for name in os.listdir("out") if name.endswith(".json")]
given = json.load(open(f"out/{kept}"))
try:
    ask(given["token"], base=given["base"])
except urllib.error.URLError as error:
    sys.exit(0 if isinstance(error.reason, ConnectionRefusedError) else 1)
sys.exit(1)
"""


def test_the_budget_ends_its_calls_with_402(kit: EndpointKit, server: ModelServer) -> None:
    state = kit.ask(
        """
answers = [ask(max_tokens=500) for _ in range(20)]
told(statuses=[status for status, _ in answers], codes=[body.get("error", {}).get("code") for _, body in answers])
""",
        more=f"[limits]\nbudget_usd = {COST * 4}",
    )
    told = kit.told(state)
    paid = told["statuses"].count(200)
    assert 1 <= paid <= 4
    assert told["statuses"] == [200] * paid + [402] * (20 - paid)
    assert set(told["codes"][paid:]) == {"budget_exhausted"}
    assert len(server.asked) == paid  # refused calls are never sent
    calls = kit.calls(state)
    assert [call.status for call in calls] == ["ok"] * paid + ["refused"] * (20 - paid)
    with kit.opened() as app:
        assert app.store.spending.total(mission=state.id).booked_usd <= COST * 4
    assert to_json(mission_document(state))["cost_usd"] == pytest.approx(paid * COST)


def test_a_revoked_token_gets_401_and_then_the_endpoint_closes(tmp_path: Path, server: ModelServer) -> None:
    with server.running() as address:
        kit = EndpointKit(tmp_path, address)
        asyncio.run(_revoked(kit))
    assert len(server.asked) == 1


async def _revoked(kit: EndpointKit) -> None:
    with kit.opened() as app:
        opened = AttemptGateways(
            config=app.user_configuration().config,
            spending=app.store.spending,
            keys=app.credentials,
            environ=app.environ,
            scratch=kit.place / "scratch",
        )
        wanted = EndpointRequest(
            models=("served",),
            mission="m-1",
            attempt="a-1",
            number=1,
            first_turn=1,
            on_call=lambda _: None,
            on_alert=lambda _: None,
        )
        async with opened(wanted) as endpoint:
            assert (await asyncio.to_thread(_post, endpoint))[0] == 200
            endpoint.revoke()
            status, body = await asyncio.to_thread(_post, endpoint)
            assert (status, body["error"]["code"]) == (401, "token_revoked")
        assert not endpoint.socket.exists()


def _post(endpoint: Endpoint, *, seconds: float = 20) -> tuple[int, Any]:
    body = msgspec.json.encode({"model": "served", "messages": [{"role": "user", "content": "hi"}]})
    connection = http.client.HTTPConnection("gateway")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(seconds)
    connection.sock.connect(str(endpoint.socket))
    try:
        connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {endpoint.token}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("ends", "status", "code", "cause"),
    [
        ("sys.exit(1)", "failed", "model_failed", "provider"),
        ("sys.exit(0)", "failed", "calls_failed", "provider"),
        ("told(); sys.exit(0)", "promoted", None, None),
        ("told(); sys.exit(1)", "failed", "model_failed", "provider"),
    ],
)
def test_a_providers_fault_is_the_providers_however_the_program_ends(
    kit: EndpointKit, server: ModelServer, ends: str, status: str, code: str | None, cause: str | None
) -> None:
    """The provider answers 410 from the second call on; a program that still ends well is judged by its work."""
    state = kit.ask(
        f"assert ask()[0] == 200\nserved = [{{'role': 'assistant', 'content': 'x'}}]\n"
        f"assert ask(messages=served)[0] == 410\n{ends}"
    )
    (attempt,) = state.attempts
    found = attempt_cause(attempt)
    assert (state.attempts[0].status, found and (found.code, found.kind)) == (
        "succeeded" if status == "promoted" else "failed",
        (code, cause) if code else None,
    ), state.reasons
    if code:
        assert "HTTP 410" in attempt.reasons[0].message


@pytest.mark.parametrize("end", ["the client leaves", "the provider is still down"])
def test_a_resting_provider_is_the_fault_though_no_request_is_sent(
    tmp_path: Path, server: ModelServer, end: str
) -> None:
    """Another attempt found the provider down: this one's only call waits, or is refused after a failed probe."""
    with server.running() as address:
        kit = EndpointKit(tmp_path, address)
    fault = asyncio.run(_rested(kit, end))
    assert fault.startswith("upstream_resting: " if end == "the client leaves" else "upstream_unreachable: ")
    assert server.asked == []


async def _rested(kit: EndpointKit, end: str) -> str:
    with kit.opened() as app:
        config, clock = app.user_configuration().config, SteppedClock()
        opened = AttemptGateways(
            config=config,
            spending=app.store.spending,
            keys=app.credentials,
            environ=app.environ,
            scratch=kit.place / "scratch",
            clock=clock,
        )
        wanted = EndpointRequest(
            models=("served",),
            mission="m-1",
            attempt="a-1",
            number=1,
            first_turn=1,
            on_call=lambda _: None,
            on_alert=lambda _: None,
        )
        (served,) = opened._served_models(("served",), {})
        health = opened.standings.of(provider_limits(config, app.environ), clock).of(served.provider, served.model)
        for _ in range(3):
            health.note_unreachable()
        if end == "the provider is still down":
            clock.advance(61)
        async with opened(wanted) as endpoint:
            if end == "the client leaves":
                with pytest.raises(TimeoutError):
                    await asyncio.to_thread(_post, endpoint, seconds=0.5)
                async with asyncio.timeout(60):
                    while not endpoint.meter().fault:
                        await asyncio.sleep(0.01)
            else:
                assert (await asyncio.to_thread(_post, endpoint))[0] == 502
            return endpoint.meter().fault
