"""Judgement of an attempt's result (its candidate): how the attempt ends, and the report for the next attempt.

If the mission is to be applied to a branch, a good candidate is also rebased onto that branch and judged there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.roles import Role
from chargehand.checks.execution import report
from chargehand.core.choices import Candidate, GreenChange
from chargehand.core.codec import convert_to
from chargehand.core.mission_events import VerdictGiven
from chargehand.core.records import MissionRequest, Reason, Verdict, VerdictStatus
from chargehand.missions._messages import store_report_message
from chargehand.missions.attempt.result import AttemptResult
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.rebase import advance_base, conflict_reason, conflict_report, record_rebase
from chargehand.missions.results.tree_judge import BaseContext, TreeJudge
from chargehand.missions.services import Services
from chargehand.missions.verdict.judgement import (
    AttemptEnd,
    find_missing_record,
    find_missing_report,
    judge_failing_test,
    judge_result,
    judge_verdict,
    require_failing_test,
    retry_known_failures,
)
from chargehand.missions.verdict.restored import find_rejected, restored_after_work
from chargehand.workspace.remotes import moved_base


class JudgedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt's result, the verdict on it and its end; `report` is an artifact for the next attempt.

    `restored` means that the result is a tree that a person made from it afterwards.
    """

    context: BaseContext
    result: AttemptResult
    verdict: Verdict
    end: AttemptEnd
    report: str | None
    restored: bool = False


class CandidateJudge:
    """Judges the result of each attempt of one mission, by what its agent's `role` requires."""

    def __init__(
        self, services: Services, journal: Journal, control: Control, judge: TreeJudge, *, role: Role
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._judge = judge
        self._role = role

    async def judge(
        self, request: MissionRequest, result: AttemptResult, context: BaseContext, number: int
    ) -> JudgedAttempt:
        """Return the attempt with the verdict on its result, its end, and the report for the next attempt."""
        role, base_tree = self._role, context.base.tree
        end = judge_result(result, base_tree=base_tree, partial=request.partial, role=role)
        if end is not None:  # no check could change that
            findings = (*result.findings, *result.discarded, *result.unclear_end)
            if not role.writes and result.outcome.claim == "done":
                findings += find_missing_report(result, role, base_tree)
            status: VerdictStatus = "degraded" if result.degraded else "red"
            verdict = Verdict(tree=result.tree, scope="attempt", status=status, findings=findings)
            stored = self._store_report(verdict, result, context, number)
            return JudgedAttempt(context=context, result=result, verdict=verdict, end=end, report=stored)

        async def judge() -> Verdict:
            validator = context.validator
            findings = (
                *result.findings,
                *result.unclear_end,
                *find_missing_record(role, self._services.depot, result.changes),
                *find_rejected(self._services.depot, self._journal.state, base_tree, result.tree),
            )
            verdict = await validator.judge_candidate(
                result.tree, scope="attempt", changes=result.changes, findings=findings
            )
            if role.must_add == "failing_test":
                on_base = await validator.judge_base()
                verdict = require_failing_test(verdict, on_base, validator.outputs, result.changes)
            return self._weigh_risk(verdict, request, result, context, number)

        judged = await self._record_verdict(f"attempt/{number}/verdict", judge, result, context, number)
        self._judge.fault("verdict")
        if number < request.attempts and request.red_base == "later":
            judged = replace(judged, end=retry_known_failures(judged.verdict) or judged.end)
        waits = judge_failing_test(judged.verdict) if role.must_add == "failing_test" else None
        return replace(judged, end=waits) if waits is not None else judged

    def _weigh_risk(
        self, verdict: Verdict, request: MissionRequest, result: AttemptResult, context: BaseContext, number: int
    ) -> Verdict:
        """Return a good verdict with the finding that a person has to review the change, if so."""
        review = self._services.decider.review
        if review is None or not verdict.is_good or verdict.needs_person or not self._role.writes:
            return verdict
        counts = self._services.depot.numstat(context.base.tree, result.tree)
        change = GreenChange(
            author=Candidate(agent=request.agent, model=request.model),
            changed_lines=sum((each.added or 0) + (each.removed or 0) for each in counts),
            areas=len({each.path.partition("/")[0] for each in result.changes}),
            attempts=number,
            unread_files=None if verdict.unread is None else len(verdict.unread),
        )
        found = review(change)
        return verdict if found is None else replace(verdict, findings=(*verdict.findings, found))

    async def heed_person(self, request: MissionRequest, judged: JudgedAttempt, number: int) -> JudgedAttempt:
        """Return the attempt with a tree that a person has made from its result since, with its own verdict.

        That tree was restored, merged or rebased while the mission was paused, or after it ended.
        """
        restored = restored_after_work(self._journal.state, number)
        depot, base = self._services.depot, judged.context.base
        if restored is None:
            return judged
        tree = restored.checkpoint.tree
        stands = self._journal.state.stands.get(restored.checkpoint.commit, base)
        if tree == judged.result.tree and stands.commit == base.commit:
            return judged
        context = judged.context
        if stands.commit != base.commit:
            context = await self._judge.prepare_base(request, stands)
        changes = depot.diff(stands.tree, tree)
        left = {change.path for change in changes}
        # Of the findings in the workspace, only those about the remaining paths.
        findings = tuple(found for found in judged.result.findings if found.path in left)
        result = replace(judged.result, tree=tree, changes=changes, findings=findings)
        judged = replace(judged, context=context, result=result, restored=True)
        end = judge_result(result, base_tree=stands.tree, partial=request.partial, role=self._role)
        if end is not None:
            if tree == stands.tree and end.status == "refused":
                reason = Reason(code="no_change", message="a person took back the whole change")
                end = replace(end, reasons=(reason,))
            return replace(judged, end=end)
        before = replace(judged.verdict, findings=findings)
        judge = partial(self._judge.judge, context, tree, scope="attempt", before=before)
        verdict = await self._record_verdict(f"attempt/{number}/restored", judge, result, context, number)
        return replace(verdict, restored=True)

    async def _record_verdict(
        self,
        step: str,
        judge: Callable[[], Awaitable[Verdict]],
        result: AttemptResult,
        context: BaseContext,
        number: int,
    ) -> JudgedAttempt:
        """Judge as a recorded step, which also stores the report for the next attempt."""
        attempt = self._journal.state.attempt(number)

        async def work() -> object:
            verdict = await judge()
            return {"verdict": verdict, "report": self._store_report(verdict, result, context, number)}

        def events(output: Any) -> tuple[VerdictGiven, ...]:
            return (VerdictGiven(verdict=output["verdict"], attempt=attempt.id if attempt else None),)

        output = await self._journal.step(step, result.tree, work, events=events)
        verdict = convert_to(output["verdict"], Verdict)
        end = judge_verdict(verdict)
        return JudgedAttempt(context=context, result=result, verdict=verdict, end=end, report=output["report"])

    def _store_report(self, verdict: Verdict, result: AttemptResult, context: BaseContext, number: int) -> str:
        document = report(verdict, context.validator.outputs, reverted=result.reverted).encode()
        return store_report_message(self._services.store, self._journal.state, document, number)

    async def rebase(self, request: MissionRequest, judged: JudgedAttempt, number: int) -> JudgedAttempt:
        """Rebase a good result onto its target branch, repeatedly while that branch moves.

        If the two conflict, or fail together, the next attempt starts from there. If there is no next attempt, the
        result is unchanged: it is promoted, but not applied.
        """
        steps, depot = self._journal.state.steps, self._services.depot
        # This comes before the promotion, so that the agent has an attempt left to fix a conflict or a red merge.
        # It may be needed several times: a pause or a crash gives up the turn, and people push without one.
        for turn in itertools.count(1):
            name = f"{number}.{turn}" if turn > 1 else f"{number}"
            if turn > 1 and f"merge/{name}" not in steps:
                moved = partial(asyncio.to_thread, moved_base, depot, judged.context.base)
                if await self._control.unpaused(moved) is None:
                    break
            rebased = await self._rebase_once(request, judged, number, name)
            if rebased is judged or (rebased is None and turn > 1):
                break
            judged = rebased or judged
            if judged.end.mission != "promoted":
                break
        return judged

    async def _rebase_once(
        self, request: MissionRequest, judged: JudgedAttempt, number: int, name: str
    ) -> JudgedAttempt | None:
        """Return the result on the current branch; `judged` if it must stay, `None` if nothing moved."""
        journal, services, last = self._journal, self._services, number >= request.attempts
        rebase = await record_rebase(
            *(journal, services, judged.context.base, judged.result.tree),
            step=f"merge/{name}",
            number=number,
        )
        if rebase is None or (rebase.count and last):
            return None if rebase is None else judged
        self._judge.fault("met")
        context = await self._judge.prepare_base(request, rebase.base)
        changes = services.depot.diff(rebase.base.tree, rebase.tree)
        result = replace(judged.result, tree=rebase.tree, changes=changes)
        if rebase.count:
            where = rebase.base.branch or rebase.base.revision
            reason = conflict_reason(rebase.conflicts, branch=where, count=rebase.count)
            stored = store_report_message(services.store, journal.state, conflict_report(rebase), number)
            end = AttemptEnd(status="refused", mission="refused", reasons=(reason,))
            rebased = replace(judged, context=context, result=result, end=end, report=stored)
        else:
            judge = partial(self._judge.judge, context, result.tree, scope="merged", before=judged.verdict)
            rebased = await self._record_verdict(f"merge-verdict/{name}", judge, result, context, number)
            if last and rebased.end.mission == "refused":
                return judged
        # Only now, with the verdict in the log: after a crash before this line, both steps are recalled.
        advance_base(journal, rebase)
        self._judge.fault("moved")
        return rebased
