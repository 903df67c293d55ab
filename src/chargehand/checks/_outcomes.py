"""The status of a check: which test runner its command started, and what exit code, output and report mean."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

from chargehand.checks.junit import TestCounts
from chargehand.core.records import CheckStatus
from chargehand.core.text import late_pattern, printable
from chargehand.sandbox.contract import ExecResult, OnOutput, Stream

Runner = Literal["pytest", "unittest", "cargo", "go", "node", "plain"]

# Words that may stand before the program that a line really runs.
_WRAPPERS = frozenset({
    "uv", "run", "uvx", "poetry", "pdm", "hatch", "pipenv", "rye", "pixi", "time", "exec", "env", "command",
    "nice", "timeout", "xvfb-run", "npx", "pnpm", "yarn", "bunx", "then", "do", "else", "!", "{", "if",
})  # fmt: skip
# Options of these wrappers that take the next word.
_VALUED_OPTIONS = frozenset({
    "--with", "-w", "--package", "--extra", "--group", "--only-group", "--python", "-p", "--project",
    "--directory", "--env-file", "--index", "-u", "-k", "-s", "-n",
})  # fmt: skip
_ASSIGNMENT = late_pattern(r"\w+=.*", re.DOTALL)
_OPERATORS = late_pattern(r"[;&|()<>]+")

_NO_MODULE = late_pattern(r"No module named '?(?:pytest|unittest)\b")
_UNITTEST_RAN = late_pattern(r"^Ran (\d+) tests? in ", re.MULTILINE)
_UNITTEST_SKIPPED = late_pattern(r"^(?:OK|FAILED) \(.*?\bskipped=(\d+)", re.MULTILINE)
# unittest counts a module that cannot be imported as a test that ran.
_UNITTEST_UNLOADED = late_pattern(r"^ERROR: .*\bunittest\.loader\._FailedTest\b", re.MULTILINE)
_CARGO_RESULT = late_pattern(r"^test result: \w+\. (\d+) passed; (\d+) failed;", re.MULTILINE)
_CARGO_RUNNING = late_pattern(r"^running (\d+) tests?$", re.MULTILINE)
_GO_PACKAGE = late_pattern(r"^(?:ok|FAIL)[ \t]+\S+(?![^\n]*\[no tests to run\])[^\n]*$", re.MULTILINE)
_GO_UNBUILT = late_pattern(r"^FAIL[ \t]+\S+ \[(?:build|setup) failed\]$", re.MULTILINE)
_UNITTEST_FAILED = late_pattern(r"^FAILED \((?:failures|errors|unexpected)", re.MULTILINE)
_GO_FAILED = late_pattern(r"^--- FAIL: ", re.MULTILINE)
_GO_ENDED_BADLY = late_pattern(r"^FAIL$", re.MULTILINE)
_GO_TEST = late_pattern(r"^\s*--- (?:PASS|FAIL): ", re.MULTILINE)
# jest and vitest ("Tests: 1 failed, 2 passed, 3 total"), mocha ("2 passing"), node --test ("# pass 2").
_NODE_SUMMARY = late_pattern(
    r"^\s*Tests:?\s+(?=\d|no tests)(.*)$|^\s*(\d+ (?:passing|failing|pending)\b)", re.MULTILINE
)
_NODE_TAP = late_pattern(r"^\W{0,3}\s?(?:pass|fail) (\d+)$", re.MULTILINE)
_NODE_RAN = late_pattern(r"(\d+) (?:passed|failed|passing|failing)\b")
_NODE_BAD = late_pattern(r"(\d+) (?:failed|failing)\b")
_NODE_TAP_BAD = late_pattern(r"^\W{0,3}\s?fail (\d+)$", re.MULTILINE)
_PYTEST_NO_TESTS, _PYTEST_USAGE, _UNITTEST_NO_TESTS = 5, 4, 5
# Exit codes of the shell.
_MISSING = {126: "not_executable", 127: "command_not_found"}

# The head shows what was run, the tail what it came to: 1 MB in all is kept of a check.
_HEAD = 256_000
_TAIL = 768_000
_SHOWN = 12_000


# --- which runner a command starts


def runner_of(command: str) -> Runner:
    """Return the first test runner that a shell line starts, `plain` where none is known."""
    for line in command.replace("\\\n", " ").split("\n"):
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            tokens = list(lexer)
        except ValueError:  # a quotation that goes on in the next line
            tokens = line.split()
        for is_operator, words in itertools.groupby(tokens, lambda word: bool(_OPERATORS.fullmatch(word))):
            runner = None if is_operator else _runner_in(list(words))
            if runner is not None:
                return runner
    return "plain"


def _runner_in(words: list[str]) -> Runner | None:
    pairs = set(itertools.pairwise(words))
    if ("-m", "pytest") in pairs:
        return "pytest"
    if ("-m", "unittest") in pairs:
        return "unittest"
    program, arguments = _split_program(words)
    tasks = [word for word in arguments if not word.startswith(("-", "+"))]
    match program, tasks:
        case ("cargo", ["test", *_]):
            return "cargo"
        case ("go", ["test", *_]):
            return "go"
        case ("npm" | "bun", ["test" | "t", *_] | ["run", "test", *_]):
            return "node"
        case ("pytest" | "py.test", _):
            return "pytest"
        case ("jest" | "vitest" | "mocha" | "ava" | "tap", _):
            return "node"
        case ("node", _) if "--test" in arguments:
            return "node"
    return None


def _split_program(words: list[str]) -> tuple[str, list[str]]:
    """Return the program's base name and its arguments; wrappers and assignments before it do not count."""
    previous = ""
    for index, word in enumerate(words):
        # Both run the script `test` without `run` before it, as npm does.
        if word in {"pnpm", "yarn"} and words[index + 1 :][:1] == ["test"]:
            return "npm", words[index + 1 :]
        is_before = word in _WRAPPERS or word.startswith("-") or word.isdecimal() or _ASSIGNMENT.fullmatch(word)
        if previous not in _VALUED_OPTIONS and not is_before:
            return word.rpartition("/")[2], words[index + 1 :]
        previous = word
    return "", []


# --- what its end means

# Whether the summary of a runner says that tests failed.
_FAILED: Mapping[Runner, Callable[[str], bool]] = {
    "unittest": lambda text: _UNITTEST_FAILED.search(text) is not None,
    "cargo": lambda text: any(int(failed) for _, failed in _CARGO_RESULT.findall(text)),
    "go": lambda text: _GO_FAILED.search(text) is not None and _GO_ENDED_BADLY.search(text) is not None,
    "node": lambda text: any(map(int, _count_bad(text))),
}


class Outcome(Struct, frozen=True, kw_only=True):
    """A check's status, a stable reason code where it did not pass, and how many tests ran where told."""

    status: CheckStatus
    reason: str = ""
    tests: int | None = None


def outcome_of(runner: Runner, result: ExecResult, text: str, report: TestCounts | None) -> Outcome:
    """Return what a command's end means for its check.

    `text` is its output, `report` what a JUnit report counted, `None` where there is none that can be read. An
    exit code of 0 is not enough where a runner says how many tests ran: none is a failure.
    """
    code = result.exit_code
    if result.timed_out:
        return Outcome(status="timed_out", reason="timed_out", tests=report.ran if report else None)
    if result.limit is not None:
        return Outcome(status="failed", reason=result.limit, tests=report.ran if report else None)
    if code in _MISSING:
        return Outcome(status="missing", reason=_MISSING[code])
    outcome = _judge_runner(runner, code, text, report)
    # `go test || true`, or a `TestMain` that drops what its tests came to, ends with 0 all the same.
    if outcome.status == "passed" and runner in _FAILED and _FAILED[runner](text):
        return Outcome(status="failed", reason="exit_code_disagrees", tests=outcome.tests)
    return outcome


def _judge_runner(runner: Runner, code: int, text: str, report: TestCounts | None) -> Outcome:
    match runner:
        case "pytest":
            return _judge_pytest(code, text, report)
        case "unittest":
            return _judge_unittest(code, text)
        case "cargo":
            results = _CARGO_RESULT.findall(text)
            if not results and not _CARGO_RUNNING.search(text):
                return _judge_silent(code)
            return _judge_counted(code, sum(int(passed) + int(failed) for passed, failed in results))
        case "go":
            if code == 0 and not _GO_PACKAGE.search(text):
                return Outcome(status="failed", reason="no_tests_ran", tests=0)
            tests = len(_GO_TEST.findall(text)) or None  # without -v only packages are listed
            if code and _GO_UNBUILT.search(text):
                return Outcome(status="failed", reason="collection_error", tests=tests)
            return _judge_exit(code, tests=tests)
        case "node":
            return _judge_node(code, text)
    return _judge_exit(code)


def _judge_pytest(code: int, text: str, report: TestCounts | None) -> Outcome:
    if report is not None and report.collection_errors:
        return Outcome(status="failed", reason="collection_error", tests=report.ran)
    if code == _PYTEST_NO_TESTS:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    if report is None:
        if code == 0:
            return Outcome(status="error", reason="no_report")
        if code == 1 and _NO_MODULE.search(text):
            return Outcome(status="missing", reason="command_not_found")
        return Outcome(status="failed", reason="usage_error" if code == _PYTEST_USAGE else "exit_code")
    if report.ran == 0 and not report.bad:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    if report.bad:
        # A line such as `pytest || true` ends with 0 all the same.
        reason = "tests_failed" if code else "exit_code_disagrees"
        return Outcome(status="failed", reason=reason, tests=report.ran)
    return _judge_exit(code, tests=report.ran)


def _judge_unittest(code: int, text: str) -> Outcome:
    counts = _UNITTEST_RAN.findall(text)
    if not counts:
        return _judge_silent(code)
    skipped = _UNITTEST_SKIPPED.findall(text)
    tests = int(counts[-1]) - (int(skipped[-1]) if skipped else 0)
    if code and _UNITTEST_UNLOADED.search(text):
        return Outcome(status="failed", reason="collection_error", tests=tests)
    return _judge_counted(code, tests)


def _judge_node(code: int, text: str) -> Outcome:
    summaries = [words or line for words, line in _NODE_SUMMARY.findall(text)]
    counts = _NODE_TAP.findall(text) + [n for line in summaries for n in _NODE_RAN.findall(line)]
    if not counts and not summaries:
        return _judge_exit(code)
    bad = _count_bad(text)
    tests = sum(map(int, counts))
    if code and tests and not sum(map(int, bad)):
        return Outcome(status="failed", reason="no_test_failed", tests=tests)
    return _judge_counted(code, tests)


def _count_bad(text: str) -> list[str]:
    summaries = [words or line for words, line in _NODE_SUMMARY.findall(text)]
    return _NODE_TAP_BAD.findall(text) + [n for line in summaries for n in _NODE_BAD.findall(line)]


def _judge_silent(code: int) -> Outcome:
    """Judge a run whose output names no count of tests: a success that nobody can confirm is none."""
    return Outcome(status="error", reason="no_report") if code == 0 else _judge_exit(code)


def _judge_counted(code: int, tests: int) -> Outcome:
    if tests <= 0 and code in {0, _UNITTEST_NO_TESTS}:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    return _judge_exit(code, tests=tests)


def _judge_exit(code: int, *, tests: int | None = None) -> Outcome:
    if code == 0:
        return Outcome(status="passed", tests=tests)
    return Outcome(status="failed", reason="exit_code", tests=tests)


# --- its output


class HeadTail:
    """Collects both streams in the order they arrive, sizes in bytes; `also` is given each piece."""

    def __init__(self, *, head: int = _HEAD, tail: int = _TAIL, also: OnOutput | None = None) -> None:
        self._also = also
        self._room = head
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self._limit = tail
        self._dropped = 0

    def add(self, stream: Stream, piece: bytes) -> None:
        """Take one piece of either stream; the signature is the sandbox's `on_output`."""
        if self._also is not None:
            self._also(stream, piece)
        taken = piece[: self._room]
        self._head += taken
        self._room -= len(taken)
        rest = piece[len(taken) :]
        if rest:
            self._tail.append(bytes(rest))
            self._kept += len(rest)
        while self._kept > self._limit:
            first, excess = self._tail.popleft(), self._kept - self._limit
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
            gone = min(len(first), excess)
            self._kept -= gone
            self._dropped += gone

    @property
    def cut(self) -> bool:
        """Whether something is left out."""
        return self._dropped > 0

    def content(self) -> bytes:
        """Return head and tail, with a line between them that says how much is left out."""
        between = b"\n[... %d bytes left out ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + between + b"".join(self._tail)


def shown_tail(content: bytes, *, limit: int = _SHOWN) -> str:
    """Return the end of an output as text that is safe to show, at most `limit` bytes of it."""
    cut = len(content) > limit
    text = printable(content[-limit:].decode("utf-8", "replace"))
    return f"[...]\n{text}" if cut else text
