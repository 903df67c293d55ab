"""The target `export`: writes the mission branch into the user's repository."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from chargehand.core.errors import ChargehandError
from chargehand.core.mission_events import ExportChanged
from chargehand.core.records import Export, TargetDelivery
from chargehand.missions.delivery.outcome import describe_export, with_retry
from chargehand.missions.journal import Journal
from chargehand.missions.services import DeliveryTarget, Services
from chargehand.missions.verdict.commits import HEADS, exported_name
from chargehand.workspace.errors import Fault
from chargehand.workspace.export import export_branch, export_notes


class ExportTarget(DeliveryTarget):
    """Writes the mission branch, with its notes, to a branch of the user's repository."""

    name = "export"

    def __init__(self, services: Services, journal: Journal, fault: Fault) -> None:
        self._services = services
        self._journal = journal
        self._fault = fault

    def applies(self) -> bool:
        """Return `True`: every promoted commit is exported."""
        return True

    def recorded(self, commit: str) -> TargetDelivery:
        """Return `done` if the commit was exported, otherwise the outcome of the last export."""
        state = self._journal.state
        return describe_export(state, self.name, commit, state.export, done=state.exported == commit)

    async def deliver(self, commit: str) -> TargetDelivery:
        """Export the commit; if the branch's name is taken, the mission's id makes it unique."""
        state = self._journal.state
        if state.exported == commit:
            return self.recorded(commit)
        assert state.request is not None
        if state.exported is not None and state.export is not None:
            export = await self._write(commit, state.export.ref.removeprefix(HEADS), state.exported)
        else:
            branch = exported_name(state)
            export = await self._write(commit, branch, None)
            if export.state == "blocked":  # e.g. the name is taken
                other = await self._write(commit, f"{branch}-{self._journal.mission[-6:]}", None)
                export = other if other.state == "done" else export
        self._fault("exported")
        self._journal.record(ExportChanged(export=with_retry(state, export), commit=commit), durable=True)
        return self.recorded(commit)

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
