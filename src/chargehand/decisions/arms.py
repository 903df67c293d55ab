"""Candidates and outcomes as the router knows them: arms, tasks and attempts."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from chargehand.core.choices import Candidate, ChoiceHistory, ChoiceOutcome, PossibleCandidate
from chargehand.decisions.routing.records import (
    AttemptEnds,
    HistoryRecord,
    RouterCandidate,
    TaskBegins,
    TruthFound,
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
    return RouterCandidate(
        id=name_arm(candidate),
        agent=candidate.agent,
        model=served or candidate.model or "",
        is_free=each.model is not None and each.model.is_free,
    )


def describe_estimate(chance: float, price: float, *, costs: int, outcomes: int) -> str:
    """Return an estimate in words; without known `costs` the price in USD is left out, except that 0 is free."""
    told = f"for {price:.2f} USD" if price >= 0.005 else "for less than 0.01 USD" if price else "for nothing"
    if not costs and price:
        told = "at a price not known yet"
    return f"{chance:.0%} chance {told}, from {outcomes} attempt" + ("" if outcomes == 1 else "s")


class _KnownRecords:
    """The records of the history that was read last; a longer history continues from there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: tuple[ChoiceOutcome, ...] = ()
        self._records: list[HistoryRecord] = []
        self._begun: dict[str, None] = {}

    def read(self, outcomes: tuple[ChoiceOutcome, ...]) -> Sequence[HistoryRecord]:
        with self._lock:
            count = len(self._outcomes)
            # Mostly the same objects, which are compared by identity first.
            if outcomes[:count] != self._outcomes:
                count, self._records, self._begun = 0, [], {}
            for each in outcomes[count:]:
                self._add(each)
            self._outcomes = outcomes
            return self._records  # only ever extended

    def _add(self, outcome: ChoiceOutcome) -> None:
        work = outcome.work
        if work not in self._begun:
            if len(self._begun) == _OPEN_TASKS:
                del self._begun[next(iter(self._begun))]
            self._begun[work] = None
            self._records.append(TaskBegins(features={"kind": outcome.kind}, task=work))
        verdict: Verdict = "green" if outcome.is_good else "red"
        arm = name_arm(outcome.candidate)
        self._records.append(AttemptEnds(arm=arm, verdict=verdict, cost=outcome.cost_usd, task=work))
        if outcome.is_good and outcome.proved_right is not None:  # no word outweighs a red verdict
            self._records.append(TruthFound(arm=arm, is_right=outcome.proved_right, kind=outcome.kind))


_known = _KnownRecords()


def read_history(history: ChoiceHistory) -> Sequence[HistoryRecord]:
    """Return the history as the router reads it; the work of outcomes is a task.

    The last word on a result follows its attempt directly, once, whenever it was given. So the records depend on
    the attempts and the last words alone, and a changed word changes them from there on: they are folded again.
    """
    return _known.read(history.outcomes)
