"""Critical messages: acknowledged, or the agent is frozen and a person decides; no test sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from chargehand.agents.contract import ABILITIES
from chargehand.app.composition import App
from chargehand.core.attempt_events import AttemptStarted, MessageAcknowledged, MessageDelivered
from chargehand.core.clock import SystemClock
from chargehand.core.errors import RefusedError
from chargehand.core.events import decode
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    BaseResolved,
    MessageSent,
    MissionClaimed,
    MissionCreated,
    MissionFinished,
    MissionPaused,
    QuestionAnswered,
    QuestionAsked,
)
from chargehand.core.records import Base, MissionRequest
from chargehand.core.state import MissionState
from chargehand.missions._messages import (
    ACKNOWLEDGE_SECONDS,
    CANCEL,
    GO_ON,
    NEXT,
    OPTIONS,
    events_of_mission_end,
    requires_next_attempt,
)
from chargehand.missions._questions import question_about
from chargehand.missions.attempt.supervision import CriticalMessageGuard
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal

AT = "a-1"


class Frozen:
    """A sandbox that shows whether it is frozen."""

    def __init__(self) -> None:
        self.frozen = False

    async def freeze(self) -> None:
        self.frozen = True

    async def thaw(self) -> None:
        self.frozen = False


class Attempt:
    """The part of a running mission's attempt that handles messages."""

    def __init__(self, app: App, mission: str, task: asyncio.Task[object]) -> None:
        self.changed = asyncio.Event()
        self.journal = Journal(app.store, mission, clock=SystemClock(), watch=lambda *_: self.changed.set())
        self.control = Control(task, self.journal)
        self.sandbox: Any = Frozen()
        self.control.attach(self.sandbox)
        self.watching: list[asyncio.Task[None]] = []

    @property
    def state(self) -> MissionState:
        return self.journal.state

    def follow(self, *, able: bool, seconds: float = ACKNOWLEDGE_SECONDS, before: int = 0) -> asyncio.Task[None]:
        watch = CriticalMessageGuard(
            self.journal, self.control, attempt=AT, tree="t", able=able, before=before, seconds=seconds
        )
        self.watching.append(asyncio.create_task(watch.follow()))
        return self.watching[-1]

    def acknowledge(self) -> None:
        for each in self.state.messages:
            self.journal.record(MessageAcknowledged(message=each.message, attempt=AT))
        self.control.wake_waiters()

    def payloads(self, kind: type) -> list[Any]:
        lines = self.journal._store.log.read(self.journal.mission)
        found = [decode(line.type, line.payload) for line in lines if line.payload is not None]
        return [each for each in found if isinstance(each, kind)]

    async def until(self, true: Any) -> None:
        async with asyncio.timeout(60):
            while not true():
                self.changed.clear()
                if not true():
                    await self.changed.wait()
            await asyncio.sleep(0)

    @property
    def asked(self) -> bool:
        return self.state.open_question is not None


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    environ = {"HOME": str(tmp_path), "CHARGEHAND_HOME": str(tmp_path / "state"), "PATH": "/usr/bin"}
    with App.open(environ=environ, cwd=tmp_path) as opened:
        yield opened


@pytest.fixture
async def attempt(app: App) -> AsyncIterator[Attempt]:
    mission = new_id("mission")
    request = MissionRequest(text="x", agent="a", command=(), slug="x")
    created = MissionCreated(project="p", repository="/r", request=request)
    base = BaseResolved(base=Base(commit="c", tree="t", revision="HEAD"))
    claimed = MissionClaimed(worker="w", role="run", epoch=1, version="1")
    app.store.log.append(mission, created, base, claimed)
    body: asyncio.Task[object] = asyncio.create_task(asyncio.Event().wait())
    made = Attempt(app, mission, body)
    yield made
    for each in (*made.watching, body):
        each.cancel()
    await asyncio.gather(*made.watching, body, return_exceptions=True)


def test_the_time_is_ten_seconds() -> None:
    assert ACKNOWLEDGE_SECONDS == 10.0
    able = {kind: ABILITIES[kind].acknowledges for kind in ("native", "acp", "cli", "command", "patch")}
    assert able == {"native": True, "acp": True, "cli": False, "command": False, "patch": False}
    assert any("critical" in words for words in ABILITIES["cli"].fallbacks())
    assert not any("critical" in words for words in ABILITIES["native"].fallbacks())


async def test_an_acknowledged_message_does_not_freeze_the_agent(attempt: Attempt) -> None:
    attempt.follow(able=True)
    attempt.control.send("me", "look out", critical=True)
    await asyncio.sleep(0)
    attempt.acknowledge()
    await asyncio.sleep(0)
    assert not attempt.sandbox.frozen
    assert not attempt.asked
    assert attempt.payloads(QuestionAsked) == []


async def test_messages_without_an_attempt_are_recorded_as_undelivered(attempt: Attempt) -> None:
    attempt.journal.record(AttemptStarted(attempt=AT, number=1, agent="a", workspace="w", tree="t"))
    for text in ("heard", "too late", "for the next"):
        attempt.control.send("me", text, critical=text == "for the next")
    heard, late, later = (each.message for each in attempt.state.messages)
    attempt.journal.record(*(MessageDelivered(message=each, attempt=AT) for each in (heard, later)))
    assert not requires_next_attempt(attempt.state, 1)
    question = question_about(AT, later)
    attempt.journal.record(QuestionAsked(question=question, tree="t", reasons=(), text="?"))
    attempt.journal.record(QuestionAnswered(question=question, text=NEXT, identity="me"))
    assert requires_next_attempt(attempt.state, 1)
    assert not requires_next_attempt(attempt.state, 2), "there is no such attempt"
    attempt.journal.record(*events_of_mission_end(attempt.state, MissionFinished(status="refused")))
    assert set(attempt.state.undelivered) == {late, later}
    assert {reason.code for reason in attempt.state.undelivered.values()} == {"not_delivered"}
    assert "ended as refused" in attempt.state.undelivered[late].message
    again = events_of_mission_end(attempt.state, MissionFinished(status="discarded"))
    assert [type(each) for each in again] == [MissionFinished], "it is told once"


async def test_a_noncritical_message_requires_no_acknowledgement(attempt: Attempt) -> None:
    attempt.follow(able=False)
    attempt.control.send("me", "look out")
    await asyncio.sleep(0)
    assert not attempt.sandbox.frozen


async def test_a_missing_acknowledgement_leads_to_a_retry_a_freeze_and_a_question(
    attempt: Attempt,
) -> None:
    attempt.follow(able=True, seconds=0.02)
    attempt.control.send("me", "look out", critical=True)
    await attempt.until(lambda: attempt.asked)
    (message,) = attempt.state.messages
    sent = attempt.payloads(MessageSent)
    assert [(each.message, each.again) for each in sent] == [(message.message, False), (message.message, True)]
    assert attempt.sandbox.frozen
    assert attempt.state.status == "paused"
    (paused,) = attempt.payloads(MissionPaused)
    assert (paused.identity, "did not acknowledge" in paused.reason) == ("chargehand", True)
    asked = attempt.state.open_question
    assert asked is not None
    assert (asked.options, asked.id) == (OPTIONS, question_about(AT, message.message))
    assert "look out" in asked.text


@pytest.mark.parametrize("answer", [GO_ON, NEXT])
async def test_an_answer_resumes_a_frozen_mission(attempt: Attempt, answer: str) -> None:
    attempt.follow(able=False)
    await asyncio.sleep(0)
    attempt.control.send("me", "look out", critical=True)
    await attempt.until(lambda: attempt.asked)
    assert attempt.sandbox.frozen
    with pytest.raises(RefusedError, match="must be one of"):
        attempt.control.answer("me", "perhaps")
    attempt.control.answer("me", answer)
    await attempt.until(lambda: attempt.state.status == "running")
    await attempt.until(lambda: not attempt.control.paused)
    assert not attempt.sandbox.frozen
    assert not attempt.asked
    assert len(attempt.payloads(QuestionAsked)) == 1


async def test_a_person_may_cancel_instead(attempt: Attempt) -> None:
    attempt.follow(able=False)
    await asyncio.sleep(0)
    attempt.control.send("me", "look out", critical=True)
    await attempt.until(lambda: attempt.asked)
    attempt.control.answer("me", CANCEL)
    await attempt.until(lambda: attempt.state.cancel_asked)
    assert attempt.control.stopped == "cancel"


async def test_a_resume_is_an_answer_too(attempt: Attempt) -> None:
    attempt.follow(able=False)
    await asyncio.sleep(0)
    attempt.control.send("me", "look out", critical=True)
    await attempt.until(lambda: attempt.asked)
    await attempt.control.resume("me")
    await attempt.until(lambda: not attempt.asked)
    assert not attempt.sandbox.frozen


async def test_a_new_follower_does_not_repeat_the_question(attempt: Attempt) -> None:
    first = attempt.follow(able=True, seconds=0.02)
    attempt.control.send("me", "look out", critical=True)
    await attempt.until(lambda: attempt.asked)
    first.cancel()
    await attempt.control.resume("me")
    attempt.follow(able=True)  # instead of ten seconds: it freezes at once, since the log has the question
    await attempt.until(lambda: attempt.state.status == "paused")
    assert len(attempt.payloads(QuestionAsked)) == 1
    attempt.control.answer("me", GO_ON)
    await attempt.until(lambda: attempt.state.status == "running")


async def test_a_message_from_before_the_attempt_does_not_freeze_the_agent(attempt: Attempt) -> None:
    attempt.control.send("me", "look out", critical=True)
    attempt.follow(able=False, before=1)
    await asyncio.sleep(0)
    assert not attempt.sandbox.frozen


async def test_an_answer_without_an_open_question_is_refused(attempt: Attempt) -> None:
    with pytest.raises(RefusedError):
        attempt.control.answer("me", GO_ON)


def test_delivery_is_folded_from_the_log(app: App) -> None:
    mission = new_id("mission")
    created = MissionCreated(
        project="p", repository="/r", request=MissionRequest(text="x", agent="a", command=(), slug="x")
    )
    app.store.log.append(
        mission,
        created,
        MessageSent(identity="me", text="of an older version"),
        MessageSent(identity="me", text="b", message="g-1", critical=True),
        MessageSent(identity="me", text="", message="g-1", critical=True, again=True),
        MessageDelivered(message="g-1", attempt=AT),
        MessageAcknowledged(message="g-1", attempt=AT),
    )
    state = app.mission_reader.state(mission)
    assert [each.message for each in state.messages] == ["message-1", "g-1"]
    assert (state.delivered, state.acknowledged) == ({"g-1"}, {"g-1"})
