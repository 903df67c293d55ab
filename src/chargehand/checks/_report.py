"""A verdict as a document that the next run of an agent can read without parsing prose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from chargehand.checks._junit import FailingTest
from chargehand.checks._run import CheckOutput
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

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingCheck:
    """A check that did not pass, with the end of its output and the failing tests its runner named."""

    name: str
    status: CheckStatus
    reason: str
    exit_code: int | None
    seconds: float
    tests: int | None
    output: str
    failing_tests: tuple[FailingTest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What to mend: failing checks, findings, and what inspection set back. Every text is safe to show."""

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
    """Return the document for a verdict; `outputs` by check name, where one is missing its text is empty."""
    return Report(
        schema=SCHEMA,
        tree=verdict.tree,
        scope=verdict.scope,
        status=verdict.status,
        passed=tuple(check.name for check in verdict.checks if check.status == "passed"),
        failing=tuple(_failing(c, outputs.get(c.name)) for c in verdict.checks if c.status != "passed"),
        findings=tuple(
            replace(found, path=shown_path(found.path), message=printable(found.message))
            for found in verdict.findings
        ),
        reverted=tuple(replace(item, path=shown_path(item.path)) for item in reverted),
    )


def _failing(check: CheckResult, output: CheckOutput | None) -> FailingCheck:
    return FailingCheck(
        name=check.name,
        status=check.status,
        reason=check.reason,
        exit_code=check.exit_code,
        seconds=check.seconds,
        tests=check.tests,
        output=output.tail if output else "",
        failing_tests=output.failing if output else (),
    )
