"""Settles attempts: records how one ended, with its time and cost, even if it was interrupted."""

from __future__ import annotations

import contextlib

from chargehand.core.errors import ChargehandError
from chargehand.core.records import AttemptStatus, Reason
from chargehand.missions.attempt.admission import Admission
from chargehand.missions.attempt.leftovers import keep_unfinished
from chargehand.missions.attempt.log import archive_replies, attempt_end, settle_lost_calls
from chargehand.missions.journal import Journal
from chargehand.missions.services import Services


class AttemptSettlement:
    """Records the ends of one mission's attempts, and their effect on breakers."""

    def __init__(self, services: Services, journal: Journal, admission: Admission) -> None:
        self._services = services
        self._journal = journal
        self._admission = admission
        self.begin()

    def begin(self) -> None:
        """Start the clock of an attempt, in case it is interrupted."""
        self._began = self._services.clock.monotonic() - self._journal.queued_seconds

    def finish(self, number: int, status: AttemptStatus, reasons: tuple[Reason, ...]) -> None:
        """Record the end of an attempt, unless that was done before a crash; its time is that of its steps."""
        attempt = self._journal.state.attempt(number)
        if attempt is None or attempt.status != "running":
            return
        seconds = self._journal.state.seconds_of(f"attempt/{number}/")
        self._journal.record(attempt_end(attempt, status, reasons, seconds=seconds))
        self._record_change(number)

    def break_off(self, status: AttemptStatus, reason: Reason) -> None:
        """Record the end of each running attempt, with the calls that a provider may charge for."""
        state = self._journal.state
        # The workspaces are removed at the mission's end, which a full disk must not prevent.
        with contextlib.suppress(ChargehandError, OSError):
            self._journal.record(*keep_unfinished(self._services.depot, state))
        for running in [each for each in state.attempts if each.status == "running"]:
            # Its step has no end and so no duration: this worker's own clock counts.
            seconds = self._services.clock.monotonic() - self._journal.queued_seconds - self._began
            self._journal.record(*settle_lost_calls(self._services.store, state, running.id))
            counted = self._journal.state.attempt(running.number) or running
            self._journal.record(attempt_end(counted, status, (reason,), seconds=seconds))
            self._record_change(running.number)
            archive_replies(self._services.store, self._journal.mission, running.id)

    def _record_change(self, number: int) -> None:
        assert self._journal.state.request is not None
        self._admission.record_change(self._journal.state.request, number)
