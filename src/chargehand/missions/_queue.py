"""Taking one's turn at what runs only so many at once on a state directory, and saying so."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from chargehand.core.mission_events import MissionAdmitted, MissionQueued
from chargehand.core.records import Reason
from chargehand.missions._control import Control
from chargehand.missions._journal import Journal
from chargehand.missions._services import Services, SlotName
from chargehand.missions._system import system_errors

_WHAT = {"attempts": "agents work", "checks": "verdicts are being given", "probes": "decision is made"}


class Queue:
    """The turns of one mission; nothing holds a place while it waits for another one, so nobody waits for ever."""

    def __init__(self, services: Services, journal: Journal, control: Control) -> None:
        self._services = services
        self._journal = journal
        self._control = control

    @contextlib.asynccontextmanager
    async def turn(self, what: SlotName) -> AsyncIterator[None]:
        """Hold a place for the block; until there is one the mission stands in line and its clocks stand still."""
        slots, clock = self._services.slots(what), self._services.clock
        queued = False

        def tell(before: int) -> None:
            nonlocal queued
            queued = what != "probes"
            if queued:
                self._journal.note(_queued(what, before, slots.places))

        since = clock.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            with self._control.standing(), system_errors():
                place = slots.place(urgent=self._services.in_front, gate=self._control, on_wait=tell)
                await stack.enter_async_context(place)
            waited = clock.monotonic() - since
            self._journal.stood += waited
            if queued:
                self._journal.note(MissionAdmitted(waits_for=what, seconds=waited))
            yield


def _queued(what: SlotName, before: int, places: int) -> MissionQueued:
    line = f", and {before} came before it" if before else ""
    key = f"engine.{what}_at_once"
    message = f"{places} {_WHAT[what]} already ({key}){line}; it goes on by itself"
    return MissionQueued(
        waits_for=what, before=before, places=places, reason=Reason(code="queued", message=message)
    )
