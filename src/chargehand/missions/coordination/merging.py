"""The merge queue of a coordinator: one result after the other, each judged as the exact merged tree."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from chargehand.checks.execution import report
from chargehand.core.fold import read_payload
from chargehand.core.mission_events import ApplyChanged, ApprovalGiven, BaseResolved, VerdictGiven
from chargehand.core.plan_events import TaskMerged, TaskReturned
from chargehand.core.plans import Task
from chargehand.core.records import Base, Reason, Verdict
from chargehand.core.state import MissionState
from chargehand.missions.control import Control
from chargehand.missions.coordination.contract import TreeJudge
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.promoter import Promoter
from chargehand.missions.promotion.rebase import (
    Rebase,
    conflict_event,
    conflict_reason,
    conflict_report,
    name_paths,
    rebase_onto,
    rebase_promoted,
)
from chargehand.missions.reading import MissionReader
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import Services
from chargehand.missions.verdict.judgement import judge_verdict, person_may_promote
from chargehand.missions.verdict.validation import Validator
from chargehand.workspace.merge import MergeConflictError

# What is left of a mission's time limit for export and applying.
_DELIVERY_SECONDS = 15.0


class MergeQueue:
    """Brings what child missions promoted to the coordinator's branch."""

    def __init__(self, services: Services, journal: Journal, control: Control, judge: TreeJudge) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._judge = judge
        self._promoter = Promoter(services, journal, fault=judge.fault)

    async def merge(
        self, task: Task, child: MissionState, tip: Base, *, find_next: Callable[[], str | None]
    ) -> TaskMerged | TaskReturned:
        """Merge what a child promoted with `tip`; what is not good together goes back with the evidence.

        `find_next` returns the mission whose result comes next: its checks run ahead. It may block.
        """
        half = self._journal.state.half_merged
        if half is not None and half.mission == child.id:
            await self._promoter.sign(half.commit)
            return half
        base, tree = child.promoted_on, child.tree
        assert base is not None
        assert tree is not None
        # Trees of the child that a person let in.
        events = map(read_payload, self._services.store.log.read(child.id, types=(ApprovalGiven.type,)))
        approved = frozenset(event.tree for event in events if isinstance(event, ApprovalGiven))
        if base.commit == tip.commit:
            verdict = next(each for each in reversed(child.verdicts) if each.tree == tree)
            # What judged a promoted tree stands in the log of whoever promoted it.
            self._journal.record(VerdictGiven(verdict=verdict))
            return await self._promote(task, child, tip, verdict, approved=tree in approved)
        rebase = await asyncio.to_thread(
            rebase_onto, self._services.depot, base, tip, tree, mission=self._journal.mission
        )
        if rebase is None:  # the branch has all of it already
            return TaskMerged(task=task.id, mission=child.id, commit=tip.commit, tree=tip.tree)
        if rebase.count:
            return self._return_conflict(task, child, rebase, tree)
        meanwhile = partial(self._run_ahead, rebase, find_next)
        verdict, context = await self._judge.judge_again(tip, rebase.tree, scope="merged", meanwhile=meanwhile)
        good = person_may_promote(verdict) if tree in approved else judge_verdict(verdict).mission == "promoted"
        if good:
            return await self._promote(task, child, tip, verdict, approved=tree in approved)
        await self._judge.ahead.stop()  # what comes next will be another tree
        reasons = judge_verdict(verdict).reasons
        why = "; ".join(reason.message for reason in reasons[:3])
        return self._return(
            task,
            child,
            rebase,
            Reason(code="merged_red", message=f"together with what was merged since: {why}"),
            report(verdict, context.validator.outputs).encode(),
        )

    async def _run_ahead(self, rebase: Rebase, find_next: Callable[[], str | None], validator: Validator) -> None:
        """Run the checks of what comes next ahead, as if what is judged now were merged."""
        await self._judge.ahead.stop(but=rebase.tree)
        if not self._services.config.engine.checks_ahead:
            return
        mission = await asyncio.to_thread(find_next)
        if mission is None:
            return
        depot = self._services.depot
        reader = MissionReader(store=self._services.store, workers=self._services.workers)
        # One: more would take places from those who work, for what comes to nothing once a result goes back.
        child = await asyncio.to_thread(reader.at_rest, mission)
        assert child.promoted_on is not None
        assert child.tree is not None
        theirs = depot.commit(child.tree, (child.promoted_on.commit,), "candidate")
        merged = (await asyncio.to_thread(depot.merge, rebase.checkpoint.commit, theirs)).tree
        if merged is not None and merged != rebase.tree:
            validator.run_ahead(rebase.tree, merged)

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

        # Once begun it is finished, whoever cancels: half a promotion helps nobody.
        await self._control.finish(promote())
        return TaskMerged(task=task.id, mission=child.id, commit=made[0], tree=verdict.tree)

    def _return_conflict(self, task: Task, child: MissionState, rebase: Rebase, tree: str) -> TaskReturned:
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
        where = "what was merged since"
        reason = conflict_reason(rebase.conflicts, branch=where, count=rebase.count)
        return self._return(task, child, rebase, reason, conflict_report(rebase))

    def _return(
        self, task: Task, child: MissionState, rebase: Rebase, reason: Reason, evidence: bytes
    ) -> TaskReturned:
        kept = self._services.store.artifacts.put(evidence, kind="report", mission=self._journal.mission)
        self._services.depot.keep_base(rebase.base.commit)
        return TaskReturned(
            task=task.id,
            mission=child.id,
            reason=reason,
            base=rebase.base.commit,
            tree=rebase.tree,
            evidence=kept,
        )


async def deliver_promoted(services: Services, journal: Journal, control: Control, judge: TreeJudge) -> None:
    """Export what is promoted, judged once more on the branch that it is to be applied to where that moved."""
    try:
        # Where both conflict, or are not good together, it stays on its own branch: applying it says why not.
        async with SlotQueue(services, journal, control).delivery():
            if journal.state.cancel_asked or not await promote_on_branch(services, journal, control, judge):
                await judge.deliver()
    except asyncio.CancelledError:
        # What a person cancelled after its promotion stands all the same; of a plan they may want no more.
        if control.stopped in (None, "cancel") and journal.state.plan is None:
            await judge.deliver()
        raise


async def promote_on_branch(services: Services, journal: Journal, control: Control, judge: TreeJudge) -> bool:
    """Promote what was promoted before, on top of the branch that it is still to be applied to, where that moved.

    Tells whether that was done, and delivered: not where the two conflict or are not good together.
    """
    rebase_now = partial(rebase_promoted, journal, services.store, services.depot)
    # A limit of its own: what stands is delivered even where there is no time for more.
    with contextlib.suppress(MergeConflictError, TimeoutError):
        async with control.limited(control.seconds_left() - _DELIVERY_SECONDS):
            rebase = await rebase_now()
            while rebase is not None:
                verdict, context = await judge.judge_again(rebase.base, rebase.tree, scope="merged")
                approval = None
                if judge_verdict(verdict).mission != "promoted":
                    approval = await asyncio.to_thread(_carry_approval, services, journal.state, rebase, verdict)
                    if not isinstance(approval, ApprovalGiven):
                        _note_difference(journal, approval)
                        return False
                # Whoever pauses gives the turn up: somebody else may have been first.
                before, rebase = rebase, await control.unpaused(rebase_now)
                if rebase is not None and rebase.base.commit == before.base.commit:
                    break
        if rebase is not None:
            journal.record(BaseResolved(base=rebase.base), *([approval] if approval else ()))
            await judge.promote(context, rebase.tree, verdict, approved=approval is not None)
            return True
    return False


def _carry_approval(
    services: Services, state: MissionState, rebase: Rebase, verdict: Verdict
) -> ApprovalGiven | str:
    """Return the approval of what is promoted for the same change on the branch as it is now, or what differs.

    What a person let in is a change and what was found in it: the merge must leave each of its files as it was
    before and as it is after, pass the checks, and show nothing that the person did not see. "" where nobody
    approved anything.
    """
    events = map(read_payload, services.store.log.read(state.id, types=(ApprovalGiven.type,)))
    given = [event for event in events if isinstance(event, ApprovalGiven) and event.tree == state.tree]
    before = next((each for each in reversed(state.verdicts) if each.tree == state.tree), None)
    base, tree = state.promoted_on, state.tree
    if not given or before is None or base is None or tree is None:
        return ""
    where = rebase.base.branch or rebase.base.revision
    if verdict.status != "green":
        return f"together with {where} as it is now it does not pass all checks"
    seen = {(each.rule, each.path, each.message) for each in before.findings}
    if new := [each for each in verdict.findings if (each.rule, each.path, each.message) not in seen]:
        return f"together with {where} as it is now there is more to approve: {new[0].message}"
    changes, approved = services.depot.diff(rebase.base.tree, rebase.tree), services.depot.diff(base.tree, tree)
    if others := {each.path for each in {*approved} ^ {*changes}}:
        return f"{where} changed {name_paths(sorted(others), len(others))} meanwhile, which was approved otherwise"
    why = f"approved as {tree[:12]}; {where} changed none of it meanwhile"
    reason = f"{given[-1].reason} ({why})" if given[-1].reason else why
    return ApprovalGiven(tree=rebase.tree, identity=given[-1].identity, reason=reason)


def _note_difference(journal: Journal, why: str) -> None:
    """Add to why the branch was not moved that an approval does not cover what it would be moved to."""
    state = journal.state
    if why and state.applied is not None and state.applied.state == "blocked" and state.commit is not None:
        export = replace(
            state.applied, reason=f"{state.applied.reason}; the approval is for another change: {why}"
        )
        journal.record(ApplyChanged(export=export, commit=state.commit), durable=True)
