"""An agent that cannot start, or whose model is unreachable, is not started again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.conftest import git, write_files
from tests.crash_kit import MARK, wait_until, wake
from tests.integration.mission_kit import GOLD, REQUEST
from tests.native_kit import MENDS, NativeKit, scripted

from chargehand.app.composition import App
from chargehand.app.wiring.session import Session
from chargehand.core.attempt_events import AttemptStarted, BreakerChanged, ModelCalled
from chargehand.core.clock import SteppedClock
from chargehand.core.events import Event, Payload, decode
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    AgentSelected,
    AttemptFinished,
    MissionClaimed,
    MissionCreated,
    MissionFinished,
)
from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap

AGENT = "command:./agent.sh"


class BreakerKit(NativeKit):
    """Missions with a stepped clock, whose agent is a program in the repository."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.clock = SteppedClock()

    def app(self) -> App:
        """Return an app with the stepped clock."""
        return App(environ=self.environ, cwd=self.repository, clock=self.clock)

    def program(self, script: str) -> None:
        """Commit the agent's program."""
        write_files(self.repository, {"agent.sh": f"#!/bin/sh\n{script}\n"})
        (self.repository / "agent.sh").chmod(0o755)
        git(self.repository, "add", "-A")
        git(self.repository, "commit", "-q", "-m", "agent")

    def mission(self, **wanted: object) -> MissionState:
        """Run a mission until it settles, one second after the previous mission."""
        self.clock.advance(1)
        request = replace(REQUEST, **{"agent": AGENT, "only_checks": ("cat calc/*",), **wanted})

        def made(session: Session) -> str:
            values = {"agents": {"other": {"command": ["sh", "-c", GOLD]}}}
            return session.missions.create(
                request, repository=str(self.repository), base=session.base, config={"values": values}
            )

        return self.work(made)

    def answer(self, state: MissionState, text: str) -> MissionState:
        """Answer a mission's question and resume the mission."""
        with self.opened() as app:
            app.steering.answer(state.id, text)
        return self.work(state.id)

    def told(self, state: MissionState, kind: type[Payload]) -> list[Payload]:
        """Return the payloads of one kind in a mission's log."""
        with self.opened() as app:
            lines = app.store.log.read(state.id)
        return [payload for line in lines if isinstance(payload := payload_of(line), kind)]

    def changes(self, state: MissionState) -> list[str]:
        """Return the breaker states in a mission's log."""
        return [change.state for change in self.told(state, BreakerChanged)]


def payload_of(line: Event) -> Payload | None:
    return decode(line.type, line.payload) if line.payload is not None else None


@pytest.fixture
def kit(tmp_path: Path) -> BreakerKit:
    kit = BreakerKit(tmp_path)
    kit.write('[agents.other]\ncommand = ["sh", "-c", "' + GOLD + '"]')
    return kit


def test_three_failures_open_the_breaker_and_a_probe_or_person_overrides(kit: BreakerKit) -> None:
    failed = [kit.mission() for _ in range(3)]
    assert {state.attempts[0].reasons[0].code for state in failed} == {"agent_missing"}
    assert [kit.changes(state) for state in failed] == [[], [], ["open"]]
    assert failed[2].attempts[0].captured is not None

    asked, other = kit.mission(), kit.mission()
    assert (asked.status, [reason.code for reason in asked.reasons]) == ("waiting", ["breaker_open"])
    assert (asked.attempts, kit.told(asked, AttemptStarted)) == ([], [])
    assert asked.open_question is not None
    assert "failed 3 times in a row" in asked.open_question.text
    assert "cannot be run in the sandbox" in asked.open_question.text
    assert asked.open_question.options == ("try anyway", "use other")

    again = kit.answer(asked, "as you like")  # not an offered answer: the mission asks again
    assert (again.status, again.attempts, len(again.questions)) == ("waiting", [], 2)

    still = kit.answer(again, "Try anyway")
    assert (still.status, kit.changes(still)) == ("failed", ["half_open", "open"])

    used = kit.answer(other, "use other")
    assert (used.status, used.attempts[0].agent, kit.changes(used)) == ("promoted", "other", [])

    kit.clock.advance(301)
    kit.program(GOLD)
    probe = kit.mission()
    assert (probe.status, kit.changes(probe)) == ("promoted", ["half_open", "closed"])
    after = kit.mission()
    assert (after.status, kit.changes(after)) == ("promoted", [])


def test_attempts_open_the_breaker_and_a_failed_probe_reopens_it(kit: BreakerKit) -> None:
    first = kit.mission(attempts=5)
    assert (first.status, len(first.attempts)) == ("waiting", 3)
    assert kit.changes(first) == ["open"]
    kit.clock.advance(301)
    probe = kit.mission()
    assert (probe.status, kit.changes(probe)) == ("failed", ["half_open", "open"])
    kit.clock.advance(298)
    assert kit.mission().status == "waiting"


def test_refused_work_does_not_count_as_a_failure_of_the_agent(kit: BreakerKit) -> None:
    kit.program("exit 3")
    state = kit.mission(attempts=4)
    assert (state.status, len(state.attempts), kit.changes(state)) == ("failed", 4, [])
    kit.program(GOLD)
    state = kit.mission(attempts=4, only_checks=("false",))
    assert (state.status, len(state.attempts), kit.changes(state)) == ("refused", 4, [])
    assert kit.mission().status == "promoted"


def test_only_one_of_two_missions_probes_the_agent(kit: BreakerKit) -> None:
    kit.mission(attempts=3)
    kit.clock.advance(301)
    kit.program(f"sleep {MARK}; {GOLD}")

    async def both() -> list[MissionState]:
        with contextlib.closing(kit.app()) as one, contextlib.closing(kit.app()) as two:
            both = [asyncio.create_task(begin(app)) for app in (one, two)]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(wait_until, wake)
            return [await each for each in both]

    async def begin(app: App) -> MissionState:
        async with app.session() as session:
            request = replace(REQUEST, agent=AGENT, only_checks=("cat calc/*",))
            made = session.missions.create(request, repository=str(kit.repository), base=session.base, config={})
            return await session.missions.run(made)

    assert sorted(state.status for state in asyncio.run(both())) == ["promoted", "waiting"]


def test_the_fallback_model_is_used_if_the_first_model_is_unreachable(kit: BreakerKit) -> None:
    kit.model("away", provider="openai-compatible", base_url="http://127.0.0.1:9/v1")
    kit.model("scripted", scripted(MENDS))
    run: Callable[..., MissionState] = kit.native
    real = run(model="away", attempts=1)
    assert [reason.code for reason in real.attempts[0].reasons] == ["model_failed"]
    with kit.opened() as app:  # two more failures, without the seconds of retries
        lines = [payload_of(line) for line in app.store.log.read(real.id)]
        for _ in range(2):
            kept = [line for line in lines if isinstance(line, MissionCreated | MissionClaimed | AttemptFinished)]
            app.store.log.append(new_id("mission"), *kept, MissionFinished(status="failed"))
    state = run(model="away", fallback=("scripted",))
    assert state.status == "promoted"
    assert {call.model for call in kit.told(state, ModelCalled)} == {"scripted"}
    why = [chosen.reason for chosen in kit.told(state, AgentSelected)]
    assert any("failed too often" in reason for reason in why)
    asked = run(model="away")
    assert asked.open_question is not None
    assert asked.open_question.options == ("try anyway", "use scripted")
    assert kit.answer(asked, "use scripted").status == "promoted"
