"""Failures in a check, compared with the base; and the selection of single tests for each runner."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.checks.failures import CheckFailures, compare_failures, describe_failures, failed_without_a_test
from chargehand.checks.junit import TestCounts, read_junit
from chargehand.checks.runners.table import runner_of
from chargehand.core.records import CheckResult


def by_test(*tests: str) -> CheckFailures:
    return describe_failures("pytest", "tests_failed", "", tests, cut=False)


def by_line(text: str, reason: str = "exit_code", *, cut: bool = False) -> CheckFailures:
    return describe_failures("sh check.sh", reason, text, None, cut=cut)


names = st.frozensets(st.sampled_from(["a", "b", "c", "d", "e"]))


@given(names, names, names)
def test_every_failure_is_known_or_new_and_never_both(
    before: frozenset[str], after: frozenset[str], excused: frozenset[str]
) -> None:
    found = compare_failures(by_test(*sorted(before)), by_test(*sorted(after)), excused=excused)
    assert set(found.known) == after & (before | excused)
    assert set(found.new) == after - (before | excused)
    assert found.told


def test_every_failure_is_new_if_the_base_passed() -> None:
    assert compare_failures(None, by_test("a")).new == ("a",)
    assert compare_failures(None, by_line("x.py:3: error: wrong")).new == ("exit_code",)


def test_tests_without_names_on_the_base_cannot_be_compared() -> None:
    found = compare_failures(by_line("boom: error"), by_test("a"))
    assert (found.told, found.new) == (False, ("a",))


MYPY = "calc.py:10: error: Incompatible types\nother.py:3: error: Missing return\nFound 2 errors in 2 files\n"


@pytest.mark.parametrize(
    ("after", "new"),
    [
        (MYPY, ()),
        (MYPY.replace(":10:", ":25:"), ()),  # moved by lines added above
        ("calc.py:10: error: Incompatible types\nFound 1 error in 1 file\n", ()),
        (f"{MYPY}calc.py:11: error: Incompatible types\n", ("calc.py:0: error: Incompatible types",)),
        (f"{MYPY}calc.py:11: error: Undefined name\n", ("calc.py:0: error: Undefined name",)),
    ],
)
def test_failures_without_names_are_compared_by_their_lines(after: str, new: tuple[str, ...]) -> None:
    found = compare_failures(by_line(MYPY), by_line(after))
    assert (found.new, found.told, found.named) == (new, True, False)


def test_numbers_within_names_tell_lines_apart() -> None:
    assert compare_failures(by_line("FAILED test_1"), by_line("FAILED test_2")).new == ("FAILED test_2",)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (by_line("all is silent"), by_line("all is silent")),
        (by_line("x: error", cut=True), by_line("x: error", cut=True)),
        (by_line("x: error"), by_line("x: error", cut=True)),
    ],
)
def test_incomplete_or_uninformative_output_is_not_compared(before: CheckFailures, after: CheckFailures) -> None:
    assert not compare_failures(before, after).told


def test_another_reason_is_a_new_failure() -> None:
    assert compare_failures(by_line("x: error"), by_line("x: error", "timed_out")).new == ("timed_out",)


@pytest.mark.parametrize(
    ("command", "text", "stopped"),
    [
        ("python -m pytest -q", "1 failed, 3 passed", False),
        ("python -m pytest -q", "!!!!!!!! stopping after 1 failures !!!!!!!!", True),  # set in a file
        ("python -m pytest -xq", "", True),
        ("python -m pytest -rf --tb=short", "", False),
        ("python -m pytest --maxfail=2", "", True),
        ("python -m unittest -vf", "", True),
        ("go test -failfast ./...", "", True),
        ("npx jest --bail=1", "", True),
    ],
)
def test_runs_that_stop_at_a_failure_are_recognized(command: str, text: str, stopped: bool) -> None:
    assert describe_failures(command, "tests_failed", text, ("a",), cut=False).stopped is stopped


def failed_check(reason: str, tests: int | None = 3) -> CheckResult:
    return CheckResult(name="python -m pytest -q", status="failed", seconds=1.0, reason=reason, tests=tests)


@pytest.mark.parametrize(
    ("check", "failures", "gate"),
    [
        (failed_check("exit_code"), by_test("(coverage)"), True),
        (failed_check("tests_failed"), by_test("(coverage)", "a"), False),
        (failed_check("exit_code"), by_line("FAIL Required"), True),
        (failed_check("exit_code", tests=0), by_line("boom"), False),
        (failed_check("memory"), by_line("killed: error"), False),
    ],
)
def test_a_failed_gate_is_recognized_only_if_all_tests_passed(
    check: CheckResult, failures: CheckFailures, gate: bool
) -> None:
    assert failed_without_a_test(check, failures) is gate


PYTEST = f"{sys.executable} -m pytest -q -p no:randomly"
TREES: dict[str, tuple[str, dict[str, str], str, set[str]]] = {
    # the command of the runner, its files, the program that it needs, and the failing tests
    "pytest": (
        PYTEST,
        {
            "tests/sub/test_m.py": "import pytest\nclass TestA:\n    @pytest.mark.parametrize('x', [1, 2])\n"
            "    def test_a(self, x): assert x == 1\ndef test_b(): assert 0\ndef test_c(): pass\n",
            "tests/test_n.py": "def test_b(): pass\n",
        },
        "sh",
        {"tests.sub.test_m.TestA::test_a[2]", "tests.sub.test_m::test_b"},
    ),
    "unittest": (
        f"{sys.executable} -m unittest",
        {
            "test_x.py": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        assert 0\n"
            "    def test_b(self): pass\n    def test_c(self):\n        for i in range(3):\n"
            "            with self.subTest(i=i): assert i == 1\n"
        },
        "sh",
        {"test_x.T::test_a", "test_x.T::test_c"},
    ),
    "go": (
        "go test ./...",
        {
            "go.mod": "module x\ngo 1.18\n",
            "a/a_test.go": 'package a\nimport "testing"\nfunc TestTwo(t *testing.T) {}\n'
            'func TestOne(t *testing.T) { t.Run("s 1", func(t *testing.T) { t.Fatal("no") }) }\n',
            "b/b_test.go": 'package b\nimport "testing"\nfunc TestThree(t *testing.T) { t.Fail() }\n',
        },
        "go",
        {"x/a::TestOne", "x/a::TestOne/s_1", "x/b::TestThree"},
    ),
    "cargo": (
        "cargo test --offline",
        {
            "Cargo.toml": '[package]\nname = "x"\nversion = "0.1.0"\nedition = "2021"\n',
            "src/lib.rs": "#[cfg(test)]\nmod tests {\n #[test]\n fn one() { assert!(false) }\n"
            " #[test]\n fn two() {}\n}\n",
        },
        "cargo",
        {"x src/lib.rs::tests::one"},
    ),
}


def run_in(place: Path, command: str) -> tuple[str, TestCounts | None]:
    script = runner_of(command).script(command)
    done = subprocess.run(["sh", "-ec", script.text], cwd=place, capture_output=True, text=True, check=False)
    report = Path(script.report) if script.report else None
    counts = read_junit(report.read_bytes()) if report and report.exists() else None
    if report is not None:
        report.unlink(missing_ok=True)
    return done.stdout + done.stderr, counts


@pytest.mark.parametrize("name", TREES)
def test_a_runner_names_failing_tests_and_runs_only_them(tmp_path: Path, name: str) -> None:
    command, files, program, failing = TREES[name]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    runner = runner_of(command)
    text, counts = run_in(tmp_path, command)
    assert set(runner.failing_names(text, counts) or ()) == failing, text
    alone = runner.select(command, sorted(failing))
    assert alone is not None
    text, counts = run_in(tmp_path, alone)
    assert set(runner.failing_names(text, counts) or ()) == failing, text
    ran = counts.names if counts else runner.names(text)
    assert ran is None or set(ran) == failing, "only these tests ran"


def test_several_commands_in_one_line_are_not_narrowed() -> None:
    assert runner_of("cargo test").select("cargo test && echo done", ["x::t"]) is None
    assert runner_of("python -m unittest").select("python -m unittest; true", ["a.T::t"]) is None


def test_a_gate_of_coverage_counts_as_a_failure() -> None:
    text = "FAIL Required test coverage of 90% not reached. Total coverage: 80.00%\n"
    counts = TestCounts(ran=3, skipped=0, bad=0, collection_errors=0, failing=(), names=("a", "b", "c"))
    assert runner_of("pytest").failing_names(text, counts) == ("(coverage)",)


def test_a_gate_of_coverage_after_unittest_counts_as_a_failure() -> None:
    runner = runner_of("coverage run -m unittest && coverage report --fail-under=90")
    gate = "Coverage failure: total of 47 is less than fail-under=90\n"
    assert runner.failing_names(f"Ran 2 tests in 0.001s\n\nOK\n{gate}", None) == ("(coverage)",)
    failed = "ERROR: test_a (m.T.test_a)\nRan 1 test in 0.001s\n\nFAILED (errors=1)\n"
    assert runner.failing_names(failed + gate, None) == ("m.T::test_a",)
    assert runner.select("coverage run -m unittest", ["(coverage)"]) is None


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("go test ./...", "FAIL\tx/a [build failed]\nok  \tx/b\t0.1s\n"),
        ("python -m unittest", "ERROR: test_a (m.T.test_a)\nFAILED (failures=1, errors=1)\n"),
        ("cargo test", "test a ... FAILED\ntest result: FAILED. 0 passed; 2 failed; 0 ignored\n"),
    ],
)
def test_failures_that_are_not_all_named_are_not_named(command: str, text: str) -> None:
    assert runner_of(command).failing_names(text, None) is None


TAP_16 = """TAP version 13
# Subtest: test/bin.js
    # Subtest: prints help
        not ok 1 - timeout!
        1..1
        # failed 1 test
    not ok 1 - prints help # time=31000.1ms
    1..1
    # failed 1 test
not ok 1 - test/bin.js # time=171976.9ms

# Subtest: test/inc.js
    ok 1 - expected to throw: Error invalid identifier
    1..1
ok 2 - test/inc.js # time=22.1ms
ok 3 - test/later.js # SKIP

1..3
# failed 1 of 3 tests
"""
TAP_GREEN = TAP_16.replace("not ok", "ok").replace("# failed 1 of 3 tests\n", "")
JEST_GATE = 'Jest: "global" coverage threshold for branches (100%) not met: 50%'
NYC_GATE = "ERROR: Coverage for lines (98.05%) does not meet global threshold (100%)"


@pytest.mark.parametrize(
    ("code", "text", "outcome", "failing"),
    [
        (
            1,
            f"{TAP_16}{NYC_GATE}\n",
            ("failed", "exit_code", 2),
            (
                "(coverage)",
                "test/bin.js",
                "test/bin.js > prints help::timeout!",
                "test/bin.js::prints help",
            ),
        ),
        (0, TAP_GREEN, ("passed", "", 2), None),
        (1, f"{TAP_GREEN}{NYC_GATE}\n", ("failed", "exit_code", 2), ("(coverage)",)),
        (1, TAP_GREEN, ("failed", "no_test_failed", 2), None),
        (0, "1..0\n", ("failed", "no_tests_ran", 0), None),
        (1, f"{JEST_GATE}\nTests:       2 passed, 2 total\n", ("failed", "exit_code", 2), ("(coverage)",)),
        (
            1,
            f"{JEST_GATE}\nTest Suites: 1 failed, 1 passed, 2 total\nTests:       2 passed, 2 total\n",
            ("failed", "no_test_failed", 2),
            None,
        ),
        (1, f"  2 passing (3ms)\n{NYC_GATE}\n", ("failed", "exit_code", 2), ("(coverage)",)),
        (
            1,
            "ok 1 - adds\n1..1\n# tests 1\n# pass 1\n# fail 0\n"
            "# Error: 50.00% line coverage does not meet threshold of 90%.\n",
            ("failed", "exit_code", 1),
            ("(coverage)",),
        ),
    ],
)
def test_node_names_points_of_tap_and_a_coverage_gate(
    code: int, text: str, outcome: tuple[str, str, int], failing: tuple[str, ...] | None
) -> None:
    runner = runner_of("npm test")
    found = runner.judge(code, text, None)
    assert (found.status, found.reason, found.tests) == outcome
    assert (runner.failing_names(text, None) if code else None) == failing
    if failing == ("(coverage)",):
        check = CheckResult(name="npm test", status="failed", reason="exit_code", tests=found.tests, seconds=1)
        assert failed_without_a_test(check, describe_failures("npm test", "exit_code", text, failing, cut=False))


@pytest.mark.parametrize(
    "line",
    [
        "    ok 1 - throws type error: TypeError a Range is required",
        "  ✓ rejects an error (3 ms)",
        "PASS test/errors.test.js (Error cases)",
        "--- PASS: TestError (0.00s)",
        "[       OK ] Parser.Error",
        "test errors::fatal error ... ok",
        "tests/test_a.py::test_Exception PASSED",
    ],
)
def test_a_test_that_passed_is_no_error_whatever_its_name(line: str) -> None:
    assert by_line(f"lint: error: wrong\n{line}\n").lines == ("lint: error: wrong",)
    assert compare_failures(by_line("lint: error: wrong"), by_line(f"lint: error: wrong\n{line}\n")).new == ()
