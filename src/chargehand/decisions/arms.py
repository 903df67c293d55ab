"""Candidates and outcomes as the router knows them: arms, tasks and attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from chargehand.core.choices import Candidate, ChoiceHistory, ChoiceOutcome, PossibleCandidate
from chargehand.decisions.routing.prior import ArmTally
from chargehand.decisions.routing.published import add_published_prior
from chargehand.decisions.routing.records import (
    AttemptEnds,
    HistoryRecord,
    RouterCandidate,
    TaskBegins,
    TruthFound,
    Verdict,
)

# The router keeps so many open tasks at least; a mission with a later attempt begins a new task.
OPEN_TASKS = 200


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


def add_known_priors(candidates: Sequence[RouterCandidate], history: ChoiceHistory) -> tuple[RouterCandidate, ...]:
    """Return the candidates with what published outcomes and the benchmarks of the history tell about them."""
    # A candidate may know the provider's name of its model, by which published outcomes are found.
    models = {each.id: each.model for each in candidates}
    tallies = tuple(
        ArmTally(
            kind=each.kind,
            agent=each.candidate.agent,
            model=models.get(name_arm(each.candidate), each.candidate.model or ""),
            attempts=each.attempts,
            good=each.good,
            priced=each.priced,
            log_cost=each.log_cost,
        )
        for each in history.benchmarks
    )
    return add_published_prior(candidates, tallies)


def describe_estimate(chance: float, price: float, *, costs: int, outcomes: int) -> str:
    """Return an estimate in words; without known `costs` the price in USD is left out, except that 0 is free."""
    told = f"for {price:.2f} USD" if price >= 0.005 else "for less than 0.01 USD" if price else "for nothing"
    if not costs and price:
        told = "at a price not known yet"
    return f"{chance:.0%} chance {told}, from {outcomes} attempt" + ("" if outcomes == 1 else "s")


def write_records(
    outcomes: Iterable[ChoiceOutcome], begun: dict[str, None] | None = None
) -> Iterator[HistoryRecord]:
    """Yield outcomes as the router reads them; their work is a task. `begun` has the open tasks before them.

    The last word on a result follows its attempt directly, once, whenever it was given. So the records depend on
    the attempts and the last words alone, and a changed word changes them from there on: they are folded again.
    """
    begun = {} if begun is None else begun
    for outcome in outcomes:
        work = outcome.work
        if work not in begun:
            if len(begun) == OPEN_TASKS:
                del begun[next(iter(begun))]
            begun[work] = None
            yield TaskBegins(features={"kind": outcome.kind}, task=work)
        verdict: Verdict = "green" if outcome.is_good else "red"
        arm = name_arm(outcome.candidate)
        yield AttemptEnds(arm=arm, verdict=verdict, cost=outcome.cost_usd, task=work)
        if outcome.is_good and outcome.proved_right is not None:  # no word outweighs a red verdict
            yield TruthFound(arm=arm, is_right=outcome.proved_right, kind=outcome.kind)
