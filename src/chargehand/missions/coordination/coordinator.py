"""The coordinator: carries out the moves of `decide`, recording each decision before or with its effect.

A task is a child mission, which any worker runs. The coordinator starts children, merges their promoted results on
its own branch, one after the other, each judged as the exact merged tree, and is the only one to export. While
only children have work to do it sleeps: no worker holds it, and a child that comes to rest wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Literal

from msgspec.structs import replace

from chargehand.core.attempt_events import MessageDelivered
from chargehand.core.errors import ChargehandError, RefusedError
from chargehand.core.events import Payload
from chargehand.core.mission_events import MissionFinished, QuestionAnswered, QuestionAsked, RetryDeclined
from chargehand.core.plan_events import (
    PLAN_QUESTION,
    TASK_QUESTION,
    CoordinatorSlept,
    CoordinatorWoken,
    PlanProgress,
    ReviewStarted,
    TaskEnded,
    TaskHeld,
    TaskOutcome,
    TaskProgress,
    TaskReturned,
    TaskReviewed,
    TaskStarted,
)
from chargehand.core.records import ChoiceReason, MissionRequest, Reason
from chargehand.core.state import ENDED, total_cost
from chargehand.missions._questions import next_expiry, rest_for_person
from chargehand.missions.breakpoints import PLAN, PROMOTE, stop_at, task_breakpoint
from chargehand.missions.control import Control
from chargehand.missions.coordination import decisions as d
from chargehand.missions.coordination.children import child_id, create_child, create_review
from chargehand.missions.coordination.conditions import PlanConditions
from chargehand.missions.coordination.delegating import add_delegations, read_notes
from chargehand.missions.coordination.forecasts import note_plan_forecast
from chargehand.missions.coordination.merging import MergeQueue
from chargehand.missions.coordination.observation import ITSELF, PlanObserver
from chargehand.missions.coordination.planner import PlannerRuns
from chargehand.missions.coordination.reviews import (
    OBJECTED,
    objection,
    objections_report,
    read_vote,
    weigh,
)
from chargehand.missions.coordination.situation import question_about
from chargehand.missions.holds import must_wait
from chargehand.missions.journal import Journal
from chargehand.missions.reading import MissionReader, plan_seconds_left, plan_seconds_used
from chargehand.missions.results.delivery import ResultDelivery
from chargehand.missions.results.tree_judge import TreeJudge
from chargehand.missions.services import Services
from chargehand.missions.verdict.red_base import heed_red_base

# The coordinator's own answer to a question that no longer needs a person.
_NEEDLESS = "it continued without an answer"
# How long a mission has to heed the order to stop before it gets another one.
_LOG = logging.getLogger("chargehand.missions")
_AGAIN_SECONDS = 0.5


class Coordinator:
    """Runs one mission's plan until it is settled or only its children or people have work to do."""

    def __init__(
        self, services: Services, journal: Journal, control: Control, judge: TreeJudge, delivery: ResultDelivery
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._judge = judge
        self._delivery = delivery
        self._planner = PlannerRuns(services, journal)
        self._queue = MergeQueue(services, journal, control, judge, delivery.promoter)
        self._look = MissionReader(store=services.store, workers=services.workers)
        self._observer = PlanObserver(services, journal, self._look)
        self._conditions = PlanConditions(journal, judge)
        self._next: list[d.Merge] = []

    async def run(self) -> None:
        """Decide and carry out moves until the mission is settled or sleeps, or its plan's time is over."""
        # First the merge that a dead worker did not record: later results are merged on top of it, and a person
        # may roll back its task alone.
        if (half := self._journal.state.half_merged) is not None:
            if self._progress.plan.task(half.task) is None:  # a person dropped it meanwhile
                self._journal.record(half, durable=True)
            else:
                await self._merge(d.Merge(task=half.task, mission=half.mission))
        left = plan_seconds_left(self._journal.state, self._services.clock.now())
        if left is not None and left <= 0:
            await self._end_by_time()
            return
        try:
            async with self._control.limited(math.inf if left is None else left):
                await self._go_on()
        except TimeoutError:
            if left is None:
                raise
            await self._end_by_time()
        finally:
            await self._judge.ahead.stop()

    async def _end_by_time(self) -> None:
        for child in (await asyncio.to_thread(self._observer.children)).values():
            if child.status not in ENDED:
                await asyncio.to_thread(self._services.stop_mission, child.id, "the plan's time limit is over")
        message = f"the plan's time limit of {self._request.plan_seconds:.0f} s is over; {self._kept_result()}"
        ended = MissionFinished(status="exhausted", reasons=(Reason(code="time", message=message),))
        self._journal.record(ended, durable=True)

    async def _go_on(self) -> None:
        while True:
            # Marked as seen before anything is read: later news belong to the next round.
            rows = self._services.store.log.children(self._journal.mission)
            told = tuple(row.id for row in rows if row.news)
            if told:
                self._services.store.log.note_told(*told)
            changes = self._control.changes
            if self._progress.wanted:
                await self._control.may_go_on()
                await self._heed_base()
                moves = await asyncio.to_thread(lambda: self._planner.go_on(self._observer.runs()))
            elif self._ask_about_plan() or await must_wait(self._services, self._journal, self._control):
                return
            else:
                await self._heed_base()
                await note_plan_forecast(self._services, self._journal, self._look)
                now = await asyncio.to_thread(self._observer.situation)
                moves = d.decide(now)
            merges = [each for each in moves if isinstance(each, d.Merge)]
            self._next = merges[1:]
            # Merges come last, and one at a time: tasks that become ready through a merge start before the next
            # merge.
            for move in moves[: len(moves) - len(merges) + 1]:
                await self._control.may_go_on()
                if changes != self._control.changes:
                    break
                self._heed_breakpoints(move)
                if isinstance(move, d.Wait):
                    if self._rest(move, told):
                        return
                    break
                if isinstance(move, d.Finish):
                    self._control.ends = True  # later changes would be ignored
                    await self._finish(move)
                    return
                async with self._holding(move):
                    await self._carry_out(move)

    def _heed_breakpoints(self, move: d.Move) -> None:
        """Stop at a person's breakpoints: before a task starts, and before the result is delivered."""
        if isinstance(move, d.Start):
            stop_at(self._journal, PLAN)
            stop_at(self._journal, task_breakpoint(move.task))
        elif isinstance(move, d.Finish) and move.stopped is None and self._journal.state.commit is not None:
            stop_at(self._journal, PROMOTE)

    async def _carry_out(self, move: d.Move) -> None:
        if isinstance(move, d.Start | d.Merge | d.Review | d.Weigh | d.EndTask):
            self._settle_questions(move.task)
        match move:
            case d.Start():
                await self._start(move)
            case d.Hold():
                self._journal.record(TaskHeld(task=move.task, reason=move.reason))
            case d.Merge():
                await self._merge(move)
            case d.Review():
                await asyncio.to_thread(self._start_reviews, move)
            case d.Weigh():
                await asyncio.to_thread(self._weigh, move)
            case d.StopChild():
                await asyncio.to_thread(self._services.stop_mission, move.mission, move.why)
            case d.EndTask():
                # For a task without merges; a finished one may still delegate parts.
                missions = [run.mission for run in self._progress.tasks.get(move.task, TaskProgress()).current]
                notes = await asyncio.to_thread(read_notes, self._look, move.task, *missions)
                # With several candidates only the chosen one delegates.
                added = await self._add_delegations(move.task, *((move.mission,) if move.mission else ()))
                declined = self._explain_decline(move.task, "stop", move.choice)
                end = self._end_of(move.task, move.outcome, move.reason)
                self._journal.record(*notes, *added, *declined, end)
            case d.Ask():
                self._ask_about_task(move)

    @contextlib.asynccontextmanager
    async def _holding(self, move: d.Move) -> AsyncIterator[None]:
        """Mark a move's task as in hand, and stop other tasks at their deadlines while it is carried out.

        The checks of a merge take long.
        """
        self._control.in_hand = move.task if isinstance(move, d.Start | d.Merge | d.EndTask) else ""
        stopping = asyncio.create_task(self._stop_late())
        try:
            yield
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            self._control.in_hand = ""

    async def _stop_late(self) -> None:
        # Not only at later deadlines: a mission that is just being taken over may not have heeded the order that
        # was given before this move, and gets another one.
        due: float | None = plan_seconds_used(self._journal.state, self._services.clock.now()) + _AGAIN_SECONDS
        while due is not None:
            await asyncio.sleep(due - plan_seconds_used(self._journal.state, self._services.clock.now()))
            await self._control.may_go_on()
            while moves := d.stop_late(now := await asyncio.to_thread(self._observer.situation)):
                for move in moves:
                    try:
                        await self._carry_out(move)
                    except ChargehandError as error:  # it is held, or does not answer, at this moment
                        _LOG.warning("%s is not stopped yet: %s", move.mission, error)
                await asyncio.sleep(_AGAIN_SECONDS)
            due = d.next_due(self._progress, now.elapsed)

    # --- looking

    @property
    def _progress(self) -> PlanProgress:
        assert self._journal.state.plan is not None
        return self._journal.state.plan

    @property
    def _request(self) -> MissionRequest:
        assert self._journal.state.request is not None
        return self._journal.state.request

    def _kept_result(self) -> str:
        merged = self._journal.state.commit is not None
        return "merged tasks stay on its branch" if merged else "nothing was merged"

    # --- doing

    async def _heed_base(self) -> None:
        """Run the checks on the base before any task starts: an answer about a red base applies to all tasks.

        Raises as `heed_red_base`.
        """
        if self._progress.planners or any(known.runs or known.end for known in self._progress.tasks.values()):
            return
        await self._control.may_go_on()
        context = await self._judge.prepare_base(self._request, self._observer.tip())
        await heed_red_base(self._journal, self._services.store, self._request, context.validator)

    def _ask_about_plan(self) -> bool:
        """Ask a person the plan's open questions one after the other; return whether one is still open."""
        asked = self._journal.state.questions
        for each in self._progress.plan.ambiguities:
            name = f"{PLAN_QUESTION}{each.id}"
            if name in asked and asked[name].answer is not None:
                continue
            reason = Reason(code="plan_unclear", message=each.question)
            question = QuestionAsked(
                question=name,
                tree=self._observer.tip().tree,
                reasons=(reason,),
                text=each.question,
                options=each.options,
                default=each.default,
            )
            if name not in asked:
                self._journal.record(self._journal.limited(question), durable=True)
            self._journal.record(rest_for_person(self._journal.state, reason), durable=True)
            return True
        return False

    async def _start(self, move: d.Start) -> None:
        task = self._progress.plan.task(move.task)
        assert task is not None
        tip = await asyncio.to_thread(self._observer.tip)
        if move.rung in ("first", "loop"):
            try:
                needless = await self._conditions.find_needless(task, tip, round=move.round)
            except RefusedError as error:
                self._ask_to_begin(move, error, without="its condition")
                return
            if needless is not None:
                self._journal.record(self._end_of(task.id, *needless))
                return
        started = []
        for number, model in enumerate(move.models, 1):
            name = child_id(self._journal.mission, task.id, move.round, number)
            create = partial(create_child, self._services, self._journal.state, task, tip, mission=name)
            try:
                agent = move.agents[number - 1] if move.agents else ""
                base = await asyncio.to_thread(partial(create, move=move, model=model, agent=agent))
            except RefusedError as error:
                if error.code != "tests_conflict":
                    raise
                # A person decides about a task that cannot be given its failing tests.
                self._ask_to_begin(move, error, without="those")
                return
            started.append(
                TaskStarted(
                    task=task.id,
                    mission=name,
                    round=move.round,
                    rung=move.rung,
                    base=base,
                    why=move.why,
                    candidate=number,
                    model=model,
                    considered=move.considered,
                    reasons=move.reasons,
                    due=move.due,
                )
            )
        state, first = self._journal.state, started[0].mission
        told = [each.message for each in state.messages if each.message not in state.delivered]
        self._journal.record(*started, *(MessageDelivered(message=each, attempt=first) for each in told))

    def _ask_to_begin(self, move: d.Start, error: RefusedError, *, without: str) -> None:
        """Ask a person how to handle a task that cannot start as planned."""
        asked = QuestionAsked(
            question=question_about(move.task, move.round - 1),
            tree=self._observer.tip().tree,
            reasons=(Reason(code=error.code, message=error.message),),
            text=f"Task {move.task} cannot begin: {error.message}. Begin it without {without} (retry), leave it"
            " out, or stop everything?",
            options=(d.RETRY, d.SKIP, d.STOP),
            kind="decision",
        )
        self._journal.record(self._journal.limited(asked), durable=True)

    def _settle_questions(self, task: str) -> None:
        """Close the questions about a task that continues without the answer, e.g. after a person continued its
        mission.

        An open one would take the next answer, which is meant for another question.
        """
        about = f"{TASK_QUESTION}{task}/"
        for name, asked in tuple(self._journal.state.questions.items()):
            if name.startswith(about) and not asked.answer:
                self._journal.record(QuestionAnswered(question=name, text=_NEEDLESS, identity=ITSELF))

    def _ask_about_task(self, move: d.Ask) -> None:
        """Ask a person how to handle a task."""
        why = "; ".join(dict.fromkeys(reason.message for reason in move.reasons[:3]))
        end = f"did not succeed{f': {why}' if why else ''}"
        text = f"Task {move.task} {end}. Try it again (retry), leave it out (skip), or stop everything?"
        if (refused := self._refused_result(move.task)) is not None:
            text += f" If its result is good: chargehand mission promote {refused}."
        if d.ACCEPT in move.options:
            text = f"Reviewers dispute the result of task {move.task}: {why}. Accept it, or choose another option?"
        elif move.reasons and move.reasons[0].code == "deadline":
            text = (
                f"Task {move.task} is stopped: {move.reasons[0].message}. Begin it again with as much time"
                " (retry), continue without it (skip), or stop everything?"
            )
        asked = QuestionAsked(
            question=move.question,
            tree=self._observer.tip().tree,
            reasons=move.reasons,
            text=text,
            options=move.options,
            kind="decision",
        )
        declined = self._explain_decline(move.task, "ask", move.choice)
        self._journal.record(*declined, self._journal.limited(asked), durable=True)

    def _explain_decline(
        self, task: str, action: Literal["ask", "stop"], choice: tuple[ChoiceReason, ...]
    ) -> tuple[RetryDeclined, ...]:
        """Return the event for a round that is possible and not worth it, none if it was not chosen by value."""
        by_value = any(each.code == "not_worth_it" for each in choice)
        return (RetryDeclined(task=task, action=action, reasons=choice),) if by_value else ()

    def _refused_result(self, task: str) -> str | None:
        """Return the mission of a task whose refused result a person may still promote."""
        children = self._observer.children()
        runs = [run.mission for run in self._progress.tasks.get(task, TaskProgress()).current]
        ended = [children[each] for each in runs if each in children]
        return next((each.id for each in ended if each.status == "refused" and each.checkpoint_count), None)

    def _start_reviews(self, move: d.Review) -> None:
        """Record a mission for each reviewer of a child mission's promoted result."""
        task, made = self._progress.plan.task(move.task), self._look.at_rest(move.mission)
        assert task is not None
        started = []
        for number, role in enumerate(move.roles, 1):
            name = child_id(self._journal.mission, f"review of {move.mission} as {role}", number, 1)
            create_review(self._services, self._journal.state, task, made, mission=name, role=role)
            assert made.tree is not None
            started.append(ReviewStarted(task=task.id, mission=name, of=move.mission, role=role, tree=made.tree))
        self._journal.record(*started)

    def _weigh(self, move: d.Weigh) -> None:
        """Record the reviewers' decision, and their objections if the result is returned."""
        known, made = self._progress.tasks[move.task], self._look.at_rest(move.mission)
        assert made.promoted_on is not None
        assert made.tree is not None
        votes = tuple(read_vote(each, self._look.at_rest(each.mission)) for each in known.reviews_of(move.mission))
        before = sum(each.reason.code == OBJECTED for each in known.returned)
        decision, why = weigh(votes, revisions=before)
        events: list[Payload] = [
            TaskReviewed(task=move.task, of=move.mission, decision=decision, why=why, votes=votes),
            *read_notes(self._look, move.task, *(vote.mission for vote in votes)),
        ]
        if decision == "revise":
            evidence = objections_report(votes).encode()
            kept = self._services.store.artifacts.put(evidence, kind="report", mission=self._journal.mission)
            self._services.depot.keep_base(made.promoted_on.commit)
            events.append(
                TaskReturned(
                    task=move.task,
                    mission=move.mission,
                    reason=objection(why),
                    base=made.promoted_on.commit,
                    tree=made.tree,
                    evidence=kept,
                )
            )
        self._journal.record(*events, durable=True)

    async def _merge(self, move: d.Merge) -> None:
        task = self._progress.plan.task(move.task)
        assert task is not None
        tip = await asyncio.to_thread(self._observer.tip)
        child = await asyncio.to_thread(self._look.at_rest, move.mission)
        merged = await self._queue.merge(task, child, tip, find_next=partial(self._next_result, move))
        if isinstance(merged, TaskReturned):
            self._journal.record(merged, durable=True)
            return
        notes = await asyncio.to_thread(read_notes, self._look, task.id, child.id)
        after: tuple[Payload, ...] = ()
        try:
            if not await self._conditions.loop_goes_on(task, self._observer.tip(), merged):
                after = (self._end_of(task.id, "merged"),)
        except RefusedError as error:
            after = (self._question_about_loop(task.id, error),)
        added = await self._add_delegations(task.id, child.id)
        # All at once: a worker that takes over finds either all of it or must repeat all of it.
        self._journal.record(merged, *notes, *added, *after, durable=True)

    def _next_result(self, move: d.Merge) -> str | None:
        """Return the mission that will probably be merged after this one; may block."""
        found = self._next or [each for each in d.decide(self._observer.situation()) if isinstance(each, d.Merge)]
        return next((each.mission for each in found if each != move), None)

    async def _add_delegations(self, task: str, *missions: str) -> list[Payload]:
        """Return the events that add delegated parts of a task to the plan, to be recorded at once."""
        while True:
            now, look = self._progress, self._look
            added = await asyncio.to_thread(
                add_delegations, self._services, look, self._request, now, task, missions
            )
            if self._progress.plan is now.plan:  # otherwise a person set another plan meanwhile
                self._control.changes += bool(added)  # decisions made on the old plan are made again
                return added

    def _end_of(self, task: str, outcome: TaskOutcome, reason: Reason | None = None) -> TaskEnded:
        """Return the end of a task, with the cost of all its missions; merged rounds stay merged."""
        if outcome in ("done", "left_out") and self._progress.tasks[task].merged:
            outcome = "merged"
        cost = total_cost(child for child in self._observer.children().values() if child.task == task)
        return TaskEnded(task=task, outcome=outcome, reason=reason, cost_usd=cost)

    def _question_about_loop(self, task: str, error: RefusedError) -> QuestionAsked:
        return self._journal.limited(
            QuestionAsked(
                question=question_about(task, self._progress.tasks[task].round),
                tree=self._observer.tip().tree,
                reasons=(Reason(code=error.code, message=error.message),),
                text=f"The work of task {task} is merged, but its loop is not done: {error.message}. Do another"
                " round (retry), continue with the merged work (skip), or stop everything?",
                options=(d.RETRY, d.SKIP, d.STOP),
                kind="decision",
            )
        )

    async def _finish(self, move: d.Finish) -> None:
        if move.stopped is not None:
            reason = replace(move.stopped, message=f"{move.stopped.message}; {self._kept_result()}")
            self._journal.record(MissionFinished(status="refused", reasons=(reason,)), durable=True)
        elif self._journal.state.commit is None:
            reason = Reason(code="nothing_to_do", message="no task had anything to change")
            self._journal.record(MissionFinished(status="promoted", reasons=(reason,)), durable=True)
        else:
            await self._delivery.deliver_promoted()

    # --- sleeping

    def _rest(self, move: d.Wait, told: tuple[str, ...]) -> bool:
        """Release the mission until there is news; return `False` if there is some already."""
        if move.people:
            self._journal.record(rest_for_person(self._journal.state, *move.people), durable=True)
        else:
            now = self._services.clock.now()
            left = plan_seconds_left(self._journal.state, now)
            due = None if move.due is None else move.due - plan_seconds_used(self._journal.state, now)
            # Late rather than early: a coordinator that wakes early finds nothing due and sleeps again.
            later = (
                now + timedelta(seconds=max(0.0, each), milliseconds=1) for each in (left, due) if each is not None
            )
            moments = [next_expiry(self._journal.state), *(each.isoformat() for each in later)]
            wakes = min(filter(None, moments), default="")
            self._journal.record(CoordinatorSlept(tasks=move.tasks, wakes=wakes), durable=True)
        # A child with later news finds the coordinator asleep and wakes it; earlier news are found here.
        if not any(row.news for row in self._services.store.log.children(self._journal.mission)):
            return True
        self._journal.record(CoordinatorWoken(mission=self._journal.mission))
        return False
