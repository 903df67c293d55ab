"""An agent's circuit breaker: its state by the log, and its guarantees for any log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.clock import SteppedClock
from chargehand.core.config import AgentConfig, Config, ModelConfig
from chargehand.core.events import Payload
from chargehand.core.ids import new_id
from chargehand.core.mission_events import AttemptFinished, MissionClaimed, MissionCreated, StepFinished
from chargehand.core.records import MissionRequest, Reason
from chargehand.missions.attempt.admission import (
    COOL_DOWN,
    FAILURES,
    AgentBreaker,
    AgentModel,
    BreakerEvent,
    BreakerEventKind,
    BreakerLog,
    agent_step,
    fold_breaker,
)
from chargehand.store.rows import MissionRow
from chargehand.store.store import Store, open_store

CONFIG = Config()
WHO = AgentModel(agent="coder", model="m1")
CLAIMED = MissionClaimed(worker="k", role="command", epoch=1, version="1")


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def store(tmp_path: Path, clock: SteppedClock) -> Iterator[Store]:
    store = open_store(tmp_path, clock=clock)
    yield store
    store.close()


def created(**changes: Any) -> MissionCreated:
    request = MissionRequest(text="t", agent="coder", command=(), slug="t", model="m1")
    return MissionCreated(**{"project": "p", "repository": "/r", "request": request} | changes)


def end(status: str, *codes: str) -> AttemptFinished:
    reasons = tuple(Reason(code=code, message="words") for code in codes)
    return AttemptFinished(attempt="a", status=status, seconds=1.0, reasons=reasons)


def chosen(number: int, agent: str, model: str | None, probe: str = "") -> StepFinished:
    output = {"agent": agent, "model": model, "fallback": (), "why": "", "probe": probe}
    return StepFinished(step=agent_step(number), input="", output=output, seconds=0.0)


def tell(store: Store, *payloads: Payload, first: MissionCreated | None = None) -> str:
    mission = new_id("mission")
    store.log.append(mission, first or created(), *payloads)
    return mission


def kinds(
    store: Store, who: AgentModel = WHO, *, live: bool = True, config: Config = CONFIG
) -> list[BreakerEventKind]:
    def lives(row: MissionRow) -> bool:
        return live

    return [fact.kind for fact in BreakerLog(store, "p", live=lives, config=config).events(who)]


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        (end("succeeded"), "worked"),
        (end("refused", "check_failed"), "worked"),
        (end("refused", "no_change"), "worked"),
        (end("failed", "agent_failed"), "worked"),
        (end("failed", "agent_missing"), "failed"),
        (end("failed", "upstream_unreachable"), "failed"),
        (end("failed", "no_key"), "void"),
        (end("failed", "no_space"), "void"),
        (end("failed", "sandbox_died"), "failed"),
        (end("lost", "worker_lost"), "failed"),
        (end("timed_out", "time"), "void"),
        (end("failed", "budget"), "void"),
        (end("cancelled", "cancelled"), "void"),
    ],
)
def test_the_end_of_an_attempt_decides_the_breaker_event(store: Store, ended: AttemptFinished, kind: str) -> None:
    tell(store, CLAIMED, ended)
    assert kinds(store) == [kind]


@pytest.mark.parametrize("code", ["key_refused", "model_unknown", "upstream_untrusted", "upstream_page"])
def test_errors_that_a_person_must_fix_do_not_open_the_breaker(store: Store, code: str) -> None:
    tell(store, CLAIMED, end("failed", code))
    assert kinds(store) == ["void"]


def test_failures_before_a_change_of_model_or_agent_settings_are_ignored(store: Store) -> None:
    wrong = Config(models={"m1": ModelConfig(base_url="http://127.0.0.1:1/v1")})
    first = created(config={"values": msgspec.to_builtins(wrong)})
    for _ in range(3):
        tell(store, CLAIMED, end("failed", "upstream_unreachable"), first=first)
    assert kinds(store, config=wrong) == ["failed"] * 3
    right = Config(models={"m1": ModelConfig(base_url="http://127.0.0.1:2/v1")})
    assert kinds(store, config=right) == []
    other = msgspec.structs.replace(wrong, models=wrong.models | right.models | {"m2": ModelConfig()})
    assert kinds(store, config=other) == []
    unrelated = msgspec.structs.replace(wrong, models={**wrong.models, "m2": ModelConfig()})
    assert kinds(store, config=unrelated) == ["failed"] * 3
    agents = msgspec.structs.replace(wrong, agents={"coder": AgentConfig(command=("true",))})
    assert kinds(store, config=agents) == []


def test_failures_of_other_agents_other_models_and_forks_are_ignored(store: Store) -> None:
    tell(store, end("failed", "sandbox_died"), CLAIMED, first=created(forked_from="m-1"))
    tell(store, CLAIMED, chosen(1, "coder", "m2"), end("failed", "model_failed"))
    assert kinds(store) == []
    assert kinds(store, AgentModel(agent="coder", model="m2")) == ["failed"]
    assert kinds(store, AgentModel(agent="other", model="m1")) == []


def test_a_probe_that_is_no_longer_live_is_void(store: Store) -> None:
    tell(store, CLAIMED, chosen(1, "coder", "m1", "probe"))
    assert kinds(store) == ["probe"]
    assert kinds(store, live=False) == ["probe", "void"]


def test_a_probe_is_judged_by_its_time_in_the_log(store: Store, clock: SteppedClock) -> None:
    def state() -> str:
        log = BreakerLog(store, "p", live=lambda row: True, config=CONFIG)
        return log.breaker(WHO.agent, WHO.model).state

    for _ in range(3):
        assert state() == "closed"
        tell(store, CLAIMED, end("failed", "upstream_timeout"))
        clock.advance(60)
    assert state() == "open"
    clock.advance(200)
    early = tell(store, CLAIMED, chosen(1, "coder", "m1", "probe"))
    assert state() == "open"
    store.log.append(early, end("failed", "upstream_timeout"))
    clock.advance(301)
    tell(store, CLAIMED, chosen(1, "coder", "m1", "probe"))
    assert state() == "half_open"


def test_only_the_last_missions_count(store: Store, clock: SteppedClock) -> None:
    for _ in range(3):
        tell(store, CLAIMED, end("failed", "model_failed"))
    for _ in range(12):
        clock.advance(1)
        tell(store, CLAIMED, first=created(request=MissionRequest(text="t", agent="x", command=(), slug="t")))
    assert kinds(store) == []


START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("worked", "failed", "void", "probe", "forced")


@st.composite
def facts(draw: st.DrawFn) -> list[BreakerEvent]:
    """Return events of a few missions, seconds to minutes apart."""
    found, now = [], START
    for kind in draw(st.lists(st.sampled_from(KINDS), max_size=30)):
        now += timedelta(seconds=draw(st.integers(1, 400)))
        found.append(BreakerEvent(time=now, mission=draw(st.sampled_from("abc")), kind=kind))
    return found


def in_a_row(told: list[BreakerEvent]) -> int:
    """Return the number of failures since the last success."""
    kinds = [fact.kind for fact in told]
    last = max((place for place, kind in enumerate(kinds) if kind == "worked"), default=-1)
    return kinds[last + 1 :].count("failed")


@given(facts())
def test_the_breaker_is_closed_until_enough_consecutive_failures(told: list[BreakerEvent]) -> None:
    breaker = fold_breaker(told)
    assert (breaker.state == "closed") == (in_a_row(told) < FAILURES)
    assert breaker.failures == in_a_row(told)


@given(facts())
def test_only_success_closes_and_only_a_probe_half_opens_the_breaker(told: list[BreakerEvent]) -> None:
    before = AgentBreaker()
    for fact in told:
        after = before.after(fact)
        change = (before.state, after.state)
        if change in (("open", "closed"), ("half_open", "closed")):
            assert fact.kind == "worked"
        if change == ("open", "half_open"):
            assert fact.kind == "forced" or before.may_probe(fact.time)
            assert after.probe == fact.mission
        if change == ("half_open", "open"):
            assert fact.kind == "failed" or (fact.kind == "void" and fact.mission == before.probe)
        assert change != ("closed", "half_open")
        assert (after.probe is not None) == (after.state == "half_open")
        before = after


@given(facts(), st.integers(0, 600))
def test_a_probe_waits_for_the_cool_down_and_excludes_other_probes(told: list[BreakerEvent], seconds: int) -> None:
    breaker = fold_breaker(told)
    now = (told[-1].time if told else START) + timedelta(seconds=seconds)
    if breaker.may_probe(now):
        failed = [fact.time for fact in told if fact.kind == "failed"]
        assert breaker.state == "open"
        assert now - failed[-1] >= COOL_DOWN
        probing = breaker.after(BreakerEvent(time=now, mission="x", kind="probe"))
        assert (probing.state, probing.probe) == ("half_open", "x")
        assert not probing.may_probe(now + 2 * COOL_DOWN)
        assert probing.after(BreakerEvent(time=now + 2 * COOL_DOWN, mission="y", kind="probe")) == probing
        assert probing.after(BreakerEvent(time=now, mission="x", kind="failed")).since == now
        assert probing.after(BreakerEvent(time=now, mission="x", kind="worked")) == AgentBreaker()
