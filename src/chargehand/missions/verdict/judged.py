"""What works and judges on a base, and an attempt with the verdict on it."""

from __future__ import annotations

from msgspec import Struct

from chargehand.core.records import Base, Verdict, VerdictScope
from chargehand.missions.attempt.inspection import Inspector
from chargehand.missions.attempt.result import AttemptResult
from chargehand.missions.attempt.runner import AttemptRunner
from chargehand.missions.verdict.judgement import AttemptEnd
from chargehand.missions.verdict.validation import Validator


class BaseContext(Struct, frozen=True, kw_only=True):
    """A base commit with what works on it and what judges there."""

    base: Base
    runner: AttemptRunner
    validator: Validator
    inspector: Inspector


class JudgedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt's result, the verdict on it and how it ends; `report` is an artifact for the next attempt."""

    context: BaseContext
    result: AttemptResult
    verdict: Verdict
    end: AttemptEnd
    report: str | None


async def judge_tree(
    context: BaseContext, tree: str, *, scope: VerdictScope, before: Verdict | None = None
) -> Verdict:
    """Inspect and judge a tree that holds an attempt's changes, judged `before`, or those of an earlier run."""
    validator = context.validator
    changes = validator.services.depot.diff(context.base.tree, tree)
    inspection = await context.inspector.inspect_all(changes)
    # The entry rules' findings are not in the tree any more: they come with the attempt's verdict.
    findings = tuple(dict.fromkeys((*(before.findings if before else ()), *inspection.findings)))
    return await validator.judge_candidate(
        tree, scope=scope, changes=changes, findings=findings, degraded=inspection.degraded
    )
