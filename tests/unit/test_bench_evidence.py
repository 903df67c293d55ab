"""Results of benchmarks as evidence for choices: which attempts count, and files that are replaced or damaged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.test_bench_results import result

from chargehand.bench.evidence import tally_results
from chargehand.core.choices import BenchmarkTally, Candidate
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.store.evidence import BenchEvidence

OUTCOMES = ["solved", "false_green", "not_promoted", "unvalidated", "error"]
TALLY = BenchmarkTally(candidate=Candidate(agent="native", model="m"), kind="bench/s", attempts=1, good=1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(OUTCOMES),
            st.integers(0, 4),
            st.none() | st.just(0.0) | st.floats(0.001, 10),
            st.sampled_from("ab"),
        ),
        max_size=8,
    )
)
def test_each_judged_trial_counts_with_all_its_attempts(
    trials: list[tuple[str, int, float | None, str]],
) -> None:
    results = [
        replace(result(f"p{number}", 1, outcome), attempts=attempts, cost_usd=cost, model=model)
        for number, (outcome, attempts, cost, model) in enumerate(trials)
    ]
    found = {each.candidate.model: each for each in tally_results("suite", results)}
    judged = [each for each in results if each.outcome not in ("unvalidated", "error")]
    assert found.keys() == {each.model for each in judged}
    for model, tally in found.items():
        own = [each for each in judged if each.model == model]
        counts = [max(each.attempts, 1) for each in own]
        logs = [
            math.log(each.cost_usd / count)
            for each, count in zip(own, counts, strict=True)
            for _ in range(count)
            if each.cost_usd
        ]
        assert (tally.kind, tally.attempts) == ("bench/suite", sum(counts))
        assert tally.good == sum(each.outcome == "solved" for each in own)
        assert tally.priced == len(logs)
        assert math.isclose(tally.log_cost, sum(logs), abs_tol=1e-9)


def test_files_are_read_in_the_order_of_runs_and_only_if_changed(tmp_path: Path) -> None:
    files, other = BenchEvidence(tmp_path), BenchEvidence(tmp_path)
    assert files.read() == ()
    files.write("b", [TALLY])
    files.write("a", [replace(TALLY, good=0), TALLY])
    assert [each.good for each in other.read()] == [0, 1, 1]
    assert other.read() is other.read()
    files.write("a", [TALLY])
    assert len(other.read()) == 2
    files.remove("a")
    assert other.read() == (TALLY,)
    with pytest.raises(NotFoundError, match="nothing is learned from a run 'a'"):
        files.remove("a")


def test_a_damaged_file_is_named_with_two_ways_out(tmp_path: Path) -> None:
    files = BenchEvidence(tmp_path)
    files.write("run", [TALLY])
    path = tmp_path / "bench/evidence/run"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"evidence/run is damaged") as caught:
        files.read()
    assert (caught.value.code, "bench learn run" in caught.value.hint) == ("evidence_damaged", True)
    files.write("run", [TALLY])
    assert files.read() == (TALLY,)
