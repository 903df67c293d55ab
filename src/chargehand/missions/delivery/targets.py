"""The ordered list of a mission's delivery targets: sign, export, apply, then those of the wiring."""

from __future__ import annotations

import asyncio
import logging

from chargehand.core.errors import ChargehandError, FencedError
from chargehand.core.mission_events import DeliveryChanged
from chargehand.core.records import ExportState, TargetDelivery
from chargehand.missions.delivery.apply import ApplyTarget
from chargehand.missions.delivery.export import ExportTarget
from chargehand.missions.delivery.signature import SignTarget
from chargehand.missions.journal import Journal
from chargehand.missions.reading import is_rolled_back, retry_command
from chargehand.missions.services import DeliveryTarget, Services
from chargehand.workspace.errors import Fault

_LOG = logging.getLogger("chargehand.missions")


class DeliveryTargets:
    """Delivers the promoted commits of one mission to its targets; targets that are done are skipped.

    Raises `ValueError` if two targets have the same name, or a target needs a later or unknown target.
    """

    def __init__(self, services: Services, journal: Journal, fault: Fault) -> None:
        own = (services, journal, fault)
        self._journal = journal
        self.sign, self.export, self.apply = SignTarget(*own), ExportTarget(*own), ApplyTarget(*own)
        self._further = tuple(open_target(*own) for open_target in services.targets)
        self._named: dict[str, DeliveryTarget] = {}
        for target in (self.sign, self.export, self.apply, *self._further):
            if target.name in self._named or not self._named.keys() >= {*target.needs}:
                raise ValueError(f"delivery target {target.name!r} is a duplicate or needs a later target")
            self._named[target.name] = target

    async def deliver(self, commit: str) -> None:
        """Deliver a promoted commit to every target that applies, in order."""
        # Signed first: the signature is a note on the commit, and the export includes the note.
        for target in (self.sign, self.export, self.apply):
            if target.applies():
                await target.deliver(commit)
        await self.deliver_further(commit)

    async def deliver_further(self, commit: str) -> None:
        """Deliver a commit to the targets of the wiring; a failure stops only those that need it."""
        for target in self._further:
            try:
                if self._is_due(target):
                    await self._deliver(target, commit)
            except FencedError:  # another worker has claimed the mission and delivers
                raise
            except Exception as error:
                # The promotion is valid, whatever fails in a target that the wiring gave.
                _LOG.exception("delivery target %s", target.name)
                reason = error.message if isinstance(error, ChargehandError) else repr(error)
                self._record(target, commit, "blocked", reason, getattr(error, "hint", None) or "")

    def has_unfinished(self, commit: str) -> bool:
        """Return whether a target of the wiring that got an earlier commit still has to get this one."""
        known = self._journal.state.deliveries
        due = [each for each in self._further if each.name in known and each.applies()]
        return any(each.recorded(commit).state != "done" for each in due)

    def _is_due(self, target: DeliveryTarget) -> bool:
        # A target that got nothing of the change needs no roll-back of it.
        state = self._journal.state
        return target.applies() and (target.name in state.deliveries or not is_rolled_back(state))

    async def _deliver(self, target: DeliveryTarget, commit: str) -> None:
        for name in target.needs:
            needed = self._named[name].recorded(commit)
            if needed.state != "done":
                reason = f"it needs {name}, which is {needed.state}{': ' if needed.reason else ''}{needed.reason}"
                self._record(target, commit, "pending", reason, needed.remedy)
                return
        delivery = await target.deliver(commit)
        for seconds in target.retry_seconds:
            if delivery.state != "pending":
                return
            await asyncio.sleep(seconds)
            delivery = await target.deliver(commit)

    def _record(self, target: DeliveryTarget, commit: str, state: ExportState, reason: str, remedy: str) -> None:
        delivery = TargetDelivery(
            target=target.name,
            commit=commit,
            state=state,
            reason=reason,
            remedy=remedy or retry_command(self._journal.state),
        )
        self._journal.record(DeliveryChanged(delivery=delivery), durable=True)
