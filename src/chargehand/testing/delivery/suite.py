"""The conformance suite of delivery targets: subclass `DeliveryTargetContract` and provide the fixture `case`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from chargehand.core.errors import FencedError
from chargehand.core.events import Payload
from chargehand.missions.journal import Journal
from chargehand.missions.reading import mission_ref
from chargehand.missions.services import DeliveryTarget, OpenTarget, Services
from chargehand.workspace.errors import no_fault


class CrashError(BaseException):
    """The death of a worker between an act and its record."""


class DyingJournal(Journal):
    """A journal whose worker dies before it can record anything."""

    def record(self, *payloads: Payload, durable: bool = False) -> None:
        """Raise `CrashError`."""
        raise CrashError


class DeliveryCase(Struct, frozen=True, kw_only=True):
    """A mission with a promoted commit and one target for it.

    `effects` returns the visible effects of the target, `block` makes a delivery impossible until `unblock`.
    """

    services: Services
    mission: str
    open_target: OpenTarget
    effects: Callable[[], object]
    block: Callable[[], object]
    unblock: Callable[[], object]

    def journal(self, kind: type[Journal] = Journal, **options: Any) -> Journal:
        """Return the mission's journal, read from the log as by the next worker."""
        return kind(self.services.store, self.mission, clock=self.services.clock, **options)

    def open(self, journal: Journal | None = None) -> DeliveryTarget:
        """Return the target, opened as by the next worker."""
        return self.open_target(self.services, journal or self.journal(), no_fault)

    @property
    def commit(self) -> str:
        """The promoted commit."""
        commit = self.journal().state.commit
        assert commit is not None
        return commit

    def lines(self) -> list[Any]:
        """Return the lines of the mission's log."""
        return list(self.services.store.log.read(self.mission))


class DeliveryTargetContract:
    """All promises of a delivery target, one test each."""

    @pytest.fixture
    def case(self) -> DeliveryCase:
        """Return a promoted mission and the target; a subclass provides it."""
        raise NotImplementedError("a target's test gives the case")

    async def test_a_delivery_acts_and_is_recorded(self, case: DeliveryCase) -> None:
        before = case.effects()
        assert case.open().applies()
        assert case.open().recorded(case.commit).state == "pending"
        delivered = await case.open().deliver(case.commit)
        assert delivered.state == "done", delivered
        assert (delivered.target, delivered.commit) == (case.open().name, case.commit)
        assert case.effects() != before
        assert case.open().recorded(case.commit) == delivered

    async def test_delivering_twice_is_delivering_once(self, case: DeliveryCase) -> None:
        target = case.open()
        await target.deliver(case.commit)
        effects, lines = case.effects(), case.lines()
        assert (await target.deliver(case.commit)).state == "done"
        assert (await case.open().deliver(case.commit)).state == "done"
        assert (case.effects(), case.lines()) == (effects, lines)

    async def test_after_a_crash_between_act_and_record_nothing_is_done_twice(self, case: DeliveryCase) -> None:
        before = case.effects()
        with pytest.raises(CrashError):
            await case.open(case.journal(DyingJournal)).deliver(case.commit)
        acted = case.effects()
        assert acted != before
        assert case.open().recorded(case.commit).state == "pending"
        assert (await case.open().deliver(case.commit)).state == "done"
        assert case.effects() == acted
        assert case.open().recorded(case.commit).state == "done"

    async def test_a_blocked_delivery_has_reason_and_remedy_and_leaves_the_promotion(
        self, case: DeliveryCase
    ) -> None:
        case.block()
        before, lines, ref = case.effects(), len(case.lines()), mission_ref(case.mission)
        promoted = case.commit
        blocked = await case.open().deliver(case.commit)
        assert blocked.state == "blocked"
        assert blocked.reason
        assert blocked.remedy
        assert len(case.lines()) > lines, "the failure is recorded"
        assert case.open().recorded(case.commit).state != "done"
        assert case.effects() == before
        assert case.services.depot.read_ref(ref) == case.commit == promoted
        case.unblock()
        assert (await case.open().deliver(case.commit)).state == "done"
        assert case.open().recorded(case.commit).state == "done"

    async def test_a_worker_that_lost_the_mission_records_nothing(self, case: DeliveryCase) -> None:
        log = case.services.store.log
        epoch = log.claim(case.mission, owner="before", epoch=log.get(case.mission).epoch)
        journal = case.journal(epoch=epoch)
        log.claim(case.mission, owner="after", epoch=epoch)
        lines = case.lines()
        with pytest.raises(FencedError):
            await case.open(journal).deliver(case.commit)
        assert case.lines() == lines
