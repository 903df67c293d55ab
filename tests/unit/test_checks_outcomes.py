"""The end of a check: the runner that its line starts, the number of tests, and the kept output."""

from __future__ import annotations

import pytest

from chargehand.checks._output import HeadTail, shown_tail
from chargehand.checks.runners.table import RUNNERS, runner_of
from chargehand.sandbox.contract import ExecResult


@pytest.mark.parametrize(
    ("command", "runner"),
    [
        ("pytest", "pytest"),
        ("python -m pytest -q", "pytest"),
        ("/usr/bin/python3 -W error -m pytest", "pytest"),
        ("ruff check . && .venv/bin/pytest -x", "pytest"),
        ("uv run --extra test pytest tests", "pytest"),
        ("uv run --with pytest mypy src", "plain"),
        ("uv run --python 3.12 pytest", "pytest"),
        ("timeout -k 5 600 pytest", "pytest"),
        ("time -p pytest", "plain"),
        ("uv pip install pytest", "plain"),
        ("A=1 uv run pytest tests", "pytest"),
        ("coverage run -m pytest", "pytest"),
        ("(cd sub; pytest)", "pytest"),
        ("true\npytest", "pytest"),
        ("pip install pytest && make test", "plain"),
        ("echo 'pytest; pytest'", "plain"),
        ("grep pytest file", "plain"),
        ("python -m unittest", "unittest"),
        ("cargo +nightly test --all", "cargo"),
        ("cargo clippy", "plain"),
        ("go test ./...", "go"),
        ("go vet ./...", "plain"),
        ("npm test", "node"),
        ("npm run test", "node"),
        ("npm run lint", "plain"),
        ("pnpm test", "node"),
        ("npx vitest run", "node"),
        ("node --test", "node"),
        ("echo 'unbalanced", "plain"),
        ("", "plain"),
    ],
)
def test_the_runner_of_a_line(command: str, runner: str):
    assert runner_of(command).name == runner


@pytest.mark.parametrize(
    ("runner", "text"),
    [
        ("go", "--- FAIL: TestAdd (0.00s)\nFAIL\nok  \tcalc\t0.1s\n"),
        ("cargo", "running 1 test\ntest a ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n"),
        ("node", "# pass 1\n# fail 1\n"),
        ("node", "Tests:       1 failed, 1 passed, 2 total\n"),
        ("unittest", "Ran 2 tests in 0.1s\n\nFAILED (failures=1)\n"),
    ],
)
def test_a_run_that_ends_with_0_though_tests_failed_does_not_pass(runner: str, text: str) -> None:
    ended = ExecResult(exit_code=0, stdout=b"", stderr=b"", seconds=0.1)
    known = {each.name: each for each in RUNNERS}[runner]
    outcome = known.outcome(ended, text, None)
    assert (outcome.status, outcome.reason) == ("failed", "exit_code_disagrees")
    good = text.replace("1 failed", "0 failed").replace("FAIL", "PASS").replace("fail 1", "fail 0")
    assert known.outcome(ended, good, None).status == "passed"


def test_head_and_tail():
    kept = HeadTail(head=4, tail=6)
    for piece in (b"ab", b"cdef", b"ghij", b"klmnopqrst"):
        kept.add("stdout", piece)
    assert kept.content() == b"abcd\n[... 10 bytes left out ...]\nopqrst"
    exact = HeadTail(head=4, tail=6)
    exact.add("stderr", b"abcdefghij")
    assert exact.content() == b"abcdefghij"
    assert shown_tail(b"abcdef", limit=3) == "[...]\ndef"
    assert shown_tail(b"abc", limit=3) == "abc"
