"""Promotion: merge, verdict on the merged tree, journal, compare-and-swap, delivery; and roll-back.

The journal is the event `promotion.prepared`, on disk before the swap. After a crash the branch decides: at the
new commit the promotion happened and is finished (`Promoter.settle_prepared`); at the old one it did not and is
forgotten. Delivery to the targets comes after the swap and never undoes it: each can be delivered later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from chargehand.core.errors import RefusedError
from chargehand.core.mission_events import (
    MissionRolledBack,
    PromotionDone,
    PromotionPrepared,
)
from chargehand.core.plans import Task
from chargehand.core.records import Base, Verdict
from chargehand.core.state import MissionState
from chargehand.missions.delivery.targets import DeliveryTargets
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.rebase import conflict_event, name_paths
from chargehand.missions.reading import (
    already_rolled_back_error,
    is_applied,
    is_exported,
    is_rolled_back,
    mission_ref,
    not_promoted_error,
)
from chargehand.missions.services import Services
from chargehand.missions.task_rollback import TaskRollback
from chargehand.missions.verdict.commits import promotion_message, promotion_parents
from chargehand.missions.verdict.judgement import person_may_promote
from chargehand.missions.verdict.restored import find_rejected
from chargehand.workspace.errors import Fault, RefMovedError, no_fault
from chargehand.workspace.merge import MergeConflictError
from chargehand.workspace.rollback import revert_command


class Promoter:
    """Moves one mission's branch, and only to trees with a green verdict."""

    def __init__(self, services: Services, journal: Journal, *, fault: Fault = no_fault) -> None:
        self._services = services
        self._journal = journal
        self._fault = fault
        self._ref = mission_ref(journal.mission)
        self._targets = DeliveryTargets(services, journal, fault)

    async def promote(
        self,
        base: Base,
        tree: str,
        verdict: Verdict,
        *,
        validate: Callable[[str], Awaitable[Verdict]],
        approved: bool = False,
        done_by: tuple[Task, MissionState] | None = None,
    ) -> str:
        """Promote `tree` and return the new commit of the mission branch, whose message names its author.

        The author is the mission itself, or one of its tasks with its child mission (`done_by`).

        `validate` returns the verdict of the merged tree if it differs from `tree`; `approved` says that a person
        approved the exceptions of `person_may_promote`. Raises `RefusedError` (`merge_conflict`, `merged_red`,
        `no_change`); the branch is then unchanged.
        """
        depot = self._services.depot
        # Before the first promotion there is no branch: the swap then expects it to be missing.
        old = depot.read_ref(self._ref)
        tip = old or base.commit
        hint = f"to get that tree alone: chargehand mission rollback {self._journal.mission}, then promote again"
        merged = await self._merge(base, tip, tree, hint)
        if merged != tree:
            verdict = await validate(merged)
        if merged == depot.tree_of(tip):
            raise RefusedError("the mission branch already contains this change", code="no_change", hint=hint)
        # An approval is for the tree that the person saw: a tree merged from it needs a good verdict.
        by_person = approved and merged == tree
        good = person_may_promote(verdict) if by_person else verdict.is_good
        good = good and (by_person or not (approved and verdict.needs_person))
        # The verdict must be of exactly this tree: one of another tree, however similar, promotes nothing.
        if verdict.tree != merged or not good:
            message = f"the merged tree {merged[:12]!r} has no green verdict"
            raise RefusedError(message, code="merged_red", hint=hint)
        task, state = done_by or (None, self._journal.state)
        if not by_person and (rejected := find_rejected(depot, state, base.tree, merged)):
            raise RefusedError(rejected[0].message, code="rejected_again", hint=hint)
        self._fault("before_commit")
        request = state.request
        onto = request.issue.onto if request is not None and request.issue is not None else ""
        parents = promotion_parents(depot, tip, base, onto=onto)
        checks = [check.name for check in verdict.checks if not check.base_tests]
        message = promotion_message(depot, state, merged, checks, mission=self._journal.mission, task=task)
        commit = await asyncio.to_thread(depot.commit, merged, parents, message)
        return await self._swap(commit, old, merged, done_by)

    async def _merge(self, base: Base, tip: str, tree: str, hint: str) -> str:
        """Return the tree of an earlier promotion's tip merged with this one; without a promotion, `tree`."""
        depot = self._services.depot
        if depot.tree_of(tip) == base.tree:
            return tree
        theirs = depot.commit(tree, (base.commit,), "candidate")
        result = await asyncio.to_thread(depot.merge, tip, theirs, union=self._services.is_union)
        if not result.conflicts and result.tree is not None:
            return result.tree
        count = len(result.conflicts)
        self._journal.record(
            conflict_event(
                self._services.store,
                self._journal.mission,
                result.details,
                count=count,
                branch=self._ref,
                commit=tip,
                tree=tree,
            )
        )
        message = f"the changes conflict with the mission branch in {name_paths(result.conflicts, count)}"
        raise MergeConflictError(message, result.details, hint=hint)

    async def _swap(
        self, commit: str, old: str | None, tree: str, done_by: tuple[Task, MissionState] | None
    ) -> str:
        """Move the branch, with the intent on disk before and the fact after; return the branch's commit."""
        depot = self._services.depot
        await self._sign_last()

        def move() -> str:
            try:
                depot.swap(self._ref, commit, old, durable=True)
            except RefMovedError:
                # A worker given up by others during a promotion may have moved the branch first, to the same tree.
                there = depot.read_ref(self._ref)
                if there is None or there == old or depot.tree_of(there) != tree:
                    raise
                return there
            return commit

        prepared = PromotionPrepared(ref=self._ref, old=old or "", new=commit, tree=tree)
        if done_by is not None:
            prepared = replace(prepared, task=done_by[0].id, mission=done_by[1].id)
        self._journal.record(prepared, durable=True)
        self._fault("prepared")
        commit = await asyncio.to_thread(move)
        self._fault("swapped")
        self._journal.record(PromotionDone(ref=self._ref, commit=commit, tree=tree), durable=True)
        self._fault("promoted")
        return commit

    def settle_prepared(self) -> bool:
        """Finish or discard an interrupted promotion, depending on whether the ref moved.

        Return whether there is a valid promotion that was not completed.
        """
        state = self._journal.state
        prepared = state.prepared
        if prepared is not None and self._services.depot.read_ref(self._ref) == prepared.new:
            ref, new, tree, tasks = prepared.ref, prepared.new, prepared.tree, prepared.tasks
            back = MissionRolledBack(ref=ref, commit=new, tree=tree, tasks=tasks)
            self._journal.record(back if tasks else PromotionDone(ref=ref, commit=new, tree=tree), durable=True)
        return state.commit is not None and state.status != "promoted"

    async def deliver(self) -> None:
        """Deliver the promoted result to every target; those that have it are skipped."""
        commit = self._journal.state.commit
        assert commit is not None
        await self._targets.deliver(commit)

    async def _sign_last(self) -> None:
        """Sign the branch's commit before the branch moves on: an earlier worker may have ended before signing."""
        if (commit := self._journal.state.commit) is not None:
            await self.sign(commit)

    async def sign(self, commit: str) -> None:
        """Sign a commit of the mission branch once; a failure is recorded and does not undo the promotion."""
        await self._targets.sign.deliver(commit)

    async def roll_back(self) -> str:
        """Put a commit with the base's tree on the mission branch, export it, and return it."""
        state = self._journal.state
        base = state.promoted_on
        if state.commit is None or base is None:
            raise not_promoted_error(state)
        if is_rolled_back(state):  # but its delivery may have been blocked
            if is_exported(state) and not self._targets.has_unfinished(state.commit):
                raise already_rolled_back_error(state)
            await self._targets.export.deliver(state.commit)
            await self._targets.deliver_further(state.commit)
            return state.commit
        message = f"Roll back mission {self._journal.mission}\n\nThis reverts commit {state.commit}.\n"
        undo = await asyncio.to_thread(revert_command, self._services.depot, base.commit, state.commit)
        return await self._revert(base, base.tree, message, undo)

    async def roll_back_tasks(self, plan: TaskRollback) -> None:
        """Put a commit on the mission branch that takes back single tasks, and export it."""
        base, tasks = self._journal.state.promoted_on, ", ".join(plan.tasks)
        assert base is not None
        what = f"task {tasks}" if len(plan.tasks) == 1 else f"tasks {tasks}"
        reverts = "".join(f"This reverts commit {each}.\n" for each in plan.reverted)
        message = f"Roll back {what} of mission {self._journal.mission}\n\n{reverts}"
        undo = f"git revert {' '.join(each[:12] for each in plan.reverted)}"
        await self._revert(base, plan.tree, message, undo, tasks=plan.tasks)

    async def _revert(self, base: Base, tree: str, message: str, undo: str, *, tasks: tuple[str, ...] = ()) -> str:
        """Put a commit with `tree` on the mission branch; `undo` is the command for a person's own branch."""
        depot, promoted = self._services.depot, self._journal.state.commit
        assert promoted is not None
        was_applied = is_applied(self._journal.state)
        await self._sign_last()
        commit = await asyncio.to_thread(depot.commit, tree, (promoted,), message)
        # A roll-back is a promotion of that tree, with the same journal; a crash in it is settled the same way.
        prepared = PromotionPrepared(ref=self._ref, old=promoted, new=commit, tree=tree, tasks=tasks)
        self._journal.record(prepared, durable=True)
        self._fault("rollback_prepared")
        await asyncio.to_thread(depot.swap, self._ref, commit, promoted, durable=True)
        self._fault("rolled_back")
        done = MissionRolledBack(ref=self._ref, commit=commit, tree=tree, tasks=tasks)
        self._journal.record(done, durable=True)
        await self._targets.sign.deliver(commit)
        await self._targets.export.deliver(commit)
        if was_applied:
            await self._targets.apply.revert(commit, promoted=promoted, undo=undo)
        await self._targets.deliver_further(commit)
        return commit
