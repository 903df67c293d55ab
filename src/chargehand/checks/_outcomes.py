"""From a finished command to a check's status: which runner it started, what that printed, what it means."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from chargehand.checks._junit import TestCounts
from chargehand.core.records import CheckStatus
from chargehand.core.text import printable
from chargehand.sandbox.contract import ExecResult, Stream

Runner = Literal["pytest", "unittest", "cargo", "go", "node", "plain"]

_WRAPPERS = frozenset(
    {
        "uv",
        "run",
        "uvx",
        "poetry",
        "pdm",
        "hatch",
        "pipenv",
        "rye",
        "pixi",
        "time",
        "exec",
        "env",
        "command",
        "nice",
    }
    | {"timeout", "xvfb-run", "npx", "pnpm", "yarn", "bunx", "then", "do", "else", "!", "{", "if"}
)
_TAKE_VALUES = frozenset(
    {
        "--with",
        "-w",
        "--package",
        "--extra",
        "--group",
        "--only-group",
        "--python",
        "-p",
        "--project",
        "--directory",
    }
    | {"--env-file", "--index", "-u", "-k", "-s", "-n"}
)
_PYTESTS = frozenset({"pytest", "py.test"})
_NODE_RUNNERS = frozenset({"jest", "vitest", "mocha", "ava", "tap"})
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_OPERATORS = re.compile(r"[;&|()<>]+")


def runner_of(command: str) -> Runner:
    """Return the first test runner that a shell line starts, `plain` where none is known."""
    for words in _simple_commands(command):
        runner = _runner(words)
        if runner is not None:
            return runner
    return "plain"


def _simple_commands(command: str) -> Iterator[list[str]]:
    for line in command.replace("\\\n", " ").split("\n"):
        words: list[str] = []
        for word in _words(line):
            if _OPERATORS.fullmatch(word):
                yield words
                words = []
            else:
                words.append(word)
        yield words


def _words(line: str) -> list[str]:
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        return list(lexer)
    except ValueError:
        return line.split()


def _runner(words: list[str]) -> Runner | None:
    pairs = set(itertools.pairwise(words))
    if ("-m", "pytest") in pairs:
        return "pytest"
    if ("-m", "unittest") in pairs:
        return "unittest"
    program, arguments = _program(words)
    if program in _PYTESTS:
        return "pytest"
    tasks = [word for word in arguments if not word.startswith(("-", "+"))]
    if program in {"cargo", "go"} and tasks[:1] == ["test"]:
        return "cargo" if program == "cargo" else "go"
    return "node" if _is_node(program, arguments, tasks) else None


def _is_node(program: str, arguments: list[str], tasks: list[str]) -> bool:
    if program in _NODE_RUNNERS or (program == "node" and "--test" in arguments):
        return True
    return program in {"npm", "bun"} and (tasks[:1] in (["test"], ["t"]) or tasks[:2] == ["run", "test"])


def _program(words: list[str]) -> tuple[str, list[str]]:
    """Return the program's base name and its arguments; wrappers and assignments before it do not count."""
    previous = ""
    for index, word in enumerate(words):
        if word in {"pnpm", "yarn"} and words[index + 1 :][:1] == ["test"]:
            return "npm", words[index + 1 :]
        if previous not in _TAKE_VALUES and not _passed_over(word):
            return word.rpartition("/")[2], words[index + 1 :]
        previous = word
    return "", []


def _passed_over(word: str) -> bool:
    return word in _WRAPPERS or word.startswith("-") or word.isdecimal() or bool(_ASSIGNMENT.fullmatch(word))


_NO_MODULE = re.compile(r"No module named '?(?:pytest|unittest)\b")
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
_UNITTEST_SKIPPED = re.compile(r"^(?:OK|FAILED) \(.*?\bskipped=(\d+)", re.MULTILINE)
_UNITTEST_UNLOADED = re.compile(r"^ERROR: .*\bunittest\.loader\._FailedTest\b", re.MULTILINE)
"""A module that cannot be imported: unittest counts it as a test that ran."""
_CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;", re.MULTILINE)
_CARGO_RUNNING = re.compile(r"^running (\d+) tests?$", re.MULTILINE)
_GO_PACKAGE = re.compile(r"^(?:ok|FAIL)[ \t]+\S+(?![^\n]*\[no tests to run\])[^\n]*$", re.MULTILINE)
_GO_UNBUILT = re.compile(r"^FAIL[ \t]+\S+ \[(?:build|setup) failed\]$", re.MULTILINE)
_GO_TEST = re.compile(r"^\s*--- (?:PASS|FAIL): ", re.MULTILINE)
# jest and vitest ("Tests: 1 failed, 2 passed, 3 total"), mocha ("2 passing"), node --test ("# pass 2").
_NODE_SUMMARY = re.compile(
    r"^\s*Tests:?\s+(?=\d|no tests)(.*)$|^\s*(\d+ (?:passing|failing|pending)\b)", re.MULTILINE
)
_NODE_TAP = re.compile(r"^\W{0,3}\s?(?:pass|fail) (\d+)$", re.MULTILINE)
_NODE_RAN = re.compile(r"(\d+) (?:passed|failed|passing|failing)\b")
_NODE_BAD = re.compile(r"(\d+) (?:failed|failing)\b")
_NODE_TAP_BAD = re.compile(r"^\W{0,3}\s?fail (\d+)$", re.MULTILINE)
_PYTEST_NO_TESTS, _PYTEST_USAGE, _UNITTEST_NO_TESTS = 5, 4, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A check's status, a stable reason code where it did not pass, and how many tests ran where told."""

    status: CheckStatus
    reason: str = ""
    tests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What is known of a finished command: `report` is `None` where the runner left none that can be read."""

    exit_code: int
    text: str
    report: TestCounts | None = None


def outcome_of(runner: Runner, result: ExecResult, text: str, report: TestCounts | None) -> Outcome:
    """Return what a command's end means for its check."""
    if result.timed_out:
        return Outcome(status="timed_out", reason="timed_out", tests=report.ran if report else None)
    if result.limit is not None:
        return Outcome(status="failed", reason=result.limit, tests=report.ran if report else None)
    if result.exit_code == 127:
        return Outcome(status="missing", reason="command_not_found")
    if result.exit_code == 126:
        return Outcome(status="missing", reason="not_executable")
    return _OUTCOMES[runner](Ran(exit_code=result.exit_code, text=text, report=report))


def _pytest(ran: Ran) -> Outcome:
    if ran.report is None:
        return _pytest_without_report(ran)
    report = ran.report
    if report.collection_errors:
        return Outcome(status="failed", reason="collection_error", tests=report.ran)
    if ran.exit_code == _PYTEST_NO_TESTS or (report.ran == 0 and not report.bad):
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    if report.bad:
        reason = "tests_failed" if ran.exit_code else "exit_code_disagrees"
        return Outcome(status="failed", reason=reason, tests=report.ran)
    return _by_exit_code(ran, tests=report.ran)


def _pytest_without_report(ran: Ran) -> Outcome:
    if ran.exit_code == 0:
        return Outcome(status="error", reason="no_report")
    if ran.exit_code == _PYTEST_NO_TESTS:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    if ran.exit_code == 1 and _NO_MODULE.search(ran.text):
        return Outcome(status="missing", reason="command_not_found")
    return Outcome(status="failed", reason="usage_error" if ran.exit_code == _PYTEST_USAGE else "exit_code")


def _unittest(ran: Ran) -> Outcome:
    counts = _UNITTEST_RAN.findall(ran.text)
    if not counts:
        return Outcome(status="error", reason="no_report") if ran.exit_code == 0 else _by_exit_code(ran)
    skipped = _UNITTEST_SKIPPED.findall(ran.text)
    tests = int(counts[-1]) - (int(skipped[-1]) if skipped else 0)
    if ran.exit_code and _UNITTEST_UNLOADED.search(ran.text):
        return Outcome(status="failed", reason="collection_error", tests=tests)
    return _counted(ran, tests)


def _cargo(ran: Ran) -> Outcome:
    results = _CARGO_RESULT.findall(ran.text)
    if not results and not _CARGO_RUNNING.search(ran.text):
        return Outcome(status="error", reason="no_report") if ran.exit_code == 0 else _by_exit_code(ran)
    return _counted(ran, sum(int(passed) + int(failed) for passed, failed in results))


def _go(ran: Ran) -> Outcome:
    if ran.exit_code == 0 and not _GO_PACKAGE.search(ran.text):
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    tests = len(_GO_TEST.findall(ran.text)) or None
    if ran.exit_code and _GO_UNBUILT.search(ran.text):
        return Outcome(status="failed", reason="collection_error", tests=tests)
    return _by_exit_code(ran, tests=tests)


def _node(ran: Ran) -> Outcome:
    summaries = [words or line for words, line in _NODE_SUMMARY.findall(ran.text)]
    counts = _NODE_TAP.findall(ran.text) + [n for line in summaries for n in _NODE_RAN.findall(line)]
    if not counts and not summaries:
        return _by_exit_code(ran)
    bad = _NODE_TAP_BAD.findall(ran.text) + [n for line in summaries for n in _NODE_BAD.findall(line)]
    tests = sum(map(int, counts))
    if ran.exit_code and tests and not sum(map(int, bad)):
        return Outcome(status="failed", reason="no_test_failed", tests=tests)
    return _counted(ran, tests)


def _counted(ran: Ran, tests: int) -> Outcome:
    if tests <= 0 and ran.exit_code in {0, _UNITTEST_NO_TESTS}:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    return _by_exit_code(ran, tests=tests)


def _by_exit_code(ran: Ran, *, tests: int | None = None) -> Outcome:
    if ran.exit_code == 0:
        return Outcome(status="passed", tests=tests)
    return Outcome(status="failed", reason="exit_code", tests=tests)


_OUTCOMES: dict[Runner, Callable[[Ran], Outcome]] = {
    "pytest": _pytest,
    "unittest": _unittest,
    "cargo": _cargo,
    "go": _go,
    "node": _node,
    "plain": _by_exit_code,
}


_HEAD = 256_000
_TAIL = 768_000
_SHOWN = 12_000


class HeadTail:
    """Collects both streams in the order they arrive; sizes in bytes."""

    def __init__(self, *, head: int = _HEAD, tail: int = _TAIL) -> None:
        self._room = head
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self._limit = tail
        self._dropped = 0

    def add(self, stream: Stream, piece: bytes) -> None:
        """Take one piece of either stream; the signature is the sandbox's `on_output`."""
        taken = piece[: self._room]
        self._head += taken
        self._room -= len(taken)
        rest = piece[len(taken) :]
        if rest:
            self._tail.append(bytes(rest))
            self._kept += len(rest)
        while self._kept > self._limit:
            self._shorten(self._kept - self._limit)

    def _shorten(self, excess: int) -> None:
        first = self._tail.popleft()
        if len(first) > excess:
            self._tail.appendleft(first[excess:])
        gone = min(len(first), excess)
        self._kept -= gone
        self._dropped += gone

    def content(self) -> bytes:
        """Return head and tail, with a line between them that says how much is left out."""
        between = b"\n[... %d bytes left out ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + between + b"".join(self._tail)


def shown_tail(content: bytes, *, limit: int = _SHOWN) -> str:
    """Return the end of an output as text that is safe to show, at most `limit` bytes of it."""
    cut = len(content) > limit
    text = printable(content[-limit:].decode("utf-8", "replace"))
    return f"[...]\n{text}" if cut else text
