"""The breaker as a function of what the log tells, held to what is promised of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from chargehand.missions.attempt.admission import COOL_DOWN, FAILURES, AgentBreaker, BreakerEvent, fold_breaker

START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("worked", "failed", "void", "probe", "forced")


@st.composite
def facts(draw: st.DrawFn) -> list[BreakerEvent]:
    """Return facts of a few missions, seconds to minutes apart."""
    found, now = [], START
    for kind in draw(st.lists(st.sampled_from(KINDS), max_size=30)):
        now += timedelta(seconds=draw(st.integers(1, 400)))
        found.append(BreakerEvent(time=now, mission=draw(st.sampled_from("abc")), kind=kind))
    return found


def in_a_row(told: list[BreakerEvent]) -> int:
    """Return the failures since it last worked."""
    kinds = [fact.kind for fact in told]
    last = max((place for place, kind in enumerate(kinds) if kind == "worked"), default=-1)
    return kinds[last + 1 :].count("failed")


@given(facts())
def test_it_is_closed_exactly_until_so_many_failures_in_a_row(told: list[BreakerEvent]) -> None:
    breaker = fold_breaker(told)
    assert (breaker.state == "closed") == (in_a_row(told) < FAILURES)
    assert breaker.failures == in_a_row(told)


@given(facts())
def test_only_work_closes_it_and_only_a_probe_half_opens_it(told: list[BreakerEvent]) -> None:
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
def test_nothing_is_let_through_before_the_time_and_one_probe_at_a_time(
    told: list[BreakerEvent], seconds: int
) -> None:
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
