"""Candidates and outcomes as the router knows them: arms, tasks and attempts."""

from __future__ import annotations

from chargehand.core.choices import Candidate, ChoiceHistory, PossibleCandidate
from chargehand.decisions.routing.records import (
    AttemptEnds,
    HistoryRecord,
    RouterCandidate,
    TaskBegins,
    Verdict,
)

# The router keeps so many open tasks at least; a mission with a later attempt begins a new task.
_OPEN_TASKS = 200


def name_arm(candidate: Candidate) -> str:
    """Return the arm's name, which people see: the agent, and its model if it has one."""
    return candidate.agent + (f" with {candidate.model}" if candidate.model else "")


def make_arm(each: PossibleCandidate) -> RouterCandidate:
    """Return the arm of a candidate; its model is known by the provider's name."""
    candidate, served = each.candidate, each.model.served if each.model else ""
    return RouterCandidate(id=name_arm(candidate), agent=candidate.agent, model=served or candidate.model or "")


def describe_estimate(chance: float, price: float, *, costs: int, outcomes: int) -> str:
    """Return an estimate in words; without known `costs` the price in USD is not told."""
    told = f"for {price:.2f} USD" if price >= 0.005 else "for less than 0.01 USD"
    if not costs:
        told = "at a price not known yet"
    return f"{chance:.0%} chance {told}, from {outcomes} attempt" + ("" if outcomes == 1 else "s")


def read_history(history: ChoiceHistory) -> list[HistoryRecord]:
    """Return the history as the router reads it; the work of outcomes is a task."""
    records: list[HistoryRecord] = []
    begun: dict[str, None] = {}
    for each in history.outcomes:
        if each.work not in begun:
            if len(begun) == _OPEN_TASKS:
                del begun[next(iter(begun))]
            begun[each.work] = None
            records.append(TaskBegins(features={"kind": each.kind}, task=each.work))
        verdict: Verdict = "green" if each.is_good else "red"
        records.append(
            AttemptEnds(arm=name_arm(each.candidate), verdict=verdict, cost=each.cost_usd, task=each.work)
        )
    return records
