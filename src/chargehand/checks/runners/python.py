"""pytest and unittest."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Sequence

from chargehand.checks.junit import TestCounts
from chargehand.checks.runners.base import (
    COVERAGE_GATE,
    NO_TESTS_CODE,
    CheckScript,
    Outcome,
    RunnableCheck,
    Runner,
    append_words,
    judge_counted,
    judge_exit,
    judge_silent,
)
from chargehand.checks.stacks import Stack, table
from chargehand.core.text import late_pattern

_REPORT = "/tmp/chargehand-report-"
_USAGE_ERROR_CODE = 4
_NO_MODULE = late_pattern(r"No module named '?(?:pytest|unittest)\b")
_CONFTEST_FAILED = late_pattern(r"^(?:E? *)?(?:\w+)?Error while loading conftest", re.MULTILINE)
_EXPLICIT_REPORT = late_pattern(r"--junit-?xml[= ]+['\"]?([^\s'\";&|]+)")
_OWN_OPTIONS = late_pattern(r"\bPYTEST_ADDOPTS=")
_IMPORTS_PYTEST = late_pattern(r"^\s*(?:import|from)\s+pytest\b", re.MULTILINE)
_PLAIN_TEST = late_pattern(r"^(?:async\s+)?def\s+test", re.MULTILINE)
_CONFIGURATION_FILES = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml")
_CONFIGURATION_SECTIONS = (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest"))

_USES_UNITTEST = late_pattern(r"^\s*(?:import|from)\s+unittest\b|\bTestCase\b", re.MULTILINE)
_RAN = late_pattern(r"^Ran (\d+) tests? in ", re.MULTILINE)
_SKIPPED = late_pattern(r"^(?:OK|FAILED) \(.*?\bskipped=(\d+)", re.MULTILINE)
_FAILED = late_pattern(r"^FAILED \((?:failures|errors|unexpected)", re.MULTILINE)
# unittest counts a module that cannot be imported as a test that ran.
_UNLOADED = late_pattern(r"^ERROR: .*\bunittest\.loader\._FailedTest\b", re.MULTILINE)
# With `-v`: name, then module and class (from Python 3.11 on with the name again), then a docstring's first line.
_BEGUN = late_pattern(
    r"(?:^ *|(?<= \.\.\. ))(?P<name>[\w.]+) \((?P<place>[\w.<>]+)\)(?: \[[^\]\n]*\])?(?:\n[^\n]*?)? \.\.\. ",
    re.MULTILINE,
)
# A test may print before its result, and a test with failed subtests is named a second time.
_RESULT = late_pattern(
    r"(?:ok|FAIL|ERROR|expected failure|unexpected success|(?P<skipped>skipped ['\"].*))$", re.MULTILINE
)
# The failure report and the summary begin with such a line.
_RULE = late_pattern(r"^(?:={70}|-{70})$", re.MULTILINE)
# Fixtures of classes and modules are named only if they fail or skip; they are not tests.
_FIXTURE = late_pattern(r"(?:setUp|tearDown)(?:Class|Module)")
# `-m unittest` with its words, up to the operator, redirection, comment or end that follows them. It does not
# match words after which no option is possible: those that `find -exec` closes, `--`, and substituted commands.
_STARTED = late_pattern(
    r"-m[ \t]+unittest(?:(?:[ \t]|\\\n)+(?!\#|\d+[<>]|(?:--|\+)(?:\s|$))"
    r"(?:[^\s;&|()<>`'\"\\$]|'[^']*'|\"(?:[^\"\\`$]|\\.|\$(?!\())*\"|\\[^;\n]|\$(?!\())+)*"
    r"(?=[ \t]*(?:[;&|<>)\n\#]|\d+[<>]|$))"
)


_COVERAGE_FAILED = late_pattern(r"^(?:FAIL Required test coverage|(?:ERROR: )?Coverage failure: )", re.MULTILINE)
_AGAIN = "/tmp/chargehand-again-"
_UNITTEST_BAD = late_pattern(r"^(?:FAIL|ERROR): (?P<name>\w+) \((?P<place>[\w.]+)\)", re.MULTILINE)
_UNITTEST_COUNT = late_pattern(r"^FAILED \((?P<counts>[^)\n]*)\)", re.MULTILINE)
_COUNT = late_pattern(r"(?:failures|errors|unexpected successes)=(\d+)")


class Pytest(Runner):
    """pytest, whose JUnit report names the tests that ran; its variants are parameters, `test_add[1-2]`."""

    name = "pytest"
    ecosystem = "python"
    module = "pytest"
    names_failures_in_report = True
    starts = ("pytest", "py.test")
    name_form = late_pattern(r"(?:(?P<place>[^\[]*)::)?(?P<own>[^\[]*)(?P<variant>.*)", re.DOTALL)

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return its command if it is configured, imported, required, or needed for plain test functions."""
        command = "python -m pytest -q"
        configured = [path for path in _CONFIGURATION_FILES if stack.has(path)]
        configured += ["pyproject.toml"] if "pytest" in table(stack.toml("pyproject.toml"), "tool") else []
        configured += [path for path, section in _CONFIGURATION_SECTIONS if stack.has_section(path, section)]
        if configured:
            return RunnableCheck(command, f"{configured[0]} configures pytest")
        texts = {path: stack.text(path) for path in stack.tests("python")}
        if not texts:
            return None
        importing = next((path for path, text in texts.items() if _IMPORTS_PYTEST.search(text)), None)
        if importing:
            return RunnableCheck(command, f"{importing} imports pytest")
        required = stack.pytest_required()
        if required:
            return RunnableCheck(command, f"{required} names pytest")
        plain = next((path for path, text in texts.items() if _PLAIN_TEST.search(text)), None)
        return RunnableCheck(command, f"{plain} has plain test functions") if plain else None

    def script(self, command: str) -> CheckScript:
        """Make pytest write a report, to the path that the command names or to one of ours.

        Ours is unique to each run, so that no older file can be mistaken for this run's report.
        """
        explicit = _EXPLICIT_REPORT.findall(command)
        if explicit:
            text = f"rm -f -- {shlex.quote(explicit[-1])}\n{command}"
            return CheckScript(text, explicit[-1], keeps_report=not explicit[-1].startswith(_REPORT))
        path = f"{_REPORT}{secrets.token_hex(8)}.xml"
        option = f"--junitxml={path}"
        # An assignment in the command itself would hide ours: put the option in front of its value.
        inline = _OWN_OPTIONS.sub(f"PYTEST_ADDOPTS='{option} '", command)
        exported = f'export PYTEST_ADDOPTS="${{PYTEST_ADDOPTS:+$PYTEST_ADDOPTS }}{option}"'
        return CheckScript(f"{exported}\n{inline}", path)

    def failing_names(self, text: str, report: TestCounts | None) -> tuple[str, ...] | None:
        """Return the failures that the report names, and the coverage gate if it failed."""
        if report is None:
            return None
        gate = (COVERAGE_GATE,) if _COVERAGE_FAILED.search(text) else ()
        return (*gate, *sorted(report.bad_names)) or None

    def select(self, command: str, names: Sequence[str]) -> str | None:
        """Make pytest run the tests that its cache lists as last failed: that works with any wrapper and any
        paths.

        A report names `package.module.Class::test`, which may match several files: the cache lists them all.
        """
        ids = {node: True for name in names if name != COVERAGE_GATE for node in _node_ids(name)}
        if not ids:
            return None
        cache = f"{_AGAIN}{secrets.token_hex(8)}"
        options = f"--lf --lfnf=none -o cache_dir={cache}"
        inline = _OWN_OPTIONS.sub(f"PYTEST_ADDOPTS='{options} '", command)
        return (
            f"mkdir -p {cache}/v/cache\n"
            f"printf %s {shlex.quote(json.dumps(ids))} >{cache}/v/cache/lastfailed\n"
            f'export PYTEST_ADDOPTS="${{PYTEST_ADDOPTS:+$PYTEST_ADDOPTS }}{options}"\n{inline}'
        )

    def judge(self, code: int, text: str, report: TestCounts | None) -> Outcome:
        """Judge by the report: without one, a success is unconfirmed and does not count."""
        if report is not None and report.collection_errors:
            return Outcome(status="failed", reason="collection_error", tests=report.ran)
        if code == NO_TESTS_CODE:
            return Outcome(status="failed", reason="no_tests_ran", tests=0)
        if report is None:
            if code == 0:
                return Outcome(status="error", reason="no_report")
            if code == 1 and _NO_MODULE.search(text):
                return Outcome(status="missing", reason="command_not_found")
            if code == _USAGE_ERROR_CODE:
                # pytest also exits with this code if a `conftest.py` cannot be imported.
                unloaded = _CONFTEST_FAILED.search(text)
                return Outcome(status="failed", reason="collection_error" if unloaded else "usage_error")
            return Outcome(status="failed", reason="exit_code")
        if report.ran == 0 and not report.bad:
            return Outcome(status="failed", reason="no_tests_ran", tests=0)
        if report.bad:
            # A line such as `pytest || true` still exits with 0.
            reason = "tests_failed" if code else "exit_code_disagrees"
            return Outcome(status="failed", reason=reason, tests=report.ran)
        return judge_exit(code, tests=report.ran)


def _node_ids(name: str) -> list[str]:
    """Return the possible node ids of a report's name: it does not show which of its words are folders."""
    place, _, test = name.partition("::")
    words = place.split(".") if test else name.split(".")
    rest = [test] if test else []
    return [
        "::".join(["/".join(words[:count]) + ".py", *words[count:], *rest]) for count in range(1, len(words) + 1)
    ]


class Unittest(Runner):
    """unittest, which counts its tests, and names them with `-v`: each run gets that option."""

    name = "unittest"
    ecosystem = "python"
    module = "unittest"

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return its command if a test file uses it."""
        using = next((path for path in stack.tests("python") if _USES_UNITTEST.search(stack.text(path))), None)
        if using is None:
            return None
        *folders, _ = using.split("/")
        packages = ["/".join(folders[: length + 1]) for length in range(len(folders))]
        # Without __init__.py discovery does not descend from the root, so it has to start in the directory of the
        # tests.
        importable = all(stack.has(f"{package}/__init__.py") for package in packages)
        start = "" if importable else f" -s {'/'.join(folders)}"
        return RunnableCheck(f"python -m unittest discover{start}", f"{using} uses unittest")

    def judge(self, code: int, text: str, report: TestCounts | None) -> Outcome:
        """Judge by the count in the output, without skipped tests."""
        counts = [int(count) for count in _RAN.findall(text)]
        if not counts:
            return judge_silent(code)
        # A command may run unittest several times; the last of them must have run a test.
        tests = sum(counts) - sum(map(int, _SKIPPED.findall(text))) if counts[-1] else 0
        if code and _UNLOADED.search(text):
            return Outcome(status="failed", reason="collection_error", tests=tests)
        return judge_counted(code, tests)

    def failing_names(self, text: str, report: TestCounts | None) -> tuple[str, ...] | None:
        """Return the names above the tracebacks, if their number matches the summary.

        If no test failed, the coverage gate alone may have.
        """
        if _COVERAGE_FAILED.search(text) and not self.says_failed(text):
            return (COVERAGE_GATE,)
        found = [(match["name"], match["place"]) for match in _UNITTEST_BAD.finditer(text)]
        summary = _UNITTEST_COUNT.findall(text)
        if not found or not summary or sum(map(int, _COUNT.findall(summary[-1]))) != len(found):
            return None
        return tuple(sorted({f"{place.removesuffix(f'.{name}')}::{name}" for name, place in found}))

    def select(self, command: str, names: Sequence[str]) -> str | None:
        """Add a pattern for each test."""
        if COVERAGE_GATE in names:
            return None
        return append_words(command, [word for name in names for word in ("-k", name.replace("::", "."))])

    def says_failed(self, text: str) -> bool:
        """Return whether the last line says FAILED."""
        return _FAILED.search(text) is not None

    def script(self, command: str) -> CheckScript:
        """Make unittest name its tests: a count cannot distinguish a lost test from a replaced one."""
        return CheckScript(_STARTED.sub(lambda found: f"{found[0]} -v", command))

    def find_names(self, text: str) -> list[str]:
        """Return the tests in `-v` output, as class and name; empty if their number contradicts the count."""
        return find_unittest_names(text)


def find_unittest_names(text: str) -> list[str]:
    """Return the tests that ran according to unittest's verbose output, as class and name.

    Empty if their number contradicts the count in the output: tests' own output can hide names.
    """
    begun = [found for found in _BEGUN.finditer(text) if not _FIXTURE.fullmatch(found["name"])]
    names, skipped = list[str](), 0
    for number, found in enumerate(begun):
        after = begun[number + 1] if number + 1 < len(begun) else None
        results = _find_results(text, found.end(), after.start() if after else len(text))
        # Without a result it is named again after its subtests, or some of these failed.
        if not results and after is not None and after.group("name", "place") == found.group("name", "place"):
            continue
        if results and results[-1]["skipped"]:
            skipped += 1
        else:
            names.append(f"{found['place'].removesuffix('.' + found['name'])}::{found['name']}")
    # Some versions of Python do not count skipped tests.
    return names if len(names) <= sum(map(int, _RAN.findall(text))) <= len(names) + skipped else []


def _find_results(text: str, start: int, end: int) -> list[re.Match[str]]:
    """Return the results after a test's name at `start`; the last one is its own."""
    report = _RULE.search(text, start, end)
    return list(_RESULT.finditer(text, start, report.start() if report else end))
