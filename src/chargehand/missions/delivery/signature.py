"""The target `sign`: signs the log and the provenance of a promoted commit, and notes both on the commit."""

from __future__ import annotations

import asyncio

from chargehand.core.errors import ChargehandError, FencedError
from chargehand.core.mission_events import HeadSigned
from chargehand.core.records import TargetDelivery
from chargehand.missions.journal import Journal
from chargehand.missions.provenance import sign_provenance
from chargehand.missions.services import DeliveryTarget, Services
from chargehand.store.heads import SignedHead
from chargehand.workspace.errors import Fault


class SignTarget(DeliveryTarget):
    """Signs a commit of the mission branch once; a failure is recorded, and the next delivery tries again."""

    name = "sign"

    def __init__(self, services: Services, journal: Journal, fault: Fault) -> None:
        self._services = services
        self._journal = journal
        self._fault = fault

    def applies(self) -> bool:
        """Return `True`: every promoted commit is signed."""
        return True

    def recorded(self, commit: str) -> TargetDelivery:
        """Return `done` if the commit was signed; failures are only in the log."""
        signed = self._journal.state.signed == commit
        return TargetDelivery(target=self.name, commit=commit, state="done" if signed else "pending")

    async def deliver(self, commit: str) -> TargetDelivery:
        """Sign the log and the commit's provenance from it, and note both on the commit."""
        if self.recorded(commit).state == "done":
            return self.recorded(commit)
        try:
            head = await asyncio.to_thread(self._annotate, commit)
            self._fault("signed")
        except FencedError:
            raise
        except ChargehandError as error:
            self._journal.record(HeadSigned(commit=commit, problem=error.message))
            remedy = error.hint or "resolve it: the mission's next delivery or roll-back signs the commit"
            return TargetDelivery(
                target=self.name, commit=commit, state="blocked", reason=error.message, remedy=remedy
            )
        self._journal.record(HeadSigned(commit=commit, seq=head.seq, key=head.key))
        return self.recorded(commit)

    def _annotate(self, commit: str) -> SignedHead:
        depot, store, mission = self._services.depot, self._services.store, self._journal.mission
        # Notes from before a crash are reused: a commit has one of each.
        noted = map(SignedHead.decode, (depot.annotation(commit) or "").encode().splitlines())
        head = next((each for each in noted if each.mission == mission), None) or store.sign_head(mission)
        known = depot.provenance(commit)
        provenance = "" if known else sign_provenance(store, head, version=self._services.version)
        self._fault("attested")
        depot.annotate(commit, head.encode().decode(), provenance=provenance)
        return head
