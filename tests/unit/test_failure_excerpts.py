"""Excerpts of a failed check: the failing tests, under the names that their runner accepts, and the reasons."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from chargehand.checks.failure_excerpts import end_of_output, read_failures

MODULE = """\
import unittest


class Calc(unittest.TestCase):
    def test_sub(self):
        self.assertEqual(6, 1)

    def test_add(self):
        self.assertEqual(5, 5)

    def test_key(self):
        {}["x"]
"""
GO = """\
=== RUN   TestSub
    a_test.go:3: hello
    a_test.go:3: got 6
        want 1
--- FAIL: TestSub (0.00s)
=== RUN   TestTable
=== RUN   TestTable/one
    a_test.go:5: bad one
=== RUN   TestTable/two
--- FAIL: TestTable (0.00s)
    --- FAIL: TestTable/one (0.00s)
    --- PASS: TestTable/two (0.00s)
=== RUN   TestQuiet
--- FAIL: TestQuiet (0.00s)
FAIL
"""
CARGO = """\
test ok ... ok
test sub ... FAILED

failures:

---- sub stdout ----

thread 'sub' (139) panicked at src/lib.rs:1:20:
assertion `left == right` failed: sub is wrong
  left: 6
 right: 1
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace


failures:
    sub
"""
TAP = """\
not ok 1 - subtracts
  ---
  duration_ms: 2.1
  location: '/workspace/a.test.js:2:1'
  failureType: 'testCodeFailure'
  error: |-
    Expected values to be strictly equal:

    6 !== 1

  code: 'ERR_ASSERTION'
  expected: 1
  actual: 6
  stack: |-
    TestContext.<anonymous> (/workspace/a.test.js:2:36)
  ...
ok 2 - fine
"""
SPEC = """\
✖ subtracts (1.5ms)
✔ fine (0.1ms)
ℹ tests 2

✖ failing tests:

test at a.test.js:2:1
✖ subtracts (1.5ms)
  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:

  6 !== 1

      at TestContext.<anonymous> (file:///workspace/a.test.js:2:36)
      at Test.runInAsyncScope (node:async_hooks:206:9) {
    code: 'ERR_ASSERTION',
  }
"""
JEST = """\
FAIL ./a.test.js
  ● suite › subtracts

    expect(received).toBe(expected) // Object.is equality

    Expected: 1
    Received: 6

    > 2 |   expect(6).toBe(1);
        |             ^

      at Object.toBe (a.test.js:2:13)

Tests:       1 failed, 1 passed, 2 total
"""
MOCHA = """\
  suite
    1) subtracts

  1 failing

  1) suite
       subtracts:

      AssertionError [ERR_ASSERTION]: 6 == 1
      at Context.<anonymous> (a.test.js:4:10)
"""
SUREFIRE = """\
[ERROR] Tests run: 2, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.05 s <<< FAILURE! -- in CalcTest
[ERROR] CalcTest.sub -- Time elapsed: 0.01 s <<< FAILURE!
org.opentest4j.AssertionFailedError: expected: <1> but was: <6>
	at CalcTest.sub(CalcTest.java:12)

[INFO] Results:
"""
GRADLE = """\
CalcTest > sub() FAILED
    org.opentest4j.AssertionFailedError: expected: <1> but was: <6>
        at CalcTest.java:12

2 tests completed, 1 failed
"""
VITEST = """\
 FAIL  test/a.test.js > suite > subtracts
AssertionError: expected 6 to be 1 // Object.is equality

- Expected
+ Received

 ❯ test/a.test.js:4:15
"""


def told(output: str) -> dict[str, tuple[str, ...]]:
    return {failure.name: failure.lines for failure in read_failures(output)}


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_failures_are_read_from_pytest_and_unittest_output(tmp_path: Path, runner: str) -> None:
    (tmp_path / "test_calc.py").write_text(MODULE)
    options = ["-q", "-p", "no:cacheprovider"] if runner == "pytest" else ["-v"]
    done = subprocess.run(
        [sys.executable, "-m", runner, *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = told(done.stdout + done.stderr)
    names = ("test_calc.py::Calc::", "") if runner == "pytest" else ("test_calc.Calc.", f"{tmp_path}/")
    assert found == {
        f"{names[0]}test_key": ("KeyError: 'x'", f"at {names[1]}test_calc.py:12"),
        f"{names[0]}test_sub": ("AssertionError: 6 != 1", f"at {names[1]}test_calc.py:6"),
    }
    # The names select a single test for the runner.
    again = [sys.executable, "-m", runner, next(name for name in found if name.endswith("sub"))]
    alone = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "6 != 1" in alone.stdout + alone.stderr
    assert "KeyError" not in alone.stdout + alone.stderr


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            GO,
            {
                "TestSub": ("a_test.go:3: hello", "a_test.go:3: got 6", "want 1"),
                "TestTable/one": ("a_test.go:5: bad one",),
                "TestQuiet": (),
            },
        ),
        (
            CARGO,
            {"sub": ("assertion `left == right` failed: sub is wrong", "left: 6", "right: 1", "at src/lib.rs:1")},
        ),
        (
            TAP,
            {
                "subtracts": (
                    *("Expected values to be strictly equal:", "6 !== 1", "expected: 1", "actual: 6"),
                    "at a.test.js:2",
                )
            },
        ),
        (
            SPEC,
            {
                "subtracts": (
                    "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:",
                    *("6 !== 1", "at a.test.js:2"),
                )
            },
        ),
        (
            JEST,
            {
                "suite › subtracts": (
                    "expect(received).toBe(expected) // Object.is equality",
                    *("Expected: 1", "Received: 6", "at a.test.js:2"),
                )
            },
        ),
        (MOCHA, {"suite": ("subtracts:", "AssertionError [ERR_ASSERTION]: 6 == 1", "at a.test.js:4")}),
        (SUREFIRE, {"CalcTest.sub": ("org.opentest4j.AssertionFailedError: expected: <1> but was: <6>",)}),
        (
            GRADLE,
            {
                "CalcTest > sub": (
                    "org.opentest4j.AssertionFailedError: expected: <1> but was: <6>",
                    "at CalcTest.java:12",
                )
            },
        ),
        (
            VITEST,
            {
                "test/a.test.js > suite > subtracts": (
                    "AssertionError: expected 6 to be 1 // Object.is equality",
                    "at test/a.test.js:4",
                )
            },
        ),
        ("gcc -c a.c\na.c:3:5: error: expected ';'\n", {"": ("a.c:3:5: error: expected ';'",)}),
        ("one\ntwo\n\x1b[31mthree\x1b[0m\n", {"": ("one", "two", "three")}),
        ("\n \n", {}),
    ],
    ids=[
        "go",
        "cargo",
        "tap",
        "spec",
        "jest",
        "mocha",
        "surefire",
        "gradle",
        "vitest",
        "compiler",
        "plain",
        "none",
    ],
)
def test_failures_are_read_from_output_of_other_programs(
    output: str, expected: dict[str, tuple[str, ...]]
) -> None:
    assert told(output) == expected


def test_the_end_of_agent_output_omits_a_final_event_after_other_lines() -> None:
    lines = [f"line {number}" for number in range(30)]
    assert end_of_output("\n".join([*lines, '{"type": "result"}'])) == tuple(lines[-10:])
    assert end_of_output('{"type": "result"}\n') == ('{"type": "result"}',)
    assert end_of_output("") == ()


@pytest.mark.parametrize(
    "line", ["___ ", "E " * 100, "=== RUN a\n", "test at " + "a" * 200 + ":\n", "--- FAIL: T\n"]
)
def test_excerpts_of_any_output_are_fast_and_bounded(line: str) -> None:
    began = time.process_time()
    found = read_failures(line * 50_000)
    assert time.process_time() - began < 10
    assert len(found) <= 50
    assert all(len(failure.lines) <= 10 and all(len(each) <= 240 for each in failure.lines) for failure in found)
