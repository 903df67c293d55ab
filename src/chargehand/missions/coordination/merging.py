"""The merge queue of a coordinator: one result after the other, each judged as the exact merged tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from chargehand.checks.execution import report
from chargehand.core.events import read_payload
from chargehand.core.mission_events import ApprovalGiven, VerdictGiven
from chargehand.core.plan_events import TaskMerged, TaskReturned
from chargehand.core.plans import Task
from chargehand.core.records import Base, Reason, Verdict
from chargehand.core.state import MissionState
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.promoter import Promoter
from chargehand.missions.promotion.rebase import (
    Rebase,
    conflict_event,
    conflict_reason,
    conflict_report,
    rebase_onto,
)
from chargehand.missions.reading import MissionReader, changed_since_promotion, merged_checks
from chargehand.missions.results.tree_judge import BaseContext, TreeJudge
from chargehand.missions.services import Services
from chargehand.missions.verdict.judgement import judge_verdict, person_may_promote
from chargehand.missions.verdict.validation import Validator

# A log line has room for this many paths of this length.
_MOST_PATHS, _LONGEST_PATH = 20, 200
# Polling interval for results that arrive during a judgement: a query of less than a millisecond.
_LOOK_SECONDS = 0.2


class MergeQueue:
    """Merges child missions' promoted results into the coordinator's branch."""

    def __init__(
        self, services: Services, journal: Journal, control: Control, judge: TreeJudge, promoter: Promoter
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._judge = judge
        self._promoter = promoter

    async def merge(
        self, task: Task, child: MissionState, tip: Base, *, find_next: Callable[[], str | None]
    ) -> TaskMerged | TaskReturned:
        """Merge a child's promoted result with `tip`; if the merged tree is not good, return it with the evidence.

        `find_next` returns the mission whose result comes next: its checks run ahead. It may block.
        """
        half = self._journal.state.half_merged
        if half is not None and half.mission == child.id:
            await self._promoter.sign(half.commit)
            return half
        base, tree = child.promoted_on, child.tree
        assert base is not None
        assert tree is not None
        # Trees of the child that a person approved.
        events = map(read_payload, self._services.store.log.read(child.id, types=(ApprovalGiven.type,)))
        approved = frozenset(event.tree for event in events if isinstance(event, ApprovalGiven))
        # Checks that its mission did not run: at most those of tasks merged since.
        request, merged = child.request, merged_checks(self._journal.state)
        unchecked = {*merged} - {*(request.extra_checks if request is not None else ())}
        if (changed := changed_since_promotion(child)) is not None:  # e.g. after a person's partial roll-back
            base, tree = child.stands.get(changed.commit, base), changed.tree
        if base.commit == tip.commit and not unchecked and changed is None:
            verdict = next(each for each in reversed(child.verdicts) if each.tree == tree)
            # The log of the mission that promotes a tree contains its verdict: the coordinator copies the child's.
            self._journal.record(VerdictGiven(verdict=verdict))
            return await self._promote(task, child, tip, verdict, approved=tree in approved)
        rebase = await asyncio.to_thread(
            rebase_onto,
            *(self._services.depot, base, tip, tree),
            mission=self._journal.mission,
            union=self._services.is_union,
        )
        if rebase is None:
            return await self._accept_tip(task, child, tip)
        if rebase.count:
            event = conflict_event(
                self._services.store,
                self._journal.mission,
                rebase.conflicts,
                count=rebase.count,
                branch=None,
                commit=rebase.base.commit,
                tree=tree,
            )
            self._journal.record(event)
            reason = conflict_reason(rebase.conflicts, branch="later merges", count=rebase.count)
            paths = tuple(each.path for each in rebase.conflicts[:_MOST_PATHS] if len(each.path) <= _LONGEST_PATH)
            return self._return(task, child, tip, rebase.tree, reason, conflict_report(rebase), paths=paths)
        meanwhile = partial(self._run_ahead, rebase, find_next)
        verdict, context = await self._judge.judge_again(
            tip, rebase.tree, scope="merged", meanwhile=meanwhile, added=task.checks
        )
        good = person_may_promote(verdict) if tree in approved else judge_verdict(verdict).mission == "promoted"
        if good:
            return await self._promote(task, child, tip, verdict, approved=tree in approved)
        await self._judge.ahead.stop()  # the next result will be merged into another tree
        return self._return_red(task, child, tip, verdict, context)

    async def _accept_tip(self, task: Task, child: MissionState, tip: Base) -> TaskMerged | TaskReturned:
        """Count a task as merged if the branch already contains its whole change and its checks pass there."""
        if {*task.checks} - {*merged_checks(self._journal.state)}:
            verdict, context = await self._judge.judge_again(tip, tip.tree, scope="merged", added=task.checks)
            if not person_may_promote(verdict):  # the branch has it all: no question is left to ask
                return self._return_red(task, child, tip, verdict, context)
        return TaskMerged(task=task.id, mission=child.id, commit=tip.commit, tree=tip.tree)

    async def _run_ahead(self, rebase: Rebase, find_next: Callable[[], str | None], validator: Validator) -> None:
        """Run the checks of the next result ahead, assuming that the current one is merged.

        The next result may arrive while the current one is judged.
        """
        await self._judge.ahead.stop(but=rebase.tree)
        if not self._services.config.engine.checks_ahead:
            return
        news: frozenset[str] | None = None
        while True:
            # One result ahead: more would take check slots from agents, in vain once a result is returned.
            before, news = news, await asyncio.to_thread(self._children_with_news)
            if news != before and (mission := await asyncio.to_thread(find_next)) is not None:
                await self._run_next_ahead(rebase, mission, validator)
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _children_with_news(self) -> frozenset[str]:
        rows = self._services.store.log.children(self._journal.mission)
        return frozenset(row.id for row in rows if row.news)

    async def _run_next_ahead(self, rebase: Rebase, mission: str, validator: Validator) -> None:
        depot = self._services.depot
        reader = MissionReader(store=self._services.store, workers=self._services.workers)
        child = await asyncio.to_thread(reader.at_rest, mission)
        assert child.promoted_on is not None
        assert child.tree is not None
        theirs = depot.commit(child.tree, (child.promoted_on.commit,), "candidate")
        merge = partial(depot.merge, union=self._services.is_union)
        merged = (await asyncio.to_thread(merge, rebase.checkpoint.commit, theirs)).tree
        if merged is not None and merged != rebase.tree:
            task = self._journal.state.plan.plan.task(child.task) if self._journal.state.plan else None
            validator.run_ahead(rebase.tree, merged, added=task.checks if task else ())

    async def _promote(
        self, task: Task, child: MissionState, tip: Base, verdict: Verdict, *, approved: bool
    ) -> TaskMerged:
        async def never(tree: str) -> Verdict:
            raise AssertionError("the tree was merged before")

        made: list[str] = []

        async def promote() -> None:
            made.append(
                await self._promoter.promote(
                    tip, verdict.tree, verdict, validate=never, approved=approved, done_by=(task, child)
                )
            )
            await self._promoter.sign(made[0])

        # Once begun it is finished despite cancellation: half a promotion is useless.
        await self._control.finish(promote())
        return TaskMerged(task=task.id, mission=child.id, commit=made[0], tree=verdict.tree)

    def _return_red(
        self, task: Task, child: MissionState, tip: Base, verdict: Verdict, context: BaseContext
    ) -> TaskReturned:
        why = "; ".join(reason.message for reason in judge_verdict(verdict).reasons[:3])
        reason = Reason(code="merged_red", message=f"together with later merges: {why}")
        evidence = report(verdict, context.validator.outputs).encode()
        return self._return(task, child, tip, verdict.tree, reason, evidence)

    def _return(
        self,
        task: Task,
        child: MissionState,
        tip: Base,
        tree: str,
        reason: Reason,
        evidence: bytes,
        *,
        paths: tuple[str, ...] = (),
    ) -> TaskReturned:
        """Return the event that returns a result to its task; tree and evidence are kept for the next round."""
        kept = self._services.store.artifacts.put(evidence, kind="report", mission=self._journal.mission)
        self._services.depot.keep_base(tip.commit)
        return TaskReturned(
            task=task.id,
            mission=child.id,
            reason=reason,
            base=tip.commit,
            tree=tree,
            evidence=kept,
            paths=paths,
        )
