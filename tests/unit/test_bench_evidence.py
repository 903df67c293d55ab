"""Results of benchmarks as evidence for choices: which attempts count, and files that are replaced or damaged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.test_bench_results import result

from chargehand.bench.evidence import read_outcomes
from chargehand.core.choices import Candidate, ChoiceOutcome
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.store.evidence import BenchEvidence

OUTCOMES = ["solved", "false_green", "not_promoted", "unvalidated", "error"]
OUTCOME = ChoiceOutcome(candidate=Candidate(agent="native", model="m"), is_good=True, kind="bench/s", work="r/p")


@given(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.integers(0, 4), st.none() | st.floats(0, 10)), max_size=8))
def test_each_judged_trial_counts_with_all_its_attempts(trials: list[tuple[str, int, float | None]]) -> None:
    results = [
        replace(result(f"p{number}", 1, outcome), attempts=attempts, cost_usd=cost)
        for number, (outcome, attempts, cost) in enumerate(trials)
    ]
    found = list(read_outcomes("run", "suite", results))
    judged = [each for each in results if each.outcome not in ("unvalidated", "error")]
    assert len(found) == sum(max(each.attempts, 1) for each in judged)
    assert sum(each.is_good for each in found) == sum(each.outcome == "solved" for each in judged)
    assert len({each.work for each in found}) == len(judged)
    for each in judged:
        own = [one for one in found if one.work == f"run/{each.problem}/1"]
        assert [one.is_good for one in own[:-1]] == [False] * (len(own) - 1)
        known = [one.cost_usd for one in own if one.cost_usd is not None]
        assert math.isclose(sum(known), each.cost_usd or 0.0, abs_tol=1e-9)
        assert (len(known) == len(own)) is (each.cost_usd is not None)


def test_files_are_read_in_the_order_of_runs_and_only_if_changed(tmp_path: Path) -> None:
    files, other = BenchEvidence(tmp_path), BenchEvidence(tmp_path)
    assert files.read() == ()
    files.write("b", [OUTCOME])
    files.write("a", [replace(OUTCOME, is_good=False), OUTCOME])
    assert [each.is_good for each in other.read()] == [False, True, True]
    assert other.read() is other.read()
    files.write("a", [OUTCOME])
    assert len(other.read()) == 2
    files.remove("a")
    assert other.read() == (OUTCOME,)
    with pytest.raises(NotFoundError, match="nothing is learned from a run 'a'"):
        files.remove("a")


def test_a_damaged_file_is_named_with_two_ways_out(tmp_path: Path) -> None:
    files = BenchEvidence(tmp_path)
    files.write("run", [OUTCOME])
    path = tmp_path / "bench/evidence/run"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"evidence/run is damaged") as caught:
        files.read()
    assert (caught.value.code, "bench learn run" in caught.value.hint) == ("evidence_damaged", True)
    files.write("run", [OUTCOME])
    assert files.read() == (OUTCOME,)
