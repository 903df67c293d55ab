"""The base's tests over a candidate: whether earlier assertions still hold.

A failure here never makes a tree red by itself. The request may be to change an assertion, so each test that
passed in the tree's own run and fails in the base's version is named, and a person decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from chargehand.checks.areas import Areas
from chargehand.checks.execution import CheckOutput
from chargehand.checks.failures import failed_without_a_test
from chargehand.checks.inspection import base_tests_tree_plan
from chargehand.checks.soft_tests import restore_inner_tests, support_in
from chargehand.core.errors import ChargehandError
from chargehand.core.records import Change, CheckResult, Finding
from chargehand.core.text import printable
from chargehand.missions.sandboxes.environment import CandidateLayers
from chargehand.missions.sandboxes.packages import installed_modules
from chargehand.missions.sandboxes.provisioning import BaseEnvironment
from chargehand.missions.services import DepotReader
from chargehand.missions.verdict.check_runs import CheckRuns
from chargehand.missions.verdict.classification import FailureClassifier, load_failures
from chargehand.missions.verdict.judgement import BASE_TESTS, NO_TESTS

NO_NEW_FAILURE = "no_new_failure"
_SHOWN = 5
# Reasons without a failing test, for which the tests cannot be compared.
_UNCOMPARED = ("collection_error", "no_report", "usage_error")


async def lay_base_tests(
    runs: CheckRuns, tree: str, changes: Sequence[Change], inner: Mapping[str, str]
) -> str | None:
    """Return the tree with the base's tests and check surface put back over it, `None` if it has them.

    `inner` has the base's text of code with tests inside, and of files that only tests use.
    """
    depot, gates = runs.services.depot, runs.gates
    areas = Areas(
        commands=gates.plan.commands,
        directory=gates.plan.directory,
        installed=installed_modules(runs.environment.layer),
        acceptance=tuple(path for _, path in gates.acceptance),
    )
    reader = DepotReader(depot)
    overrides = base_tests_tree_plan(changes, reader, runs.base.tree, areas, support=support_in(inner))
    contents = restore_inner_tests({path: inner[path] for path in inner.keys() - overrides}, reader, tree)
    if not overrides and not contents:
        return None
    mixed = await asyncio.to_thread(depot.replace_paths, tree, tuple(overrides), runs.base.tree, contents=contents)
    return None if mixed == tree else mixed


class SideRun(NamedTuple):
    """A run of the base's tests next to the tree's own; it starts once `begun` is set, if a place is free."""

    begun: asyncio.Event
    outputs: dict[str, CheckOutput]
    task: asyncio.Task[tuple[CheckResult, ...]]

    async def results(self) -> tuple[CheckResult, ...]:
        """Return the results; empty if the run did not start or failed, so that it must be repeated."""
        if not self.begun.is_set():
            return ()
        with contextlib.suppress(ChargehandError, OSError):
            return await self.task
        return ()


@contextlib.asynccontextmanager
async def run_beside(runs: CheckRuns, mixed: str | None, environment: BaseEnvironment) -> AsyncIterator[SideRun]:
    """Run the checks with the base's tests next to the tree's own run, for the block; `None` runs nothing."""
    begun, outputs = asyncio.Event(), dict[str, CheckOutput]()

    async def work() -> tuple[CheckResult, ...]:
        await begun.wait()
        if mixed is None:
            return ()
        acceptance, plan = runs.gates.acceptance, runs.gates.on_base
        return await runs.run(mixed, environment, acceptance=acceptance, plan=plan, ahead=outputs)

    task = asyncio.create_task(work())
    try:
        yield SideRun(begun, outputs, task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def check_with_base_tests(
    runs: CheckRuns,
    mixed: str,
    beside: SideRun,
    own: Sequence[CheckResult],
    layers: CandidateLayers,
    classifier: FailureClassifier,
    untested: frozenset[str],
) -> tuple[tuple[CheckResult, ...], tuple[Finding, ...]]:
    """Run the checks on a tree with the base's tests over it; return their results, and findings for a person.

    A weakened test, or a configuration that selects fewer tests, lets the tree's own run (`own`) pass but not this
    one. Checks in `untested` have no test on the base: a project's first tests may land.
    """
    environment, acceptance = await layers.environment(mixed), runs.gates.acceptance
    outputs = beside.outputs
    checks = await beside.results()
    if not checks:
        shown = dict(runs.outputs)
        checks = await runs.run(mixed, environment, acceptance=acceptance, plan=runs.gates.on_base)
        outputs = {check.name: runs.outputs[check.name] for check in checks}
        runs.outputs.update(shown)
    # Both runs give their checks the same names.
    runs.outputs.update({f"{BASE_TESTS}{check.name}": outputs[check.name] for check in checks})
    # Not with the base: a test that fails there and passes on the tree may pass only because the test was changed.
    before = {check.name: load_failures(runs.services.store, check) for check in own}
    before_known = {name: found for name, found in before.items() if found is not None}
    checks = tuple(check for check in checks if not (check.reason == NO_TESTS and check.name in untested))
    # The run compares tests. A gate over the whole suite, such as a coverage threshold, counts in the tree's own
    # run.
    checks = tuple(
        replace(check, status="passed", reason=NO_NEW_FAILURE, failed=None)
        if (failures := outputs[check.name].failures) is not None and failed_without_a_test(check, failures)
        else check
        for check in checks
    )
    told = await classifier.classify(
        checks, tree=mixed, environment=environment, acceptance=acceptance, before=before_known
    )
    findings = tuple(
        _describe(check, classifier.new_failures(check, told, before[check.name]))
        for check in checks
        if check.status != "passed" and check.name not in told.excused
    )
    checks = tuple(
        replace(check, status="passed", reason=NO_NEW_FAILURE) if check.name in told.excused else check
        for check in checks
    )
    renamed = (replace(check, name=f"{BASE_TESTS}{check.name}", base_tests=True) for check in checks)
    return tuple(renamed), findings


def _describe(check: CheckResult, tests: Sequence[str]) -> Finding:
    if tests:
        more = f" and {len(tests) - _SHOWN} more" if len(tests) > _SHOWN else ""
        what = f"{len(tests)} of the base's tests fail: {', '.join(map(printable, tests[:_SHOWN]))}{more}"
    elif check.reason in _UNCOMPARED:
        what = "the base's tests cannot be loaded, for example because they import removed code"
    else:
        what = f"it fails with the base's tests ({check.reason or check.status})"
    return Finding(
        rule="base_tests_fail",
        severity="warning",
        path=".",
        message=f"{printable(check.name)}: with the changed code {what}",
        needs_person=True,
    )
