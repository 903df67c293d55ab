"""P3, P8: missions, their workers and their person in any order, over the real log, claims, locks and controls.

The workers are simulated: they hold real locks and write through real journals, but write random events. A killed
worker leaves its lock as a dead process does; its journals are kept and still write, as a zombie would.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.clock import SteppedClock
from chargehand.core.errors import FencedError, NotFoundError, RefusedError
from chargehand.core.events import decode
from chargehand.core.fold import fold
from chargehand.core.ids import new_id
from chargehand.core.mission_events import AttemptFinished, MissionClaimed, MissionFinished
from chargehand.core.records import Base, MissionRequest, Reason
from chargehand.core.state import SETTLED, AttemptState, MissionState
from chargehand.durable.workers import LocalMembership, LocalWorkers
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal, MissionSubmission, claim_mission, create_mission
from chargehand.missions.reading import MissionReader
from chargehand.missions.steering import Steering
from chargehand.store.audit import verify
from chargehand.store.store import open_store
from chargehand.workspace.depot import Depot

REQUEST = MissionRequest(text="x", agent="a", command=(), slug="x")
BASE = Base(commit="c", tree="t", revision="HEAD")
OPEN = {"planned", "running", "paused"}
ENDED = ("waiting", "promoted", "refused", "failed", "exhausted", "cancelled")
LEGAL = {
    "planned": {"running", "paused", "cancelled", "discarded", "failed"},
    "running": {"paused", *ENDED},
    "paused": {"planned", "running", "cancelled", "discarded", "failed"},
    "waiting": {"cancelled", "discarded"},
    **{status: {"discarded"} for status in ("refused", "exhausted")},
    # A person may resume a mission that the engine failed or a person cancelled.
    **{status: {"discarded", "planned"} for status in ("failed", "cancelled")},
    "promoted": set(),
    "discarded": set(),
}
ATTEMPT_ENDS = st.sampled_from(("succeeded", "refused", "failed", "timed_out"))


@dataclass(slots=True, kw_only=True)
class Hand:
    """One mission in a worker's hands; `let_go` releases it as an orderly worker does."""

    mission: str
    worker: str
    epoch: int
    journal: Journal
    control: Control
    let_go: contextlib.ExitStack


class MissionMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.clock = SteppedClock()
        self.store = open_store(self.place, clock=self.clock)
        self.workers = LocalWorkers(self.place, version="1")
        self.look = MissionReader(store=self.store, workers=self.workers)
        self.person = self.workers.join("command")
        self.living: dict[str, LocalMembership] = {}
        self.hands: list[Hand] = []
        self.zombies: list[Hand] = []
        self.seen: dict[str, str] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.steps = 0
        for _ in range(2):
            self.join()
        self.create()

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        assert verify(self.store).ok
        for member in (self.person, *self.living.values()):
            member.leave()
        self.loop.run_until_complete(self.end_tasks())
        self.loop.close()
        self.store.close()
        shutil.rmtree(self.place)

    async def end_tasks(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # --- workers

    @rule()
    @precondition(lambda self: len(self.living) < 3)
    def join(self) -> None:
        member = self.workers.join("worker")
        self.living[member.id] = member

    @rule(data=st.data())
    @precondition(lambda self: self.living)
    def kill(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.living)))
        os.close(self.living.pop(worker).fileno())
        self.zombies += [hand for hand in self.hands if hand.worker == worker]
        self.hands = [hand for hand in self.hands if hand.worker != worker]

    @rule()
    def sweep(self) -> None:
        assert not set(self.workers.sweep()) & set(self.living)

    @rule(data=st.data())
    @precondition(lambda self: self.living and self.free())
    def take(self, data: st.DataObject) -> None:
        """Claim a mission that no living worker holds, to resume it or only to tidy up, as a worker does."""
        hand = self.claim(data.draw(st.sampled_from(self.free())), data.draw(st.sampled_from(sorted(self.living))))
        if hand.journal.state.cancel_asked:
            self.end(hand, MissionFinished(status="cancelled"))
        elif hand.journal.state.status == "running":
            self.hands.append(hand)
        else:
            hand.let_go.close()

    @rule(data=st.data())
    @precondition(lambda self: self.hands)
    def take_what_is_held(self, data: st.DataObject) -> None:
        hand = data.draw(st.sampled_from(self.hands))
        with pytest.raises(RefusedError, match="held by another"):
            self.claim(hand.mission, data.draw(st.sampled_from(sorted(self.living))))

    def claim(self, mission: str, worker: str) -> Hand:
        stack = contextlib.ExitStack()
        epoch = stack.enter_context(claim_mission(self.store.log, mission, worker=worker, look=self.look))
        journal = Journal(self.store, mission, clock=self.clock, epoch=epoch)
        journal.record(MissionClaimed(worker=worker, role="worker", epoch=epoch, version="1"))
        self.tasks.append(self.loop.create_task(asyncio.Event().wait()))
        control = Control(self.tasks[-1], journal)
        return Hand(mission=mission, worker=worker, epoch=epoch, journal=journal, control=control, let_go=stack)

    # --- a worker on its missions

    @rule(data=st.data())
    @precondition(lambda self: self.hands)
    def step(self, data: st.DataObject) -> None:
        self.one_step(data.draw(st.sampled_from(self.hands)))

    def one_step(self, hand: Hand) -> None:
        """Do a recorded step, and check that the second time it is recalled."""
        self.steps += 1
        done = []

        async def work() -> int:
            done.append(self.steps)
            return self.steps

        for _ in range(2):
            output = self.loop.run_until_complete(hand.journal.step(f"s-{self.steps}", None, work))
            assert (output, done) == (self.steps, [self.steps])

    @rule(data=st.data(), status=ATTEMPT_ENDS)
    @precondition(lambda self: self.unpaused())
    def attempt(self, data: st.DataObject, status: Any) -> None:
        """Start an attempt, or end the running one."""
        hand = data.draw(st.sampled_from(self.unpaused()))
        running = running_attempt(hand.journal.state)
        if running:
            hand.journal.record(AttemptFinished(attempt=running.id, status=status, seconds=1.0))
        else:
            number = len(hand.journal.state.attempts) + 1
            name = new_id("attempt")
            hand.journal.record(AttemptStarted(attempt=name, number=number, agent="a", workspace="w", tree="t"))

    @rule(data=st.data(), status=st.sampled_from(ENDED[:-1]))
    @precondition(lambda self: self.unpaused())
    def finish(self, data: st.DataObject, status: Any) -> None:
        hand = data.draw(st.sampled_from(self.unpaused()))
        self.hands.remove(hand)
        self.end(hand, MissionFinished(status=status))

    def end(self, hand: Hand, finished: MissionFinished) -> None:
        running = running_attempt(hand.journal.state)
        lost = [AttemptFinished(attempt=running.id, status="lost", seconds=0.0)] if running else []
        hand.journal.record(*lost, finished)
        hand.let_go.close()

    @rule(data=st.data())
    @precondition(lambda self: self.hands)
    def let_go(self, data: st.DataObject) -> None:
        """End as a worker does on an order to stop: its mission resumes elsewhere."""
        hand = data.draw(st.sampled_from(self.hands))
        self.hands.remove(hand)
        hand.control.stop("release")
        hand.let_go.close()
        self.zombies.append(hand)

    @rule(data=st.data())
    @precondition(lambda self: self.zombies)
    def zombie_writes(self, data: st.DataObject) -> None:
        """Let a released journal write again: nothing of it may land once the mission is claimed again."""
        hand = data.draw(st.sampled_from(self.zombies))
        row, before = self.store.log.get(hand.mission), self.store.log.read(hand.mission)
        if row.epoch == hand.epoch:
            return
        finished = MissionFinished(status="failed")
        for write in (lambda: hand.journal.record(finished), lambda: self.one_step(hand)):
            with pytest.raises(FencedError):
                write()
        hand.let_go.close()
        assert self.store.log.read(hand.mission) == before
        assert self.store.log.get(hand.mission) == row

    # --- a person

    @rule()
    @precondition(lambda self: len(self.seen) < 4)
    def create(self) -> None:
        mission = create_mission(
            self.store,
            MissionSubmission(project="p", request=REQUEST, repository="/r", base=BASE, config={"values": {}}),
        )
        self.seen[mission] = "planned"

    @rule(data=st.data())
    @precondition(lambda self: self.hands)
    def pause_or_resume(self, data: st.DataObject) -> None:
        """Steer a running mission, as its worker's socket does."""
        control = data.draw(st.sampled_from(self.hands)).control
        self.loop.run_until_complete(control.resume("me") if control.paused else control.pause("me"))

    @rule(data=st.data())
    @precondition(lambda self: self.hands)
    def tell(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.hands)).control.send("me", "hurry")

    @rule(data=st.data(), dies=st.booleans())
    @precondition(lambda self: self.hands)
    def cancel(self, data: st.DataObject, dies: bool) -> None:
        """Cancel a running mission; its worker ends it, or is still busy and may die first."""
        hand = data.draw(st.sampled_from(self.hands))
        hand.control.stop("cancel", identity="me")
        if not dies:
            self.hands.remove(hand)
            self.end(hand, MissionFinished(status="cancelled"))

    @rule(data=st.data(), order=st.sampled_from(("pause", "resume", "cancel", "discard", "send", "give_up")))
    def steer(self, data: st.DataObject, order: str) -> None:
        """Steer a mission at rest; if it is not at rest, the order is refused and changes nothing."""
        mission = self.any_mission(data)
        steering = Steering(
            store=self.store, look=self.look, worker=self.person.id, identity="me", open_depot=no_depot
        )
        before = self.store.log.read(mission)
        more: tuple[Any, ...] = {"send": ("hurry",), "give_up": (Reason(code="x", message="x"),)}.get(order, ())
        timed = {"now": self.clock.now()} if order == "give_up" else {}
        try:
            getattr(steering, order)(mission, *more, **timed)
        except RefusedError:
            assert self.store.log.read(mission) == before
        else:
            assert self.holder(mission) is None or self.store.log.read(mission) == before

    # --- the machine

    @rule(seconds=st.integers(-7200, 7200))
    def step_the_clock(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def open_the_store_again(self) -> None:
        self.store.close()
        self.store = open_store(self.place, clock=self.clock)
        self.look = MissionReader(store=self.store, workers=self.workers)
        for hand in (*self.hands, *self.zombies):
            hand.journal._store = self.store

    # --- what always holds

    @invariant()
    def status_is_what_the_log_tells(self) -> None:
        for mission, before in self.seen.items():
            lines, holder = self.store.log.read(mission), self.holder(mission)
            state = self.look.state(mission)
            assert state == fold(lines, live=holder is not None)
            assert state.status == before or state.status in LEGAL[before], (before, state.status)
            assert holder is not None or state.status != "running"
            assert holder is None or state.status in ("running", "paused")
            self.seen[mission] = state.status

    @invariant()
    def takeable_is_what_should_go_on(self) -> None:
        if not hasattr(self, "store"):
            return
        rows = {row.id: row for row in self.store.log.missions()}
        wanted = {mission for mission in rows if self.should_go_on(mission)}
        assert {mission for mission, row in rows.items() if row.runnable} == wanted
        owned = {mission for mission, row in rows.items() if row.owner is not None}
        assert {row.id for row in self.store.log.takeable()} == wanted | owned

    @invariant()
    def nobody_else_holds(self) -> None:
        for hand in getattr(self, "hands", ()):
            row = self.store.log.get(hand.mission)
            assert (row.owner, row.epoch) == (hand.worker, hand.epoch)
            assert self.workers.live(hand.worker)
        held = [hand.mission for hand in getattr(self, "hands", ())]
        assert len(held) == len(set(held))

    @invariant()
    def claims_follow_each_other(self) -> None:
        for mission in getattr(self, "seen", ()):
            payloads = [decode(line.type, line.payload) for line in self.store.log.read(mission) if line.payload]
            epochs = [payload.epoch for payload in payloads if isinstance(payload, MissionClaimed)]
            assert epochs == sorted(set(epochs))

    def should_go_on(self, mission: str) -> bool:
        """Return whether the log alone says to resume: the mission waits for a worker, or has lost its own."""
        state = self.look.at_rest(mission)
        lost = state.status == "paused" and state.reasons[0].code == "worker_lost"
        return state.status == "planned" or lost

    def holder(self, mission: str) -> str | None:
        """Return our worker that holds the mission."""
        return next((hand.worker for hand in self.hands if hand.mission == mission), None)

    def free(self) -> list[str]:
        """Return the missions that a worker can take."""
        held = {hand.mission for hand in self.hands}
        return [row.id for row in self.store.log.takeable() if row.id not in held]

    def unpaused(self) -> list[Hand]:
        return [hand for hand in self.hands if not hand.control.paused and hand.control.stopped is None]

    def any_mission(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(list(self.seen)))


def no_depot(state: MissionState) -> Depot:
    raise NotFoundError(f"mission {state.id!r} has no depot")


def running_attempt(state: MissionState) -> AttemptState | None:
    return next((attempt for attempt in state.attempts if attempt.status == "running"), None)


def test_the_table_of_transitions_is_whole() -> None:
    assert set(LEGAL) == SETTLED | OPEN
    assert {status for later in LEGAL.values() for status in later} <= set(LEGAL)


def _test(examples: int, *marks: Any) -> Any:
    found = type(f"MissionMachine{examples}", (MissionMachine.TestCase,), {})
    found.settings = settings(max_examples=examples, stateful_step_count=60, deadline=None)
    for mark in marks:
        found = mark(found)
    return found


TestMissionMachine = _test(8)
TestMissionMachineSoak = _test(
    int(os.environ.get("CHARGEHAND_SOAK_EXAMPLES", "100")), pytest.mark.soak, pytest.mark.timeout(3600)
)
