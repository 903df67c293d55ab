"""Runs a plan's commands in a sandbox that was opened for this alone."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chargehand.checks._commands import runner_of
from chargehand.checks._junit import MAX_REPORT, FailingTest, ReportError, TestCounts, read_junit
from chargehand.checks._outcomes import outcome_of
from chargehand.checks._output import HeadTail, shown_tail
from chargehand.checks._plan import CheckPlan
from chargehand.core.ports import ArtifactSink
from chargehand.core.records import CheckResult
from chargehand.core.text import printable
from chargehand.sandbox.contract import Sandbox

_READ_SECONDS = 60.0
_REPORT = "/tmp/chargehand-report-"
_EXPLICIT_REPORT = re.compile(r"--junit-?xml[= ]+['\"]?([^\s'\";&|]+)")
_OWN_OPTIONS = re.compile(r"\bPYTEST_ADDOPTS=")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutput:
    """What a check had to say: the end of its output, safe to show, and the tests that did not pass."""

    tail: str
    failing: tuple[FailingTest, ...] = ()


OnResult = Callable[[CheckResult, CheckOutput], None]


async def run_checks(
    plan: CheckPlan,
    sandbox: Sandbox,
    *,
    keep: ArtifactSink,
    mission: str | None,
    on_result: OnResult | None = None,
) -> tuple[CheckResult, ...]:
    """Run each command to its end or its limit, all of them, and return how each ended, in order.

    The sandbox must be new, on a new workspace of the exact tree; it stays open. Commands are run by `bash`
    with `-e` and `pipefail` (by `sh -e` where there is none), so that no failing part is lost. A timeout, a
    missing command, no test run, a report that cannot be read: none of them passes. `on_result` is told each
    result as it comes. Raises `SandboxDiedError` when the sandbox ends, which says nothing about the tree.
    """
    shell = await _shell(sandbox)
    results = []
    for command in plan.commands:
        result, output = await _run_one(command, plan, sandbox, shell=shell, keep=keep, mission=mission)
        results.append(result)
        if on_result is not None:
            on_result(result, output)
    return tuple(results)


async def _shell(sandbox: Sandbox) -> tuple[str, ...]:
    probe = await sandbox.exec(["bash", "-c", ":"], timeout=_READ_SECONDS)
    return ("bash", "-eo", "pipefail", "-c") if probe.exit_code == 0 else ("sh", "-e", "-c")


async def _run_one(
    command: str,
    plan: CheckPlan,
    sandbox: Sandbox,
    *,
    shell: Sequence[str],
    keep: ArtifactSink,
    mission: str | None,
) -> tuple[CheckResult, CheckOutput]:
    runner, collected = runner_of(command), HeadTail()
    script, report_path = _with_report(command) if runner == "pytest" else (command, None)
    result = await sandbox.exec([*shell, script], timeout=plan.seconds_each, on_output=collected.add)
    report = None if report_path is None else await _read_report(sandbox, report_path)
    content = collected.content()
    outcome = outcome_of(runner, result, printable(content.decode("utf-8", "replace")), report)
    check = CheckResult(
        name=command,
        status=outcome.status,
        seconds=result.seconds,
        exit_code=result.exit_code,
        tests=outcome.tests,
        reason=outcome.reason,
        artifact=keep.put(content, kind="check-output", mission=mission),
    )
    return check, CheckOutput(tail=shown_tail(content), failing=report.failing if report else ())


def _with_report(command: str) -> tuple[str, str]:
    """Make pytest write a report without changing what it runs, and return where the report will be.

    The path is new for every run, so that nothing that lay there before can be taken for this run's report.
    """
    explicit = _EXPLICIT_REPORT.findall(command)
    if explicit:
        return f"rm -f -- {shlex.quote(explicit[-1])}\n{command}", explicit[-1]
    path = f"{_REPORT}{secrets.token_hex(8)}.xml"
    option = f"--junitxml={path}"
    # An assignment in the command itself would hide ours: put the option in front of its value.
    inline = _OWN_OPTIONS.sub(f"PYTEST_ADDOPTS='{option} '", command)
    return f'export PYTEST_ADDOPTS="${{PYTEST_ADDOPTS:+$PYTEST_ADDOPTS }}{option}"\n{inline}', path


async def _read_report(sandbox: Sandbox, path: str) -> TestCounts | None:
    argv = ["head", "-c", str(MAX_REPORT + 1), "--", path]
    result = await sandbox.exec(argv, timeout=_READ_SECONDS, output_limit=MAX_REPORT + 2)
    if path.startswith(_REPORT):
        await sandbox.exec(["rm", "-f", "--", path], timeout=_READ_SECONDS)
    if result.exit_code != 0 or result.truncated:
        return None
    try:
        return read_junit(result.stdout)
    except ReportError:
        return None
