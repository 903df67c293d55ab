"""A provider without quota for hours: the mission sleeps, a worker wakes it, and it resumes at the same step."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.native_kit import MENDS, ModelServer, NativeKit, says

from chargehand.app.composition import App
from chargehand.app.worker import Worker
from chargehand.cli.main import chargehand
from chargehand.core.clock import SteppedClock
from chargehand.core.mission_events import CLOCK
from chargehand.core.state import MissionState
from chargehand.testing.agents import fake_agent as _fake_agent

pytestmark = pytest.mark.needs_bwrap
HOURS = 5 * 3600.0
JITTER = 8.0


class Tired(ModelServer):
    """A provider that has no quota from its second reply on, until `tired` is cleared."""

    tired = True

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        if self.tired and sum(message["role"] == "assistant" for message in body["messages"]) >= 1:
            self.asked.append(0)
            error = {"message": "five hours", "details": [{"retryDelay": "18000s"}]}
            return 429, "application/json", json.dumps({"error": error}).encode()
        return super()._answer(body, headers)


class ClockKit(NativeKit):
    """Missions whose clock moves only when the test moves it."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.clock = SteppedClock()

    def app(self, *, role: Any = "command") -> App:
        return App(environ=self.environ, cwd=self.repository, clock=self.clock, role=role)

    def woken(self) -> None:
        """Let a worker do the work that is due now, and end."""
        with contextlib.closing(self.app(role="worker")) as app:
            asyncio.run(Worker(app, slots=1).work(until_idle=True))

    def stayed(self, advance: float) -> None:
        """Let a worker wait for a sleeping mission, advance the clock, and wait until the work is done."""

        async def stay(app: App) -> None:
            working = asyncio.create_task(Worker(app, slots=1).work(until_idle=True, sleepers=True))
            done, _ = await asyncio.wait([working], timeout=1)
            assert not done, "it waits for who sleeps"
            self.clock.advance(advance)
            await working

        with contextlib.closing(self.app(role="worker")) as app:
            asyncio.run(stay(app))

    def say(self, *words: str) -> str:
        """Run the program as in a pipe to its end, and return its output."""
        done = CliRunner(env={"XDG_CONFIG_HOME": None, "LANG": "C.UTF-8", **self.environ}).invoke(
            chargehand, words
        )
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def state(self, mission: str) -> MissionState:
        with self.opened() as app:
            return app.mission_reader.state(mission)


@pytest.fixture
def kit(tmp_path: Path) -> ClockKit:
    return ClockKit(tmp_path)


def test_a_mission_without_quota_sleeps_and_a_worker_resumes_it(kit: ClockKit) -> None:
    server = Tired(MENDS)
    with server.running() as address:
        kit.model("house", base_url=address, model="tiny")
        state = kit.native(model="house")
        asked = state.waits_for_quota
        assert (state.status, asked is not None) == ("waiting", True)
        assert asked is not None
        until = datetime.fromisoformat(asked.until)
        assert HOURS <= (until - kit.clock.now()).total_seconds() <= HOURS + 2
        assert asked.provider == address.split("/")[2]
        assert [reason.code for reason in state.reasons] == ["quota_exhausted"]
        assert f"waiting for quota of {asked.provider} until {asked.until[:10]}" in state.reasons[0].message
        shown = f"waiting for quota of {asked.provider} until {asked.until[:10]}"
        for words in (("mission", "show", state.id), ("mission", "list", "--repo", str(kit.repository))):
            assert shown in kit.say(*words)
        assert json.loads(kit.say("mission", "show", state.id, "--json"))["waits"]["code"] == "quota_exhausted"
        kit.woken()  # too early: it sleeps on, and the provider is not asked
        assert (kit.state(state.id).status, server.asked) == ("waiting", [1, 0])
        kit.clock.advance(HOURS / 2)
        kit.woken()
        assert (kit.state(state.id).status, server.asked) == ("waiting", [1, 0])
        server.tired = False
        kit.stayed(HOURS / 2 + 2 + JITTER)
    done = kit.state(state.id)
    assert (done.status, done.reasons, server.asked) == ("promoted", (), [1, 0, 2])
    assert [attempt.number for attempt in done.attempts] == [1]
    assert [(q.identity, q.answer) for q in done.questions.values()] == [(CLOCK, "go on")]
    assert done.seconds_of() < 600, "the hours count for no limit"


def test_an_early_retry_waits_again_until_a_person_is_asked(kit: ClockKit) -> None:
    server = Tired(MENDS)
    with server.running() as address:
        kit.model("house", base_url=address, model="tiny")
        state = kit.native(model="house")
        with kit.opened() as app:
            app.steering.answer(state.id, "go on")
        state = kit.work(state.id)
        assert (state.status, server.asked) == ("waiting", [1, 0, 0])
        for _ in range(2):
            kit.clock.advance(HOURS + 2 + JITTER)
            kit.woken()
        state = kit.state(state.id)
        assert (state.status, server.asked) == ("waiting", [1, 0, 0, 0, 0])
        assert [q.identity == CLOCK for q in state.questions.values()] == [False, True, True, False]
        with kit.opened() as app:
            assert len(list((app.home / "calls").iterdir())) == 1, "the attempt is not over"
            assert app.steering.cancel(state.id).status == "cancelled"
            assert list((app.home / "calls").iterdir()) == []
            assert "calls" in {row.kind for row in app.store.artifacts.list(state.id)}
            assert app.mission_reader.sleepers() == {}
    kit.clock.advance(10 * HOURS)
    kit.woken()
    assert kit.state(state.id).status == "cancelled"


class Worn(ModelServer):
    """A provider that has no quota at all, until `tired` is cleared."""

    tired = True

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        if self.tired:
            self.asked.append(0)
            error = {"message": "no more", "type": "usage_limit_reached", "resets_in_seconds": 18_000}
            return 429, "application/json", json.dumps({"error": error}).encode()
        return super()._answer(body, headers)


def program(kind: str) -> str:
    """Return an agent that calls its model twice and then writes a file; the insisting one never gives up."""
    if kind == "acp":
        command = ["python3", "-I", "-c", inspect.getsource(_fake_agent), "acp", "pay"]
        return f'kind = "acp"\ncommand = {json.dumps(command)}'
    act = "insist" if kind == "insisting" else "pay"
    command = ["python3", "-I", "-c", inspect.getsource(_fake_agent), "claude", act]
    told = "" if kind == "command" else 'kind = "cli"\ncli = "claude"\n'
    return f"{told}command = {json.dumps(command)}"


@pytest.mark.parametrize("kind", ["insisting", "acp", "command"])
def test_a_program_without_quota_restarts_in_the_same_attempt(kit: ClockKit, kind: str) -> None:
    server = Worn([says("go on")] * 60)
    with server.running() as address:
        kit.model("house", base_url=address, model="tiny", price=0)
        kit.write(f"[agents.it]\n{program(kind)}\n")
        wanted = {"agent": "it", "model": "house", "only_checks": ("true",), "attempts": 1}
        state = kit.work(lambda session: kit.create(session, **wanted))
        asked = state.waits_for_quota
        assert asked is not None, state.reasons
        assert HOURS <= (datetime.fromisoformat(asked.until) - kit.clock.now()).total_seconds() <= HOURS + 2
        assert [attempt.status for attempt in state.attempts] == ["running"]
        assert server.asked == [0], "who insists gets its answer from us"
        server.tired = False
        kit.clock.advance(HOURS + 2 + JITTER)
        kit.woken()
    done = kit.state(state.id)
    assert (done.status, done.reasons) == ("promoted", ())
    assert [(attempt.number, attempt.status) for attempt in done.attempts] == [(1, "succeeded")]
