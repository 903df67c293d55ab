"""Slots: work with limited concurrency per state directory, and the queue for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from msgspec import Struct

from chargehand.core.mission_events import MissionAdmitted, MissionQueued
from chargehand.core.records import Reason
from chargehand.durable.admission import ConcurrencyLimit, Gate
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.missions.services import Services, SlotName, system_errors

_WAITS = {"attempts": "agents work", "checks": "checks are running", "probes": "probe is running"}


class SlotQueue(Struct, eq=False):
    """The turns of one mission at work with limited concurrency per state directory.

    No mission holds a slot while it waits for another one, so no wait is endless. Only the holder of a branch's
    turn also waits for slots: a mission with a slot never waits for a turn.
    """

    services: Services
    journal: Journal
    control: Control

    @contextlib.asynccontextmanager
    async def turn(self, what: SlotName, *, wait: bool = True) -> AsyncIterator[bool]:
        """Hold a slot for the block; until there is one the mission is queued and its time limits are suspended.

        Without `wait`, yields `False` if no slot is free.
        """
        slots = self.services.slots(what)
        # A probe's slot is held for a moment only: not worth a line in the log.
        why = f"{slots.places} {_WAITS[what]} already (engine.{what}_at_once)" if what != "probes" else ""
        async with self._place(slots, what, why, wait=wait) as held:
            yield held

    @contextlib.asynccontextmanager
    async def delivery(self, *, wanted: bool = True, wait: bool = True) -> AsyncIterator[bool]:
        """Hold the turn at the target branch of the mission's result, as `turn` does.

        From the merge with that branch to its move: of two that merged at once one could not be applied. Nothing
        is held if nothing is to be applied, or if it is not `wanted`. Without `wait`, yields `False` if another
        mission has the turn. A pause gives it up: the mission checks the branch again when it resumes.
        """
        state = self.journal.state
        branch = state.base.branch if state.base is not None else None
        if not wanted or state.request is None or not state.request.apply or branch is None:
            yield True
            return
        turns = self.services.merges(state.repository, branch)
        why = f"another mission is being merged into {branch}"
        async with self._place(turns, "merges", why, wait=wait) as held:
            yield held

    @contextlib.asynccontextmanager
    async def _place(
        self, slots: ConcurrencyLimit, what: str, why: str, *, wait: bool = True
    ) -> AsyncIterator[bool]:
        # A person waits for a command's work: it precedes the background work of workers.
        place = slots.new_place(urgent=self.services.worker[1] == "command")
        clock, queued = self.services.clock, False

        def record_wait(before: int) -> None:
            nonlocal queued
            if not why:
                return
            queued = True
            ahead = f", {before} ahead of it in the queue" if before else ""
            reason = Reason(code="queued", message=f"{why}{ahead}; it starts automatically")
            queue = MissionQueued(waits_for=what, before=before, places=slots.places, reason=reason)
            self.journal.record(queue)

        async def take(gate: Gate | None = None) -> None:
            nonlocal queued
            since = clock.monotonic()
            with self.control.queued(), system_errors():
                await place.take(gate=gate, on_wait=record_wait)
            waited = clock.monotonic() - since
            self.journal.queued_seconds += waited
            if queued:
                queued = False
                self.journal.record(MissionAdmitted(waits_for=what, seconds=waited))

        if wait:
            await take(self.control)
        held = wait or place.take_now()
        try:
            # An attempt keeps its place while paused, because its sandbox keeps its memory.
            with self.control.lending(place, take) if what != "attempts" else contextlib.nullcontext():
                yield held
        finally:
            place.leave()
