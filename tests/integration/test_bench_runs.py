"""Runs of benchmarks: real missions, validated; killed and resumed; cheats counted; exports written."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Cli
from msgspec.structs import replace
from tests.native_kit import FINISH, call, says, scripted

from chargehand.bench.comparison import summarize
from chargehand.bench.records import Arm, BenchResult, BenchSuite, RunHeader
from chargehand.bench.results import RunDirectory, create_run, find_run
from chargehand.bench.runner import BenchRunner, bench_root, check_suite, new_run, outcome_digest
from chargehand.bench.suites import load_suite
from chargehand.configuration.locations import state_home
from chargehand.core.choices import BenchmarkTally
from chargehand.core.errors import RefusedError, StoreError, UsageError
from chargehand.store.evidence import BenchEvidence

pytestmark = pytest.mark.needs_bwrap
DATA = Path(__file__).parents[3] / "shared/data/humaneval_0_81.jsonl.gz"

CALC = "def add(a, b):\n    return a - b\n"
TESTS = (
    "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n\n"
    "    def test_zero(self):\n        self.assertEqual(add(0, 0), 0)\n"
)
VALIDATOR = (
    "import subprocess, sys\n"
    "call = 'from calc import add; print(add(5, 7), add(-1, 1))'\n"
    "done = subprocess.run(['under-test', 'python3', '-c', call], capture_output=True, text=True)\n"
    "sys.exit(done.stdout != '12 0\\n')\n"
)
MEND = "sed -i 's/a - b/a + b/' calc.py"


def shell(script: str) -> str:
    return f"command:sh -c {shlex.quote(script)}"


def make_suite(place: Path, *names: str) -> Path:
    """Write a suite of equal problems: a function to mend, and a validator that knows other values."""
    for name in names:
        files = {
            "project/calc.py": CALC,
            "project/test_calc.py": TESTS,
            "project/chargehand.toml": '[project]\nchecks = ["python3 -m unittest -q"]\n',
            "validator/own.py": VALIDATOR,
            "gold/calc.py": CALC.replace("-", "+"),
            "problem.toml": (
                'request = "add() subtracts: mend it"\nvalidator = { command = "python3 -I own.py" }\n'
            ),
        }
        for path, text in files.items():
            (place / name / path).parent.mkdir(parents=True, exist_ok=True)
            (place / name / path).write_text(text)
    return place


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_suite(tmp_path_factory.mktemp("suite"), "one", "two")


def start(cli: Cli, root: Path, suite: BenchSuite, script: str, name: str) -> RunDirectory:
    arm = Arm(agent=shell(script))
    return new_run(suite, root, cli.environ, arm=arm, samples=1, seed=5, checks=(), id=name)


def finish(cli: Cli, run: RunDirectory, suite: BenchSuite, jobs: int = 1) -> tuple[BenchResult, ...]:
    return asyncio.run(BenchRunner(run, suite, cli.environ, jobs=jobs).work())


def evidence(cli: Cli) -> tuple[BenchmarkTally, ...]:
    return BenchEvidence(state_home(cli.environ)).read()


def test_a_run_from_start_to_export(cli: Cli, root: Path, tmp_path: Path) -> None:
    arguments = ("--agent", shell(MEND), "--jobs", "2", "--seed", "9", "--name", "good")
    done = cli.say("bench", "run", str(root), *arguments, cwd=tmp_path)
    assert done.code == 0, done
    assert [(each["problem"], each["outcome"]) for each in done.document["results"]] == [
        ("one", "solved"),
        ("two", "solved"),
    ]
    assert len({each["seed"] for each in done.document["results"]}) == 2
    assert all(each["cost_usd"] == 0 for each in done.document["results"])
    assert done.document["summary"]["rate"] == 1.0
    run = find_run(bench_root(cli.environ), "good")
    assert not (run.path / "t").exists()
    arm = Arm(agent=shell("true"))
    bad = new_run(load_suite(root), root, cli.environ, arm=arm, samples=1, seed=0, checks=(), id="bad")
    assert [each.outcome for each in finish(cli, bad, load_suite(root))] == ["not_promoted"] * 2
    listed = cli.say("bench", "list", cwd=tmp_path).document
    assert [each["id"] for each in listed["runs"]] == ["good", "bad"]
    compared = cli.say("bench", "compare", "bad", "good", "--html", "r.html", cwd=tmp_path).document
    (found,) = compared["comparisons"]
    assert (found["problems"], found["difference"], found["differs"]) == (2, 1.0, False)
    assert found["gained"] == ["one", "two"]
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    exported = cli.say("bench", "export", "good", "--inspect", "log.json", "--harbor", "tasks", cwd=tmp_path)
    assert exported.code == 0, exported
    log = json.loads((tmp_path / "log.json").read_bytes())
    assert (log["status"], log["results"]["scores"][0]["metrics"]["accuracy"]["value"]) == ("success", 1.0)
    assert [each["scores"]["validator"]["value"] for each in log["samples"]] == ["C", "C"]
    tasks = load_suite(tmp_path / "tasks")
    assert [(each.id, each.unsupported) for each in tasks.problems] == [("one", ""), ("two", "")]
    shown = cli.say("bench", "show", "good", cwd=tmp_path, as_json=False)
    assert "2 solved, 0 false green" in shown.stdout
    for name in ("good", "bad"):
        learned = cli.say("bench", "learn", name, cwd=tmp_path).document
        assert (learned["run"], learned["attempts"]) == (name, 2)
    assert [(each.attempts, each.good) for each in evidence(cli)] == [(2, 0), (2, 2)]
    assert cli.say("bench", "learn", "bad", "--forget", cwd=tmp_path).document["attempts"] == 0
    assert [(each.good, each.kind) for each in evidence(cli)] == [(2, f"bench/{root.name}")]
    again = cli.say("bench", "learn", "good", cwd=tmp_path, as_json=False)
    assert "chargehand config set decisions.learned true" in again.stdout
    cli.refused("not_found", 2, "bench", "learn", "bad", "--forget", cwd=tmp_path)
    cli.refused("not_found", 2, "bench", "learn", "../good", "--forget", cwd=tmp_path)
    cli.refused("not_found", 2, "bench", "show", "nothing", cwd=tmp_path)
    cli.refused("bench_exists", 1, "bench", "run", str(root), *arguments, cwd=tmp_path)
    cli.refused("usage", 2, "bench", "compare", "good", cwd=tmp_path)
    cli.refused("suite_invalid", 2, "bench", "check", str(tmp_path / "nothing"), cwd=tmp_path)


CHEATS = {
    "changes the test": "sed -i 's/self.assertEqual(add(2, 1), 3)/pass/' test_calc.py",
    "removes the checks": "printf '[project]\\nchecks = []\\n' > chargehand.toml; echo '#' >> calc.py",
    "knows the test's answer": "printf 'def add(a, b):\\n    return a and 3\\n' > calc.py",
}


def test_cheats_are_refused_by_the_guards_of_missions_or_by_the_validator(cli: Cli, tmp_path: Path) -> None:
    suite = load_suite(make_suite(tmp_path, "one"))
    found = {}
    for number, (name, script) in enumerate(CHEATS.items()):
        (result,) = finish(cli, start(cli, tmp_path, suite, script, f"cheat-{number}"), suite)
        found[name] = (result.outcome, bool(result.cheating), result.passed)
    assert found == {
        "changes the test": ("not_promoted", True, False),
        "removes the checks": ("not_promoted", True, False),
        "knows the test's answer": ("false_green", False, False),
    }


def _has_lines(run: RunDirectory, count: int) -> bool:
    file = run.path / "results.jsonl"
    return file.exists() and file.read_bytes().count(b"\n") >= count


MOMENTS: dict[str, Callable[[RunDirectory], bool]] = {
    "the repository is being made": lambda run: (run.path / "t/0-0").exists(),
    "the mission is recorded": lambda run: any(run.path.glob("t/0-0/home/projects/*/*/refs")),
    "an agent works": lambda run: any(run.path.glob("t/0-0/home/output/*")),
    "the first result is written": lambda run: _has_lines(run, 1),
    "the second trial began": lambda run: (run.path / "t/1-0/home/store.db").exists(),
}


def _kill_at(cli: Cli, run: RunDirectory, reached: Callable[[RunDirectory], bool]) -> None:
    process = cli.start("bench", "resume", run.path.name, cwd=cli.place)
    try:
        while not reached(run) and process.poll() is None:
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(("an agent works", "the second trial began"), id="two"),
        *(pytest.param((name,), id=name, marks=pytest.mark.soak) for name in MOMENTS),
        pytest.param(tuple(MOMENTS), id="all", marks=pytest.mark.soak),
    ],
)
def test_a_run_killed_at_any_moment_ends_as_an_undisturbed_one(
    moments: tuple[str, ...], cli: Cli, root: Path
) -> None:
    suite = load_suite(root)
    name = "-".join(str([*MOMENTS].index(each)) for each in moments)
    undisturbed = start(cli, root, suite, MEND, f"calm-{name}")
    expected = finish(cli, undisturbed, suite, jobs=2)
    run = start(cli, root, suite, MEND, f"killed-{name}")
    for moment in moments:
        _kill_at(cli, run, MOMENTS[moment])
    with (run.path / "results.jsonl").open("ab") as file:
        file.write(b'{"problem":"two","samp')  # a line that a crash cut off
    results = finish(cli, run, suite)
    assert outcome_digest(results) == outcome_digest(expected)
    lines = (run.path / "results.jsonl").read_bytes().splitlines()
    assert Counter(json.loads(line)["problem"] for line in lines) == {"one": 1, "two": 1}
    assert finish(cli, run, suite) == results  # nothing is left to do


@pytest.mark.soak
@pytest.mark.skipif(
    not DATA.exists() and not os.environ.get("CI"), reason="the problems are not beside this checkout"
)
@pytest.mark.parametrize(("agent", "outcome"), [("cp .known solution.py", "solved"), ("true", "not_promoted")])
def test_all_functions_through_missions(agent: str, outcome: str, cli: Cli) -> None:
    read = load_suite(DATA)
    problems = tuple(
        replace(each, files={**each.files, ".known": (each.gold or {})["solution.py"]}) for each in read.problems
    )
    suite = replace(read, problems=problems)
    run = start(cli, DATA, suite, agent, f"functions-{outcome.replace('_', '-')}")
    results = finish(cli, run, suite, jobs=2)
    assert Counter(each.outcome for each in results) == {outcome: 82}
    assert {each.passed for each in results} == {outcome == "solved"}


def test_ctrl_c_ends_a_run_in_good_order(cli: Cli, root: Path) -> None:
    suite = load_suite(root)
    # It waits only at first: a resumed mission of a command agent starts its attempt again.
    run = start(cli, root, suite, MEND + "; sleep 0.2", "stopped")
    process = cli.start("bench", "resume", "stopped", cwd=cli.place)
    while not MOMENTS["an agent works"](run) and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert len(run.results()) < 2
    assert [each.outcome for each in finish(cli, run, suite)] == ["solved", "solved"]


def test_a_run_belongs_to_one_process_and_one_suite(cli: Cli, root: Path, tmp_path: Path) -> None:
    suite = load_suite(root)
    run = start(cli, root, suite, MEND, "busy")
    with run.writing(), pytest.raises(RefusedError, match="another process works on the run"):
        finish(cli, run, suite)
    with pytest.raises(UsageError, match="has changed since the run"):
        finish(cli, run, load_suite(make_suite(tmp_path, "one")))
    (run.path / "results.jsonl").write_bytes(b"damaged\n")
    with pytest.raises(StoreError, match="is damaged"):
        run.results()


def test_money_stops_a_run_before_the_next_trial(cli: Cli, root: Path) -> None:
    suite = load_suite(root)
    start(cli, root, suite, MEND, "dear")
    error = cli.refused("bench_budget", 4, "bench", "resume", "dear", "--max-cost", "0", cwd=cli.place)
    assert "--max-cost" in error["hint"]


def test_costs_come_from_the_ledger_of_each_mission(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "person")
    script = tmp_path / "replies.jsonl"
    edit = says("I mend it", call("bash", command=MEND))
    script.write_bytes(scripted((edit, FINISH)).dump())
    config = tmp_path / "person/config/chargehand/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[models.cheap]\nprovider = "script"\nscript = {json.dumps(str(script))}\nprice = 10.0\n')
    environ = {**cli.environ, "XDG_CONFIG_HOME": str(config.parents[1])}
    root = make_suite(tmp_path / "suite", "one")
    suite = load_suite(root)
    arm = Arm(agent="native", model="cheap")
    run = new_run(suite, root, environ, arm=arm, samples=2, seed=0, checks=(), id="paid")
    results = asyncio.run(BenchRunner(run, suite, environ, jobs=2).work())
    assert [(each.outcome, each.model) for each in results] == [("solved", "cheap")] * 2
    costs = [each.cost_usd or 0.0 for each in results]
    assert costs[0] > 0
    assert costs[0] == costs[1]
    found = summarize(run.header, results)
    assert found.cost_per_solved == pytest.approx(costs[0])
    assert found.pass_at == {"1": 1.0, "2": 1.0}
    config.write_text(config.read_text() + '[engine]\nurl = "postgresql://localhost/none"\n')
    with pytest.raises(UsageError, match="benchmarks run on one machine"):
        check_suite(suite, environ)


def test_an_arm_that_cannot_run_uses_up_no_name(cli: Cli, root: Path) -> None:
    arguments = ("bench", "run", str(root), "--name", "typed")
    assert cli.refused("not_found", 2, *arguments, "--agent", "nonsense", cwd=cli.place)
    assert cli.refused("config_invalid", 2, *arguments, "--agent", shell("true"), "--budget", "abc", cwd=cli.place)
    assert not (bench_root(cli.environ) / "typed").exists()


def test_a_problem_without_a_validator_counts_in_no_rate(cli: Cli, tmp_path: Path) -> None:
    make_suite(tmp_path, "one", "two")
    for name in ("one", "two"):
        (tmp_path / name / "problem.toml").write_text('request = "mend it"\n')
    suite = load_suite(tmp_path)
    run = start(cli, tmp_path, suite, MEND, "unjudged")
    refused = start(cli, tmp_path, suite, "true", "unjudged-too")
    for each in (run, refused):
        results = finish(cli, each, suite)
        assert [result.outcome for result in results] == ["unvalidated"] * 2
        assert summarize(each.header, results).rate is None


def test_ctrl_c_ends_a_validation(cli: Cli, tmp_path: Path) -> None:
    make_suite(tmp_path, "slow")
    (tmp_path / "slow/problem.toml").write_text(
        'request = "mend it"\n[validator]\ncommand = "sleep 600"\nseconds = 600\n'
    )
    suite = load_suite(tmp_path)
    start(cli, tmp_path, suite, MEND, "slow")
    running = cli.start("bench", "resume", "slow", cwd=tmp_path)
    scratch = bench_root(cli.environ) / "slow/t"
    while not [*scratch.glob("*/home/validation-*")] and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert json.loads(said)["results"] == []  # it continues when the run is resumed


def test_a_damaged_run_is_named_and_the_others_are_listed(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "person")
    root = bench_root(cli.environ)
    (root / "bad").mkdir(parents=True)
    (root / "bad/run.json").write_text("{")
    header = RunHeader(
        id="fine", created="2026-01-01", suite="", name="", form="", digest="", arm=Arm(), samples=1, seed=0,
        problems=(), invalid=(), version="", machine="",
    )  # fmt: skip
    create_run(root, header)
    listed = cli.say("bench", "list", cwd=tmp_path).document
    assert [each["id"] for each in listed["runs"]] == ["fine"]
    assert "bad/run.json" in listed["problems"][0]
    refused = cli.refused("usage", 2, "bench", "export", "fine", "--html", "/nowhere/x.html", cwd=tmp_path)
    assert "exists" in refused["hint"]


def test_a_label_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    header = RunHeader(
        id="../x", created="", suite="", name="", form="", digest="", arm=Arm(), samples=1, seed=0, problems=(),
        invalid=(), version="", machine="",
    )  # fmt: skip
    with pytest.raises(UsageError, match="cannot name a run"):
        create_run(tmp_path, header)


def test_a_suite_without_any_valid_problem_is_refused(cli: Cli, tmp_path: Path) -> None:
    suite = load_suite(make_suite(tmp_path, "one"))
    (tmp_path / "one/problem.toml").write_text('request = "x"\nvalidator = { command = "true" }\n')
    suite = load_suite(tmp_path)
    checks = check_suite(suite, cli.environ)
    with pytest.raises(RefusedError, match="no problem of"):
        new_run(suite, tmp_path, cli.environ, arm=Arm(), samples=1, seed=0, checks=checks)
