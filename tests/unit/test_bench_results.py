"""The file of a run's results: whatever a crash cuts off, complete lines stay and nothing is counted twice."""

from __future__ import annotations

import queue
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.bench.records import Arm, BenchResult, RunHeader, Validation
from chargehand.bench.results import RunDirectory, create_run, find_run, list_runs, remove_scratch
from chargehand.bench.runner import outcome_digest, trial_seed
from chargehand.core.errors import NotFoundError, RefusedError, StoreError

HEADER = RunHeader(
    id="run",
    created="2026-01-01T00:00:00.000+00:00",
    suite="/suite",
    name="suite",
    form="directory",
    digest="d",
    arm=Arm(),
    samples=2,
    seed=0,
    problems=("b", "a"),
    invalid=(),
    version="0",
    machine="m",
)


def result(problem: str, sample: int, outcome: str = "solved") -> BenchResult:
    return BenchResult(
        problem=problem,
        sample=sample,
        seed=trial_seed(0, problem, sample),
        outcome=outcome,  # type: ignore[arg-type]
        status="promoted",
        reasons=(),
        cheating=(),
        validation=Validation(judgement="passed", output="line\nline \N{SNOWMAN}"),
        tree="t",
        attempts=1,
        agent="a",
        model=None,
        cost_usd=0.0,
        seconds=1.0,
        overhead=0.0,
    )


ALL = [result(problem, sample) for problem in ("b", "a") for sample in (0, 1)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return create_run(tmp_path_factory.mktemp("bench"), HEADER)


@given(data=st.data())
def test_a_file_cut_off_anywhere_is_completed_by_missing_trials(run: RunDirectory, data: st.DataObject) -> None:
    file = run.path / "results.jsonl"
    file.unlink(missing_ok=True)
    for each in data.draw(st.permutations(ALL)):
        run.append(each)
    whole = run.results()
    content = file.read_bytes()
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    kept = run.results()
    with run.writing():
        assert run.results() == kept
        for each in ALL:
            if each.key not in {found.key for found in kept}:
                run.append(each)
    assert run.results() == whole == tuple(ALL)
    assert file.read_bytes().count(b"\n") == len(ALL)


def test_a_trial_that_is_tried_again_counts_once(run: RunDirectory) -> None:
    (run.path / "results.jsonl").unlink(missing_ok=True)
    run.append(replace(result("a", 0, "error"), cost_usd=9.0))
    run.append(replace(result("a", 0), cost_usd=1.0))
    # Its cost is that of both tries.
    assert [(each.outcome, each.cost_usd) for each in run.results()] == [("solved", 10.0)]
    run.append(replace(result("a", 0), cost_usd=None))
    assert [each.cost_usd for each in run.results()] == [None]


def test_a_result_is_written_as_a_whole_or_not_at_all(run: RunDirectory) -> None:
    (run.path / "results.jsonl").unlink(missing_ok=True)
    run.append(result("a", 0))
    size = (run.path / "results.jsonl").stat().st_size
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))  # as a full disk does: a part is written
        with pytest.raises(OSError, match="large"):
            run.append(result("b", 0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    run.append(result("b", 1))
    assert {each.key for each in run.results()} == {("a", 0), ("b", 1)}


def test_damage_within_the_file_is_an_error(run: RunDirectory) -> None:
    file = run.path / "results.jsonl"
    file.write_bytes(b'{"problem": 1}\n')
    with pytest.raises(StoreError, match=r"results\.jsonl is damaged") as caught:
        run.results()
    assert caught.value.code == "bench_damaged"
    file.unlink()


def _try(path: Path, answers: queue.SimpleQueue[str]) -> None:
    try:
        with RunDirectory(path).writing():
            answers.put("held")
    except RefusedError as error:
        answers.put(error.code)


def test_a_run_has_one_writer(run: RunDirectory) -> None:
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    with run.writing():
        _try(run.path, answers)
    _try(run.path, answers)
    assert [answers.get(), answers.get()] == ["bench_busy", "held"]


def test_runs_are_found_by_their_ids(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "missing") == ()
    create_run(tmp_path, replace(HEADER, id="late", created="2026-02-01T00:00:00.000+00:00"))
    create_run(tmp_path, HEADER)
    assert {each.header.id for each in list_runs(tmp_path)} == {"run", "late"}
    assert find_run(tmp_path, "late").header.id == "late"
    with pytest.raises(NotFoundError) as caught:
        find_run(tmp_path, "other")
    assert caught.value.hint == "known: late, run"
    # A damaged run is in nobody's way.
    (tmp_path / "late/run.json").write_text("{")
    assert find_run(tmp_path, "run").header.id == "run"
    with pytest.raises(RefusedError) as refused:
        create_run(tmp_path, HEADER)
    assert refused.value.code == "bench_exists"


def test_the_digest_of_outcomes_ignores_times_and_notices_outcomes() -> None:
    slower = [replace(each, seconds=9.0, resumed=True, finished="later") for each in ALL]
    assert outcome_digest(slower) == outcome_digest(ALL)
    assert outcome_digest([replace(ALL[0], outcome="error"), *ALL[1:]]) != outcome_digest(ALL)


def test_seeds_of_trials_differ_and_do_not_depend_on_each_other() -> None:
    seeds = [trial_seed(seed, problem, sample) for seed in (0, 1) for problem in "ab" for sample in (0, 1)]
    assert len(set(seeds)) == 8
    assert trial_seed(0, "a", 1) == trial_seed(0, "a", 1)


def test_scratch_state_that_denies_access_is_removed(tmp_path: Path) -> None:
    (tmp_path / "t/locked/inner").mkdir(parents=True)
    (tmp_path / "t/locked/inner").chmod(0)
    remove_scratch(tmp_path / "t")
    remove_scratch(tmp_path / "t")
    assert not (tmp_path / "t").exists()
