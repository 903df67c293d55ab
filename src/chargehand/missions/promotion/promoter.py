"""Promotion: merge, verdict on the merged tree, journal, compare-and-swap, export; and roll-back.

The journal is the event `promotion.prepared`, on disk before the swap. After a crash the branch decides: at the
new commit the promotion happened and is finished (`Promoter.settle_prepared`); at the old one it did not and is
forgotten. Export, signature and apply come after the swap and never undo it: each can be delivered later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from chargehand.core.errors import ChargehandError, FencedError, RefusedError
from chargehand.core.mission_events import (
    ApplyChanged,
    ExportChanged,
    HeadSigned,
    MissionRolledBack,
    PromotionDone,
    PromotionPrepared,
)
from chargehand.core.plans import Task
from chargehand.core.records import Base, Export, Verdict
from chargehand.core.state import MissionState
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.rebase import conflict_event, name_paths
from chargehand.missions.provenance import sign_provenance
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
from chargehand.missions.verdict.commits import HEADS, PREFIX, promotion_message, promotion_parents
from chargehand.missions.verdict.judgement import person_may_promote
from chargehand.missions.verdict.restored import find_rejected
from chargehand.store.heads import SignedHead
from chargehand.workspace.checkout import fast_forward as apply_branch
from chargehand.workspace.errors import RefMovedError
from chargehand.workspace.export import export_branch, export_notes
from chargehand.workspace.merge import MergeConflictError
from chargehand.workspace.rollback import revert_command

# Called at named points, where tests kill the process or raise.
Fault = Callable[[str], None]


def no_fault(point: str) -> None:
    """Do nothing at a named fault point."""


class Promoter:
    """Moves one mission's branch, and only to trees with a green verdict."""

    def __init__(self, services: Services, journal: Journal, *, fault: Fault = no_fault) -> None:
        self._services = services
        self._journal = journal
        self._fault = fault
        self._ref = mission_ref(journal.mission)

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
        parents = promotion_parents(depot, tip, base)
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
        """Sign the promoted result, export it, and apply it if requested; completed steps are skipped."""
        state = self._journal.state
        assert state.request is not None
        assert state.commit is not None
        # Signed first: the signature is a note on the commit, and the export includes the note.
        await self.sign(state.commit)
        if not is_exported(state):
            await self.export()
        if state.request.apply and not is_applied(state):
            await self.apply()

    async def _sign_last(self) -> None:
        """Sign the branch's commit before the branch moves on: an earlier worker may have ended before signing."""
        if (commit := self._journal.state.commit) is not None:
            await self.sign(commit)

    async def sign(self, commit: str) -> None:
        """Sign the log and the commit's provenance from it, and note both on the commit, once.

        A failure is recorded and does not undo the promotion.
        """
        if self._journal.state.signed == commit:
            return
        depot, store, mission = self._services.depot, self._services.store, self._journal.mission

        def annotate() -> SignedHead:
            # Notes from before a crash are reused: a commit has one of each.
            noted = map(SignedHead.decode, (depot.annotation(commit) or "").encode().splitlines())
            head = next((each for each in noted if each.mission == mission), None) or store.sign_head(mission)
            known = depot.provenance(commit)
            provenance = "" if known else sign_provenance(store, head, version=self._services.version)
            self._fault("attested")
            depot.annotate(commit, head.encode().decode(), provenance=provenance)
            return head

        try:
            head = await asyncio.to_thread(annotate)
            self._fault("signed")
        except FencedError:
            raise
        except ChargehandError as error:
            self._journal.record(HeadSigned(commit=commit, problem=error.message))
        else:
            self._journal.record(HeadSigned(commit=commit, seq=head.seq, key=head.key))

    async def export(self) -> Export:
        """Write the mission branch into the user's repository and record the outcome."""
        state = self._journal.state
        assert state.commit is not None
        assert state.request is not None
        if state.exported is not None and state.export is not None:
            export = await self._write(state.commit, state.export.ref.removeprefix(HEADS), state.exported)
        else:
            branch = f"{PREFIX}{state.request.slug}"
            export = await self._write(state.commit, branch, None)
            if export.state == "blocked":  # e.g. the name is taken: the mission's id makes it unique
                other = await self._write(state.commit, f"{branch}-{self._journal.mission[-6:]}", None)
                export = other if other.state == "done" else export
        self._fault("exported")
        # Either command delivers the branch's commit; the retry repeats the command that was given.
        export = self._add_retry(export, "rollback" if is_rolled_back(state) else "promote")
        self._journal.record(ExportChanged(export=export, commit=state.commit), durable=True)
        return export

    async def _write(self, commit: str, branch: str, old: str | None) -> Export:
        depot = self._services.depot
        try:
            export = await asyncio.to_thread(export_branch, depot, commit, branch=branch, expected_old=old)
            if export.state != "done":
                return export
            reason = ""
            try:
                await asyncio.to_thread(export_notes, depot, commit)
            except ChargehandError as error:  # the branch was exported anyway
                reason = f"without the notes of signed log and provenance: {error.message}"
            return replace(export, reason=reason)
        except ChargehandError as error:  # the promotion is still valid, and can be delivered later
            return Export(ref=f"{HEADS}{branch}", state="blocked", reason=error.message)

    def _add_retry(self, export: Export, verb: str) -> Export:
        """Add the command for a retry to the reason of a blocked export."""
        if export.state != "blocked":
            return export
        command = f"chargehand mission {verb} {self._journal.mission}"
        return replace(export, reason=f"{export.reason}; once that is resolved: {command}")

    async def apply(self) -> Export:
        """Fast-forward the user's own branch if it has not moved and the touched paths are clean."""
        state = self._journal.state
        base = state.promoted_on
        assert state.commit is not None
        assert base is not None
        assert base.branch is not None
        try:
            applied = await asyncio.to_thread(
                apply_branch, self._services.depot, state.commit, branch=base.branch, at=base.commit
            )
        except ChargehandError as error:
            applied = Export(ref=f"{HEADS}{base.branch}", state="blocked", reason=error.message)
        applied = self._add_retry(applied, "promote")
        self._journal.record(ApplyChanged(export=applied, commit=state.commit), durable=True)
        return applied

    async def roll_back(self) -> str:
        """Put a commit with the base's tree on the mission branch, export it, and return it."""
        state = self._journal.state
        base = state.promoted_on
        if state.commit is None or base is None:
            raise not_promoted_error(state)
        if is_rolled_back(state):  # but its export may have been blocked
            if is_exported(state):
                raise already_rolled_back_error(state)
            await self.export()
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
        await self.sign(commit)
        await self.export()
        if was_applied:
            assert base.branch is not None
            try:
                undone = await asyncio.to_thread(
                    apply_branch, self._services.depot, commit, branch=base.branch, at=promoted
                )
            except ChargehandError as error:
                undone = Export(ref=f"{HEADS}{base.branch}", state="blocked", reason=error.message)
            if undone.state == "blocked":
                reason = f"{undone.reason}; the mission's change is still on it: `{undo}` there takes it back"
                undone = replace(undone, reason=reason)
            self._journal.record(ApplyChanged(export=undone, commit=commit), durable=True)
        return commit
