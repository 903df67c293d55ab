"""Missions as a person handles them: start, look, cancel, promote by hand, roll back, discard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from chargehand.checks import inspect
from chargehand.core import (
    ApprovalGiven,
    Base,
    Checkpoint,
    CheckpointRestored,
    MissionCreated,
    MissionFinished,
    MissionRequest,
    MissionState,
    NotFoundError,
    Reason,
    RefusedError,
    UsageError,
    fold,
    new_id,
)
from chargehand.missions._environment import environment_layer
from chargehand.missions._flow import MissionFlow, areas_of, find_gates
from chargehand.missions._journal import Journal, Unlogged
from chargehand.missions._judgement import after_checks, person_may_promote
from chargehand.missions._liveness import Liveness
from chargehand.missions._places import Ground, Places
from chargehand.missions._promote import Fault, Promoter, no_fault, undelivered
from chargehand.missions._reader import DepotReader
from chargehand.missions._services import Services
from chargehand.missions._validate import Validator
from chargehand.sandbox import OnOutput, Sandbox
from chargehand.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Reads missions; needs nothing but the store and the locks."""

    store: Store
    liveness: Liveness

    def state(self, mission: str) -> MissionState:
        """Return a mission's state as its log and its lock tell it; raises `NotFoundError`."""
        return fold(self.store.log.read(mission), live=self.liveness.live(mission))

    def all(self, *, project: str | None = None) -> Iterator[MissionState]:
        """Yield the states of all missions, of one project if named, oldest first."""
        for row in self.store.log.missions(project=project):
            yield self.state(row.id)


class Missions:
    """Everything that changes a mission of one project."""

    def __init__(self, services: Services, *, fault: Fault = no_fault) -> None:
        self._services = services
        self._fault = fault
        self.look = Look(store=services.store, liveness=services.liveness)

    def create(self, request: MissionRequest, *, repository: str, config: dict[str, object]) -> str:
        """Record a new mission and return its id."""
        mission = new_id("mission")
        created = MissionCreated(
            project=self._services.project, repository=repository, request=request, config=config
        )
        self._services.store.log.append(mission, created)
        return mission

    async def run(self, mission: str, *, base: Base, on_output: OnOutput | None = None) -> MissionState:
        """Run a created mission to where it is settled; see `MissionFlow.run`."""
        async with self._held(mission) as journal:
            request = journal.state.request
            assert request is not None
            flow = MissionFlow(self._services, journal, fault=self._fault, on_output=on_output)
            return await flow.run(request, base=base)

    @contextlib.asynccontextmanager
    async def _held(self, mission: str) -> AsyncIterator[Journal]:
        """Hold the mission, so that nobody else changes it; an order to cancel it ends the block."""
        task = asyncio.current_task()
        assert task is not None
        async with self._services.liveness.hold(mission, on_cancel=lambda: _cancel(task)):
            yield self._journal(mission)

    def _journal(self, mission: str) -> Journal:
        services = self._services
        return Journal(services.store.log, mission, clock=services.clock, watch=services.watch)

    def cancel(self, mission: str) -> bool:
        """Order the process that runs a mission to stop; `False` where none runs it.

        A mission that waits for a person and is held by nobody is cancelled here and now.
        """
        if self._services.liveness.order(mission, "cancel"):
            return True
        state = self.look.state(mission)
        if state.status not in ("waiting", "planned", "paused"):
            return False
        reason = Reason(code="cancelled", message="a person cancelled the mission")
        self._journal(mission).note(MissionFinished(status="cancelled", reasons=(reason,)))
        return True

    async def promote(self, mission: str, *, identity: str, reason: str = "") -> MissionState:
        """Promote what a mission left, by a person's decision on its exact last tree.

        A person may let in what only a person may (a changed check surface, protected areas, tests changed on
        purpose, no checks at all), never what a check of the tree itself refused. What is promoted already and
        could not be exported or applied is delivered now. Raises `RefusedError`.
        """
        async with self._held(mission) as journal:
            if undelivered(journal.state):
                await MissionFlow(self._services, journal, fault=self._fault).deliver()
                return journal.state
            base, tree = _promotable(journal.state)
            request = journal.state.request
            assert request is not None
            environment = await environment_layer(self._services, journal, base)
            gates = find_gates(self._services, base, request)
            ground = Ground(base=base, environment=environment)
            validator = Validator(self._services, journal, ground=ground, gates=gates)
            await validator.base()
            changes = self._services.depot.diff(base.tree, tree)
            areas = areas_of(self._services, request, gates)
            findings = inspect(changes, DepotReader(self._services.depot), base.tree, areas)
            verdict = await validator.candidate(
                tree, scope="attempt", changes=changes, findings=findings, attempt=None
            )
            if not person_may_promote(verdict):
                reasons = "; ".join(part.message for part in after_checks(verdict).reasons)
                raise RefusedError(
                    f"the tree of mission {mission!r} is not green: {reasons}",
                    code="not_green",
                    hint="what a check refuses nobody lets in; mend it with a new mission",
                )
            journal.note(ApprovalGiven(tree=tree, identity=identity, reason=reason), durable=True)
            flow = MissionFlow(self._services, journal, fault=self._fault)
            await flow.promote(base, tree, verdict, validator, approved=True)
            return journal.state

    async def roll_back(self, mission: str) -> MissionState:
        """Undo a promotion by a new commit on the mission branch; the user's ref never moves back."""
        async with self._held(mission) as journal:
            await Promoter(self._services, journal, fault=self._fault).roll_back()
            return journal.state

    def discard(self, mission: str) -> MissionState:
        """Settle a mission as not wanted; its checkpoints stay until `gc`.

        Raises `RefusedError` for one that runs or is promoted.
        """
        state = self.look.state(mission)
        if state.status in ("promoted", "running"):
            hint = "roll it back first" if state.status == "promoted" else "cancel it first"
            raise RefusedError(f"mission {mission!r} is {state.status}", code="not_discardable", hint=hint)
        if state.status != "discarded":
            reason = Reason(code="discarded", message="a person discarded the mission")
            self._journal(mission).note(MissionFinished(status="discarded", reasons=(reason,)))
        return self.look.state(mission)

    async def restore(self, mission: str, checkpoint: str) -> Checkpoint:
        """Make an earlier checkpoint the mission's last one, as a new checkpoint: what came between stays."""
        async with self._held(mission) as journal:
            wanted = find_checkpoint(journal.state, checkpoint)
            last = journal.state.checkpoints[-1]
            if wanted.tree == last.tree:
                return last
            depot = self._services.depot
            commit = depot.commit(wanted.tree, (last.commit,), f"restore {wanted.commit}")
            depot.swap(f"refs/chargehand/restored/{mission}/{commit}", commit, None)
            restored = Checkpoint(
                commit=commit, tree=wanted.tree, parent=last.commit, trigger="restored", changed=0
            )
            journal.note(CheckpointRestored(workspace="", checkpoint=restored))
            return restored

    async def recover(self) -> list[str]:
        """Finish or forget what dead processes left half done; return the missions that are promoted now."""
        done = []
        for mission in self._services.liveness.abandoned():
            row = self._services.store.log.get(mission)
            if row.project != self._services.project:
                continue
            if await Promoter(self._services, self._journal(mission)).recover():
                done.append(mission)
            self._services.liveness.forget(mission)
        return done

    @contextlib.asynccontextmanager
    async def open_place(self, base: Base, *, tree: str | None = None) -> AsyncIterator[Sandbox]:
        """Open a sandbox on a fresh workspace of a base, or of a tree over it, for one command by hand."""
        journal = Unlogged()
        environment = await environment_layer(self._services, journal, base)
        ground = Ground(base=base, environment=environment)
        places = Places(self._services, journal)
        async with (
            places.workspace(ground, tree=tree) as workspace,
            places.sandbox(workspace, ground, purpose="exec") as sandbox,
        ):
            yield sandbox


def _cancel(task: asyncio.Task[object]) -> None:
    task.cancel()


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
