"""The results of a run as evidence that choices of agents and models learn from."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from chargehand.app.composition import App
from chargehand.bench.records import BenchResult
from chargehand.bench.results import RunDirectory
from chargehand.core.choices import BenchmarkTally, Candidate

# Of a problem without a validator, or after an error that is not the agent's, nothing is known.
_SAY_NOTHING = ("unvalidated", "error")


def learn_run(app: App, run: RunDirectory) -> int:
    """Let choices learn from the present results of a run; return the number of attempts. Raises `StoreError`."""
    header = run.header
    tallies = tally_results(header.name, run.results())
    app.store.evidence.write(header.id, tallies)
    return sum(each.attempts for each in tallies)


def tally_results(suite: str, results: Iterable[BenchResult]) -> tuple[BenchmarkTally, ...]:
    """Return the attempts of each agent with its model; the suite is their kind of work.

    The validator decides whether the last attempt of a trial was good; those before it were not. The cost is known
    for the whole trial, and is divided evenly.
    """
    found: dict[Candidate, BenchmarkTally] = {}
    for each in results:
        if each.outcome in _SAY_NOTHING:
            continue
        candidate, count = Candidate(agent=each.agent, model=each.model), max(each.attempts, 1)
        none = BenchmarkTally(candidate=candidate, kind=f"bench/{suite}", attempts=0, good=0)
        so_far = found.get(candidate, none)
        priced = count if each.cost_usd else 0
        found[candidate] = replace(
            so_far,
            attempts=so_far.attempts + count,
            good=so_far.good + (each.outcome == "solved"),
            priced=so_far.priced + priced,
            log_cost=so_far.log_cost + (priced * math.log(each.cost_usd / count) if each.cost_usd else 0.0),
        )
    return tuple(found.values())
