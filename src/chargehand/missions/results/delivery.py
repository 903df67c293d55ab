"""Delivery of a judged result: promotion, export, and applying it to the user's branch.

A single mission delivers a green attempt with it, a coordinator the merged results of its tasks, and a person's
command the result of an earlier run.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from msgspec.structs import replace

from chargehand.core.codec import convert_to
from chargehand.core.errors import RefusedError
from chargehand.core.events import read_payload
from chargehand.core.mission_events import (
    ApplyChanged,
    ApprovalGiven,
    BaseResolved,
    MissionFinished,
    VerdictGiven,
)
from chargehand.core.records import Reason, Verdict
from chargehand.missions._messages import record_mission_end
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.promoter import Promoter
from chargehand.missions.promotion.rebase import Rebase, name_paths, rebase_promoted
from chargehand.missions.reading import is_exported
from chargehand.missions.results.tree_judge import BaseContext, TreeJudge
from chargehand.missions.services import Services
from chargehand.missions.verdict.judgement import judge_verdict
from chargehand.missions.verdict.restored import find_rejected
from chargehand.workspace.merge import MergeConflictError

# Judging on a branch that moved leaves this much of the mission's time for exporting and applying.
_DELIVERY_SECONDS = 15.0


class ResultDelivery:
    """Promotes and delivers the result of one mission, and settles the mission."""

    def __init__(self, services: Services, journal: Journal, control: Control, judge: TreeJudge) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._judge = judge
        self.promoter = Promoter(services, journal, fault=judge.fault)

    async def promote(self, context: BaseContext, tree: str, verdict: Verdict, *, approved: bool = False) -> None:
        """Promote a validated tree, export it, apply it if requested; the mission is settled afterwards.

        Once started, it is finished even if the task is cancelled: half a promotion is useless.
        """

        async def judge_merged(candidate: str) -> Verdict:
            # The time limit may still interrupt judging: nothing is promoted before there is a verdict.
            async with self._control.limited(self._control.seconds_left()):
                output = await self._journal.step(
                    "verdict/merged",
                    candidate,
                    partial(self._judge.judge, context, candidate, scope="merged", before=verdict),
                    events=lambda merged: (VerdictGiven(verdict=merged),),
                )
            return convert_to(output, Verdict)

        async def promote() -> None:
            try:
                await self.promoter.promote(context.base, tree, verdict, validate=judge_merged, approved=approved)
            except RefusedError as error:
                if self._journal.state.commit is not None:  # an earlier promotion remains valid
                    raise
                reason = Reason(code=error.code, message=error.message)
                record_mission_end(self._journal, MissionFinished(status="refused", reasons=(reason,)))
                return
            await self._deliver()

        await self._control.finish(promote())

    async def deliver(self) -> None:
        """Export and apply a promotion that was made but not delivered; the mission is settled afterwards."""
        await self._control.finish(self._deliver())

    async def _deliver(self) -> None:
        await asyncio.to_thread(self._check_decisions)
        if not self._journal.state.parent:  # the coordinator exports the results of its tasks together
            await self.promoter.deliver()
        record_mission_end(self._journal, MissionFinished(status="promoted"), durable=True)

    def _check_decisions(self) -> None:
        """Raise `RefusedError` (`rejected_again`) if a person took back the promoted change before its export.

        That can happen between a crash, or a blocked export, and the delivery. May block.
        """
        state, base = self._journal.state, self._journal.state.promoted_on
        if base is None or state.tree is None or is_exported(state) or self._find_approvals(state.tree):
            return
        if rejected := find_rejected(self._services.depot, state, base.tree, state.tree):
            hint = f"chargehand mission rollback {state.id}, then chargehand mission promote {state.id}"
            raise RefusedError(rejected[0].message, code="rejected_again", hint=hint)

    def _find_approvals(self, tree: str) -> list[ApprovalGiven]:
        events = map(
            read_payload, self._services.store.log.read(self._journal.mission, types=(ApprovalGiven.type,))
        )
        return [event for event in events if isinstance(event, ApprovalGiven) and event.tree == tree]

    async def deliver_promoted(self) -> None:
        """Deliver a promoted result; if its target branch has moved, judge it again on that first."""
        try:
            # If the two conflict, or fail together, the result stays on its own branch, and applying reports the
            # reason.
            async with self._judge.queue.delivery():
                if self._journal.state.cancel_asked or not await self.promote_on_branch():
                    await self.deliver()
        except asyncio.CancelledError:
            # A promotion is valid even if a person cancels afterwards; a person who cancels a plan may not want
            # the rest.
            if self._control.stopped in (None, "cancel") and self._journal.state.plan is None:
                await self.deliver()
            raise

    async def promote_on_branch(self) -> bool:
        """Promote a promoted result again, on top of its target branch, if that has moved.

        Return whether it was promoted and delivered; it is not if the two conflict or fail together.
        """
        journal, control = self._journal, self._control
        rebase_now = partial(rebase_promoted, journal, self._services)
        # If time runs out here, the earlier promotion is still delivered.
        with contextlib.suppress(MergeConflictError, TimeoutError):
            async with control.limited(control.seconds_left() - _DELIVERY_SECONDS):
                rebase = await rebase_now()
                while rebase is not None:
                    verdict, context = await self._judge.judge_again(rebase.base, rebase.tree, scope="merged")
                    approval = None
                    if judge_verdict(verdict).mission != "promoted":
                        approval = await asyncio.to_thread(self._carry_approval, rebase, verdict)
                        if not isinstance(approval, ApprovalGiven):
                            self._note_difference(approval)
                            return False
                    # A paused mission gives up its turn, so another one may have moved the branch meanwhile.
                    before, rebase = rebase, await control.unpaused(rebase_now)
                    if rebase is not None and rebase.base.commit == before.base.commit:
                        break
            if rebase is not None:
                journal.record(BaseResolved(base=rebase.base), *([approval] if approval else ()))
                await self.promote(context, rebase.tree, verdict, approved=approval is not None)
                return True
        return False

    def _carry_approval(self, rebase: Rebase, verdict: Verdict) -> ApprovalGiven | str:
        """Return the approval of the promoted change for the same change on the branch, or describe the
        difference.

        A person approved a change and its findings. The merged tree must have each changed file with the same
        content before and after, pass the checks, and show no finding that the person has not seen. Return ""
        without an approval. May block.
        """
        state, depot = self._journal.state, self._services.depot
        given = self._find_approvals(state.tree or "")
        before = next((each for each in reversed(state.verdicts) if each.tree == state.tree), None)
        base, tree = state.promoted_on, state.tree
        if not given or before is None or base is None or tree is None:
            return ""
        where = rebase.base.branch or rebase.base.revision
        if not verdict.is_good:
            return f"together with the present {where} it fails a check"
        seen = {(each.rule, each.path, each.message) for each in before.findings}
        if new := [each for each in verdict.findings if (each.rule, each.path, each.message) not in seen]:
            return f"together with the present {where} there is more to approve: {new[0].message}"
        changes, approved = depot.diff(rebase.base.tree, rebase.tree), depot.diff(base.tree, tree)
        if others := {each.path for each in {*approved} ^ {*changes}}:
            named = name_paths(sorted(others), len(others))
            return f"{where} has changed {named} since the approval"
        why = f"approved as {tree[:12]}; {where} has changed none of it since"
        reason = f"{given[-1].reason} ({why})" if given[-1].reason else why
        return ApprovalGiven(tree=rebase.tree, identity=given[-1].identity, reason=reason)

    def _note_difference(self, why: str) -> None:
        """Add to the reason for an unmoved branch that the approval does not cover the new result."""
        state = self._journal.state
        if why and state.applied is not None and state.applied.state == "blocked" and state.commit is not None:
            reason = f"{state.applied.reason}; the approval is for another change: {why}"
            changed = ApplyChanged(export=replace(state.applied, reason=reason), commit=state.commit)
            self._journal.record(changed, durable=True)
