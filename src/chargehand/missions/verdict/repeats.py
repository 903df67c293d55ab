"""Repeats tests of one exact tree, to distinguish failing tests from flaky ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from chargehand.checks.execution import CheckOutput
from chargehand.checks.failures import select_tests
from chargehand.core.records import CheckResult, FlakyTest
from chargehand.missions.sandboxes.provisioning import BaseEnvironment
from chargehand.missions.verdict.check_runs import AGAIN_PLACE, CheckRuns
from chargehand.sandbox.contract import Sandbox

# A change that breaks more tests than this at once is wrong: repeating them all would only cost time.
MOST_REPEATED = 50
# Runs of red tests alone after the one in which they failed.
RUNS_ALONE = 3
# If tests cannot be run alone the whole check is repeated: twice if it is quick, else once.
_QUICK_SECONDS = 30.0
# A test that fails one time in three passes eight runs in a row in four cases out of a hundred.
RUNS_ON_BASE = 8


class RepeatedTests(Struct, frozen=True, kw_only=True):
    """The results of repeated tests by name: their runs, those that failed, and the outputs of these runs."""

    runs: dict[str, int]
    failures: dict[str, int]
    evidence: tuple[str, ...]

    @property
    def passed_once(self) -> frozenset[str]:
        """The tests that passed in at least one of their runs."""
        return frozenset(test for test, runs in self.runs.items() if self.failures.get(test, 0) < runs)

    @property
    def failed_once(self) -> frozenset[str]:
        """The tests that failed in at least one of their runs."""
        return frozenset(test for test, failures in self.failures.items() if failures)


class RepeatPlace(NamedTuple):
    """The tree that tests are repeated on, in the environment and with the acceptance files of their check."""

    tree: str
    environment: BaseEnvironment
    acceptance: Sequence[tuple[str, str]] = ()


async def repeat_tests(
    runs: CheckRuns,
    check: CheckResult,
    tests: Sequence[str],
    place: RepeatPlace,
    *,
    most: int = RUNS_ALONE,
    until_both: bool = False,
) -> RepeatedTests:
    """Run tests of a check again on a new workspace of a tree; without tests the whole check, named "".

    Each round runs only these tests if the runner can select them, else the whole check, and then
    at most twice. The rounds end early once each test has passed, with `until_both` once each has failed, or when
    they take longer than the check itself. The caller holds a slot for checks.
    """
    names = tuple(tests) or ("",)
    found = RepeatedTests(runs=dict.fromkeys(names, 0), failures={}, evidence=())
    command = select_tests(check.name, tests)
    began, least = time.monotonic(), min(most, RUNS_ALONE)
    rounds = most if command is not None else min(most, 2 if check.seconds <= _QUICK_SECONDS else 1)
    opened = runs.open(place.tree, place.environment, acceptance=place.acceptance, place=AGAIN_PLACE)
    async with opened as sandbox:
        while rounds > 0:
            result, output = await _run_once(runs, sandbox, command or check.name)
            if command is not None and not _has_run(result, output):
                # The runner ignored the selection: from here on the whole check is repeated.
                command, rounds = None, min(rounds, 2 if check.seconds <= _QUICK_SECONDS else 1)
                continue
            rounds, least = rounds - 1, least - 1
            found = _count(found, names, result, output, whole=command is None)
            if least <= 0 and time.monotonic() - began > max(_QUICK_SECONDS, check.seconds):
                break
            if found.passed_once >= set(names) and not until_both:
                break
            if until_both and found.failed_once >= set(names):
                break
    return found


async def _run_once(runs: CheckRuns, sandbox: Sandbox, command: str) -> tuple[CheckResult, CheckOutput]:
    outputs: dict[str, CheckOutput] = {}
    plan = replace(runs.gates.plan, commands=(command,))
    [result] = await runs.run_in(sandbox, plan, outputs, shows_output=False)
    return result, outputs[command]


def _has_run(result: CheckResult, output: CheckOutput) -> bool:
    """Return whether a run of selected tests shows anything: it passed, or it names its failures."""
    if result.status == "passed":
        return True
    failures = output.failures
    return failures is not None and bool(failures.tests) and bool(result.tests)


def _count(
    found: RepeatedTests, names: Sequence[str], result: CheckResult, output: CheckOutput, *, whole: bool
) -> RepeatedTests:
    runs, failures = dict(found.runs), dict(found.failures)
    failed = output.failures.tests if output.failures is not None else ()
    # A `whole` check that passed ran all of its tests, whatever names its failure report uses.
    ran = None if whole and result.status == "passed" else output.ran
    for name in names:
        if ran is not None and name and name not in ran and name not in (failed or ()):
            continue  # it did not run
        passed = result.status == "passed" or (bool(name) and failed is not None and name not in failed)
        runs[name] += 1
        if not passed:
            failures[name] = failures.get(name, 0) + 1
    evidence = (*found.evidence, *([result.artifact] if result.artifact else ()))
    return RepeatedTests(runs=runs, failures=failures, evidence=evidence)


def describe_flaky(check: CheckResult, repeated: RepeatedTests, *, failed_first: bool) -> tuple[FlakyTest, ...]:
    """Return the tests with two results on one tree, by their first run in the check and the repeated ones."""
    found = repeated.passed_once if failed_first else repeated.failed_once
    first = (check.artifact,) if check.artifact else ()
    return tuple(
        FlakyTest(
            check=check.name,
            test=test,
            runs=repeated.runs[test] + 1,
            failures=repeated.failures.get(test, 0) + failed_first,
            evidence=(*first, *repeated.evidence),
        )
        for test in sorted(found)
    )
