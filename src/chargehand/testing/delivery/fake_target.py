"""A fake delivery target: it writes the delivered commits to a file, and can be blocked or busy."""

from __future__ import annotations

from pathlib import Path

from chargehand.core.mission_events import DeliveryChanged
from chargehand.core.records import ExportState, TargetDelivery
from chargehand.missions.journal import Journal
from chargehand.missions.reading import find_delivery
from chargehand.missions.services import DeliveryTarget, OpenTarget, Services
from chargehand.workspace.errors import Fault


class FakePlace:
    """The outside of a `FakeTarget`: a directory with one line for each act.

    `blocked` refuses deliveries with its text, `pending` is the number of tries that find the place busy.
    """

    def __init__(self, directory: Path, *, blocked: str = "", pending: int = 0) -> None:
        self._file = directory / "delivered"
        self.blocked = blocked
        self.pending = pending
        self.tries = 0

    @property
    def commits(self) -> list[str]:
        """The commits that were delivered, in order, with repetitions."""
        return self._file.read_text().split() if self._file.exists() else []

    def add(self, commit: str) -> None:
        """Deliver a commit."""
        with self._file.open("a") as file:
            file.write(f"{commit}\n")

    def opens(
        self, name: str = "fake", *, needs: tuple[str, ...] = (), retry_seconds: tuple[float, ...] = ()
    ) -> OpenTarget:
        """Return what opens a target for this place."""

        def open_target(services: Services, journal: Journal, fault: Fault) -> FakeTarget:
            target = FakeTarget(self, journal, fault)
            target.name, target.needs, target.retry_seconds = name, needs, retry_seconds
            return target

        return open_target


class FakeTarget(DeliveryTarget):
    """Delivers commits to a `FakePlace`: looks, then acts, then records."""

    name = "fake"

    def __init__(self, place: FakePlace, journal: Journal, fault: Fault) -> None:
        self._place = place
        self._journal = journal
        self._fault = fault

    def applies(self) -> bool:
        """Return `True`: each mission is delivered."""
        return True

    def recorded(self, commit: str) -> TargetDelivery:
        """Return the last recorded delivery of a commit."""
        return find_delivery(self._journal.state, self.name, commit)

    async def deliver(self, commit: str) -> TargetDelivery:
        """Write the commit to the place, unless the place has it."""
        if self.recorded(commit).state == "done":
            return self.recorded(commit)
        self._place.tries += 1
        state: ExportState = "done"
        reason = remedy = ""
        if self._place.blocked:
            state, reason, remedy = "blocked", self._place.blocked, "open the place"
        elif self._place.tries <= self._place.pending:
            state, reason, remedy = "pending", "the place is busy", "wait for it"
        elif commit not in self._place.commits:
            self._place.add(commit)
        self._fault(f"{self.name}_delivered")
        made = TargetDelivery(target=self.name, commit=commit, state=state, reason=reason, remedy=remedy)
        self._journal.record(DeliveryChanged(delivery=made), durable=True)
        return made
