"""The results of a run as outcomes that choices of agents and models learn from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chargehand.app.composition import App
from chargehand.bench.records import BenchResult
from chargehand.bench.results import RunDirectory
from chargehand.core.choices import Candidate, ChoiceOutcome, task_work

# Of a problem without a validator, or after an error that is not the agent's, nothing is known.
_SAY_NOTHING = ("unvalidated", "error")


def learn_run(app: App, run: RunDirectory) -> int:
    """Let choices learn from the present results of a run; return the number of attempts. Raises `StoreError`."""
    header = run.header
    outcomes = tuple(read_outcomes(header.id, header.name, run.results()))
    app.store.evidence.write(header.id, outcomes)
    return len(outcomes)


def read_outcomes(run: str, suite: str, results: Iterable[BenchResult]) -> Iterator[ChoiceOutcome]:
    """Yield the outcomes of all attempts; the suite is their kind of work.

    The validator decides whether the last attempt of a trial was good; those before it were not. Cost and time
    are known for the whole trial, and are divided evenly.
    """
    for each in results:
        if each.outcome in _SAY_NOTHING:
            continue
        count = max(each.attempts, 1)
        for number in range(1, count + 1):
            yield ChoiceOutcome(
                candidate=Candidate(agent=each.agent, model=each.model),
                is_good=each.outcome == "solved" and number == count,
                cost_usd=None if each.cost_usd is None else each.cost_usd / count,
                kind=f"bench/{suite}",
                work=task_work(run, f"{each.problem}/{each.sample}"),
                seconds=each.seconds / count,
            )
