"""All operations that change a mission of one project: run, promote, roll back, restore, recover."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial

from chargehand.checks.inspection import inspect
from chargehand.core.errors import RefusedError, StoreError
from chargehand.core.mission_events import ApprovalGiven, MissionClaimed, MissionFinished
from chargehand.core.plan_events import CoordinatorWoken
from chargehand.core.records import (
    Base,
    Checkpoint,
    ChoiceReason,
    Finding,
    MissionRequest,
    Reason,
    Verdict,
    VerdictScope,
)
from chargehand.core.state import ENDED, SETTLED, MissionState
from chargehand.missions._policy import admit
from chargehand.missions.attempt.admission import Admission
from chargehand.missions.attempt.leftovers import keep_unfinished
from chargehand.missions.attempt.log import archive_replies, cancel_open_attempts, settle_lost_calls
from chargehand.missions.attempt.settlement import AttemptSettlement
from chargehand.missions.checkpoints import restore_checkpoint
from chargehand.missions.control import Control, Controls
from chargehand.missions.flow import MissionFlow
from chargehand.missions.journal import Journal, MissionSubmission, Unlogged, claim_mission, create_mission
from chargehand.missions.promotion.promoter import Promoter
from chargehand.missions.promotion.rebase import advance_base, has_branch_moved, rebase_promoted
from chargehand.missions.reading import (
    MissionReader,
    changed_since_promotion,
    find_checkpoint,
    is_part_of_plan,
    is_undelivered,
)
from chargehand.missions.results.delivery import ResultDelivery
from chargehand.missions.results.tree_judge import TreeJudge
from chargehand.missions.run import MissionRun, run_interruptible
from chargehand.missions.sandboxes.environment import base_environment, find_made_setup
from chargehand.missions.sandboxes.provisioning import (
    BaseEnvironment,
    SandboxProvisioner,
    SandboxRequest,
    remove_leftovers,
)
from chargehand.missions.services import DepotReader, Services
from chargehand.missions.task_rollback import check_task_rollback, check_whole, plan_task_rollback
from chargehand.missions.verdict.classification import FLAKY_TEST
from chargehand.missions.verdict.gates import areas_of, find_gates
from chargehand.missions.verdict.judgement import judge_verdict, person_may_promote
from chargehand.missions.verdict.outside import OutsideResult as OutsideResult
from chargehand.missions.verdict.outside import OutsideTrial as OutsideTrial
from chargehand.missions.verdict.outside import judge_from_outside
from chargehand.policy.actions import Action, Judgement
from chargehand.sandbox.contract import OnOutput, Sandbox
from chargehand.store.rows import MissionFilter
from chargehand.workspace.errors import Fault, no_fault
from chargehand.workspace.rollback import RollbackPlan
from chargehand.workspace.workspace import Workspace


class Missions:
    """All operations that change a mission of one project."""

    def __init__(self, services: Services, *, controls: Controls, fault: Fault = no_fault) -> None:
        self._services = services
        self._controls = controls
        self._fault = fault
        self.look = MissionReader(store=services.store, workers=services.workers)
        self._created: set[str] = set()

    @contextlib.contextmanager
    def created(
        self,
        request: MissionRequest,
        *,
        repository: str,
        base: Base,
        config: dict[str, object],
        chosen: tuple[ChoiceReason, ...] = (),
    ) -> Iterator[str]:
        """Record a new mission for this process to `run` in the block; see `create_mission`.

        Other workers leave it alone from its first line on: if one took it before `run` did, the person who waits
        for it would be refused. A mission that was not run when the block ends is free for any worker.
        """
        mission = self.create(request, repository=repository, base=base, config=config, held=True, chosen=chosen)
        self._created.add(mission)
        try:
            yield mission
        finally:
            if mission in self._created:  # nothing claimed it
                self._created.remove(mission)
                with contextlib.suppress(StoreError):
                    self._services.store.log.release(mission, epoch=0)

    def create(
        self,
        request: MissionRequest,
        *,
        repository: str,
        base: Base,
        config: dict[str, object],
        held: bool = False,
        chosen: tuple[ChoiceReason, ...] = (),
    ) -> str:
        """Record a new mission of this project, `held` by this process if requested; see `create_mission`."""
        return create_mission(
            self._services.store,
            MissionSubmission(
                project=self._services.project,
                request=request,
                repository=repository,
                base=base,
                config=config,
                user=self._services.user,
                chosen=chosen,
            ),
            owner=self._services.worker[0] if held else None,
        )

    async def run(
        self, mission: str, *, on_output: OnOutput | None = None, on_check_output: OnOutput | None = None
    ) -> MissionState:
        """Run a mission from its last recorded step until it is settled; see `MissionRun.run`.

        Its agents' output goes to `on_output`, its checks' output to `on_check_output`, as it comes.
        """
        row = self._services.store.log.get(mission)
        if not row.runnable and row.owner is None:  # it ended while this call waited: nothing to claim
            return self.look.at_rest(mission)
        async with self._claim(mission) as (journal, control):
            # A mission with a pending stop is cancelled, as its coordinator wanted before it ended.
            goes_on = journal.state.status == "running" and not journal.state.cancel_asked
            parent = journal.state.parent if goes_on else None
            if parent and self._services.store.log.summary(parent).summary.status in ENDED:
                # No one needs the result of a task whose coordinator has ended.
                message = (
                    f"its coordinator {parent} has ended; `chargehand mission fork {journal.mission}` takes it out"
                )
                reason = Reason(code="coordinator_gone", message=message)
                kept = await asyncio.to_thread(keep_unfinished, self._services.depot, journal.state)
                journal.record(*kept, MissionFinished(status="waiting", reasons=(reason,)))
            elif journal.state.status == "running":
                own = (self._services, journal, control)
                judge = TreeJudge(*own, fault=self._fault, on_output=on_check_output)
                delivery = ResultDelivery(*own, judge)
                admission = Admission(self._services, journal, judge.queue)
                attempts = AttemptSettlement(self._services, journal, admission)
                flow = MissionFlow(
                    *own,
                    judge=judge,
                    delivery=delivery,
                    admission=admission,
                    attempts=attempts,
                    on_output=on_output,
                )

                async def go_through_steps() -> None:
                    if journal.state.plan is None:
                        await flow.run()
                    else:
                        # Imported here: most missions have no plan.
                        from chargehand.missions.coordination.coordinator import Coordinator

                        await Coordinator(*own, judge, delivery).run()

                await MissionRun(*own, attempts=attempts, delivery=delivery).run(go_through_steps)
            return self.look.with_task_costs(journal.state)

    @contextlib.asynccontextmanager
    async def _claim(self, mission: str) -> AsyncIterator[tuple[Journal, Control]]:
        """Claim the mission for the block, so that no other process changes it; an order to stop cancels the
        block.

        Raises `RefusedError` (`mission_held`) if a living worker holds it.
        """
        task = asyncio.current_task()
        assert task is not None
        services = self._services
        worker, role = services.worker
        created = mission in self._created
        self._created.discard(mission)
        log = services.store.log
        with claim_mission(log, mission, worker=worker, look=self.look, created=created) as epoch:
            journal = Journal(services.store, mission, clock=services.clock, watch=services.watch, epoch=epoch)
            # The first line under the new epoch: the fold counts claims without a step after them as fruitless. A
            # sleeping coordinator is woken with it: if it were released without another event, as after a crash,
            # it would neither sleep nor be free to resume.
            sleeps = journal.state.asleep and journal.state.status == "running"
            woken = (CoordinatorWoken(mission=mission),) if sleeps else ()
            claimed = MissionClaimed(worker=worker, role=role, epoch=epoch, version=services.version)
            journal.record(*woken, claimed)
            control = Control(task, journal)
            try:
                with self._controls.running(mission, control):
                    yield journal, control
            finally:
                # A paused mission, or one with an open question, resumes in its existing workspace.
                if journal.state.status in SETTLED - {"paused"} and journal.state.open_question is None:
                    await asyncio.shield(asyncio.to_thread(self._remove_leftovers, journal.state))

    def _remove_leftovers(self, state: MissionState) -> None:
        services, ended = self._services, [state.id]
        if state.plan is not None:  # a task may still have leftovers if its worker died while ending it
            tasks = services.store.log.summaries(services.workers.live, MissionFilter(parent=state.id))
            ended += [each.summary.id for each in tasks if each.summary.status in ENDED]
        remove_leftovers(services.home, lambda: services.depot, *ended)

    def _journal(self, mission: str) -> Journal:
        services = self._services
        return Journal(services.store, mission, clock=services.clock, watch=services.watch)

    async def promote(self, mission: str, *, identity: str, reason: str = "", seen: str = "") -> MissionState:
        """Promote a mission's result, by a person's decision on its exact last tree.

        The approval is for that tree alone and is used once. `seen` is the tree, or its beginning, that the person
        looked at. Raises `RefusedError` (`tree_changed`) if the tree has changed since.

        A person may approve a changed check surface, protected areas, intentionally changed tests and a tree
        without checks, but never override a failed check of the tree itself. An earlier promotion that could not
        be exported or applied is delivered now, and so is the merged part of a plan that ended early. If the
        branch to apply to has moved on, the merge with it is judged and promoted on top. Raises `RefusedError`
        (`merge_conflict` if they conflict).
        """
        async with self._claim(mission) as (journal, control):
            judge = TreeJudge(self._services, journal, control, fault=self._fault)
            delivery = ResultDelivery(self._services, journal, control, judge)
            async with judge.queue.delivery():
                await self._promote(judge, delivery, journal, identity=identity, reason=reason, seen=seen)
                if is_undelivered(journal.state):
                    await delivery.promote_on_branch()
            return self.look.with_task_costs(journal.state)

    async def _promote(
        self,
        judge: TreeJudge,
        delivery: ResultDelivery,
        journal: Journal,
        *,
        identity: str,
        reason: str,
        seen: str,
    ) -> None:
        mission = journal.mission
        if is_part_of_plan(journal.state):
            _check_seen(journal, journal.state.tree or "", seen)
            # Each merge was judged; the person decides to export it without the rest.
            approved = ApprovalGiven(tree=journal.state.tree or "", identity=identity, reason=reason)
            journal.record(approved, durable=True)
            await delivery.deliver()
            return
        if is_undelivered(journal.state) and changed_since_promotion(journal.state) is None:
            rebase = await rebase_promoted(journal, self._services)
            if rebase is None:
                await delivery.deliver()
                return
            base, tree = rebase.base, rebase.tree
        else:
            rebase = None
            base, tree = _promotable(journal.state)
        _check_seen(journal, tree, seen)
        # Judged again, by today's gates and areas: base and configuration may have changed since.
        scope: VerdictScope = "merged" if rebase else "attempt"
        before = tuple(journal.state.verdicts)
        verdict, context = await run_interruptible(journal, lambda: judge.judge_again(base, tree, scope=scope))
        if not person_may_promote(verdict):
            reasons = "; ".join(part.message for part in judge_verdict(verdict).reasons)
            hint = f"a failed check cannot be overridden; to mend it: chargehand mission continue {mission} TEXT"
            if any(found.rule == "setup_offline" for found in verdict.findings):
                hint = "run `chargehand config set project.setup_network true`, then promote it again"
            raise RefusedError(
                f"the tree of mission {mission!r} is not green: {reasons}", code="not_green", hint=hint
            )
        _check_told(journal, verdict, before)
        superseded = Reason(code="promoted", message="a person promoted its last tree")
        approval = ApprovalGiven(tree=tree, identity=identity, reason=reason)
        for attempt in journal.state.open_attempts:
            journal.record(*settle_lost_calls(self._services.store, journal.state, attempt.id))
        ended = cancel_open_attempts(journal.state, superseded)
        if rebase is not None:
            advance_base(journal, rebase)
        # On disk before the branch moves: a promotion without a green verdict must show who approved it.
        journal.record(approval, *ended, durable=True)
        archive_replies(self._services.store, mission, *(each.attempt for each in ended))
        await delivery.promote(context, tree, verdict, approved=True)

    async def roll_back(self, mission: str) -> MissionState:
        """Undo a promotion by a new commit on the mission branch; the user's ref never moves back.

        Raises the errors of `check_whole`.
        """
        check_whole(self.look.state(mission))
        async with self._claim(mission) as (journal, _):
            await Promoter(self._services, journal, fault=self._fault).roll_back()
            return self.look.with_task_costs(journal.state)

    async def roll_back_task(self, mission: str, task: str, *, with_dependents: bool = False) -> MissionState:
        """Take back a task of a coordinator by a new commit on its branch, if the remaining tree passes every
        gate.

        Raises the errors of `plan_task_rollback`, and `RefusedError` (`not_green`) if the remaining tree is not
        good.
        """
        check_task_rollback(self.look.state(mission), task)
        services = self._services
        async with self._claim(mission) as (journal, control):
            promoter = Promoter(services, journal, fault=self._fault)
            promoter.settle_prepared()
            plan = await asyncio.to_thread(
                partial(
                    plan_task_rollback,
                    *(services.store, services.depot, journal.state, task),
                    with_dependents=with_dependents,
                )
            )
            base = journal.state.promoted_on
            assert base is not None
            # With all tasks taken back the base's tree remains, which needs no approval.
            if plan.tree != base.tree:
                judge = TreeJudge(services, journal, control, fault=self._fault)
                verdict, _ = await run_interruptible(
                    journal, lambda: judge.judge_again(base, plan.tree, scope="merged", without=plan.tasks)
                )
                if not person_may_promote(verdict):
                    reasons = "; ".join(part.message for part in judge_verdict(verdict).reasons)
                    raise RefusedError(
                        f"without {', '.join(plan.tasks)} the rest of mission {mission!r} is not green: {reasons}",
                        code="not_green",
                        hint=f"roll back the tasks that need it, or all: chargehand mission rollback {mission}",
                    )
            await control.finish(promoter.roll_back_tasks(plan))
            return self.look.with_task_costs(journal.state)

    async def restore(self, mission: str, checkpoint: str, *, plan: RollbackPlan | None = None) -> Checkpoint:
        """Go back to an earlier checkpoint, or `base`, by a new checkpoint: those in between stay.

        With a `plan`, only as far as it says. Raises `RefusedError` (`plan_stale`) if the plan was made for an
        earlier last checkpoint.
        """
        async with self._claim(mission) as (journal, _):
            base = journal.state.base if checkpoint == "base" else None
            commit = base.commit if base else find_checkpoint(journal.state, checkpoint).commit
            return restore_checkpoint(self._services.depot, journal, commit, plan=plan)

    def findings(self, mission: str) -> tuple[Finding, ...]:
        """Inspect a mission's last checkpoint again, with its current areas; empty without a checkpoint."""
        state = self.look.state(mission)
        if state.base is None or state.request is None or not state.checkpoints:
            return ()
        services, tree = self._services, state.checkpoints[-1].tree
        areas = areas_of(services, state.request, find_gates(services, state.base, state.request))
        changes = services.depot.diff(state.base.tree, tree)
        return tuple(inspect(changes, DepotReader(services.depot), state.base.tree, areas))

    async def recover(self) -> list[str]:
        """Finish or forget promotions begun by dead processes; return the missions that are now promoted.

        The rest of an unfinished mission is left to the worker that resumes it.
        """
        done = []
        for row in self._services.store.log.takeable():
            if row.project != self._services.project or row.owner is None or self.look.live(row):
                continue
            # Only missions that reached their journal entry or swap: all others simply resume. A coordinator
            # delivers only at its end.
            state = self._journal(row.id).state
            delivered = state.plan is not None or state.commit is None or state.status == "promoted"
            if state.prepared is None and delivered:
                continue
            with contextlib.suppress(RefusedError):  # another worker came first
                async with self._claim(row.id) as (journal, control):
                    stands = Promoter(self._services, journal, fault=self._fault).settle_prepared()
                    if stands and journal.state.plan is None:  # a coordinator may have more to merge
                        judge = TreeJudge(self._services, journal, control, fault=self._fault)
                        async with judge.queue.delivery(wait=False) as held:
                            # A repeated judgement takes time: the worker that resumes the mission does that.
                            if held and not await asyncio.to_thread(
                                has_branch_moved, journal, self._services.depot
                            ):
                                await ResultDelivery(self._services, journal, control, judge).deliver()
                                done.append(row.id)
        return done

    async def admit(self, action: Action, *, directory: str = "", mission: str | None = None) -> Judgement:
        """Judge a command that a person runs, recorded in the log of the mission that it looks at, if any.

        Raises `RefusedError` (`policy_denied`) unless it is allowed.
        """
        journal = Unlogged() if mission is None else self._journal(mission)
        return await admit(self._services, journal, action, purpose="exec", directory=directory)

    async def judge_outside(
        self, base: Base, trial: OutsideTrial, *, tree: str, setup_directory: str = ""
    ) -> OutsideResult:
        """Judge a tree over a base by a trial from another sandbox, outside any mission, and record nothing.

        Raises `InfrastructureError` (`relay_failed`), `SandboxDiedError`.
        """
        environment = await self._made_environment(base, setup_directory)
        provisioner = SandboxProvisioner(self._services, Unlogged())
        return await judge_from_outside(self._services, provisioner, environment, trial, tree=tree)

    async def _made_environment(self, base: Base, setup_directory: str) -> BaseEnvironment:
        setup = self._services.config.project.setup
        if setup is None:  # an earlier mission may have detected a working setup
            setup = await asyncio.to_thread(find_made_setup, self._services, base, setup_directory)
        return await base_environment(self._services, Unlogged(), base, setup=setup, directory=setup_directory)

    @contextlib.asynccontextmanager
    async def open_workspace(
        self, base: Base, *, tree: str | None = None, directory: str = "", setup_directory: str = ""
    ) -> AsyncIterator[tuple[Workspace, Sandbox]]:
        """Open a sandbox on a fresh workspace of a base, or of a tree over it, for one command of a person.

        Commands start in `directory`, setup in `setup_directory`.
        """
        environment = await self._made_environment(base, setup_directory)
        provisioner = SandboxProvisioner(self._services, Unlogged())
        async with (
            provisioner.workspace(environment, purpose="exec", tree=tree) as workspace,
            provisioner.egress(purpose="exec") as egress,
            provisioner.sandbox(
                workspace, environment, SandboxRequest(purpose="exec", egress=egress, directory=directory)
            ) as sandbox,
        ):
            yield workspace, sandbox


def _check_seen(journal: Journal, tree: str, seen: str) -> None:
    """Raise `RefusedError` (`tree_changed`) if a person looked at another tree (`seen` is its beginning)."""
    if not tree.startswith(seen):
        raise RefusedError(
            f"mission {journal.mission!r} has another tree by now: {tree[:12]}, and not {seen[:12]}",
            code="tree_changed",
            hint=f"look again: chargehand mission diff {journal.mission}",
        )


def _check_told(journal: Journal, verdict: Verdict, before: Iterable[Verdict]) -> None:
    """Raise `RefusedError` (`two_verdicts`) if the tree has two results, and no verdict in `before` reported it.

    The verdict with both is already recorded: a person who promotes the tree again has been informed.
    """
    flaky = [found.message for found in verdict.needs_person if found.rule == FLAKY_TEST]
    told = any(found.rule == FLAKY_TEST for each in before if each.tree == verdict.tree for found in each.findings)
    if flaky and not told:
        raise RefusedError(
            f"the tree of mission {journal.mission!r} has two verdicts: {'; '.join(flaky)}",
            code="two_verdicts",
            hint=f"chargehand mission promote {journal.mission} once more promotes it anyway",
        )


def _promotable(state: MissionState) -> tuple[Base, str]:
    """Return base and last tree of a mission that a person may promote; raises `RefusedError`."""
    look = f"chargehand mission show {state.id}"
    if state.status not in ("waiting", "refused", "failed", "exhausted", "cancelled", "promoted"):
        raise RefusedError(f"mission {state.id!r} is {state.status}", code="not_promotable", hint=look)
    if state.base is None or not state.checkpoints or state.checkpoints[-1].tree == state.base.tree:
        raise RefusedError(f"mission {state.id!r} has no change to promote", code="no_change", hint=look)
    if state.checkpoints[-1].tree == state.tree:
        raise RefusedError(
            f"mission {state.id!r} is already promoted at that tree",
            code="promoted",
            hint=f"chargehand mission rollback {state.id} undoes it",
        )
    return state.base, state.checkpoints[-1].tree
