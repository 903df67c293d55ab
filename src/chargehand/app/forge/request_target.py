"""The delivery target `request`: the promoted commit as a branch and a request at the issue's forge."""

from __future__ import annotations

import asyncio

from chargehand.core.errors import ChargehandError
from chargehand.core.mission_events import DeliveryChanged
from chargehand.core.records import ExportState, TargetDelivery
from chargehand.missions.journal import Journal
from chargehand.missions.reading import find_delivery, retry_command
from chargehand.missions.services import DeliveryTarget, Services
from chargehand.reports.reading import StateReader
from chargehand.workspace.errors import Fault

NAME = "request"
# The codes of errors after which the same delivery may succeed soon.
TRANSIENT = frozenset({"forge_unreachable", "forge_broken", "forge_rate_limited"})


class RequestTarget(DeliveryTarget):
    """Pushes the mission's commit to the branch of its issue, and opens or updates the request."""

    name = NAME
    needs = ("export",)
    retry_seconds = (2.0, 5.0, 15.0)

    def __init__(self, reader: StateReader, services: Services, journal: Journal, fault: Fault) -> None:
        self._reader = reader
        self._services, self._journal, self._fault = services, journal, fault

    def applies(self) -> bool:
        """Return whether the mission resolves an issue; its tasks are delivered with it."""
        state = self._journal.state
        return state.request is not None and state.request.issue is not None and not state.parent

    def recorded(self, commit: str) -> TargetDelivery:
        """Return the recorded delivery of a commit."""
        return find_delivery(self._journal.state, self.name, commit)

    async def deliver(self, commit: str) -> TargetDelivery:
        """Push the commit and open or update its request; the reference is the request's address."""
        if self.recorded(commit).state == "done":
            return self.recorded(commit)
        request = self._journal.state.request
        assert request is not None
        assert request.issue is not None
        state: ExportState = "done"
        reason = remedy = ref = ""
        try:
            # Imported for missions of issues alone.
            from chargehand.app.forge.request_delivery import RequestDelivery

            delivery = RequestDelivery(self._reader, self._services, self._journal, self._fault)
            ref = await asyncio.to_thread(delivery.deliver, request.issue, commit)
        except ChargehandError as error:
            state = "pending" if error.code in TRANSIENT else "blocked"
            reason, remedy = error.message, error.hint
        self._fault(f"{self.name}_delivered")
        if state != "done":
            remedy = remedy or retry_command(self._journal.state)
        made = TargetDelivery(target=self.name, commit=commit, state=state, reason=reason, remedy=remedy, ref=ref)
        self._journal.record(DeliveryChanged(delivery=made), durable=True)
        return made
