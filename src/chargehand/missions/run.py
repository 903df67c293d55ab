"""One worker's run of a mission: finishes an earlier worker's unfinished operation, runs the steps, and settles
it.

`MissionRun` does not know the steps: those of a single mission are in `flow`, those of a plan in
`coordination.coordinator`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

from chargehand.core.attempt_events import TierChosen
from chargehand.core.errors import ChargehandError, FencedError, InfrastructureError, RefusedError, WaitingError
from chargehand.core.mission_events import MissionFinished, MissionInterrupted, MissionReleased, MissionWorked
from chargehand.core.records import AttemptStatus, MissionStatus, Reason
from chargehand.core.state import MissionState
from chargehand.missions._messages import record_mission_end, wait_for_room
from chargehand.missions._questions import rest_for_person
from chargehand.missions.attempt.settlement import AttemptSettlement
from chargehand.missions.breakpoints import BREAKPOINT, stop_before_step
from chargehand.missions.control import GRACE_SECONDS, Control
from chargehand.missions.holds import must_wait
from chargehand.missions.journal import Journal
from chargehand.missions.results.delivery import ResultDelivery
from chargehand.missions.results.lessons import book_outcome
from chargehand.missions.services import FULL_DISK, Services, system_errors

_T = TypeVar("_T")
# Faults that a new sandbox may not have. Not `sandbox_memory`: the work itself used up the memory.
_PASSING = frozenset({"sandbox_died", "launcher_lost", "forwarder_failed", "freeze_timeout", "link_failed"})
# This many interruptions without a recorded step can be accidents; more cannot.
_MOST_INTERRUPTIONS = 5
# Processes of a dead sandbox may take a moment to disappear; a machine short of memory needs longer.
_PAUSE_SECONDS = (0.3, 0.3, 0.5, 1.0, 3.0)

# How often the used time is recorded, also as a share of the limit: a `kill -9` gives a mission at most that much.
_NOTE_SECONDS, _NOTE_SHARE = 30.0, 0.05
_SHORTEST_NOTED_SECONDS = 1.0


class MissionRun:
    """Runs one mission from its request, or from its last recorded step, until it is settled."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        control: Control,
        *,
        attempts: AttemptSettlement,
        delivery: ResultDelivery,
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._attempts = attempts
        self._delivery = delivery

    async def run(self, steps: Callable[[], Awaitable[None]]) -> MissionState:
        """Run the `steps` of the mission, which is settled when this returns or raises.

        Cancelling the task settles the mission as `cancelled`, running out of time as `exhausted`; errors of our
        own machinery and of the configuration settle it as `failed` and are raised again. Only a worker that must
        release it (`Control.stop`, `FencedError`) leaves it unsettled, to be resumed.
        """
        request = self._journal.state.request
        assert request is not None
        self._journal.before_step = partial(stop_before_step, self._journal)
        try:
            async with self._time_limit(request.seconds):
                with system_errors():
                    await run_interruptible(self._journal, partial(self._resume, steps))
        except FencedError:  # another worker has claimed the mission: this one may write nothing more
            raise
        except TimeoutError:
            message = f"the mission's time limit of {request.seconds:.0f} s is over"
            self._settle("exhausted", "timed_out", Reason(code="time", message=message))
            book_outcome(self._services, self._journal, good=False)
        except asyncio.CancelledError:
            if self._control.stopped in (None, "cancel"):
                self._settle("cancelled", "cancelled", self._journal.state.cancelled_reason)
            elif self._control.stopped == "release":
                self._journal.record(MissionReleased(worker=self._services.worker[0]))
            raise
        except WaitingError as error:  # an agent asked a person; its attempt continues with the answer
            self._rest(Reason(code=error.code, message=error.message))
        except ChargehandError as error:
            if error.code in FULL_DISK:  # if not even this can be written, the worker counts as lost
                waiting = wait_for_room(self._journal.state, self._services.clock.now(), why=error.message)
                self._journal.record(*waiting, durable=True)
                return self._journal.state
            self._settle("failed", "failed", Reason(code=error.code, message=error.message))
            if not isinstance(error, RefusedError):
                raise
        return self._journal.state

    @contextlib.asynccontextmanager
    async def _time_limit(self, seconds: float) -> AsyncIterator[None]:
        """Limit the block to the rest of the mission's time; record the used time, in case its worker dies.

        A plan has its own clock. Seconds are recorded, as clocks of different boots cannot be compared.
        """
        state, control = self._journal.state, self._control
        used = state.seconds_used
        limit = max(1.0, seconds - used) + GRACE_SECONDS

        def note() -> None:
            now = used + limit - control.seconds_left()
            if state.plan is None and now >= state.worked_seconds + _SHORTEST_NOTED_SECONDS:
                with contextlib.suppress(ChargehandError):  # a full disk, or another worker: reported elsewhere
                    self._journal.record(MissionWorked(seconds=now))

        async def note_often() -> None:
            while True:
                await asyncio.sleep(max(_SHORTEST_NOTED_SECONDS, min(_NOTE_SECONDS, seconds * _NOTE_SHARE)))
                note()

        async with control.limited(limit):
            noting = asyncio.create_task(note_often())
            try:
                yield
            except BaseException:
                note()
                raise
            finally:
                noting.cancel()

    async def _resume(self, steps: Callable[[], Awaitable[None]]) -> None:
        """Finish an earlier worker's unfinished operation, then run the steps."""
        state = self._journal.state
        # A mission that kills its workers (by using up memory, say) would otherwise be resumed forever.
        if state.fruitless_claims > _MOST_INTERRUPTIONS:
            message = f"its worker ended {_MOST_INTERRUPTIONS} times without making any progress"
            self._settle("failed", "lost", Reason(code="worker_lost", message=message))
        elif state.base is None:
            self._settle("failed", "failed", Reason(code="no_base", message="it was recorded without a base"))
        # A promotion that reached its swap is valid, even if a person cancelled the mission afterwards.
        elif self._delivery.promoter.settle_prepared() and state.plan is None:
            await self._delivery.deliver_promoted()
        elif state.cancel_asked:
            self._settle("cancelled", "cancelled", self._journal.state.cancelled_reason)
        elif state.plan is not None or not await must_wait(self._services, self._journal, self._control):
            choice = self._services.choice
            if choice is not None and self._journal.state.tier != choice:
                self._journal.record(TierChosen(choice=choice))
            await steps()

    def _rest(self, reason: Reason) -> None:
        if reason.code != BREAKPOINT:  # a mission at a breakpoint is paused already
            self._journal.record(rest_for_person(self._journal.state, reason))

    def _settle(self, status: MissionStatus, attempt: AttemptStatus, reason: Reason) -> None:
        """Settle an interrupted mission, its running attempt first."""
        self._attempts.break_off(attempt, reason)
        if self._journal.state.status != "promoted":
            record_mission_end(self._journal, MissionFinished(status=status, reasons=(reason,)))


async def run_interruptible(journal: Journal, work: Callable[[], Awaitable[_T]]) -> _T:
    """Run work that consists of recorded steps, and run it again if its sandbox dies; record each interruption.

    A killed sandbox looks the same whether the kernel's OOM killer, another program or our own fault killed it,
    and says nothing about the work in it: the work resumes as after the death of a worker. After
    `_MOST_INTERRUPTIONS` interruptions without a new step, the error that interrupted the work is raised.
    """
    while True:
        try:
            return await work()
        except InfrastructureError as error:
            seen = journal.state.fruitless_claims
            if error.code not in _PASSING or seen >= _MOST_INTERRUPTIONS:
                raise
            journal.record(MissionInterrupted(code=error.code, message=error.message))
            await asyncio.sleep(_PAUSE_SECONDS[seen])
