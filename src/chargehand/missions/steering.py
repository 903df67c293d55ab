"""Operations of a person, or the clock, on missions at rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct, field

from chargehand.core.attempt_events import CheckpointMade
from chargehand.core.clock import Clock, SystemClock
from chargehand.core.errors import ChargehandError, InfrastructureError, RefusedError
from chargehand.core.events import Payload
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    CLOCK,
    MISSIONS,
    MessageSent,
    MissionAdmitted,
    MissionContinued,
    MissionFinished,
    MissionPaused,
    MissionResumed,
    QuestionAnswered,
)
from chargehand.core.plan_events import CoordinatorWoken, PlanMade
from chargehand.core.plans import Plan
from chargehand.core.records import MissionStatus, Reason
from chargehand.core.state import DISK, ENDED, MissionState
from chargehand.missions._messages import (
    CANCEL,
    GO_ON,
    events_of_mission_end,
    wait_for_room,
    wake_time,
)
from chargehand.missions._questions import check_answer, expire_questions, is_about_message
from chargehand.missions._questions import require_question as require_question
from chargehand.missions.attempt.leftovers import keep_unfinished
from chargehand.missions.attempt.log import (
    archive_replies,
    cancel_open_attempts,
    restore_replies,
    settle_lost_calls,
)
from chargehand.missions.causes import RESUMED, mission_cause
from chargehand.missions.forecasting import find_raised_budget
from chargehand.missions.holds import events_of_start, is_still_held
from chargehand.missions.journal import claim_mission
from chargehand.missions.planning.replanning import events_of_new_plan, events_of_permission
from chargehand.missions.reading import MissionReader, has_open_tasks, is_rolled_back, plan_seconds_used
from chargehand.missions.sandboxes.provisioning import remove_leftovers
from chargehand.missions.services import FULL_DISK
from chargehand.missions.transcript import WORK, count_replies
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.space import require_room

# Free bytes at which a mission that met a full disk is retried: the smallest mission's need plus some more.
_ROOM_BYTES = 16 << 20

# Statuses of missions that ended without promotion and may be followed up.
FOLLOWED: tuple[MissionStatus, ...] = ("waiting", "refused", "failed", "exhausted", "cancelled")

_UNDONE = "chargehand mission promote {mission} promotes it again"
_HINTS: dict[MissionStatus, str] = {
    "promoted": "chargehand mission rollback {mission} undoes its promotion",
    "waiting": "chargehand mission answer {mission} TEXT, or promote or discard it",
    "running": "chargehand mission cancel {mission} stops it",
    "failed": "chargehand mission show {mission} says why; `chargehand run` starts it again",
}
_FORKED = "chargehand mission fork {mission} starts again from one of its replies"


def last_whole_attempt(state: MissionState) -> int:
    """Return the number of the last finished attempt; an interrupted one resumes."""
    whole = (each.number for each in state.attempts if WORK.format(number=each.number) in state.steps)
    return max(whole, default=0)


def check_continuable_plan(state: MissionState) -> None:
    """Raise `RefusedError` (`not_continuable`) if a message from a person cannot continue a plan."""
    if state.plan is None or state.status not in ("waiting", "refused"):
        return
    hint = f"chargehand mission plan {state.id} shows why each of its tasks waits"
    if state.status == "refused":
        more = f"chargehand mission promote {state.id} exports the merged tasks, and " if state.commit else ""
        hint = f"{more}chargehand run --plan FILE starts another plan for the rest"
    message = f"the plan of mission {state.id!r} is {state.status}, and a message cannot continue it"
    raise RefusedError(message, code="not_continuable", hint=hint)


class Steering(Struct, frozen=True, kw_only=True):
    """A person's operations on a mission at rest; needs neither its repository nor a sandbox.

    Every method holds the mission while it works, and raises `RefusedError`: `mission_held` if a worker has it,
    otherwise with the status that forbids the operation. `open_depot` opens the depot of a mission, or raises.
    """

    store: Store
    look: MissionReader
    worker: str
    identity: str
    open_depot: Callable[[MissionState], Depot]
    clock: Clock = field(default_factory=SystemClock)

    def pause(self, mission: str, reason: str = "") -> MissionState:
        """Keep a mission that waits for a worker from being taken."""
        paused = MissionPaused(identity=self.identity, reason=reason)
        return self._record(mission, paused, among=("planned", "paused"), verb="pause", code="not_pausable")

    def resume(self, mission: str, *, step: bool = False, to_end: bool = False) -> MissionState:
        """Let a worker take a mission that is paused, was cancelled, or failed through no fault of its work.

        It resumes from its last recorded step. A mission that already waits for a worker is unchanged. A mission
        that waits for quota, or for disk space, checks now; if it waits for an earlier mission, it starts despite
        that one. Expired questions are asked again. With `step` it is paused again before its next step, with
        `to_end` at no breakpoint; both apply whatever it waits for.
        """
        resumed = MissionResumed(identity=self.identity, step=step, to_end=to_end)
        stops = (resumed,) if step or to_end else ()
        before = self.look.state(mission)
        if before.expiring and self.wake(mission, now=self.clock.now()):
            before = self.look.state(mission)
        if before.held is not None:
            with self._hold(mission, ("planned",), verb="resume", code="not_resumable") as (epoch, state):
                events = events_of_start(self.look, state, identity=self.identity)
                self.store.log.append(mission, *events, *stops, epoch=epoch, durable=True)
            return self.look.state(mission)
        if before.status == "planned" or self.store.log.get(mission).runnable or (before.asleep and stops):
            open_ones: tuple[MissionStatus, ...] = ("planned", "paused")
            wanted = partial(self._record, among=open_ones, verb="resume", code="not_resumable")
            return wanted(mission, *stops) if stops else before
        if before.waits_for_quota is not None:
            return self.answer(mission, GO_ON, then=stops)
        cause = mission_cause(before)
        among: tuple[MissionStatus, ...] = ("paused", "cancelled")
        if cause is not None and cause.kind in RESUMED:
            among += ("failed",)
        if before.needs_person:
            among += ("waiting",)
        if before.status in among and before.attempts:
            # First, since a worker may take it at once: paid calls are not made again.
            restore_replies(self.store, mission, before.attempts[-1].id)
        return self._record(mission, resumed, among=among, verb="resume", code="not_resumable")

    def follow_up(
        self, mission: str, text: str, *, attempts: int, seconds: float, budget_usd: float | None = None
    ) -> MissionState:
        """Give a mission that ended without a promotion, or a plan with open tasks, up to `attempts` more.

        Its agents get a message. It has `seconds` more, and so does a coordinator's plan with a time limit;
        `budget_usd` is its whole budget from now on, `None` for the previous budget.
        """
        before = self.look.state(mission)
        is_limited = before.request is not None and before.request.plan_seconds is not None
        used = plan_seconds_used(before, self.clock.now())
        after = last_whole_attempt(before)
        if before.status in FOLLOWED and len(before.attempts) > after:
            # First, since a worker may take it at once: paid calls are not made again.
            restore_replies(self.store, mission, before.attempts[-1].id)
        continued = MissionContinued(
            identity=self.identity,
            after=after,
            attempts=after + attempts,
            seconds=before.seconds_used + seconds,
            budget_usd=budget_usd,
            plan_seconds=used + seconds if is_limited else None,
        )
        message = MessageSent(identity=self.identity, text=text, message=new_id("message"))
        among: tuple[MissionStatus, ...] = (*FOLLOWED, *(("promoted",) if has_open_tasks(before) else ()))
        return self._record(mission, message, continued, among=among, verb="continue", code="not_continuable")

    def cancel(self, mission: str, why: str = "") -> MissionState:
        """End an unfinished mission; `why` is the reason if its coordinator ends it."""
        reason = Reason(code="cancelled", message=why or f"{self.identity} cancelled the mission")
        finished = MissionFinished(status="cancelled", reasons=(reason,))
        among: tuple[MissionStatus, ...] = ("planned", "paused", "waiting")
        # Its worker died while ending it on request: the mission ended by that request, but was not settled.
        among += ("cancelled",) if self.look.state(mission).cancel_asked else ()
        return self._settle(mission, finished, among=among, verb="cancel", code="not_cancellable")

    def discard(self, mission: str, why: str = "") -> MissionState:
        """Settle a mission as not wanted; its checkpoints stay until `gc`."""
        if self.look.state(mission).status == "discarded":
            return self.look.state(mission)
        message = f"{self.identity} discarded the mission" + (f": {why}" if why else "")
        reason = Reason(code="discarded", message=message)
        finished = MissionFinished(status="discarded", reasons=(reason,))
        among: tuple[MissionStatus, ...] = (
            *("planned", "paused", "waiting"),
            *("refused", "failed", "exhausted", "cancelled"),
        )
        return self._settle(mission, finished, among=among, verb="discard", code="not_discardable")

    def send(self, mission: str, text: str, *, critical: bool = False) -> MissionState:
        """Record a message for the agent's next attempt."""
        message = MessageSent(identity=self.identity, text=text, message=new_id("message"), critical=critical)
        return self._record(mission, message, among=("planned", "paused"), verb="send to", code="not_sendable")

    def change_plan(self, mission: str, plan: Plan) -> MissionState:
        """Continue a coordinator with another plan, and ensure that a worker looks at it."""
        among: tuple[MissionStatus, ...] = ("planned", "paused", "waiting")
        with self._hold(mission, among, verb="plan", code="not_plannable") as (epoch, state):
            events = events_of_new_plan(state, PlanMade(plan=plan, identity=self.identity))
            self.store.log.append(mission, *events, epoch=epoch, durable=True)
        return self.look.state(mission)

    def allow_task(self, mission: str, task: str) -> MissionState:
        """Let a coordinator start a held task, and ensure that it does."""
        among: tuple[MissionStatus, ...] = ("planned", "paused", "waiting")
        with self._hold(mission, among, verb="plan", code="not_plannable") as (epoch, state):
            events = events_of_permission(state, task, identity=self.identity)
            self.store.log.append(mission, *events, epoch=epoch, durable=True)
        return self.look.state(mission)

    def answer(self, mission: str, text: str, question: str = "", *, then: Sequence[Payload] = ()) -> MissionState:
        """Answer a mission's open question, and record `then`; a worker may then resume it.

        Without a named question, that is the first open one. Raises `RefusedError` as `require_question` and
        `check_answer` do.
        """
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            state = self.look.at_rest(mission)
            if late := expire_questions(state, self.clock.now()):
                self.store.log.append(mission, *late, epoch=epoch, durable=True)
                state = self.look.at_rest(mission)
            asked = require_question(state, question)
            about_message, answer = is_about_message(asked), check_answer(asked, text)
            events: list[Payload] = [QuestionAnswered(question=asked.id, text=answer, identity=self.identity)]
            # The question about a critical message paused the mission too: the answer has to resume it.
            if about_message and answer != CANCEL:
                events.append(MissionResumed(identity=self.identity))
            budget = find_raised_budget(state, asked.id, answer)
            if budget is not None and state.request is not None:
                most, limit = state.request.attempts, state.request.seconds
                continued = MissionContinued(
                    identity=self.identity, after=0, attempts=most, seconds=limit, budget_usd=budget
                )
                events.append(continued)
            events += then
            self.store.log.append(mission, *events, epoch=epoch, durable=True)
        return self.cancel(mission) if about_message and answer == CANCEL else self.look.state(mission)

    def wake(self, mission: str, *, now: datetime) -> bool:
        """Resume a mission whose quota or disk space is back; expire overdue questions.

        Also wakes a mission that waits for an earlier one, if there is news of that one. Return `False` if it
        sleeps on, or no longer sleeps.
        """
        before = self.store.log.summary(mission).summary
        if before.held is not None and is_still_held(self.look, before.held):
            return False
        quota = before.waits_for_quota
        if quota is not None and wake_time(mission, quota.until) > now and not expire_questions(before, now):
            return False
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            state = self.look.at_rest(mission)
            if late := expire_questions(state, now):
                self.store.log.append(mission, *late, epoch=epoch, durable=True)
                return True
            if state.held is not None:
                waited = (now - datetime.fromisoformat(state.updated)).total_seconds()
                self.store.log.append(mission, MissionAdmitted(waits_for=MISSIONS, seconds=waited), epoch=epoch)
                return True
            # The time of its plan is over, or the deadline of a task.
            wakes = self.store.log.get(mission).wakes
            if state.asleep and wakes and datetime.fromisoformat(wakes) <= now:
                self.store.log.append(mission, CoordinatorWoken(mission=mission), epoch=epoch)
                return True
            asked = state.waits_for_quota
            if asked is None or wake_time(mission, asked.until) > now:
                return False
            if asked.provider == DISK:
                try:
                    require_room(self.store.home, "a mission waited", bytes=_ROOM_BYTES)
                except InfrastructureError:
                    return False
            # Recorded as the clock's answer: a wait that the clock ended in vain makes the next one longer, a
            # person's answer does not.
            answered = QuestionAnswered(question=asked.id, text=GO_ON, identity=CLOCK)
            self.store.log.append(mission, answered, epoch=epoch, durable=True)
        return True

    def note_absence(self, since: datetime) -> None:
        """Stop the clocks of sleeping plans from `since` until now: no worker ran meanwhile.

        Each of them computes its wake time again.
        """
        for row in self.store.log.sleeping():
            with contextlib.suppress(RefusedError):  # another process has it: it does not sleep
                if not self.store.log.summary(row.id).summary.asleep:
                    continue
                with claim_mission(self.store.log, row.id, worker=self.worker, look=self.look) as epoch:
                    if self.look.at_rest(row.id).asleep:
                        woken = CoordinatorWoken(mission=row.id, idle_since=since.isoformat())
                        self.store.log.append(row.id, woken, epoch=epoch)

    def tell_coordinators(self) -> bool:
        """Wake the coordinators whose tasks have news; return whether any is woken or held by a worker."""
        busy = False
        for row in self.store.log.with_news():
            assert row.parent is not None
            parent = self.store.log.summary(row.parent, self.look.workers.live).summary
            if parent.status in ENDED:
                self.store.log.note_told(row.id)
            elif parent.status == "waiting" or (parent.asleep and parent.status != "paused"):
                with contextlib.suppress(RefusedError):
                    with claim_mission(self.store.log, parent.id, worker=self.worker, look=self.look) as epoch:
                        self.store.log.append(parent.id, CoordinatorWoken(mission=row.id), epoch=epoch)
                    self.store.log.note_told(row.id)
                busy = True
            # If it is about to run, or a person paused it, it sees the news itself when it resumes.
            else:
                busy = busy or parent.status == "running"
        return busy

    def give_up(self, mission: str, reason: Reason, *, now: datetime) -> MissionState:
        """End a mission that a worker should resume but cannot, unless it came to rest meanwhile.

        A full disk ends no mission: it waits until there is room.
        """
        finished = MissionFinished(status="failed", reasons=(reason,))
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            if self.store.log.get(mission).runnable:
                state = self.look.at_rest(mission)
                events: tuple[Payload, ...] = events_of_mission_end(state, finished)
                if reason.code in FULL_DISK:
                    events = wait_for_room(state, now, why=reason.message)
                self.store.log.append(mission, *events, epoch=epoch, durable=True)
        return self.look.state(mission)

    def _settle(
        self, mission: str, finished: MissionFinished, *, among: tuple[MissionStatus, ...], verb: str, code: str
    ) -> MissionState:
        """End a mission, and the attempts that would have resumed."""
        with self._hold(mission, among, verb=verb, code=code) as (epoch, state):
            lost = [call for each in state.open_attempts for call in settle_lost_calls(self.store, state, each.id)]
            if lost:
                self.store.log.append(mission, *lost, epoch=epoch)
                state = self.look.at_rest(mission)
            kept = self._keep_unfinished(state) if state.open_attempts else ()
            ended = cancel_open_attempts(state, finished.reasons[0])
            events = (*(kept or ()), *ended, *events_of_mission_end(state, finished))
            self.store.log.append(mission, *events, epoch=epoch, durable=True)
            if state.claims and kept is not None:  # while held: resuming starts at the last checkpoint
                remove_leftovers(self.store.home, lambda: self.open_depot(state), mission)
        # Only now: until the attempts' end is on disk, a worker could resume them and need the replies.
        archive_replies(self.store, mission, *(each.attempt for each in ended))
        return self.look.state(mission)

    def _keep_unfinished(self, state: MissionState) -> tuple[CheckpointMade, ...] | None:
        """Checkpoint open attempts' work in their workspaces; if this returns `None`, the workspaces must stay."""
        try:
            return keep_unfinished(self.open_depot(state), state)
        except (ChargehandError, OSError):
            return None

    def _record(
        self, mission: str, *payloads: Payload, among: tuple[MissionStatus, ...], verb: str, code: str
    ) -> MissionState:
        with self._hold(mission, among, verb=verb, code=code) as (epoch, _):
            self.store.log.append(mission, *payloads, epoch=epoch, durable=True)
        return self.look.state(mission)

    @contextlib.contextmanager
    def _hold(
        self, mission: str, among: tuple[MissionStatus, ...], *, verb: str, code: str
    ) -> Iterator[tuple[int, MissionState]]:
        """Hold a mission that has one of these statuses for the block; yield its epoch and state."""
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            # Read as at rest: with the claim just made it would look as if a worker ran it.
            state = self.look.at_rest(mission)
            sleeps = state.asleep and "planned" in among  # a coordinator, which no worker has to hold
            if state.status not in among and not sleeps:
                undone = is_rolled_back(state)
                status = "rolled back" if undone else state.status
                hint = None if undone else _HINTS.get(state.status)
                if undone and state.plan is None:
                    hint = _UNDONE
                # Only a native agent leaves replies to fork from.
                elif (
                    hint is not None
                    and state.status == "failed"
                    and any(count_replies(state, each.number) for each in state.attempts)
                ):
                    hint = _FORKED
                raise RefusedError(
                    f"mission {mission!r} is {status}: there is nothing to {verb}",
                    code=code,
                    hint=(hint or "chargehand mission show {mission}").format(mission=mission),
                )
            yield epoch, state
