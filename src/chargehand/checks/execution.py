"""Runs a plan's checks in a sandbox, and reports their results: to the verdict, and to the next attempt."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from chargehand.checks._build_reports import BuildReports
from chargehand.checks._output import HeadTail, shown_tail
from chargehand.checks.failures import CheckFailures, describe_failures
from chargehand.checks.junit import MAX_REPORT, FailingTest, ReportError, TestCounts, read_junit
from chargehand.checks.ran_tests import count_in_output, names_in_reports
from chargehand.checks.reads import ReadObserver
from chargehand.checks.runners.base import CheckScript
from chargehand.checks.runners.table import runner_of
from chargehand.core.ports import ArtifactSink
from chargehand.core.records import (
    CheckResult,
    CheckStatus,
    Finding,
    Reverted,
    Verdict,
    VerdictScope,
    VerdictStatus,
)
from chargehand.core.text import printable, shown_path
from chargehand.sandbox.contract import WORKSPACE, OnOutput, Sandbox

# Raise it when the same commands would be judged differently: stored verdicts are then not reused.
_VERSION = 6
SCHEMA = 1
_READ_SECONDS = 60.0


class CheckPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Commands that must all pass, each a line for the shell with `seconds_each` to run.

    `acceptance` are the files that a person mounts only for the checks, as (path, hex SHA-256 of the content). The
    sandbox starts them in `directory`, to which paths in their reports are relative.
    """

    commands: tuple[str, ...]
    seconds_each: float = 900.0
    acceptance: tuple[tuple[str, str], ...] = ()
    directory: str = ""

    def digest(self) -> str:
        """Return a hex SHA-256 that is equal for plans that judge a tree alike."""
        parts = [_VERSION, list(self.commands), float(self.seconds_each), sorted(map(list, self.acceptance))]
        parts += [self.directory] if self.directory else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def judge(
    checks: Sequence[CheckResult],
    findings: Sequence[Finding],
    *,
    explicit_none: bool,
    degraded: bool = False,
    judged: bool = True,
    at_home: bool = True,
    excused: Collection[str] = (),
    known: bool = False,
) -> VerdictStatus:
    """Return the verdict status for check results and findings.

    Any error or critical finding and any check that did not pass is red, except for checks in `excused`: each of
    their failures is on the base too (`known`, the verdict is then `no_worse`) or is flaky. A check with the
    base's tests never makes a tree red: it only yields findings. With no check at all the verdict is `missing`,
    unless a person wanted no checks (`explicit_none`). It is also `missing` if the checks passed but opened
    nothing of the change (not `judged`, see `CodeReads`), and if they ran in an environment other than the tree's
    (not `at_home`): there neither a failure nor a success counts. Findings that need a person do not make a
    verdict red. A verdict that is not red is `degraded` if inspection did not see all of the tree.
    """
    if any(found.severity in {"error", "critical"} for found in findings):
        return "red"
    if not at_home:
        return "missing"
    own = [result for result in checks if not result.base_tests]
    if any(result.status != "passed" and result.name not in excused for result in own):
        return "red"
    if degraded:
        return "degraded"
    if not checks:
        return "green" if explicit_none else "missing"
    if not judged:
        return "missing"
    return "no_worse" if known else "green"


class CheckOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A check's output: its end, safe to show, and the tests that did not pass.

    `ran` names the tests that ran, `failures` the check's failures; both are `None` if unknown or absent.
    """

    tail: str
    failing: tuple[FailingTest, ...] = ()
    ran: tuple[str, ...] | None = None
    failures: CheckFailures | None = None


_NO_OUTPUT = CheckOutput(tail="")
OnResult = Callable[[CheckResult, CheckOutput], None]


async def run_checks(
    plan: CheckPlan,
    sandbox: Sandbox,
    *,
    keep: ArtifactSink,
    mission: str | None,
    on_result: OnResult | None = None,
    reads: ReadObserver | None = None,
    on_output: OnOutput | None = None,
) -> tuple[CheckResult, ...]:
    """Run each command until it ends or reaches its limit; return the results in order.

    The sandbox must be new, on a new workspace of the exact tree; it stays open. Commands are run by `bash` with
    `-e` and `pipefail` (by `sh -e` without bash), so that no failing part is lost. A timeout, a missing command, a
    run without tests, an unreadable report: all of them fail. `on_result` gets each result as it comes, `reads`
    the files that each check opened, `on_output` the commands and their output. Raises `SandboxDiedError` when the
    sandbox ends, which says nothing about the tree.
    """
    probe = await sandbox.exec(["bash", "-c", ":"], timeout=_READ_SECONDS)
    shell = ("bash", "-eo", "pipefail", "-c") if probe.exit_code == 0 else ("sh", "-e", "-c")
    results = []
    if reads is not None:
        await reads.begin(sandbox)
    for command in plan.commands:
        collected = HeadTail(also=on_output)
        if on_output is not None:
            on_output("stdout", f"$ {command}\n".encode())
        result, output = await _run_command(command, plan, sandbox, shell, collected, keep=keep, mission=mission)
        if reads is not None:
            await reads.note_check(sandbox)
        results.append(result)
        if on_result is not None:
            on_result(result, output)
    return tuple(results)


async def _run_command(
    command: str,
    plan: CheckPlan,
    sandbox: Sandbox,
    shell: Sequence[str],
    collected: HeadTail,
    *,
    keep: ArtifactSink,
    mission: str | None,
) -> tuple[CheckResult, CheckOutput]:
    runner = runner_of(command)
    script = runner.script(command)
    reports = None if runner.is_known else await BuildReports.begin(sandbox, timeout=_READ_SECONDS)
    ended = await sandbox.exec([*shell, script.text], timeout=plan.seconds_each, on_output=collected.add)
    counts = await _read_report(sandbox, script)
    content = collected.content()
    text = printable(content.decode("utf-8", "replace"))
    outcome = runner.outcome(ended, text, counts)
    names, failed = counts.names if counts else runner.names(text), runner.failing_names(text, counts)
    if collected.cut and counts is None:  # names in truncated output are incomplete
        names = failed = None
    if reports is not None and names is None:
        names, failed = names_in_reports(await reports.collect())
    elif reports is not None:
        await reports.discard()
    tests = outcome.tests
    if not runner.is_known:
        counted = count_in_output(text)
        tests = len(names) if counted is None and names is not None else counted
    failures = None
    if outcome.status != "passed":
        failures = describe_failures(command, outcome.reason, text, failed, cut=collected.cut)
    ran = None if names is None else tuple(sorted(names))

    def put(value: object, kind: str) -> str | None:
        return None if value is None else keep.put(msgspec.json.encode(value), kind=kind, mission=mission)

    result = CheckResult(
        name=command,
        status=outcome.status,
        seconds=ended.seconds,
        exit_code=ended.exit_code,
        tests=tests,
        reason=outcome.reason,
        artifact=keep.put(content, kind="check-output", mission=mission),
        ran=put(ran, "tests-ran"),
        failed=put(failures, "tests-failed"),
    )
    failing = tuple(_place_failure(test, plan.directory) for test in counts.failing) if counts else ()
    return result, CheckOutput(tail=shown_tail(content), failing=failing, ran=ran, failures=failures)


def _place_failure(test: FailingTest, directory: str) -> FailingTest:
    """Return a failing test with its file as a path of the repository, not of the runner's directory."""
    if test.file is None:
        return test
    file = posixpath.normpath(posixpath.join(WORKSPACE, directory, test.file))
    return replace(test, file=file.removeprefix(f"{WORKSPACE}/"))


async def _read_report(sandbox: Sandbox, script: CheckScript) -> TestCounts | None:
    if script.report is None:
        return None
    argv = ["head", "-c", str(MAX_REPORT + 1), "--", script.report]
    result = await sandbox.exec(argv, timeout=_READ_SECONDS, output_limit=MAX_REPORT + 2)
    if not script.keeps_report:
        await sandbox.exec(["rm", "-f", "--", script.report], timeout=_READ_SECONDS)
    if result.exit_code != 0 or result.truncated:
        return None
    try:
        return read_junit(result.stdout)
    except ReportError:
        return None


class FailingCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A check that did not pass, with the end of its output and the failing tests its runner named."""

    name: str
    status: CheckStatus
    reason: str
    exit_code: int | None
    seconds: float
    tests: int | None
    output: str
    failing_tests: tuple[FailingTest, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The things to fix: failing checks, findings, and reverted changes. Every text is safe to show."""

    schema: int
    tree: str
    scope: VerdictScope
    status: VerdictStatus
    passed: tuple[str, ...]
    failing: tuple[FailingCheck, ...]
    findings: tuple[Finding, ...]
    reverted: tuple[Reverted, ...]

    def encode(self) -> bytes:
        """Return the report as one JSON document."""
        return msgspec.json.encode(self)


def report(verdict: Verdict, outputs: Mapping[str, CheckOutput], *, reverted: Sequence[Reverted] = ()) -> Report:
    """Return the report for a verdict; `outputs` is by check name, a missing output counts as empty."""
    failing = [(c, outputs.get(c.name, _NO_OUTPUT)) for c in verdict.checks if c.status != "passed"]
    # Next to the tree's own failures, those of the base would only mislead the next attempt.
    known = (
        {test for each in verdict.known for test in each.tests} if verdict.status == "red" else frozenset[str]()
    )
    return Report(
        schema=SCHEMA,
        tree=verdict.tree,
        scope=verdict.scope,
        status=verdict.status,
        passed=tuple(check.name for check in verdict.checks if check.status == "passed"),
        failing=tuple(
            FailingCheck(
                name=check.name,
                status=check.status,
                reason=check.reason,
                exit_code=check.exit_code,
                seconds=check.seconds,
                tests=check.tests,
                output=output.tail,
                failing_tests=tuple(test for test in output.failing if test.name not in known),
            )
            for check, output in failing
        ),
        findings=tuple(
            replace(found, path=shown_path(found.path), message=printable(found.message))
            for found in verdict.findings
        ),
        reverted=tuple(replace(item, path=shown_path(item.path)) for item in reverted),
    )
