"""Classifies the failures of a tree: new failures, failures that its base has too, and flaky tests.

No decision rests on one run. A failed test is repeated alone on the same tree. If it then passes it has two
results, and is compared with the base, where the same test may be flaky too.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.checks.failures import (
    CheckFailures,
    Comparison,
    compare_failures,
    counts_tests,
    own_name,
    select_tests,
)
from chargehand.core.codec import decode_as
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.core.records import (
    CheckResult,
    Finding,
    FlakyTest,
    KnownFailures,
    Severity,
    Verdict,
)
from chargehand.core.text import printable
from chargehand.missions.sandboxes.provisioning import BaseEnvironment
from chargehand.missions.verdict.check_runs import CheckRuns
from chargehand.missions.verdict.failure_policy import FailurePolicy
from chargehand.missions.verdict.judgement import load_ran_tests
from chargehand.missions.verdict.repeats import (
    MOST_REPEATED,
    RUNS_ALONE,
    RUNS_ON_BASE,
    RepeatedTests,
    RepeatPlace,
    describe_flaky,
    repeat_tests,
)
from chargehand.store.store import Store

FLAKY_TEST = "flaky_test"
_SHOWN = 5
_KEPT_NAMES = 20
# Reasons for which no test could be loaded.
_UNLOADED = ("collection_error", "no_report")
# Total runs of new and changed tests.
_RUNS_OF_NEW_TESTS = 3


class Classified(Struct, frozen=True, kw_only=True):
    """The classes of failures of some checks: checks in `excused` have no failure caused by the tree."""

    excused: frozenset[str] = frozenset()
    known: tuple[KnownFailures, ...] = ()
    flaky: tuple[FlakyTest, ...] = ()
    findings: tuple[Finding, ...] = ()

    def joined(self, other: Classified) -> Classified:
        """Return both combined; a test that appears twice is listed once."""
        flaky = {(each.check, each.test): each for each in (*other.flaky, *self.flaky)}
        added = tuple(found for found in other.findings if found.message not in {f.message for f in self.findings})
        return Classified(
            excused=self.excused | other.excused,
            known=(*self.known, *other.known),
            flaky=tuple(flaky.values()),
            findings=(*self.findings, *added),
        )

    def is_good(self, checks: Iterable[CheckResult]) -> bool:
        """Return whether each check passed or failed only for known reasons, and no failure must be fixed."""
        wrong = any(found.severity in ("error", "critical") for found in self.findings)
        return not wrong and all(check.status == "passed" or check.name in self.excused for check in checks)


class FailureClassifier:
    """Classifies the failures on trees over one base; `runs` are those of the base's checks."""

    def __init__(self, runs: CheckRuns, policy: FailurePolicy) -> None:
        self._runs = runs
        self._policy = policy
        self._store = runs.services.store
        self._project = runs.services.project
        self._before: dict[str, CheckFailures] = {}
        self._passed: frozenset[str] = frozenset()
        self._ran: dict[str, frozenset[str]] = {}
        self._unstable: dict[str, frozenset[str]] = {}

    # --- the base

    async def classify_base(self, checks: Sequence[CheckResult], earlier: Verdict | None) -> tuple[FlakyTest, ...]:
        """Repeat failed tests on the base; those that then pass are flaky, and remembered for later bases.

        Tests with another result in an `earlier` verdict on the same base are flaky too.
        """
        environment = self._runs.environment
        flaky = list(self.compare_with_earlier(earlier, checks)) if earlier is not None else []
        for check in checks:
            failures = load_failures(self._store, check)
            if failures is None or not _may_be_flaky(check) or len(failures.tests or ()) > MOST_REPEATED:
                continue
            place = RepeatPlace(self._runs.base.tree, environment)
            repeated = await self._repeat(check, failures.tests or (), place, most=RUNS_ON_BASE)
            flaky += describe_flaky(check, repeated, failed_first=True)
        flaky = [replace(each, on_base=True) for each in flaky]
        self._store.flaky.add(self._project, flaky)
        return tuple(flaky)

    def find_unstable(self, checks: Sequence[CheckResult], flaky: Sequence[FlakyTest]) -> frozenset[str]:
        """Return the checks that failed only because of flaky tests."""
        names = {(each.check, each.test) for each in flaky}
        found = set[str]()
        for check in checks:
            failures = load_failures(self._store, check)
            units = (failures.tests if failures is not None else None) or ("",)
            if check.status != "passed" and all((check.name, unit) in names for unit in units):
                found.add(check.name)
        return frozenset(found)

    def use_base(self, verdict: Verdict) -> None:
        """Compare later trees with this verdict on the base."""
        failures = ((check, load_failures(self._store, check)) for check in verdict.checks)
        self._before = {check.name: found for check, found in failures if found is not None}
        self._passed = frozenset(check.name for check in verdict.checks if check.status == "passed")
        ran = load_ran_tests(self._store, verdict.checks)
        self._ran = {each.check: frozenset(each.names) for each in ran if each.names is not None}
        # A base that a person accepted with a flaky test has it, even if that was not measured on a base.
        self._unstable = {
            check.name: frozenset(each.test for each in _flaky_of(verdict, check)) for check in verdict.checks
        }

    def _find_remembered(self, check: str) -> frozenset[str]:
        """Return the tests of a check that are flaky on this base, or were on an earlier one."""
        return self._store.flaky.names(self._project, check) | self._unstable.get(check, frozenset())

    # --- a candidate

    async def classify(
        self,
        checks: Sequence[CheckResult],
        *,
        tree: str,
        environment: BaseEnvironment,
        acceptance: Sequence[tuple[str, str]],
        earlier: Verdict | None = None,
        before: Mapping[str, CheckFailures] | None = None,
    ) -> Classified:
        """Classify the failures of a tree's checks; tests with new failures are repeated on it.

        `earlier` has the worst results of the same checks on the same tree: each that differs is a second result.
        `before` has the failures to compare with, by check, in place of the base's.
        """
        place = RepeatPlace(tree, environment, acceptance)
        known = self._before if before is None else before
        told = [await self._classify_check(check, place, earlier, known.get(check.name)) for check in checks]
        whole = functools.reduce(Classified.joined, told, Classified())
        return replace(whole, findings=(*whole.findings, *map(self._judge_flaky, whole.flaky)))

    async def _classify_check(
        self, check: CheckResult, place: RepeatPlace, earlier: Verdict | None, before: CheckFailures | None
    ) -> Classified:
        if earlier is not None and check.status == "passed":
            changed = self.compare_with_earlier(earlier, (check,))
            return Classified(flaky=(*changed, *_flaky_of(earlier, check)))
        failures = load_failures(self._store, check)
        if failures is None:
            return Classified()
        carried = {each.test: each for each in (_flaky_of(earlier, check) if earlier is not None else ())}
        remembered = self._find_remembered(check.name)
        compared = self._compare(check, before, failures, {*remembered, *carried})
        found = tuple[FlakyTest, ...]()
        if not compared.told or compared.new:
            if earlier is not None and _passed_in(earlier, check):
                found = await self._look_at_base(check, self.compare_with_earlier(earlier, (check,)))
            else:
                found = await self._find_flaky(check, compared, place)
        excused = "" in {each.test for each in found} or not set(compared.new) - {each.test for each in found}
        findings = list[Finding]()
        if excused and not compared.told and not found:
            # The failure may be new: without evidence that it is known, it counts as new.
            excused = self._policy.accepted
            findings += [_describe_untold(check)] if excused else _find_blocked(check, failures, before)
        again = [name for name in compared.known if name in remembered or name in carried]
        still = await self._repeat_remembered(check, [name for name in again if name not in carried], place)
        old = [name for name in compared.known if before is not None and name in _units(before)]
        old = [name for name in old if name not in again]
        return Classified(
            excused=frozenset((check.name,) if excused else ()),
            known=(_count_known(check, compared, old),) if old else (),
            flaky=(*found, *still, *(carried[name] for name in again if name in carried)),
            findings=(*findings, *(self._judge_known(check, compared, old, found) if old else ())),
        )

    async def _repeat_remembered(
        self, check: CheckResult, tests: Sequence[str], place: RepeatPlace
    ) -> tuple[FlakyTest, ...]:
        """Repeat known flaky tests that failed: a change may have broken one permanently."""
        if not tests or not _may_be_flaky(check):
            return tuple(_flaky_again(check, test) for test in tests)
        repeated = await self._repeat(check, [each for each in tests if each], place)
        passed = describe_flaky(check, repeated, failed_first=True)
        names = {each.test for each in passed}
        broken = (
            replace(_flaky_again(check, test), runs=1 + runs, failures=1 + runs, on_base=False)
            for test, runs in repeated.runs.items()
            if test not in names
        )
        return (*(replace(each, on_base=True) for each in passed), *broken)

    def _compare(
        self,
        check: CheckResult,
        before: CheckFailures | None,
        failures: CheckFailures,
        remembered: Collection[str],
    ) -> Comparison:
        unnamed = failures.tests is None
        if unnamed and ("" in remembered or (self._policy.leaves_out and before is not None)):
            return Comparison(named=False, known=_units(failures) if before is not None else ("",))
        compared = compare_failures(before, failures, excused=remembered)
        # A run without tests shows nothing about the tree, however similar the failures are. Neither does a run
        # that stopped at the first failure.
        silent = not check.tests or failures.stopped
        if counts_tests(check.name) and silent and not compared.new and not set(compared.known) <= {*remembered}:
            return Comparison(named=compared.named, told=False)
        return compared

    async def _find_flaky(
        self, check: CheckResult, compared: Comparison, place: RepeatPlace
    ) -> tuple[FlakyTest, ...]:
        """Return which of a check's new failures pass when they are repeated on the same tree."""
        tests = compared.new if compared.named else ()
        if not _may_be_flaky(check) or len(tests) > MOST_REPEATED or (compared.named and not tests):
            return ()
        repeated = await self._repeat(check, tests, place)
        return await self._look_at_base(check, describe_flaky(check, repeated, failed_first=True))

    def new_failures(self, check: CheckResult, told: Classified, before: CheckFailures | None) -> tuple[str, ...]:
        """Return the names of the tests of a check that failed, did not fail `before`, and are not flaky."""
        failures = load_failures(self._store, check)
        if failures is None or failures.tests is None:
            return ()
        remembered = self._find_remembered(check.name)
        flaky = {each.test for each in told.flaky if each.check == check.name}
        new = compare_failures(before, failures, excused=remembered).new
        return tuple(name for name in new if name not in flaky)

    async def _look_at_base(self, check: CheckResult, found: tuple[FlakyTest, ...]) -> tuple[FlakyTest, ...]:
        """Return flaky tests of a tree, marked and remembered if the base's version has two results too."""
        if not found or check.name not in self._passed:
            return found
        tests = [each.test for each in found if each.test]
        ran = self._ran.get(check.name)
        if ran is not None and select_tests(check.name, tests) is not None:
            # A test that the base lacks cannot be flaky there, and would make its runner run all others.
            tests = [test for test in tests if test in ran]
            if not tests:
                return found
        place = RepeatPlace(self._runs.base.tree, self._runs.environment)
        on_base = await self._repeat(check, tests, place, most=RUNS_ON_BASE, until_both=True)
        # On the base each of them passed with the whole check.
        there = describe_flaky(check, on_base, failed_first=False)
        self._store.flaky.add(self._project, (replace(each, on_base=True) for each in there))
        names = {each.test for each in there}
        return tuple(replace(each, on_base=each.test in names) for each in found)

    async def repeat_new_tests(
        self,
        check: CheckResult,
        tests: Sequence[str],
        *,
        tree: str,
        environment: BaseEnvironment,
        acceptance: Sequence[tuple[str, str]],
    ) -> Classified:
        """Run new or changed tests that passed a few more times on the same tree; the caller holds a slot."""
        if not 0 < len(tests) <= MOST_REPEATED or select_tests(check.name, tests) is None:
            return Classified()
        place = RepeatPlace(tree, environment, acceptance)
        repeated = await repeat_tests(
            self._runs, check, tests, place, most=_RUNS_OF_NEW_TESTS - 1, until_both=True
        )
        found = describe_flaky(check, repeated, failed_first=False)
        return Classified(flaky=found, findings=tuple(map(self._judge_flaky, found)))

    async def _repeat(
        self,
        check: CheckResult,
        tests: Sequence[str],
        place: RepeatPlace,
        *,
        most: int = RUNS_ALONE,
        until_both: bool = False,
    ) -> RepeatedTests:
        async with self._runs.queue.turn("checks"):
            return await repeat_tests(self._runs, check, tests, place, most=most, until_both=until_both)

    def compare_with_earlier(self, earlier: Verdict, checks: Sequence[CheckResult]) -> tuple[FlakyTest, ...]:
        """Return the tests of checks that passed on a tree in one of two verdicts and failed in the other."""
        before, found = {check.name: check for check in earlier.checks}, list[FlakyTest]()
        for check in checks:
            known = before.get(check.name)
            if known is None or (known.status == "passed") == (check.status == "passed"):
                continue
            failures = load_failures(self._store, check if check.status != "passed" else known)
            names = (failures.tests if failures is not None else None) or ("",)
            remembered = self._find_remembered(check.name)
            evidence = tuple(each.artifact for each in (known, check) if each.artifact)
            found += [
                FlakyTest(
                    check=check.name, test=name, runs=2, failures=1, on_base=name in remembered, evidence=evidence
                )
                for name in names[:MOST_REPEATED]
            ]
        return tuple(found)

    # --- findings

    def _judge_known(
        self, check: CheckResult, compared: Comparison, old: Sequence[str], flaky: Sequence[FlakyTest]
    ) -> list[Finding]:
        findings, rest = list[Finding](), list(old)
        new = [name for name in compared.new if name not in {each.test for each in flaky}]
        if new:  # named, since the check's output shows the old failures too
            message = f"{_name_failures(check, compared, new)} and not on the base; {len(old)} as on the base"
            return [_finding("new_failures", "error", message)]
        if self._policy.strict:
            message = f"{_name_failures(check, compared, old)} as on the base, and fixing that is the request"
            return [_finding("still_failing", "error", message)]
        if compared.named:
            aims = [name for name in old if own_name(check.name, name) in self._policy.aims]
            if aims:
                message = f"{_name_failures(check, compared, aims)} as on the base, and the request names it"
                findings.append(_finding("still_failing", "error", message))
            rest = [name for name in old if name not in aims]
        if rest:
            message = f"{_name_failures(check, compared, rest)} as on the base, 0 new"
            accepted = self._policy.accepted
            severity: Severity = "info" if accepted else "warning"
            findings.append(_finding("known_failures", severity, message, asks=not accepted))
        return findings

    def _judge_flaky(self, flaky: FlakyTest) -> Finding:
        what = f"{printable(flaky.check)}: {printable(flaky.test)}" if flaky.test else printable(flaky.check)
        message = f"{what} failed in {flaky.failures} of {flaky.runs} runs of this same tree"
        if flaky.on_base:
            message += ", and is known to be flaky without the change"
        elif flaky.failures == flaky.runs:
            message += "; without the change it passes now and then"
        match self._policy.flaky:
            case "refuse" if not flaky.on_base:
                return _finding("flaky_test", "error", message)
            case "ask" if not flaky.on_base:
                return _finding("flaky_test", "warning", message, asks=True)
            case _:
                return _finding("flaky_test", "info", message)


def load_failures(store: Store, check: CheckResult) -> CheckFailures | None:
    """Return a check's failures, `None` if it passed or the record is damaged or missing."""
    if check.failed is None:
        return None
    try:
        return decode_as(store.artifacts.get(check.failed), CheckFailures)
    except (NotFoundError, StoreError, ValueError):
        return None


def _units(failures: CheckFailures) -> tuple[str, ...]:
    return failures.tests if failures.tests is not None else failures.lines or ()


def _may_be_flaky(check: CheckResult) -> bool:
    # A timeout is not repeated, and tests that cannot be loaded fail every time.
    return check.status == "failed" and check.reason not in ("collection_error", "no_tests_ran")


def _flaky_of(verdict: Verdict, check: CheckResult) -> tuple[FlakyTest, ...]:
    return tuple(each for each in verdict.flaky if each.check == check.name)


def _passed_in(verdict: Verdict, check: CheckResult) -> bool:
    return any(each.name == check.name and each.status == "passed" for each in verdict.checks)


def _flaky_again(check: CheckResult, test: str) -> FlakyTest:
    """Return a known flaky test that failed in this run."""
    evidence = (check.artifact,) if check.artifact else ()
    return FlakyTest(check=check.name, test=test, runs=1, failures=1, on_base=True, evidence=evidence)


def _count_known(check: CheckResult, compared: Comparison, old: Sequence[str]) -> KnownFailures:
    return KnownFailures(
        check=check.name, count=len(old), tests=tuple(old[:_KEPT_NAMES]) if compared.named else ()
    )


def _name_failures(check: CheckResult, compared: Comparison, names: Sequence[str]) -> str:
    count = len(names)
    if not compared.named:
        return f"{printable(check.name)} fails with the same {count} error line{'s' if count != 1 else ''}"
    shown = ", ".join(map(printable, names[:_SHOWN])) + (f" and {count - _SHOWN} more" if count > _SHOWN else "")
    return f"{printable(check.name)}: {count} test{'s fail' if count != 1 else ' fails'} ({shown})"


def _describe_untold(check: CheckResult) -> Finding:
    message = (
        f"{printable(check.name)} fails on the base too, and its output does not show whether a failure is new"
    )
    return _finding("failures_untold", "warning", message, asks=True)


def _find_blocked(check: CheckResult, failures: CheckFailures, before: CheckFailures | None) -> list[Finding]:
    """Return an error if no test of a check could run, on the tree or on the base: no other change helps then."""
    if before is None or before.reason != failures.reason or check.tests or check.reason not in _UNLOADED:
        return []
    message = f"{printable(check.name)}: no test could run on the base either, perhaps for lack of packages"
    return [_finding("checks_blocked", "error", message)]


def _finding(rule: str, severity: Severity, message: str, *, asks: bool = False) -> Finding:
    return Finding(rule=rule, severity=severity, path=".", message=message, needs_person=asks)
