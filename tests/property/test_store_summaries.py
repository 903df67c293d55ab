"""Lists and counts read what folding the log gives; a reader who follows by position misses nothing."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace
from tests.conftest import examples
from tests.unit.core_strategies import payloads, values
from tests.unit.older_stores import as_of_version_6

from chargehand.core.attempt_events import AttemptStarted, ModelCalled
from chargehand.core.clock import SteppedClock
from chargehand.core.events import Event, Payload, encode
from chargehand.core.fold import fold, mark_unheld, measure
from chargehand.core.ids import new_id
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.core.state import MissionMeasures, MissionState, MissionSummary
from chargehand.missions.reading import FoldedMissions
from chargehand.store.chain import PositionedEvent
from chargehand.store.rows import MissionFilter, MissionListing
from chargehand.store.store import Store, open_store

REQUEST = MissionRequest(text="x", agent="a", command=(), slug="x")
BROKEN = [b'{"a": [', b'{"project": "\xff"}', b"[" * 9999, 7]
STEP = StepFinished(step="s", input="i", output=None, seconds=1.0)
# A few names only, so that events sometimes concern the same attempts, calls and questions.
created = st.builds(
    MissionCreated, project=st.sampled_from("pq"), repository=st.just("/r"), request=st.just(REQUEST),
    user=st.sampled_from(["", "ann"]),
)  # fmt: skip


@st.composite
def related(draw: st.DrawFn) -> Payload:
    """Draw any payload, limited to a few attempts, calls and questions."""
    made = draw(st.one_of(payloads(later=True), values(AttemptStarted), values(ModelCalled)))
    few = {"attempt": "ab", "call": "xyz", "question": "xyz"}
    return replace(made, **{name: draw(st.sampled_from(few[name])) for name in few if hasattr(made, name)})


batches = st.lists(related(), min_size=1, max_size=4)


def summary_of(state: MissionState) -> MissionSummary:
    """Return the part of a folded state that rows hold."""
    made = MissionSummary(**{name: getattr(state, name) for name in MissionSummary.__struct_fields__})
    made.calls = set()
    return made


def expected(store: Store, mission: str, *, live: bool) -> MissionSummary:
    lines = [found.event for found in store.log.after(mission=mission, limit=10_000)]
    summary = summary_of(fold(lines, live=live))
    # A plan's cost is that of all its child missions; missions have no children here.
    summary.tasks = summary.tasks and replace(summary.tasks, cost_usd=0.0)
    return summary


def check(store: Store, listing: MissionListing, *, live: bool) -> None:
    lines = [found.event for found in store.log.after(mission=listing.row.id, limit=10_000)]
    assert listing.summary == expected(store, listing.row.id, live=live)
    measures = MissionMeasures()
    for line in lines:
        measure(measures, line)
    assert listing.measures in (None, measures)


class SummaryMachine(RuleBasedStateMachine):
    missions = Bundle("missions")

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.home = self.directory / "home"
        self.clock = SteppedClock()
        self.store = open_store(self.home, clock=self.clock)
        self.order: list[tuple[str, int]] = []
        self.followed: list[PositionedEvent] = []
        self.alive: set[str] = set()
        self.now = 0.0
        self.keep()

    def keep(self) -> None:
        # Room for few lines: the missions of one example evict each other.
        self.kept = FoldedMissions(self.store.log, lines=8, seconds=600.0, now=lambda: self.now)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    def note(self, lines: tuple[Event, ...]) -> None:
        self.order += [(line.mission, line.seq) for line in lines]

    @rule(target=missions, first=created)
    def create(self, first: MissionCreated) -> Any:
        self.clock.advance(1)
        mission = new_id("mission", now_ms=len(self.order))
        self.note(self.store.log.append(mission, first))
        return mission

    @rule(mission=missions, made=batches)
    def append(self, mission: str, made: list[Payload]) -> None:
        self.note(self.store.log.append(mission, *made))

    @rule(mission=missions, made=related())
    def append_one_call_twice(self, mission: str, made: Payload) -> None:
        self.note(self.store.log.append(mission, made))
        self.note(self.store.log.append(mission, STEP, made))

    @rule(mission=missions, made=related(), known=st.booleans())
    def append_by_an_older_program(self, mission: str, made: Payload, known: bool) -> None:
        """An older program knows neither positions nor rows; a newer one may write types that we do not know."""
        seq = self.store.log.last_seq(mission) + 1
        with self.store.database.write() as raw:
            raw.execute(
                "INSERT INTO events (mission, seq, time, type, payload, digest, prev, hash)"
                " VALUES (?, ?, '2026-01-01', ?, ?, '', '', '')",
                (mission, seq, made.type if known else "newer.type", encode(made)),
            )
            raw.execute("UPDATE missions SET last_seq = ?, last_hash = '' WHERE id = ?", (seq, mission))
        self.order.append((mission, seq))

    @rule(mission=missions, data=st.data())
    def erase(self, mission: str, data: st.DataObject) -> None:
        self.store.log.erase(mission, data.draw(st.integers(1, self.store.log.last_seq(mission))), reason="asked")

    @rule(
        mission=missions,
        data=st.data(),
        broken=st.sampled_from([b'{"a": [', b'{"project": "\xff"}', b"[" * 9999, 7]),
    )
    def damage(self, mission: str, data: st.DataObject, broken: object) -> None:
        seq = data.draw(st.integers(1, self.store.log.last_seq(mission)))
        with self.store.database.write() as raw:
            raw.execute("UPDATE events SET payload = ? WHERE mission = ? AND seq = ?", (broken, mission, seq))
        self.now += 601  # entries read before are whole: damage shows once they are read again

    @rule(mission=missions, worker=st.sampled_from("kl"), lives=st.booleans())
    def claim(self, mission: str, worker: str, lives: bool) -> None:
        self.store.log.claim(mission, owner=worker, epoch=self.store.log.get(mission).epoch)
        self.alive = self.alive | {worker} if lives else self.alive - {worker}

    @rule(worker=st.sampled_from("kl"))
    def live_or_die(self, worker: str) -> None:
        """A worker's life or death writes nothing, yet changes a kept list."""
        self.alive = self.alive ^ {worker}

    @rule(mission=missions)
    def spoil_a_row(self, mission: str) -> None:
        with self.store.database.write() as raw:
            raw.execute("UPDATE mission_summaries SET summary = x'7b' WHERE mission = ?", (mission,))
        report = self.store.rebuild()
        assert mission in report.differing
        assert self.store.rebuild().differing == ()

    @rule(read_only=st.booleans())
    def reopen(self, read_only: bool) -> None:
        self.store.close()
        if read_only:
            with open_store(self.home, clock=self.clock, read_only=True) as reader:
                self.look(reader)
        self.store = open_store(self.home, clock=self.clock)
        self.keep()

    @rule(mission=missions)
    def look_again(self, mission: str) -> None:
        """The kept state of a mission equals that of its log, and only a whole log is kept."""
        lines = self.store.log.read(mission)
        is_whole = not self.store.log.problems(mission) and all(line.payload is not None for line in lines)
        kept = self.kept.get(mission)
        assert (kept is not None) == is_whole
        if kept is not None:
            assert (kept.state, kept.head.seq) == (fold(lines, live=True), len(lines))

    @rule(mission=missions, position=st.integers(0, 40), limit=st.integers(1, 3))
    def follow_one(self, mission: str, position: int, limit: int) -> None:
        every = self.store.log.after(position, limit=10_000)
        own = tuple(each for each in every if each.event.mission == mission)
        assert self.store.log.after(position, mission=mission, limit=limit) == own[:limit]

    @invariant()
    def lists_tell_what_the_logs_tell(self) -> None:
        if hasattr(self, "store"):
            self.look(self.store)
            self.followed += self.store.log.after(self.followed[-1].position if self.followed else 0, limit=3)

    def look(self, store: Store) -> None:
        listings = store.log.summaries(self.alive.__contains__, measures=True)
        assert [each.row.id for each in listings] == [row.id for row in store.log.missions()]
        for each in listings:
            assert each.live == (each.row.owner in self.alive)
            check(store, each, live=each.live)
            assert store.log.summary(each.row.id, self.alive.__contains__).summary == each.summary
        counted = Counter(each.summary.status for each in listings)
        assert store.log.counts(self.alive.__contains__) == counted
        for status in counted:
            found = store.log.summaries(self.alive.__contains__, MissionFilter(statuses=[status]))
            assert [each.row.id for each in found] == [
                each.row.id for each in listings if each.summary.status == status
            ]
        every = store.log.after(limit=10_000)
        assert [(found.event.mission, found.event.seq) for found in every] == self.order
        positions = [found.position for found in every]
        assert positions == sorted(set(positions))

    @rule()
    def follow_to_the_end(self) -> None:
        while more := self.store.log.after(self.followed[-1].position if self.followed else 0, limit=2):
            self.followed += more
        assert [(found.event.mission, found.event.seq) for found in self.followed] == self.order


TestSummaryMachine = SummaryMachine.TestCase
TestSummaryMachine.settings = settings(max_examples=examples(14), stateful_step_count=14, deadline=None)


@given(st.lists(st.tuples(created, batches), min_size=1, max_size=3))
@settings(max_examples=examples(6), deadline=None)
def test_a_store_of_the_previous_version_is_migrated_and_usable(
    logs: list[tuple[MissionCreated, list[Payload]]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home, clock = Path(directory) / "home", SteppedClock()
        with open_store(home, clock=clock) as store:
            for number, (first, _) in enumerate(logs):
                store.log.append(f"m-{number}", first)
            for number, (_, later) in enumerate(logs):
                clock.advance(1 - number)  # the clock may go back
                store.log.append(f"m-{number}", *later)
            kept = [store.log.read(f"m-{number}") for number in range(len(logs))]
        raw = sqlite3.connect(home / "store.db")
        with raw:
            as_of_version_6(raw)
        raw.close()
        with open_store(home, clock=clock) as store:
            listings = store.log.summaries(measures=True)
            assert len(listings) == len(logs)
            for each in listings:
                check(store, each, live=False)
            (line,) = store.log.append("m-0", STEP)
            assert store.log.after(store.log.last_position() - 1)[0].event == line
            every = store.log.after(limit=10_000)
            assert [found.position for found in every] == list(range(1, len(every) + 1))
            for number, lines in enumerate(kept):
                mine = tuple(found.event for found in every if found.event.mission == f"m-{number}")
                assert mine[: len(lines)] == lines
            assert store.rebuild().differing == ()


def test_a_reader_with_concurrent_writers_sees_each_event_once_in_order(tmp_path: Path) -> None:
    home = tmp_path / "home"
    open_store(home).close()

    def write(mission: str) -> None:
        with open_store(home) as store:
            store.log.append(mission, MissionCreated(project="p", repository="/r", request=REQUEST))
            for number in range(30):
                store.log.append(mission, *[STEP] * (number % 3 + 1))

    writers = [threading.Thread(target=write, args=(f"m-{number}",)) for number in range(4)]
    for writer in writers:
        writer.start()
    found: list[PositionedEvent] = []
    with open_store(home) as store:
        while any(writer.is_alive() for writer in writers) or store.log.last_position() != len(found):
            found += store.log.after(found[-1].position if found else 0, limit=7)
        assert [each.position for each in found] == list(range(1, 4 * 61 + 1))
        for number in range(4):
            mine = [each.event for each in found if each.event.mission == f"m-{number}"]
            assert tuple(mine) == store.log.read(f"m-{number}")


def test_filters_and_pagination_of_summaries(tmp_path: Path) -> None:
    clock = SteppedClock()
    with open_store(tmp_path / "home", clock=clock) as store:
        for number in range(6):
            clock.advance(1)
            user = "ann" if number % 2 else "bob"
            project = "p" if number < 4 else "q"
            store.log.append(
                f"m-{number}", MissionCreated(project=project, repository="/r", request=REQUEST, user=user)
            )
            store.log.append(f"m-{number}", STEP)

        def ids(**wanted: Any) -> list[str]:
            return [each.row.id.removeprefix("m-") for each in store.log.summaries(wanted=MissionFilter(**wanted))]

        assert ids() == list("012345")
        assert ids(project="q") == list("45")
        assert ids(user="ann") == list("135")
        assert ids(limit=2) == list("45")
        assert ids(limit=2, before="m-4") == list("23")
        assert ids(limit=2, after="m-1") == list("23")
        assert ids(after="m-1", project="p", user="bob") == list("2")
        assert ids(statuses=["failed"]) == []
        assert ids(since=store.log.get("m-4").created) == list("45")
        assert store.log.counts(project="p") == {"planned": 4}
        assert store.log.counts(user="ann") == {"planned": 3}
        assert {each.event.mission for each in store.log.after(project="q")} == {"m-4", "m-5"}
        assert [each.event.type for each in store.log.after(mission="m-2", types=[STEP.type])] == [STEP.type]
        assert len(store.log.after(types=["mission.created"], limit=4)) == 4


def test_a_damaged_event_does_not_affect_other_missions(tmp_path: Path) -> None:
    with open_store(tmp_path / "home") as store:
        for mission in ("m-1", "m-2"):
            store.log.append(mission, MissionCreated(project="p", repository="/r", request=REQUEST), STEP)
        with store.database.write() as raw:
            broken = "payload = x'7b22ff', type = CAST(x'ff' AS TEXT)"
            raw.execute(f"UPDATE events SET {broken} WHERE seq = 2 AND mission = 'm-1'")
        listings = store.log.summaries()
        assert [(each.row.id, each.summary.unknown_events) for each in listings] == [("m-1", 1), ("m-2", 0)]
        assert len(store.log.after()) == 4
        store.log.append("m-1", STEP)
        assert store.log.summary("m-1").summary.unknown_events == 1


def test_a_mission_claimed_during_listing_is_shown_as_live(tmp_path: Path) -> None:
    with open_store(tmp_path / "home") as store:
        store.log.append("m-1", MissionCreated(project="p", repository="/r", request=REQUEST))
        store.log.claim("m-1", owner="k-dead", epoch=0)

        def is_live(worker: str) -> bool:
            if worker == "k-dead":
                store.log.claim("m-1", owner="k-next", epoch=1)
            return worker == "k-next"

        (listing,) = store.log.summaries(is_live)
        assert (listing.live, listing.row.owner) == (True, "k-next")


@pytest.mark.parametrize("live", [True, False])
def test_an_unclaimed_mission_is_marked_equally_in_a_row_and_a_fold(live: bool) -> None:
    assert summary_of(fold([], live=live)) == MissionSummary()
    empty = MissionSummary()
    mark_unheld(empty)
    assert empty == MissionSummary()
