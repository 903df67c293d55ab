"""Promotion: merge, verdict on the merged tree, journal, compare-and-swap, export; and its undoing.

The journal is the event `promotion.prepared`, on disk before the swap. After a crash `recover` looks at the
branch: at the new commit the promotion happened and is finished; at the old one it did not and is forgotten.
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
from chargehand.core.records import Base, Export, Verdict
from chargehand.core.state import MissionState
from chargehand.core.text import printable, shown_path
from chargehand.missions._journal import Journal
from chargehand.missions._judgement import person_may_promote
from chargehand.missions._meeting import conflicted
from chargehand.missions._services import Services
from chargehand.store.heads import SignedHead
from chargehand.workspace.checkout import fast_forward as apply_branch
from chargehand.workspace.errors import RefMovedError
from chargehand.workspace.export import export_branch as export_branch
from chargehand.workspace.export import export_notes
from chargehand.workspace.merge import MergeConflictError

PREFIX = "chargehand/"
_HEADS = "refs/heads/"
_TITLE = 72
COMMITTED = "committed"
"""What a checkpoint says of itself that a person gave a message (`git commit`)."""
Fault = Callable[[str], None]


def no_fault(point: str) -> None:
    """Do nothing at a named fault point."""


def mission_ref(mission: str) -> str:
    """Return the mission's branch in the depot."""
    return f"refs/chargehand/missions/{mission}"


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
    ) -> str:
        """Promote `tree` and return the new commit of the mission branch.

        `validate` gives the verdict of the merged tree where it is another one; `approved` says that a person
        lets in what `person_may_promote` allows. Raises `RefusedError` (`merge_conflict`, `merged_red`,
        `no_change`); the branch is then as it was.
        """
        depot = self._services.depot
        tip = depot.read_ref(self._ref) or base.commit
        merged, verdict = await self._merge(base, tip, tree, verdict, validate)
        if merged == depot.tree_of(tip):
            raise RefusedError(
                "the mission branch holds all of it already", code="no_change", hint=self._rollback_hint
            )
        good = person_may_promote(verdict) if approved else verdict.status == "green"
        if verdict.tree != merged or not good:
            raise RefusedError(
                f"the merged tree {merged[:12]!r} has no green verdict",
                code="merged_red",
                hint=self._rollback_hint,
            )
        self._fault("before_commit")
        commit = await asyncio.to_thread(depot.commit, merged, self._parents(tip, base), self._message(verdict))
        return await self._swap(commit, tip if tip != base.commit else None, merged)

    def _parents(self, tip: str, base: Base) -> tuple[str, ...]:
        """Return the branch and, where the mission was merged with what the branch does not follow, that."""
        known = self._services.depot.git.run("merge-base", "--is-ancestor", base.commit, tip).code == 0
        return (tip,) if known else (tip, base.commit)

    async def _merge(
        self, base: Base, tip: str, tree: str, verdict: Verdict, validate: Callable[[str], Awaitable[Verdict]]
    ) -> tuple[str, Verdict]:
        depot = self._services.depot
        if depot.tree_of(tip) == base.tree:
            return tree, verdict
        theirs = depot.commit(tree, (base.commit,), "candidate")
        result = await asyncio.to_thread(depot.merge, tip, theirs)
        if result.conflicts or result.tree is None:
            self._journal.note(
                conflicted(
                    self._services.store,
                    self._journal.mission,
                    result.details,
                    count=len(result.conflicts),
                    branch=self._ref,
                    commit=tip,
                    tree=tree,
                )
            )
            paths = ", ".join(shown_path(path) for path in result.conflicts[:5])
            raise MergeConflictError(
                f"the changes conflict with the mission branch in {paths}",
                result.details,
                hint=self._rollback_hint,
            )
        return result.tree, verdict if result.tree == tree else await validate(result.tree)

    @property
    def _rollback_hint(self) -> str:
        return f"to have that tree alone: chargehand mission rollback {self._journal.mission}, then promote again"

    async def _swap(self, commit: str, old: str | None, tree: str) -> str:
        prepared = PromotionPrepared(ref=self._ref, old=old or "", new=commit, tree=tree)
        self._journal.note(prepared, durable=True)
        self._fault("prepared")
        commit = await asyncio.to_thread(self._move, commit, old, tree)
        self._fault("swapped")
        self._journal.note(PromotionDone(ref=self._ref, commit=commit, tree=tree), durable=True)
        self._fault("promoted")
        return commit

    def _move(self, commit: str, old: str | None, tree: str) -> str:
        """Swap the branch and return where it is: a worker given up in mid-promotion may have come first."""
        depot = self._services.depot
        try:
            depot.swap(self._ref, commit, old, durable=True)
        except RefMovedError:
            there = depot.read_ref(self._ref)
            if there is None or there == old or depot.tree_of(there) != tree:
                raise
            return there
        return commit

    def _message(self, verdict: Verdict) -> str:
        request = self._journal.state.request
        assert request is not None
        lines = (_one_line(line) for line in request.text.splitlines())
        title = next(filter(None, lines), request.slug)[:_TITLE].rstrip()
        title = self._given_message(verdict.tree) or title
        checks = ", ".join(_one_line(check.name) for check in verdict.checks) or "none"
        agent = _one_line(request.agent)
        return f"{title}\n\nMission: {self._journal.mission}\nAgent: {agent}\nChecks: {checks}\n"

    def _given_message(self, tree: str) -> str:
        """Return what a person said of this tree last (`git commit`), "" where nobody did."""
        for point in reversed(self._journal.state.checkpoints):
            if point.tree != tree:
                return ""
            if point.trigger == COMMITTED:
                return printable(self._services.depot.read_commit(point.commit).message.strip())
        return ""

    async def deliver(self) -> None:
        """Bring what is promoted to where it is wanted and is not yet: export it, apply it where asked."""
        state = self._journal.state
        assert state.request is not None
        assert state.commit is not None
        await self._sign(state.commit)
        if not _exported(state):
            await self.export()
        if state.request.apply and not _applied(state):
            await self.apply()

    async def _sign(self, commit: str) -> None:
        """Sign the log and note that on the commit, once; what hinders it is noted and undoes no promotion."""
        if self._journal.state.signed == commit:
            return
        try:
            head = await asyncio.to_thread(self._noted, commit)
            self._fault("signed")
        except FencedError:
            raise
        except ChargehandError as error:
            self._journal.note(HeadSigned(commit=commit, problem=error.message))
        else:
            self._journal.note(HeadSigned(commit=commit, seq=head.seq, key=head.key))

    def _noted(self, commit: str) -> SignedHead:
        """Return the signed head that stands on the commit, put there where a crash did not come after it."""
        depot, mission = self._services.depot, self._journal.mission
        for line in (depot.annotation(commit) or "").splitlines():
            head = SignedHead.decode(line.encode())
            if head.mission == mission:
                return head
        head = self._services.store.sign_head(mission)
        depot.annotate(commit, head.encode().decode())
        return head

    async def export(self) -> Export:
        """Write the mission branch into the user's repository and record how that went."""
        state = self._journal.state
        assert state.commit is not None
        assert state.request is not None
        if state.exported is not None and state.export is not None:
            export = await self._write(state.commit, state.export.ref.removeprefix(_HEADS), state.exported)
        else:
            export = await self._write_new(state.commit, f"{PREFIX}{state.request.slug}")
        self._fault("exported")
        export = self._with_way_out(export, "rollback" if _rolled_back(state) else "promote")
        self._journal.note(ExportChanged(export=export, commit=state.commit), durable=True)
        return export

    async def _write_new(self, commit: str, branch: str) -> Export:
        """Make a branch; where the name is taken, the mission's id is added to it."""
        export = await self._write(commit, branch, None)
        if export.state != "blocked":
            return export
        other = await self._write(commit, f"{branch}-{self._journal.mission[-6:]}", None)
        return other if other.state == "done" else export

    async def _write(self, commit: str, branch: str, old: str | None) -> Export:
        depot = self._services.depot
        try:
            done = await asyncio.to_thread(export_branch, depot, commit, branch=branch, expected_old=old)
            return replace(done, reason=await self._write_notes(commit)) if done.state == "done" else done
        except ChargehandError as error:  # the promotion stands all the same, and can be delivered later
            return Export(ref=f"{_HEADS}{branch}", state="blocked", reason=error.message)

    async def _write_notes(self, commit: str) -> str:
        """Bring the commit's note along; return what hindered it: the branch is there all the same."""
        try:
            await asyncio.to_thread(export_notes, self._services.depot, commit)
        except ChargehandError as error:
            return f"without the note of the signed log: {error.message}"
        return ""

    def _with_way_out(self, export: Export, verb: str) -> Export:
        if export.state != "blocked":
            return export
        command = f"chargehand mission {verb} {self._journal.mission}"
        return replace(export, reason=f"{export.reason}; once that is out of the way: {command}")

    async def apply(self) -> Export:
        """Fast-forward the user's own branch, where it is where it was and the touched paths are clean."""
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
            applied = Export(ref=f"{_HEADS}{base.branch}", state="blocked", reason=error.message)
        applied = self._with_way_out(applied, "promote")
        self._journal.note(ApplyChanged(export=applied, commit=state.commit), durable=True)
        return applied

    async def roll_back(self) -> str:
        """Put a commit on the mission branch that has the base's tree again; return it, exported."""
        state = self._journal.state
        base = state.promoted_on
        if state.commit is None or base is None:
            raise nothing_promoted(state)
        if _rolled_back(state):
            return await self._roll_back_again(state.commit)
        depot = self._services.depot
        message = f"Roll back mission {self._journal.mission}\n\nThis reverts commit {state.commit}.\n"
        commit = await asyncio.to_thread(depot.commit, base.tree, (state.commit,), message)
        prepared = PromotionPrepared(ref=self._ref, old=state.commit, new=commit, tree=base.tree)
        self._journal.note(prepared, durable=True)
        self._fault("rollback_prepared")
        await asyncio.to_thread(depot.swap, self._ref, commit, state.commit, durable=True)
        self._fault("rolled_back")
        self._journal.note(MissionRolledBack(ref=self._ref, commit=commit, tree=base.tree), durable=True)
        await self._sign(commit)
        await self.export()
        return commit

    async def _roll_back_again(self, commit: str) -> str:
        """Export a roll back that was blocked; one that is everywhere is refused."""
        if _exported(self._journal.state):
            raise rolled_back_already(self._journal.state)
        await self.export()
        return commit

    def settle_prepared(self) -> bool:
        """Find out whether a promotion that was begun came to its swap; one that did not is forgotten.

        Returns whether a promotion stands that was not brought to its end.
        """
        state = self._journal.state
        prepared = state.prepared
        if prepared is not None and self._services.depot.read_ref(self._ref) == prepared.new:
            done = PromotionDone(ref=prepared.ref, commit=prepared.new, tree=prepared.tree)
            self._journal.note(done, durable=True)
        return state.commit is not None and state.status != "promoted"


def nothing_promoted(state: MissionState) -> RefusedError:
    """Return the error for a roll-back of a mission that promoted nothing."""
    return RefusedError(
        f"mission {state.id!r} has promoted nothing",
        code="not_promoted",
        hint=f"chargehand mission show {state.id}",
    )


def rolled_back_already(state: MissionState) -> RefusedError:
    """Return the error for a second roll-back."""
    return RefusedError(
        f"mission {state.id!r} is rolled back already",
        code="rolled_back",
        hint=f"chargehand mission promote {state.id} brings it in again",
    )


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def undelivered(state: MissionState) -> bool:
    """Tell whether a promotion stands that has not come to where it was wanted."""
    if state.status != "promoted" or state.request is None or _rolled_back(state):
        return False
    return not _exported(state) or (state.request.apply and not _applied(state))


def _exported(state: MissionState) -> bool:
    return state.exported is not None and state.exported == state.commit


def _applied(state: MissionState) -> bool:
    return state.applied is not None and state.applied.state == "done"


def _rolled_back(state: MissionState) -> bool:
    return state.commit is not None and state.promoted_on is not None and state.tree == state.promoted_on.tree
