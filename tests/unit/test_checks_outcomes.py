"""The end of a check: the runner that its line starts, the number of tests, and the kept output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.checks._output import HeadTail, shown_tail
from chargehand.checks.runners.table import RUNNERS, runner_of
from chargehand.sandbox.contract import ExecResult, Stream


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
    known = RUNNERS[runner]
    outcome = known.outcome(ended, text, None)
    assert (outcome.status, outcome.reason) == ("failed", "exit_code_disagrees")
    good = text.replace("1 failed", "0 failed").replace("FAIL", "PASS").replace("fail 1", "fail 0")
    assert known.outcome(ended, good, None).status == "passed"


STREAMS = st.sampled_from(["stdout", "stderr"])
LINES = st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line), max_size=6)


@given(texts=st.fixed_dictionaries({"stdout": LINES, "stderr": LINES}), data=st.data())
def test_interleaved_streams_keep_lines_whole_and_in_order(texts: dict[Stream, list[bytes]], data: st.DataObject):
    left = {stream: b"".join(line + b"\n" for line in lines) for stream, lines in texts.items()}
    kept = HeadTail()
    while any(left.values()):
        stream = data.draw(STREAMS.filter(lambda name: left[name]))
        size = data.draw(st.integers(1, len(left[stream])))
        kept.add(stream, left[stream][:size])
        left[stream] = left[stream][size:]
    found = kept.content().split(b"\n")[:-1]
    assert sorted(found) == sorted(texts["stdout"] + texts["stderr"])
    for lines in texts.values():
        rest = iter(found)
        assert all(line in rest for line in lines), "the order of one stream"


def test_cargo_names_the_tests_of_a_binary_even_if_its_headings_arrive_in_pieces():
    kept = HeadTail()
    for name, hashed in (("one", "0123456789abcdef"), ("two", "fedcba9876543210")):
        kept.add("stderr", b"     Running")
        kept.add("stdout", b"\nrunning 1 test\ntest adds ... ")
        kept.add("stderr", f" tests/{name}.rs (target/debug/deps/{name}-{hashed})\n".encode())
        kept.add("stdout", b"ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n\n")
    ran = runner_of("cargo test").find_names(kept.content().decode())
    assert ran == ["one tests/one.rs::adds", "two tests/two.rs::adds"]


def test_head_and_tail():
    kept = HeadTail(head=4, tail=6)
    for piece in (b"ab", b"cdef", b"ghij", b"klmnopqrst"):
        kept.add("stdout", piece)
    assert kept.content() == b"abcd\n[... 10 bytes left out ...]\nopqrst"
    exact = HeadTail(head=4, tail=6)
    exact.add("stderr", b"abcdefghij")
    assert exact.content() == b"abcdefghij"
    progress = HeadTail()
    for piece in (b"x" * 9_000, b"x" * 9_000, b"x"):
        progress.add("stderr", piece)
        progress.add("stdout", b"a line\n")
    assert progress.content() == b"a line\n" + b"x" * 18_000 + b"a line\na line\nx"
    assert shown_tail(b"abcdef", limit=3) == "[...]\ndef"
    assert shown_tail(b"abc", limit=3) == "abc"
