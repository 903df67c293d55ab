"""Rates equal the truth: 200 missions with known ends through the real log, and any log at all."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.unit.core_strategies import payloads, values

from chargehand.app.composition import App
from chargehand.core.attempt_events import AttemptStarted, CheckpointMade, SandboxClosed
from chargehand.core.clock import SteppedClock
from chargehand.core.events import GENESIS, Event, Payload, encode, encode_json, read_payload
from chargehand.core.fold import fold, measure, unheld_status
from chargehand.core.mission_events import (
    AttemptFinished,
    BaseResolved,
    MissionClaimed,
    MissionCreated,
    MissionFinished,
    MissionPaused,
    MissionRolledBack,
)
from chargehand.core.records import AttemptStatus, Base, Checkpoint, MissionRequest, MissionStatus, Reason
from chargehand.core.state import Ending, MissionMeasures, MissionState
from chargehand.missions.causes import CAUSE_CLASSES, ENDED, load_causes
from chargehand.missions.statistics import (
    MissionTally,
    Statistics,
    TalliedBlocks,
    gather_statistics,
    nearest_rank,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
BASE = Base(commit="c" * 40, tree="b" * 40, revision="HEAD")
CLAIMED = MissionClaimed(worker="k-1", role="command", epoch=1, version="1")
DISCARDED = MissionFinished(status="discarded", reasons=(Reason(code="discarded", message="by a person"),))


@dataclass(frozen=True, kw_only=True)
class Try:
    """An attempt: how it ended (running: not at all), with its code and class."""

    status: AttemptStatus
    code: str = ""
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A mission with a known end, and the facts about it: written here, not computed."""

    times: int
    status: MissionStatus
    code: str = ""
    tries: tuple[Try, ...] = ()
    discarded: bool = False
    rolled_back: bool = False
    ended: bool = True
    completed: bool = True
    engine: bool = False
    kind: str = ""
    before: tuple[Payload, ...] = ()


GOOD = Try(status="succeeded")
RED = Try(status="refused", code="check_failed", kind="check")
IDLE = Try(status="refused", code="no_change", kind="agent")
OPEN = Try(status="running", kind="engine")
SCRIPTS = (
    Script(times=68, status="promoted", tries=(GOOD,)),
    Script(times=20, status="promoted", tries=(RED, IDLE, GOOD)),
    Script(times=3, status="promoted", tries=(GOOD,), rolled_back=True),
    Script(times=25, status="refused", code="check_failed", kind="check", tries=(RED,)),
    Script(
        times=6,
        status="refused",
        code="secret",
        kind="check",
        tries=(RED, Try(status="refused", code="secret", kind="check")),
    ),
    Script(times=9, status="refused", code="no_change", kind="agent", tries=(IDLE,)),
    Script(
        times=12,
        status="failed",
        code="agent_failed",
        kind="agent",
        tries=(Try(status="failed", code="agent_failed", kind="agent"),),
    ),
    Script(
        times=10,
        status="exhausted",
        code="time",
        kind="budget",
        tries=(Try(status="timed_out", code="time", kind="budget"),),
    ),
    Script(
        times=8,
        status="cancelled",
        code="cancelled",
        kind="person",
        tries=(Try(status="cancelled", code="cancelled", kind="person"),),
    ),
    Script(times=9, status="waiting", code="check_surface", kind="person", tries=(GOOD,)),
    Script(times=5, status="refused", code="no_change", kind="agent", tries=(IDLE,), discarded=True),
    Script(times=2, status="planned", kind="person", discarded=True),
    Script(times=2, status="waiting", code="provider_down", kind="provider", completed=False),
    Script(times=2, status="failed", code="setup_failed", kind="person", completed=False),
    Script(
        times=3,
        status="failed",
        code="registry_refused",
        kind="provider",
        completed=False,
        tries=(Try(status="failed", code="registry_refused", kind="provider"),),
    ),
    Script(
        times=3,
        status="failed",
        code="sandbox_died",
        kind="engine",
        completed=False,
        engine=True,
        tries=(Try(status="failed", code="sandbox_died", kind="engine"),),
    ),
    Script(times=1, status="failed", code="no_space", kind="engine", completed=False, engine=True),
    Script(times=1, status="failed", code="of_a_newer_one", kind="engine", completed=False, engine=True),
    Script(
        times=1, status="failed", code="worker_lost", kind="engine", completed=False, engine=True, tries=(OPEN,)
    ),
    Script(
        times=1,
        status="running",
        kind="engine",
        completed=False,
        engine=True,
        tries=(OPEN,),
        discarded=True,
        before=(CLAIMED,),
    ),
    Script(times=4, status="planned", ended=False),
    Script(times=2, status="running", ended=False, tries=(RED, OPEN), before=(CLAIMED,)),
    Script(times=3, status="paused", ended=False, tries=(RED,), before=(CLAIMED, MissionPaused(identity="me"))),
)
"""Missions written as `planned`, `running` and `paused` get no end in their log."""


@dataclass(kw_only=True)
class Truth:
    """The generator's own knowledge, counted as it writes."""

    missions: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    attempt_kinds: Counter[str] = field(default_factory=Counter)
    by_agent: Counter[str] = field(default_factory=Counter)
    succeeded: int = 0
    checkpoints: int = 0
    checkpoint_seconds: list[float] = field(default_factory=list)
    sandboxes: int = 0
    freezes: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    quarters: int = 0
    priced: int = 0
    unpriced: int = 0
    mission_seconds: list[float] = field(default_factory=list)
    attempt_seconds: list[float] = field(default_factory=list)


class Writer:
    """Writes scripted missions into the log of a state directory, and keeps the truth."""

    def __init__(self, place: Path, *, seed: int) -> None:
        self.place = place
        self.environ = {"HOME": str(place), "CHARGEHAND_HOME": str(place / "state")}
        self.random = random.Random(seed)
        self.clock = SteppedClock(START)
        self.app = App(environ=self.environ, cwd=place, clock=self.clock)
        self.truth = Truth()
        self.written = 0

    def write(self, script: Script, *, project: str = "p") -> None:
        self.written += 1
        mission, agent = f"m-{self.written:06}", self.random.choice(["ada", "bob"])
        request = MissionRequest(text="do it", agent=agent, command=("true",), slug="do-it")
        created = MissionCreated(project=project, repository="/r", request=request)
        self.app.store.log.append(mission, created, BaseResolved(base=BASE), *script.before)
        start = self.clock.monotonic()
        for number, one in enumerate(script.tries, start=1):
            self._try(mission, number, one, agent, counted=script.ended or one.status != "running")
        self.clock.advance(self.random.randint(1, 999))
        self._end(mission, script)
        if script.ended:
            self._count(script, self.clock.monotonic() - start)
        if script.discarded:
            self.clock.advance(self.random.randint(1, 999))
            self.app.store.log.append(mission, DISCARDED)
        self.truth.missions["total"] += 1

    def _sandbox(self, mission: str, sandbox: str, number: int) -> None:
        """Write an agent's sandbox and one of the checks; only the agent's counts for memory and disk."""
        freezes = tuple(self.random.choice([0.0, 0.25, 0.5]) for _ in range(number % 3))
        memory = self.random.choice([None, 1 << 20, 1 << 30])
        took = {"ready_seconds": 0.5, "seconds": 2.0, "freezes": freezes, "peak_memory": memory}
        agents = SandboxClosed(sandbox=sandbox, purpose="agent", **took, written_files=1, written_bytes=4096)
        checks = SandboxClosed(sandbox=f"{sandbox}-c", purpose="checks", **took)
        self.app.store.log.append(mission, agents, checks)
        self.truth.sandboxes += 2
        self.truth.freezes += [*freezes, *freezes]
        self.truth.memory += [] if memory is None else [memory]

    def _try(self, mission: str, number: int, one: Try, agent: str, *, counted: bool) -> None:
        attempt, truth = f"a-{mission}-{number}", self.truth
        point = Checkpoint(commit=f"{number:040}", tree="t" * 40, parent=BASE.commit, trigger="end", changed=1)
        self.app.store.log.append(
            mission,
            AttemptStarted(attempt=attempt, number=number, agent=agent, workspace="w-1", tree=BASE.tree),
            CheckpointMade(attempt=attempt, checkpoint=point, seconds=number / 4 if number % 2 else None),
        )
        self._sandbox(mission, f"s-{attempt}", number)
        truth.checkpoints += 1
        truth.checkpoint_seconds += [number / 4] if number % 2 else []
        seconds = float(self.random.randint(1, 600))
        self.clock.advance(seconds)
        quarters = self.random.choice([None, 0, 1, 2, 7]) if one.status != "running" else None
        if one.status != "running":
            finished = AttemptFinished(
                attempt=attempt,
                status=one.status,
                seconds=seconds,
                reasons=(Reason(code=one.code, message="so it is"),) if one.code else (),
                cost_usd=None if quarters is None else quarters / 4,
                cost_known=quarters is not None,
            )
            self.app.store.log.append(mission, finished)
            truth.attempt_seconds.append(seconds)
        if counted:
            truth.by_agent[agent] += 1
            truth.succeeded += not one.kind
            truth.attempt_kinds[one.kind] += bool(one.kind)
            truth.priced += quarters is not None
            truth.unpriced += quarters is None
            truth.quarters += quarters or 0

    def _end(self, mission: str, script: Script) -> None:
        if script.status in ("planned", "running", "paused"):
            return
        reasons = (Reason(code=script.code, message="so it is"),) if script.code else ()
        self.app.store.log.append(mission, MissionFinished(status=script.status, reasons=reasons))
        if script.rolled_back:
            self.app.store.log.append(mission, MissionRolledBack(ref="r", commit="e" * 40, tree=BASE.tree))

    def _count(self, script: Script, seconds: float) -> None:
        truth = self.truth
        truth.missions["ended"] += 1
        truth.missions["completed"] += script.completed
        truth.missions["engine"] += script.engine
        truth.missions["promoted"] += script.status == "promoted"
        truth.missions["rolled_back"] += script.rolled_back
        truth.kinds[script.kind] += bool(script.kind)
        if script.status not in ("planned", "running"):
            truth.mission_seconds.append(seconds)

    def stats(self, **wanted: Any) -> Statistics:
        return gather_statistics(self.app.mission_reader, **wanted)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path, seed=20260101)
    yield made
    made.app.close()


def write_all(writer: Writer) -> None:
    order = [script for script in SCRIPTS for _ in range(script.times)]
    assert len(order) == 200
    writer.random.shuffle(order)
    for script in order:
        writer.write(script)


def by_definition(values: list[float], percent: int) -> float:
    """Return the smallest value that at least `percent` of all do not exceed."""
    return min(v for v in values if 100 * sum(other <= v for other in values) >= percent * len(values))


def test_the_rates_of_200_missions_with_known_faults_equal_the_truth(writer: Writer) -> None:
    write_all(writer)
    stats, truth = writer.stats(), writer.truth
    missions = stats.missions
    assert (missions.total, missions.ended) == (200, truth.missions["ended"])
    assert missions.completed == truth.missions["completed"]
    assert missions.promoted == truth.missions["promoted"]
    assert missions.rolled_back == truth.missions["rolled_back"]
    assert missions.engine_failures == truth.missions["engine"]
    assert stats.rates.completion == truth.missions["completed"] / truth.missions["ended"] > 0.9
    assert stats.rates.engine_failure == truth.missions["engine"] / truth.missions["ended"] < 0.05
    assert stats.rates.promotion == truth.missions["promoted"] / truth.missions["ended"]
    assert missions.by_status["promoted"] == 91
    assert missions.by_status["discarded"] == 8
    assert missions.by_status["planned"] == 4
    assert missions.by_status["paused"] == 5  # running missions without a worker wait for another one


def test_the_causes_of_200_missions_equal_the_truth(writer: Writer) -> None:
    write_all(writer)
    stats, truth = writer.stats(), writer.truth
    assert {kind for kind, count in truth.kinds.items() if count} == set(CAUSE_CLASSES)
    assert stats.attempts.by_class == {kind: truth.attempt_kinds[kind] for kind in CAUSE_CLASSES}
    assert stats.attempts.succeeded == truth.succeeded
    assert {name: agent.ended for name, agent in stats.agents.items()} == truth.by_agent
    for kind in CAUSE_CLASSES:
        counted = [one for one in stats.causes if one.cause.kind == kind]
        assert sum(one.missions for one in counted) == truth.kinds[kind], kind
        assert sum(one.attempts for one in counted) == truth.attempt_kinds[kind], kind


def test_the_times_and_the_money_of_200_missions_equal_the_truth(writer: Writer) -> None:
    write_all(writer)
    stats, truth = writer.stats(), writer.truth
    for spread, known in (
        (stats.missions.seconds, truth.mission_seconds),
        (stats.attempts.seconds, truth.attempt_seconds),
    ):
        assert spread.known == len(known)
        percentiles = [by_definition(known, percent) for percent in (50, 95, 99)]
        assert [spread.p50, spread.p95, spread.p99] == percentiles
    assert stats.missions.seconds.unknown == truth.missions["ended"] - len(truth.mission_seconds)
    assert stats.attempts.cost.usd == truth.quarters / 4
    assert (stats.attempts.cost.known, stats.attempts.cost.unknown) == (truth.priced, truth.unpriced)
    spread = stats.checkpoints.seconds
    assert stats.checkpoints.made == truth.checkpoints == spread.known + spread.unknown
    assert spread.known == len(truth.checkpoint_seconds) > 0
    assert spread.p99 == max(truth.checkpoint_seconds)


def test_sandbox_usage_of_200_missions_equals_the_truth(writer: Writer) -> None:
    write_all(writer)
    took, truth = writer.stats().sandboxes, writer.truth
    assert took.closed == took.ready.known == truth.sandboxes > 0
    assert (took.freeze.known, took.freeze.p50) == (len(truth.freezes), by_definition(truth.freezes, 50))
    assert (took.memory.known, took.memory.p95) == (len(truth.memory), by_definition(truth.memory, 95))
    assert took.memory.known + took.memory.unknown == took.disk.known == truth.sandboxes / 2


def test_cached_blocks_give_the_same_stats(writer: Writer) -> None:
    write_all(writer)
    blocks: TalliedBlocks = {}
    assert writer.stats(known=blocks) == writer.stats()
    before = {place: tally for place, (_, tally) in blocks.items()}
    assert len(before) > 2
    writer.app.store.log.append("m-000001", MissionFinished(status="failed"))
    writer.write(SCRIPTS[0])
    assert writer.stats(known=blocks) == writer.stats()
    # The first block's mission has changed, and the last block has one more; the others are not read again.
    same = [place for place, (_, tally) in blocks.items() if tally is before.get(place)]
    assert same == sorted(before)[1:-1]
    assert writer.stats(known=blocks, project="q") == writer.stats(project="q")
    assert writer.stats(known=blocks, since=START) == writer.stats(since=START)


def test_only_missions_created_since_the_given_time_count(writer: Writer) -> None:
    for _ in range(5):
        writer.write(SCRIPTS[0])
    writer.clock.advance(7 * 86_400)
    moment = writer.clock.now()
    writer.write(SCRIPTS[3])
    assert writer.stats().missions.total == 6
    assert (
        writer.stats(since=moment).missions.by_status["refused"] == writer.stats(since=moment).missions.total == 1
    )
    assert writer.stats(since=moment + timedelta(microseconds=1)).missions.total == 0
    east = moment.astimezone(datetime.fromisoformat("2026-01-01T00:00+05:00").tzinfo)
    assert writer.stats(since=east).missions.total == 1


def test_only_missions_of_the_given_project_count(writer: Writer) -> None:
    writer.write(SCRIPTS[0], project="p")
    writer.write(SCRIPTS[3], project="q")
    assert writer.stats(project="p").rates.promotion == 1.0
    assert writer.stats(project="q").rates.promotion == 0.0
    assert writer.stats(project="r").missions.total == 0


def test_rates_are_unknown_without_missions(writer: Writer) -> None:
    stats = writer.stats()
    assert (stats.rates.completion, stats.rates.promotion, stats.rates.engine_failure) == (None, None, None)
    assert (stats.missions.seconds.p50, stats.attempts.cost.usd, stats.missions.total) == (None, None, 0)
    assert (stats.causes, stats.agents) == ((), {})
    writer.write(Script(times=1, status="planned", ended=False))
    assert (writer.stats().rates.completion, writer.stats().missions.total) == (None, 1)


def test_an_unknown_cost_is_never_zero(writer: Writer) -> None:
    tally = MissionTally()
    for cost, known in ((None, True), (2.5, False), (None, False)):
        tally.add(fold(log(*attempt(cost, known)), live=False), MissionMeasures())
    unknown = tally.stats().attempts.cost
    assert (unknown.usd, unknown.known, unknown.unknown) == (None, 0, 3)
    tally.add(fold(log(*attempt(0.0, True)), live=False), MissionMeasures())
    assert (tally.stats().attempts.cost.usd, tally.stats().attempts.cost.known) == (0.0, 1)


CREATED = MissionCreated(
    project="p", repository="/r", request=MissionRequest(text="fix", agent="a", command=("x",), slug="fix")
)


def attempt(cost: float | None, known: bool) -> tuple[Payload, ...]:
    return (
        CREATED,
        AttemptStarted(attempt="a-1", number=1, agent="a", workspace="w-1", tree="t"),
        AttemptFinished(attempt="a-1", status="succeeded", seconds=1.0, cost_usd=cost, cost_known=known),
        MissionFinished(status="promoted"),
    )


def log(*given: Payload) -> list[Event]:
    return [
        Event("m-1", seq, f"2026-01-01T00:00:{seq:02}+00:00", one.type, encode(one), "", GENESIS, "")
        for seq, one in enumerate(given, start=1)
    ]


def measured(events: Iterable[Event]) -> MissionMeasures:
    measures = MissionMeasures()
    for line in events:
        measure(measures, line)
    return measures


def folded(events: Sequence[Event]) -> MissionState:
    """Fold the log of a mission that no worker holds; the state before a discard is folded separately."""
    state = fold(events, live=False)
    state.before_discard = None
    for place, line in enumerate(events):
        payload = read_payload(line)
        if isinstance(payload, MissionFinished) and payload.status == "discarded":
            then = fold(events[:place], live=False)
            state.before_discard = Ending(status=then.status, reasons=then.reasons, base=then.base, tree=then.tree)
            break
    return state


codes = st.sampled_from([code for remedy in load_causes().remedies for code in remedy.codes]) | st.text(max_size=4)
reasons = st.lists(st.builds(Reason, code=codes, message=st.text(max_size=4)), max_size=3).map(tuple)
ids = st.sampled_from(["a-1", "a-2"])
likely = st.one_of(
    st.builds(AttemptStarted, attempt=ids, number=st.integers(1, 3), agent=ids, workspace=ids, tree=ids),
    st.builds(
        AttemptFinished, attempt=ids, status=values(AttemptStatus), seconds=st.floats(0, 1e6), reasons=reasons
    ),
    st.builds(MissionFinished, status=values(MissionStatus), reasons=reasons),
    st.just(CLAIMED),
    st.just(DISCARDED),
)
logs = st.lists(likely | payloads(later=True), max_size=10).map(lambda later: log(CREATED, *later))


@given(st.lists(st.tuples(logs, st.booleans()), max_size=6))
@settings(max_examples=examples(150), deadline=None)
def test_any_log_gives_rates_of_parts_of_a_whole(given_logs: list[tuple[list[Event], bool]]) -> None:
    tally, ended = MissionTally(), 0
    for events, live in given_logs:
        state = fold(events, live=live)
        tally.add(state, measured(events))
        ended += unheld_status(state) in ENDED  # also of a mission that a worker is about to release
    stats = tally.stats()
    assert (stats.missions.total, stats.missions.ended) == (len(given_logs), ended)
    for rate in (stats.rates.completion, stats.rates.promotion, stats.rates.engine_failure):
        assert (rate is None) == (ended == 0)
        assert rate is None or 0 <= rate <= 1
    assert stats.missions.promoted <= stats.missions.completed <= ended - stats.missions.engine_failures
    assert sum(one.missions for one in stats.causes) == ended - stats.missions.promoted


@given(st.lists(logs, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_stats_of_projected_rows_equal_those_of_folded_logs(given_logs: list[list[Event]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        writer, tally = Writer(Path(place), seed=1), MissionTally()
        try:
            for number, events in enumerate(given_logs):
                lines = [payload for line in events if (payload := read_payload(line)) is not None]
                writer.app.store.log.append(f"m-{number}", *lines)
            for number, _ in enumerate(given_logs):
                lines = writer.app.store.log.read(f"m-{number}")
                tally.add(folded(lines), measured(lines))
            assert encode_json(writer.stats()) == encode_json(tally.stats())
        finally:
            writer.app.close()


@given(logs, st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_every_ended_attempt_has_exactly_one_class(events: list[Event], live: bool) -> None:
    state, tally = fold(events, live=live), MissionTally()
    tally.add(state, measured(events))
    attempts = tally.stats().attempts
    assert attempts.ended == attempts.succeeded + sum(attempts.by_class.values())
    assert attempts.ended <= len(state.attempts)
    assert attempts.ended == sum(agent.ended for agent in tally.stats().agents.values())
    assert attempts.ended == attempts.seconds.known + attempts.seconds.unknown
    assert attempts.ended == attempts.cost.known + attempts.cost.unknown


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50), st.integers(1, 100))
def test_a_percentile_is_the_nearest_rank(known: list[float], percent: int) -> None:
    assert nearest_rank(sorted(known), percent) == by_definition(known, percent)
    assert nearest_rank([], percent) is None
