"""The seven steps of a mission, as plain functions over recorded steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from chargehand.agents.contract import Agent, Assignment
from chargehand.agents.roles import NO_ROLE
from chargehand.checks._report import report
from chargehand.core.attempt_events import TierChosen
from chargehand.core.codec import convert_to
from chargehand.core.errors import ChargehandError, FencedError, RefusedError, WaitingError
from chargehand.core.events import Payload
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    PROMOTE,
    AgentSelected,
    AttemptFinished,
    MissionFinished,
    MissionReleased,
    QuestionAsked,
    VerdictGiven,
)
from chargehand.core.records import (
    AttemptStatus,
    Base,
    Change,
    MissionRequest,
    MissionStatus,
    Reason,
    Verdict,
    VerdictStatus,
)
from chargehand.core.state import MissionState
from chargehand.missions._admission import Admission
from chargehand.missions._attempt import AttemptRunner, Left
from chargehand.missions._context import WORK
from chargehand.missions._contracts import missing_record, report_made, role_chosen, role_of, with_failing_test
from chargehand.missions._control import Control
from chargehand.missions._environment import environment_layer
from chargehand.missions._gates import areas_of, find_gates
from chargehand.missions._inspection import Inspector
from chargehand.missions._journal import Journal
from chargehand.missions._judgement import End, after_checks, before_checks, missed_report, tests_as_asked
from chargehand.missions._kept_calls import put_away
from chargehand.missions._meeting import changes_of, conflict_reason, move_on, recorded_meeting
from chargehand.missions._meeting import feedback as feedback_of
from chargehand.missions._places import Ground, Places
from chargehand.missions._promote import Fault, Promoter, no_fault
from chargehand.missions._queue import Queue
from chargehand.missions._received import ended_with, keep_told, unread_message
from chargehand.missions._services import Services
from chargehand.missions._system import system_errors
from chargehand.missions._undelivered import owes_attempt, with_undelivered
from chargehand.missions._validate import Validator
from chargehand.sandbox._contract import OnOutput

_T = TypeVar("_T")
_GRACE_SECONDS = 15.0
"""An agent is stopped at the mission's time limit; its last writes are still kept as a checkpoint."""
_FRUITLESS_CLAIMS = 5
"""A mission that ends its worker this often without coming one step further is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stand:
    """A base, what works on it and what judges there."""

    base: Base
    runner: AttemptRunner
    validator: Validator
    inspector: Inspector


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """What came of an attempt: what it left and where, the verdict, its end, the artifact that tells the next."""

    stand: _Stand
    left: Left
    verdict: Verdict
    end: End
    report: str | None


class MissionFlow:
    """One mission from its request, or from its last recorded step, to its end."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        control: Control,
        *,
        fault: Fault = no_fault,
        on_output: OnOutput | None = None,
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._fault = fault
        self._on_output = on_output
        self._places = Places(services, journal, control=control)
        self._promoter = Promoter(services, journal, fault=fault)
        self._queue = Queue(services, journal, control)
        self._admission = Admission(services, journal, self._queue)
        self._attempt_started = services.clock.monotonic()
        self._role = NO_ROLE

    async def run(self) -> MissionState:
        """Go through the seven steps; the mission is settled when this returns or raises.

        Cancelling the task settles it as `cancelled`, running out of time as `exhausted`; errors of our own
        machinery and of the configuration settle it as `failed` and are raised on. Only a worker that must let go
        of it (`Control.stop`, `FencedError`) leaves it as it is, to be resumed.
        """
        request = self._request
        try:
            async with self._control.limited(self._seconds_left(request) + _GRACE_SECONDS):
                with system_errors():
                    await self._go_on(request)
        except FencedError:
            raise
        except TimeoutError:
            message = f"the {request.seconds:.0f} s of the mission are up"
            self._settle("exhausted", "timed_out", Reason(code="time", message=message))
        except asyncio.CancelledError:
            if self._control.stopped in (None, "cancel"):
                message = "a person cancelled the mission"
                self._settle("cancelled", "cancelled", Reason(code="cancelled", message=message))
            elif self._control.stopped == "release":
                self._journal.note(MissionReleased(worker=self._services.worker[0]))
            raise
        except WaitingError as error:  # an agent asked; its attempt goes on with the answer
            reason = Reason(code=error.code, message=error.message)
            self._journal.note(MissionFinished(status="waiting", reasons=(reason,)))
        except ChargehandError as error:
            self._settle("failed", "failed", Reason(code=error.code, message=error.message))
            if not isinstance(error, RefusedError):
                raise
        return self._journal.state

    @property
    def _request(self) -> MissionRequest:
        assert self._journal.state.request is not None
        return self._journal.state.request

    def _seconds_left(self, request: MissionRequest) -> float:
        """Return what the recorded steps left of the mission's time; clocks of other boots do not compare."""
        return max(1.0, request.seconds - self._journal.state.seconds_of())

    async def _go_on(self, request: MissionRequest) -> None:
        if self._journal.state.fruitless_claims > _FRUITLESS_CLAIMS:
            message = f"its worker ended {_FRUITLESS_CLAIMS} times without coming one step further"
            self._settle("failed", "lost", Reason(code="worker_lost", message=message))
        elif self._journal.state.base is None:
            self._settle("failed", "failed", Reason(code="no_base", message="it was recorded without a base"))
        elif self._promoter.settle_prepared():
            await self.deliver()
        elif self._journal.state.cancel_asked:
            message = "a person cancelled the mission"
            self._settle("cancelled", "cancelled", Reason(code="cancelled", message=message))
        else:
            await self._steps(request)

    async def _steps(self, request: MissionRequest) -> None:
        choice = self._services.choice
        if choice is not None and self._journal.state.tier != choice:
            self._journal.note(TierChosen(choice=choice))
        request = await self._admission.admitted(request, 1)
        agent = self._services.open_agent(request)
        self._role = role_of(self._services.store, request)
        preparing = asyncio.create_task(asyncio.to_thread(agent.prepare))
        try:
            stand = await self._stand(request, self._first_base)
            await self._select(request, agent)
            await preparing
            await self._attempts(request, agent, stand)
        finally:
            await asyncio.gather(preparing, return_exceptions=True)

    @property
    def _first_base(self) -> Base:
        assert self._journal.state.first_base is not None
        return self._journal.state.first_base

    async def _stand(self, request: MissionRequest, base: Base) -> _Stand:
        """Return what works and judges on a base; how the checks end on that itself is known then."""
        environment = await environment_layer(self._services, self._journal, base, places=self._places)
        self._fault("environment")
        ground = Ground(base=base, environment=environment)
        gates = find_gates(self._services, base, request)
        validator = Validator(
            self._services, self._journal, ground=ground, gates=gates, places=self._places, queue=self._queue
        )
        await validator.base()
        inspector = Inspector(self._services, base, areas_of(self._services, request, gates))
        runner = AttemptRunner(
            self._services,
            self._journal,
            self._control,
            ground=ground,
            inspector=inspector,
            places=self._places,
            queue=self._queue,
            on_output=self._on_output,
        )
        return _Stand(base=base, runner=runner, validator=validator, inspector=inspector)

    async def _select(self, request: MissionRequest, agent: Agent) -> None:
        reason = request.why or "named in the request"

        async def chosen() -> object:
            return {"agent": agent.name, "kind": agent.kind, "reason": reason}

        def told(out: dict[str, Any]) -> Sequence[Payload]:
            selected = AgentSelected(**out)
            return (selected,) if self._role is NO_ROLE else (selected, role_chosen(request, self._role))

        await self._journal.step("agent", request.agent, chosen, notes=told)

    async def _attempts(self, request: MissionRequest, agent: Agent, stand: _Stand) -> None:
        """Let the agent try, give it the report of what was wrong, and end with the last try's end."""
        tree: str = stand.base.tree
        feedback: str | None = None
        for number in range(1, request.attempts + 1):
            admitted = request if number == 1 else await self._admission.admitted(request, number)
            if admitted != request:  # the one before failed too often
                request, agent = admitted, self._services.open_agent(admitted)
            self._attempt_started = self._services.clock.monotonic() - self._journal.stood
            left = await self._work(request, agent, stand, number, tree, feedback)
            self._fault("agent")
            tried = await self._judge(request, left, stand, number)
            owing = number < request.attempts and owes_attempt(self._journal.state, number)
            if request.apply and tried.end.mission == "promoted" and self._role.writes and not owing:
                tried = await self._meet(request, tried, number)
            end = tried.end
            self._finish_attempt(number, end)
            # A native agent that failed had no model, no room or no end: trying again brings the same.
            hopeless = agent.checkpoints_itself and left.outcome.claim == "failed"
            good = end.mission in ("promoted", "waiting")
            if number == request.attempts or hopeless or end.mission == "exhausted" or (good and not owing):
                await self._conclude(tried)
                return
            # What was good has no report of what is wrong: a person's word makes the next attempt.
            stand, tree, feedback = tried.stand, tried.left.tree, None if good else tried.report

    async def _work(
        self,
        request: MissionRequest,
        agent: Agent,
        stand: _Stand,
        number: int,
        tree: str,
        feedback: str | None,
    ) -> Left:
        """Run one attempt, or recall what it left."""

        async def work() -> object:
            begun = self._journal.state.attempt(number)
            assignment = Assignment(
                mission=self._journal.mission,
                attempt=begun.id if begun else new_id("attempt"),
                number=number,
                request=request.text,
                report=self._services.store.artifacts.get(feedback) if feedback else None,
                seconds=self._seconds_left(request),
                messages=tuple(message.text for message in self._journal.state.messages),
                allow=request.allow,
                forbid=request.forbid,
                tree=tree,
                role=self._role,
            )
            return (await stand.runner.run(agent, assignment, tree=tree)).record()

        def told(record: Any) -> Sequence[Payload]:
            """Told with the end of the step, so that an attempt that begins anew tells it once."""
            begun, left = self._journal.state.attempt(number), self._recall(record, stand)
            if begun is None:
                return ()
            report = report_made(self._services.store, self._role, begun.id, left.report)
            return (*ended_with(self._journal, number, left.outcome, left.set_back), *report)

        name = WORK.format(number=number)
        record = await self._journal.step(name, [tree, feedback], work, notes=told)
        over = self._journal.state.attempt(number)
        if over is not None:
            await asyncio.to_thread(put_away, self._services.store, self._journal.mission, over.id)
        return self._recall(record, stand)

    def _recall(self, record: Any, stand: _Stand) -> Left:
        return Left.recall(record, base=stand.base, depot=self._services.depot)

    async def _judge(self, request: MissionRequest, left: Left, stand: _Stand, number: int) -> _Tried:
        """Return what came of an attempt: the verdict of what it left, its end, and the report to the next one."""
        validator = stand.validator
        role, base_tree = self._role, stand.base.tree
        end = before_checks(left, base_tree=base_tree, partial=request.partial, role=role)
        if end is not None:
            findings = (*left.findings, *left.discarded, *unread_message(left.outcome))
            if not role.writes and left.outcome.claim == "done":
                findings += missed_report(left, role, base_tree)
            status: VerdictStatus = "degraded" if left.degraded else "red"
            verdict = Verdict(tree=left.tree, scope="attempt", status=status, findings=findings)
            told_next = self._keep_report(verdict, left, validator)
            return _Tried(stand=stand, left=left, verdict=verdict, end=end, report=told_next)
        begun = self._journal.state.attempt(number)

        async def judge() -> object:
            findings = (*left.findings, *missing_record(role, self._services.depot, left.changes))
            verdict = await validator.candidate(
                left.tree, scope="attempt", changes=left.changes, findings=findings
            )
            if role.must_add == "failing_test":
                verdict = with_failing_test(verdict, await validator.base(), validator.outputs, left.changes)
            return {"verdict": verdict, "report": self._keep_report(verdict, left, validator)}

        def told(output: Any) -> Sequence[VerdictGiven]:
            return (VerdictGiven(verdict=output["verdict"], attempt=begun.id if begun else None),)

        output = await self._journal.step(f"attempt/{number}/verdict", left.tree, judge, notes=told)
        self._fault("verdict")
        verdict = convert_to(output["verdict"], Verdict)
        end = (tests_as_asked(verdict) if role.must_add == "failing_test" else None) or after_checks(verdict)
        return _Tried(stand=stand, left=left, verdict=verdict, end=end, report=output["report"])

    async def _meet(self, request: MissionRequest, tried: _Tried, number: int) -> _Tried:
        """Bring what is good onto the branch it is to be applied to, where that moved on.

        Where the two conflict, or are not good together, the next attempt goes on from there. If there is none,
        what is good stays what it was: it is promoted by itself, and not applied.
        """
        journal, services = self._journal, self._services
        meeting = await recorded_meeting(
            journal, services.store, services.depot, tried.stand.base, tried.left.tree, number=number
        )
        last = number == request.attempts
        if meeting is None or (meeting.count and last):
            return tried
        self._fault("met")
        stand = await self._stand(request, meeting.base)
        left = replace(tried.left, tree=meeting.tree, changes=changes_of(services.depot, meeting))
        if meeting.count:
            where = meeting.base.branch or meeting.base.revision
            reason = conflict_reason(meeting.conflicts, branch=where, count=meeting.count)
            kept = keep_told(services.store, journal, feedback_of(meeting))
            end = End(status="refused", mission="refused", reasons=(reason,))
            met = _Tried(stand=stand, left=left, verdict=tried.verdict, end=end, report=kept)
        else:
            met = await self._judge_merged(left, tried.verdict, stand, number)
            if last and met.end.mission == "refused":
                return tried
        move_on(journal, meeting, number=number)
        self._fault("moved")
        return met

    async def _judge_merged(self, left: Left, verdict: Verdict, stand: _Stand, number: int) -> _Tried:
        """Return what an attempt's tree is worth together with what came onto the branch meanwhile."""
        begun = self._journal.state.attempt(number)

        async def judge() -> object:
            found = await self._merged(left.tree, left.changes, verdict, stand.validator, stand.inspector)
            return {"verdict": found, "report": self._keep_report(found, left, stand.validator)}

        def told(output: Any) -> Sequence[VerdictGiven]:
            return (VerdictGiven(verdict=output["verdict"], attempt=begun.id if begun else None),)

        output = await self._journal.step(f"merge-verdict/{number}", left.tree, judge, notes=told)
        merged = convert_to(output["verdict"], Verdict)
        return _Tried(stand=stand, left=left, verdict=merged, end=after_checks(merged), report=output["report"])

    @staticmethod
    async def _merged(
        tree: str, changes: Sequence[Change], verdict: Verdict, validator: Validator, inspector: Inspector
    ) -> Verdict:
        seen = await inspector.full(changes)
        # The entry rules' findings are not in the tree any more: they come with the attempt's verdict.
        findings = tuple(dict.fromkeys((*verdict.findings, *seen.findings)))
        return await validator.candidate(
            tree, scope="merged", changes=changes, findings=findings, degraded=seen.degraded
        )

    def _keep_report(self, verdict: Verdict, left: Left, validator: Validator) -> str:
        document = report(verdict, validator.outputs, reverted=left.reverted).encode()
        return keep_told(self._services.store, self._journal, document)

    def _finish_attempt(self, number: int, end: End) -> None:
        attempt = self._journal.state.attempt(number)
        assert attempt is not None
        if attempt.status != "running":  # noted before a crash
            return
        cost = (attempt.cost_usd, attempt.cost_known) if attempt.calls else (0.0, True)
        self._journal.note(
            AttemptFinished(
                attempt=attempt.id,
                status=end.status,
                seconds=self._journal.state.seconds_of(f"attempt/{number}/"),
                reasons=end.reasons,
                cost_usd=cost[0],
                cost_known=cost[1],
            )
        )
        self._admission.tell(self._request, number)

    async def _conclude(self, tried: _Tried) -> None:
        left, end = tried.left, tried.end
        if end.mission == "promoted" and self._role.writes:
            await self.promote(tried.stand.base, left.tree, tried.verdict, tried.stand.validator)
            return
        finished = MissionFinished(status=end.mission, reasons=end.reasons, reverted=left.reverted)
        if end.mission == "waiting" and tests_as_asked(tried.verdict) is None:
            asked = QuestionAsked(question=PROMOTE, tree=left.tree, reasons=end.reasons)
            self._note_end(finished, asked)
        else:
            self._note_end(finished)

    async def promote(
        self, base: Base, tree: str, verdict: Verdict, validator: Validator, *, approved: bool = False
    ) -> None:
        """Promote a validated tree, export it, apply it where asked; the mission is settled afterwards.

        Once begun it is finished even when the task is cancelled: half a promotion helps nobody.
        """
        async with self._control.finishing():
            await _to_the_end(self._promote(base, tree, verdict, validator, approved))

    async def _promote(
        self, base: Base, tree: str, verdict: Verdict, validator: Validator, approved: bool
    ) -> None:
        async def merged(candidate: str) -> Verdict:
            async def judge() -> Verdict:
                changes = self._services.depot.diff(base.tree, candidate)
                areas = areas_of(self._services, self._request, validator.gates)
                inspector = Inspector(self._services, base, areas)
                return await self._merged(candidate, changes, verdict, validator, inspector)

            name = "verdict/merged"
            output = await self._journal.step(
                name, candidate, judge, notes=lambda found: (VerdictGiven(verdict=found),)
            )
            return convert_to(output, Verdict)

        try:
            await self._promoter.promote(base, tree, verdict, validate=merged, approved=approved)
        except RefusedError as error:
            if self._journal.state.commit is not None:  # an earlier promotion stands as it was
                raise
            reason = Reason(code=error.code, message=error.message)
            self._note_end(MissionFinished(status="refused", reasons=(reason,)))
            return
        await self._deliver()

    async def deliver(self) -> None:
        """Bring a promotion to where it was wanted and could not come; the mission is settled afterwards."""
        async with self._control.finishing():
            await _to_the_end(self._deliver())

    async def _deliver(self) -> None:
        await self._promoter.deliver()
        self._note_end(MissionFinished(status="promoted"), durable=True)

    def _settle(self, status: MissionStatus, attempt: AttemptStatus, reason: Reason) -> None:
        """Settle a mission that did not come to its own end, its running attempt first."""
        state = self._journal.state
        for running in state.attempts:
            if running.status == "running":
                seconds = self._services.clock.monotonic() - self._journal.stood - self._attempt_started
                self._journal.note(
                    AttemptFinished(
                        attempt=running.id,
                        status=attempt,
                        seconds=seconds,
                        reasons=(reason,),
                        cost_usd=running.cost_usd if running.calls else 0.0,
                        cost_known=running.cost_known or not running.calls,
                    )
                )
                self._admission.tell(self._request, running.number)
                put_away(self._services.store, self._journal.mission, running.id)
        if state.status != "promoted":
            self._note_end(MissionFinished(status=status, reasons=(reason,)))

    def _note_end(self, finished: MissionFinished, *before: Payload, durable: bool = False) -> None:
        """Note a mission's end, and what no agent was told until then."""
        self._journal.note(*before, *with_undelivered(self._journal.state, finished), durable=durable)


async def _to_the_end(work: Awaitable[_T]) -> _T:
    """Await `work` even through a cancellation, which is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
