"""Missions as a person handles them: start, look, cancel, promote by hand, roll back, discard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime

from chargehand.checks.inspection import inspect
from chargehand.core.errors import NotFoundError, RefusedError, UsageError
from chargehand.core.fold import fold
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    ApprovalGiven,
    BaseResolved,
    MissionClaimed,
    MissionCreated,
    VerdictGiven,
)
from chargehand.core.records import Base, Checkpoint, Finding, MissionRequest, Reason, Verdict
from chargehand.core.state import SETTLED, MissionState
from chargehand.durable.workers import Workers
from chargehand.missions._control import Control
from chargehand.missions._environment import environment_layer
from chargehand.missions._flow import MissionFlow
from chargehand.missions._gates import areas_of, find_gates
from chargehand.missions._hold import hold
from chargehand.missions._inspection import Inspector
from chargehand.missions._journal import Journal, Unlogged
from chargehand.missions._judgement import after_checks, end_attempts, person_may_promote
from chargehand.missions._kept_calls import put_away
from chargehand.missions._line import standings
from chargehand.missions._places import Ground, Places, clear
from chargehand.missions._policy import admit
from chargehand.missions._promote import Fault, Promoter, no_fault, undelivered
from chargehand.missions._queue import Queue
from chargehand.missions._reader import DepotReader
from chargehand.missions._restore import restore_checkpoint
from chargehand.missions._services import Services
from chargehand.missions._sleep import wakes_at
from chargehand.missions._validate import Validator
from chargehand.policy.actions import Action, Judgement
from chargehand.sandbox.contract import OnOutput, Sandbox
from chargehand.store.log import MissionRow
from chargehand.store.store import Store
from chargehand.workspace.rollback import RollbackPlan
from chargehand.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Reads missions; needs nothing but the store and who is alive."""

    store: Store
    workers: Workers

    def state(self, mission: str) -> MissionState:
        """Return a mission's state as its log and its holder tell it; raises `NotFoundError`."""
        return self._state(self.store.log.get(mission))

    def all(self, *, project: str | None = None) -> Iterator[MissionState]:
        """Yield the states of all missions, of one project if named, oldest first."""
        for row in self.store.log.missions(project=project):
            yield self._state(row)

    def live(self, row: MissionRow) -> bool:
        """Tell whether a living worker holds the mission right now."""
        return row.owner is not None and self.workers.live(row.owner)

    def waits(self) -> dict[str, Reason]:
        """Return why each mission waits that should go on and that nobody alive has taken up, the oldest first."""
        return {mission: standing.reason for mission, standing in standings(self.store, self.workers).items()}

    def sleepers(self) -> dict[str, datetime]:
        """Return the missions that wait for quota and when each is to be woken, the first one first."""
        waking = ((wakes_at(row.id, row.wakes), row.id) for row in self.store.log.sleeping() if row.wakes)
        return {mission: moment for moment, mission in sorted(waking)}

    def at_rest(self, mission: str) -> MissionState:
        """Return a mission's state as it is when nobody runs it."""
        return fold(self.store.log.read(mission), live=False)

    def _state(self, row: MissionRow) -> MissionState:
        # The holder is looked at first: one that ends in between has left all its events in the log by then.
        while True:
            live = self.live(row)
            state = fold(self.store.log.read(row.id), live=live)
            now = self.store.log.get(row.id)
            if live or now.epoch == row.epoch:
                return state
            row = now  # taken up while we looked: what seemed lost is being worked on


def create_mission(
    store: Store,
    *,
    project: str,
    request: MissionRequest,
    repository: str,
    base: Base,
    config: dict[str, object],
    user: str = "",
    mission: str | None = None,
) -> str:
    """Record a new mission of a user on a base and return its id; from now on any worker may take it.

    With an id of the caller's, raises `UsageError` (`mission_exists`) for all but the first of that id.
    """
    mission = mission or new_id("mission")
    created = MissionCreated(project=project, repository=repository, request=request, config=config, user=user)
    store.log.append(mission, created, BaseResolved(base=base), durable=True)
    return mission


class Missions:
    """Everything that changes a mission of one project."""

    def __init__(self, services: Services, *, fault: Fault = no_fault) -> None:
        self._services = services
        self._fault = fault
        self.look = Look(store=services.store, workers=services.workers)

    def create(self, request: MissionRequest, *, repository: str, base: Base, config: dict[str, object]) -> str:
        """Record a new mission of this project; see `create_mission`."""
        return create_mission(
            self._services.store,
            project=self._services.project,
            request=request,
            repository=repository,
            base=base,
            config=config,
            user=self._services.user,
        )

    async def run(self, mission: str, *, on_output: OnOutput | None = None) -> MissionState:
        """Run a mission, from its last recorded step, to where it is settled; see `MissionFlow.run`."""
        row = self._services.store.log.get(mission)
        if not row.runnable and row.owner is None:  # it ended while this turn of it waited: nothing to claim
            return self.look.at_rest(mission)
        async with self._held(mission) as (journal, control):
            if journal.state.status == "running":
                flow = MissionFlow(self._services, journal, control, fault=self._fault, on_output=on_output)
                await flow.run()
            return journal.state

    @contextlib.asynccontextmanager
    async def _held(self, mission: str) -> AsyncIterator[tuple[Journal, Control]]:
        """Hold the mission, so that nobody else changes it; an order to stop it cancels the block.

        Raises `RefusedError` (`mission_held`) where a living worker holds it.
        """
        task = asyncio.current_task()
        assert task is not None
        services = self._services
        worker, role = services.worker
        with hold(services.store.log, mission, worker=worker, look=self.look) as epoch:
            journal = Journal(services.store, mission, clock=services.clock, watch=services.watch, epoch=epoch)
            journal.note(MissionClaimed(worker=worker, role=role, epoch=epoch, version=services.version))
            control = Control(task, journal)
            try:
                with services.controls.running(mission, control):
                    yield journal, control
            finally:
                if journal.state.status in SETTLED - {"paused"} and journal.state.open_question is None:
                    await asyncio.shield(asyncio.to_thread(clear, services, journal.state))

    def _journal(self, mission: str) -> Journal:
        services = self._services
        return Journal(services.store, mission, clock=services.clock, watch=services.watch)

    async def promote(self, mission: str, *, identity: str, reason: str = "") -> MissionState:
        """Promote what a mission left, by a person's decision on its exact last tree.

        A person may let in what only a person may (a changed check surface, protected areas, tests changed on
        purpose, no checks at all), never what a check of the tree itself refused. What is promoted already and
        could not be exported or applied is delivered now. Raises `RefusedError`.
        """
        async with self._held(mission) as (journal, control):
            flow = MissionFlow(self._services, journal, control, fault=self._fault)
            if undelivered(journal.state):
                await flow.deliver()
                return journal.state
            base, tree = _promotable(journal.state)
            verdict, validator = await self._verdict_now(journal, control, base, tree)
            if not person_may_promote(verdict):
                reasons = "; ".join(part.message for part in after_checks(verdict).reasons)
                raise RefusedError(
                    f"the tree of mission {mission!r} is not green: {reasons}",
                    code="not_green",
                    hint="what a check refuses nobody lets in; mend it with a new mission",
                )
            superseded = Reason(code="promoted", message="a person promoted what it had left")
            approval = ApprovalGiven(tree=tree, identity=identity, reason=reason)
            ended = end_attempts(journal.state, superseded)
            journal.note(approval, *ended, durable=True)
            put_away(self._services.store, mission, *(each.attempt for each in ended))
            await flow.promote(base, tree, verdict, validator, approved=True)
            return journal.state

    async def _verdict_now(
        self, journal: Journal, control: Control, base: Base, tree: str
    ) -> tuple[Verdict, Validator]:
        """Judge a tree anew, as its gates are today."""
        services = self._services
        assert journal.state.request is not None
        places = Places(services, journal, control=control)
        environment = await environment_layer(services, journal, base, places=places)
        gates = find_gates(services, base, journal.state.request)
        ground = Ground(base=base, environment=environment)
        queue = Queue(services, journal, control)
        validator = Validator(services, journal, ground=ground, gates=gates, places=places, queue=queue)
        await validator.base()
        changes = services.depot.diff(base.tree, tree)
        areas = areas_of(services, journal.state.request, gates)
        seen = await Inspector(services, base, areas).full(changes)
        verdict = await validator.candidate(
            tree, scope="attempt", changes=changes, findings=seen.findings, degraded=seen.degraded
        )
        journal.note(VerdictGiven(verdict=verdict))
        return verdict, validator

    async def roll_back(self, mission: str) -> MissionState:
        """Undo a promotion by a new commit on the mission branch; the user's ref never moves back."""
        async with self._held(mission) as (journal, _):
            await Promoter(self._services, journal, fault=self._fault).roll_back()
            return journal.state

    async def restore(self, mission: str, checkpoint: str, *, plan: RollbackPlan | None = None) -> Checkpoint:
        """Go back to an earlier checkpoint, or `base`, by a new checkpoint: what came between stays.

        With a `plan` only as far as that says. Raises `RefusedError` (`plan_stale`) where the last checkpoint is
        not the one any more that the plan was made for.
        """
        async with self._held(mission) as (journal, _):
            base = journal.state.base if checkpoint == "base" else None
            commit = base.commit if base else find_checkpoint(journal.state, checkpoint).commit
            return restore_checkpoint(self._services.depot, journal, commit, plan=plan)

    def findings(self, mission: str) -> tuple[Finding, ...]:
        """Inspect a mission's last checkpoint anew, as its areas are today; none where it left nothing."""
        state = self.look.state(mission)
        if state.base is None or state.request is None or not state.checkpoints:
            return ()
        services, tree = self._services, state.checkpoints[-1].tree
        areas = areas_of(services, state.request, find_gates(services, state.base, state.request))
        changes = services.depot.diff(state.base.tree, tree)
        return tuple(inspect(changes, DepotReader(services.depot), state.base.tree, areas))

    async def recover(self) -> list[str]:
        """Finish or forget the promotions that dead processes began; return the missions that are promoted now.

        Whatever else they left of a mission that should go on is left to whoever runs it.
        """
        done = []
        for row in self._services.store.log.takeable():
            if row.project != self._services.project or row.owner is None or self.look.live(row):
                continue
            with contextlib.suppress(RefusedError):  # another one came first
                if await self._recover(row.id):
                    done.append(row.id)
        return done

    async def _recover(self, mission: str) -> bool:
        state = self._journal(mission).state
        if state.prepared is None and (state.commit is None or state.status == "promoted"):
            return False
        async with self._held(mission) as (journal, control):
            if not Promoter(self._services, journal, fault=self._fault).settle_prepared():
                return False
            await MissionFlow(self._services, journal, control, fault=self._fault).deliver()
            return True

    async def admit(self, action: Action, *, mission: str | None = None) -> Judgement:
        """Judge what a person runs by hand, noted in the log of the mission that it looks at, if any.

        Raises `RefusedError` (`policy_denied`) unless it is allowed.
        """
        journal = Unlogged() if mission is None else self._journal(mission)
        return await admit(self._services, journal, action, purpose="exec")

    @contextlib.asynccontextmanager
    async def open_place(self, base: Base, *, tree: str | None = None) -> AsyncIterator[Sandbox]:
        """Open a sandbox on a fresh workspace of a base, or of a tree over it, for one command by hand."""
        async with self.open_work(base, tree=tree) as (_, sandbox):
            yield sandbox

    @contextlib.asynccontextmanager
    async def open_work(self, base: Base, *, tree: str | None = None) -> AsyncIterator[tuple[Workspace, Sandbox]]:
        """Open a sandbox as `open_place` does, with the workspace it is on."""
        journal = Unlogged()
        environment = await environment_layer(self._services, journal, base)
        ground = Ground(base=base, environment=environment)
        places = Places(self._services, journal)
        async with (
            places.workspace(ground, purpose="exec", tree=tree) as workspace,
            places.egress(purpose="exec") as egress,
            places.sandbox(workspace, ground, purpose="exec", egress=egress) as sandbox,
        ):
            yield workspace, sandbox


def find_checkpoint(state: MissionState, name: str) -> Checkpoint:
    """Return the checkpoint whose commit starts with `name`, or the last one for `last`.

    Raises `NotFoundError` that lists what there is, `UsageError` where several match.
    """
    if name == "last" and state.checkpoints:
        return state.checkpoints[-1]
    found = {point.commit: point for point in state.checkpoints if point.commit.startswith(name)}
    if not found or len(name) < 4:
        known = ", ".join(point.commit[:12] for point in state.checkpoints) or "none"
        raise NotFoundError(f"mission {state.id!r} has no checkpoint {name!r}", hint=f"it has: {known}")
    if len(found) > 1:
        raise UsageError(f"{name!r} fits {len(found)} checkpoints", hint="give more digits")
    return next(iter(found.values()))


def _promotable(state: MissionState) -> tuple[Base, str]:
    """Return base and last tree of a mission that a person may promote; raises `RefusedError`."""
    look = f"chargehand mission show {state.id}"
    if state.status not in ("waiting", "refused", "failed", "exhausted", "cancelled", "promoted"):
        raise RefusedError(f"mission {state.id!r} is {state.status}", code="not_promotable", hint=look)
    if state.base is None or not state.checkpoints or state.checkpoints[-1].tree == state.base.tree:
        raise RefusedError(f"mission {state.id!r} left no change to promote", code="no_change", hint=look)
    if state.checkpoints[-1].tree == state.tree:
        raise RefusedError(
            f"mission {state.id!r} is promoted at that tree already",
            code="promoted",
            hint=f"chargehand mission rollback {state.id} undoes it",
        )
    return state.base, state.checkpoints[-1].tree
