"""The target `apply`: fast-forwards the user's own branch, if the request asks for it."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from chargehand.core.errors import ChargehandError
from chargehand.core.mission_events import ApplyChanged
from chargehand.core.records import Export, TargetDelivery
from chargehand.missions.delivery.outcome import describe_export, with_retry
from chargehand.missions.journal import Journal
from chargehand.missions.reading import is_applied
from chargehand.missions.services import DeliveryTarget, Services
from chargehand.missions.verdict.commits import HEADS
from chargehand.workspace.checkout import fast_forward
from chargehand.workspace.errors import Fault


class ApplyTarget(DeliveryTarget):
    """Fast-forwards the user's own branch if it has not moved and the touched paths are clean."""

    name = "apply"

    def __init__(self, services: Services, journal: Journal, fault: Fault) -> None:
        self._services = services
        self._journal = journal
        self._fault = fault

    def applies(self) -> bool:
        """Return whether the request asks for it."""
        request = self._journal.state.request
        return request is not None and request.apply

    def recorded(self, commit: str) -> TargetDelivery:
        """Return the outcome of the last try."""
        state = self._journal.state
        return describe_export(state, self.name, commit, state.applied, done=is_applied(state))

    async def deliver(self, commit: str) -> TargetDelivery:
        """Move the branch from the promotion's base to the commit."""
        state = self._journal.state
        if not is_applied(state):
            assert state.promoted_on is not None
            applied = await self._move(commit, at=state.promoted_on.commit)
            self._record(commit, with_retry(state, applied))
        return self.recorded(commit)

    async def revert(self, commit: str, *, promoted: str, undo: str) -> None:
        """Move the branch from the `promoted` commit to its reverting `commit`; `undo` is a person's command."""
        undone = await self._move(commit, at=promoted)
        if undone.state == "blocked":
            reason = f"{undone.reason}; the mission's change is still on it: `{undo}` there takes it back"
            undone = replace(undone, reason=reason)
        self._record(commit, undone)

    async def _move(self, commit: str, *, at: str) -> Export:
        base = self._journal.state.promoted_on
        assert base is not None
        assert base.branch is not None
        try:
            return await asyncio.to_thread(fast_forward, self._services.depot, commit, branch=base.branch, at=at)
        except ChargehandError as error:
            return Export(ref=f"{HEADS}{base.branch}", state="blocked", reason=error.message)

    def _record(self, commit: str, applied: Export) -> None:
        self._fault("applied")
        self._journal.record(ApplyChanged(export=applied, commit=commit), durable=True)
