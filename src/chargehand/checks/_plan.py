"""What is to be run on a tree, with a digest by which a verdict can be reused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from chargehand.core.records import CheckResult, Finding, VerdictStatus

_VERSION = 1
"""Raise when the same commands would be judged differently: kept verdicts are then not reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """Commands that must all pass, each a line for the shell with `seconds_each` to run.

    `acceptance` are the files a person mounts for the checks alone, as (path, hex SHA-256 of the content).
    """

    commands: tuple[str, ...]
    seconds_each: float = 900.0
    acceptance: tuple[tuple[str, str], ...] = ()

    def digest(self) -> str:
        """Return a hex SHA-256 that is equal for plans that judge a tree alike."""
        parts = [_VERSION, list(self.commands), float(self.seconds_each), sorted(map(list, self.acceptance))]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def judge(
    checks: Sequence[CheckResult], findings: Sequence[Finding], *, explicit_none: bool, degraded: bool = False
) -> VerdictStatus:
    """Return what check results and findings come to.

    Any error or critical finding and any check that did not pass is red. With no check at all the verdict is
    `missing`, unless a person said that none is wanted (`explicit_none`). Findings that need a person do not
    make a verdict red: they stand beside it. What is not red is `degraded` where inspection did not see all of
    the tree (`degraded`).
    """
    if any(found.severity in {"error", "critical"} for found in findings):
        return "red"
    if any(result.status != "passed" for result in checks):
        return "red"
    if degraded:
        return "degraded"
    return "green" if checks or explicit_none else "missing"
