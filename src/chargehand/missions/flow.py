"""The seven steps of a mission, over recorded steps.

Read it from `MissionFlow.run` down. What costs money, time or a sandbox runs inside `Journal.step`, so a worker
that takes the mission over goes through the same code and is given the recorded outputs until the first step that
is not in the log.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from chargehand.agents.contract import Agent, Assignment
from chargehand.agents.roles import NO_ROLE
from chargehand.checks.execution import report
from chargehand.core.attempt_events import TierChosen
from chargehand.core.codec import convert_to
from chargehand.core.errors import ChargehandError, FencedError, RefusedError, WaitingError
from chargehand.core.events import Payload
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    PROMOTE,
    AgentSelected,
    MissionFinished,
    MissionReleased,
    QuestionAsked,
    VerdictGiven,
)
from chargehand.core.records import (
    AttemptStatus,
    Base,
    MissionRequest,
    MissionStatus,
    Reason,
    Verdict,
    VerdictScope,
    VerdictStatus,
)
from chargehand.core.state import MissionState
from chargehand.missions._attempt_log import archive_replies, attempt_end, settle_lost_calls
from chargehand.missions._interruptions import MOST_INTERRUPTIONS, run_interruptible
from chargehand.missions._messages import (
    FULL_DISK,
    events_of_attempt_end,
    events_of_mission_end,
    requires_next_attempt,
    store_report_message,
    wait_for_room,
)
from chargehand.missions._questions import rest_for_person
from chargehand.missions.attempt.admission import PATCH_AGENT, Admission, provider_fault
from chargehand.missions.attempt.inspection import Inspector
from chargehand.missions.attempt.result import AttemptResult
from chargehand.missions.attempt.runner import AttemptRunner
from chargehand.missions.breakpoints import BREAKPOINT, stop_at, stop_before_step
from chargehand.missions.breakpoints import PROMOTE as BEFORE_PROMOTION
from chargehand.missions.control import Control
from chargehand.missions.coordination.contract import Meanwhile, wait_idly
from chargehand.missions.coordination.coordinator import Coordinator
from chargehand.missions.coordination.merging import deliver_promoted
from chargehand.missions.holds import must_wait
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.promoter import Fault, Promoter, no_fault
from chargehand.missions.promotion.rebase import advance_base, conflict_reason, conflict_report, record_rebase
from chargehand.missions.sandboxes.environment import base_environment, needed_setup
from chargehand.missions.sandboxes.provisioning import SandboxProvisioner
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import Services, system_errors
from chargehand.missions.transcript import WORK
from chargehand.missions.verdict.ahead import RunsAhead
from chargehand.missions.verdict.gates import Gates, areas_of, find_gates
from chargehand.missions.verdict.judged import BaseContext, JudgedAttempt, judge_tree
from chargehand.missions.verdict.judgement import (
    AttemptEnd,
    find_missing_record,
    find_missing_report,
    judge_failing_test,
    judge_result,
    judge_verdict,
    load_role,
    report_event,
    require_failing_test,
    role_event,
)
from chargehand.missions.verdict.validation import Validator
from chargehand.sandbox.contract import OnOutput
from chargehand.workspace.remotes import moved_base

# An agent is stopped at the mission's time limit; its last writes are still kept as a checkpoint.
_GRACE_SECONDS = 15.0


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
        on_check_output: OnOutput | None = None,
    ) -> None:
        self._services, self._journal = services, journal
        self._control, self.fault = control, fault
        self._on_output, self._on_check_output = on_output, on_check_output
        self._provisioner = SandboxProvisioner(services, journal, control=control)
        self._promoter = Promoter(services, journal, fault=fault)
        self._queue = SlotQueue(services, journal, control)
        self._admission = Admission(services, journal, self._queue)
        self._attempt_started = services.clock.monotonic()
        self._role, self.ahead = NO_ROLE, RunsAhead()

    async def run(self) -> MissionState:
        """Go through the seven steps; the mission is settled when this returns or raises.

        Cancelling the task settles it as `cancelled`, running out of time as `exhausted`; errors of our own
        machinery and of the configuration settle it as `failed` and are raised on. Only a worker that must let go
        of it (`Control.stop`, `FencedError`) leaves it as it is, to be resumed.
        """
        request = self._request
        self._journal.before_step = partial(stop_before_step, self._journal)
        try:
            # What the recorded steps left of the mission's time; clocks of other boots do not compare.
            seconds = max(1.0, request.seconds - self._journal.state.seconds_of())
            async with self._control.limited(seconds + _GRACE_SECONDS):
                with system_errors():
                    await run_interruptible(self._journal, lambda: self._resume(request))
        except FencedError:  # another worker has the mission: nothing of ours may be written
            raise
        except TimeoutError:
            message = f"the mission's time limit of {request.seconds:.0f} s is over"
            self._settle("exhausted", "timed_out", Reason(code="time", message=message))
        except asyncio.CancelledError:
            if self._control.stopped in (None, "cancel"):
                self._settle("cancelled", "cancelled", self._journal.state.cancelled_reason)
            elif self._control.stopped == "release":
                self._journal.record(MissionReleased(worker=self._services.worker[0]))
            raise
        except WaitingError as error:  # an agent asked a person; its attempt goes on with the answer
            self._rest(Reason(code=error.code, message=error.message))
        except ChargehandError as error:
            if error.code in FULL_DISK:  # where not even this can be written, its worker counts as lost
                waiting = wait_for_room(self._journal.state, self._services.clock.now(), why=error.message)
                self._journal.record(*waiting, durable=True)
                return self._journal.state
            self._settle("failed", "failed", Reason(code=error.code, message=error.message))
            if not isinstance(error, RefusedError):
                raise
        return self._journal.state

    def _rest(self, reason: Reason) -> None:
        if reason.code != BREAKPOINT:  # there it is paused already
            self._journal.record(rest_for_person(self._journal.state, reason))

    @property
    def _request(self) -> MissionRequest:
        assert self._journal.state.request is not None
        return self._journal.state.request

    async def _resume(self, request: MissionRequest) -> None:
        """Finish what an earlier worker left half-done, then go through the steps."""
        state = self._journal.state
        # A mission that kills its worker (by memory, say) would otherwise go round all workers for ever.
        if state.fruitless_claims > MOST_INTERRUPTIONS:
            message = f"its worker ended {MOST_INTERRUPTIONS} times without making any progress"
            self._settle("failed", "lost", Reason(code="worker_lost", message=message))
        elif state.base is None:
            self._settle("failed", "failed", Reason(code="no_base", message="it was recorded without a base"))
        # A promotion that reached its swap stands, even where a person cancelled the mission afterwards.
        elif self._promoter.settle_prepared() and state.plan is None:
            await deliver_promoted(self._services, self._journal, self._control, self)
        elif state.cancel_asked:
            self._settle("cancelled", "cancelled", self._journal.state.cancelled_reason)
        elif state.plan is not None or not await must_wait(self._services, self._journal, self._control):
            await self._run_steps(request)

    async def _run_steps(self, request: MissionRequest) -> None:
        choice = self._services.choice
        if choice is not None and self._journal.state.tier != choice:
            self._journal.record(TierChosen(choice=choice))
        if self._journal.state.plan is not None:
            return await Coordinator(self._services, self._journal, self._control, self).run()
        request = await self._admission.admitted(request, 1)
        agent = self._services.open_agent(request)
        self._role = load_role(self._services.store, request)

        async def select() -> object:
            return {"agent": agent.name, "kind": agent.kind, "reason": request.why or "named in the request"}

        def selected_events(output: dict[str, Any]) -> Sequence[Payload]:
            selected = AgentSelected(**output)
            return (selected,) if self._role is NO_ROLE else (selected, role_event(request, self._role))

        # A native agent's imports take seconds: they run while environment and base are prepared.
        preparing = asyncio.create_task(asyncio.to_thread(agent.prepare))
        try:
            # Attempts begin at the base that the mission was asked for; a rebase later moves on from there.
            assert self._journal.state.first_base is not None
            context = await self.prepare_base(request, self._journal.state.first_base)
            await context.validator.heed_red_base(request)
            # Recorded: the configuration may name another agent by the time the mission is resumed.
            await self._journal.step("agent", request.agent, select, events=selected_events)
            await preparing
            await self._run_attempts(request, agent, context)
        finally:
            await asyncio.gather(preparing, return_exceptions=True)

    async def prepare_base(self, request: MissionRequest, base: Base) -> BaseContext:
        """Return what works and judges on a base; how the checks end on the base itself is known then."""
        configured, gates = self._services.config.project.setup, find_gates(self._services, base, request)
        validator = await self._validator(base, configured, gates)
        self.fault("environment")
        verdict = await validator.judge_base()
        tried: list[str] = []
        # What can be installed may still leave out what the tests are run by: then the next one is tried.
        look = partial(needed_setup, self._services, self._journal, provisioner=self._provisioner, tried=tried)
        while configured is None and (detected := await look(validator.environment, verdict)):
            tried.append(detected)
            validator = await self._validator(base, detected, gates)
            verdict = await validator.judge_base()
        environment = validator.environment
        areas = areas_of(self._services, request, gates, environment)
        inspector = Inspector(self._services, base, areas, seconds_left=self._control.seconds_left)
        runner = AttemptRunner(
            self._services,
            self._journal,
            self._control,
            environment=environment,
            inspector=inspector,
            provisioner=self._provisioner,
            queue=self._queue,
            on_output=self._on_output,
        )
        return BaseContext(base=base, runner=runner, validator=validator, inspector=inspector)

    async def _validator(self, base: Base, setup: str | None, gates: Gates) -> Validator:
        """Return what judges on a base, in the environment that `setup` makes where its commands run."""
        services, journal, provisioner = self._services, self._journal, self._provisioner
        environment = await base_environment(
            services, journal, base, setup=setup, directory=gates.plan.directory, provisioner=provisioner
        )
        made = Validator(
            services, journal, environment=environment, gates=gates, provisioner=provisioner, queue=self._queue
        )
        made.on_output, made.ahead = self._on_check_output, self.ahead
        return made

    async def _run_attempts(self, request: MissionRequest, agent: Agent, context: BaseContext) -> None:
        """Run attempts, each with the report on the one before, and conclude with the last one's end."""
        tree: str = context.base.tree
        feedback: str | None = None
        number, most, fault = 0, request.attempts, ""
        while True:
            number += 1
            admitted = request
            if number > 1:
                admitted = await self._admission.admitted(request, number, fault=fault)
            if admitted != request:  # the agent or model before failed too often
                request, agent = admitted, self._services.open_agent(admitted)
                tree = context.base.tree if admitted.agent == PATCH_AGENT else tree  # which it was made for
            # For attempts that are broken off; others take their time from their recorded steps.
            self._attempt_started = self._services.clock.monotonic() - self._journal.queued_seconds
            result = await self._run_attempt(request, agent, context, number, tree, feedback)
            self.fault("agent")
            judged = await self._judge_attempt(request, result, context, number)
            another = number < most and requires_next_attempt(self._journal.state, number)
            good = judged.end.mission == "promoted" and self._role.writes and not another
            async with self._queue.delivery(wanted=good):
                if request.apply and good:
                    judged = await self._rebase_attempt(request, judged, number)
                end, attempt = judged.end, self._journal.state.attempt(number)
                if attempt is not None and attempt.status == "running":  # else its end was recorded before a crash
                    seconds = self._journal.state.seconds_of(f"attempt/{number}/")
                    self._journal.record(attempt_end(attempt, end.status, end.reasons, seconds=seconds))
                    self._admission.record_change(self._request, number)
                # A native agent that failed had no model, no room or no end: trying again brings the same.
                hopeless = agent.checkpoints_itself and result.outcome.claim == "failed"
                good = end.mission in ("promoted", "waiting")
                # The provider failed and not the work: it is tried once more, as a person or the request says.
                continued = self._journal.state.continued.get(number)
                final = number >= most or hopeless
                fault = provider_fault(self._journal.state.attempt(number)) if final and not continued else ""
                if fault:
                    most = number + 1
                elif not continued and (final or end.mission == "exhausted" or (good and not another)):
                    await self._conclude(judged)
                    return
            # A good attempt has no report of what is wrong: the next is made for a person's message alone.
            context, tree, feedback = judged.context, judged.result.tree, None if good else judged.report
            if continued and continued.base:  # what it left is promoted: on from there
                context = await self.prepare_base(request, continued.base)
                tree, feedback = continued.tree or continued.base.tree, None

    async def _run_attempt(
        self,
        request: MissionRequest,
        agent: Agent,
        context: BaseContext,
        number: int,
        tree: str,
        feedback: str | None,
    ) -> AttemptResult:
        """Run one attempt, or recall its result."""
        depot = self._services.depot
        load_result = partial(AttemptResult.from_record, base=context.base, depot=depot)

        async def work() -> object:
            begun = self._journal.state.attempt(number)
            assignment = Assignment(
                mission=self._journal.mission,
                attempt=begun.id if begun else new_id("attempt"),
                number=number,
                request=request.text,
                report=self._services.store.artifacts.get(feedback) if feedback else None,
                # Not by the recorded steps alone: setup and the base's checks took their time too.
                seconds=max(1.0, self._control.seconds_left() - _GRACE_SECONDS),
                messages=tuple(message.text for message in self._journal.state.messages),
                allow=request.allow,
                forbid=request.forbid,
                tree=tree,
                role=self._role,
                in_plan=bool(self._journal.state.parent),
                # An attempt before may have removed it; what is wrong with that the report says.
                directory=request.directory if depot.has_directory(tree, request.directory) else "",
            )
            return (await context.runner.run(agent, assignment, tree=tree)).to_record()

        def events(record: Any) -> Sequence[Payload]:
            # Written with the end of the step, so that an attempt that begins anew records them once.
            begun = self._journal.state.attempt(number)
            if begun is None:
                return ()
            result = load_result(record)
            return (
                *events_of_attempt_end(self._journal.state, number, result.outcome, result.set_back),
                *report_event(self._services.store, self._role, begun.id, result.report),
            )

        name = WORK.format(number=number)
        record = await self._journal.step(name, [tree, feedback], work, events=events)
        ended = self._journal.state.attempt(number)
        if ended is not None:  # the step is in the log: no resumed attempt will ask for these replies again
            await asyncio.to_thread(archive_replies, self._services.store, self._journal.mission, ended.id)
        return load_result(record)

    async def _judge_attempt(
        self, request: MissionRequest, result: AttemptResult, context: BaseContext, number: int
    ) -> JudgedAttempt:
        """Return an attempt with the verdict on its result, its end, and the report to the next attempt."""
        role, base_tree = self._role, context.base.tree
        end = judge_result(result, base_tree=base_tree, partial=request.partial, role=role)
        if end is not None:  # no check could change it
            findings = (*result.findings, *result.discarded, *result.unclear_end)
            if not role.writes and result.outcome.claim == "done":
                findings += find_missing_report(result, role, base_tree)
            status: VerdictStatus = "degraded" if result.degraded else "red"
            verdict = Verdict(tree=result.tree, scope="attempt", status=status, findings=findings)
            stored = self._store_report(verdict, result, context, number)
            return JudgedAttempt(context=context, result=result, verdict=verdict, end=end, report=stored)

        async def judge() -> Verdict:
            validator = context.validator
            findings = (
                *result.findings,
                *result.unclear_end,
                *find_missing_record(role, self._services.depot, result.changes),
            )
            verdict = await validator.judge_candidate(
                result.tree, scope="attempt", changes=result.changes, findings=findings
            )
            if role.must_add == "failing_test":
                on_base = await validator.judge_base()
                verdict = require_failing_test(verdict, on_base, validator.outputs, result.changes)
            return verdict

        judged = await self._record_verdict(f"attempt/{number}/verdict", judge, result, context, number)
        self.fault("verdict")
        waits = judge_failing_test(judged.verdict) if role.must_add == "failing_test" else None
        return replace(judged, end=waits) if waits is not None else judged

    async def _record_verdict(
        self,
        step: str,
        judge: Callable[[], Awaitable[Verdict]],
        result: AttemptResult,
        context: BaseContext,
        number: int,
    ) -> JudgedAttempt:
        """Give a verdict as a recorded step, with the report to the next attempt beside it."""
        attempt = self._journal.state.attempt(number)

        async def work() -> object:
            verdict = await judge()
            return {"verdict": verdict, "report": self._store_report(verdict, result, context, number)}

        def events(output: Any) -> Sequence[VerdictGiven]:
            return (VerdictGiven(verdict=output["verdict"], attempt=attempt.id if attempt else None),)

        output = await self._journal.step(step, result.tree, work, events=events)
        verdict = convert_to(output["verdict"], Verdict)
        end = judge_verdict(verdict)
        return JudgedAttempt(context=context, result=result, verdict=verdict, end=end, report=output["report"])

    def _store_report(self, verdict: Verdict, result: AttemptResult, context: BaseContext, number: int) -> str:
        document = report(verdict, context.validator.outputs, reverted=result.reverted).encode()
        return store_report_message(self._services.store, self._journal.state, document, number)

    async def _rebase_attempt(self, request: MissionRequest, judged: JudgedAttempt, number: int) -> JudgedAttempt:
        """Rebase a good result onto the branch that it is to be applied to, as often as that moved on.

        Where the two conflict, or are not good together, the next attempt goes on from there. If there is none,
        the result stays what it was: it is promoted by itself, and not applied.
        """
        steps, depot = self._journal.state.steps, self._services.depot
        # Before the promotion and not in it: conflicts and red merges still leave the agent an attempt to fix
        # them. More than once, since a pause or a crash gives the turn up, and people need none.
        for look in itertools.count(1):
            name = f"{number}.{look}" if look > 1 else f"{number}"
            if look > 1 and f"merge/{name}" not in steps:
                moved = partial(asyncio.to_thread, moved_base, depot, judged.context.base)
                if await self._control.unpaused(moved) is None:
                    break
            rebased = await self._rebase_once(request, judged, number, name)
            if rebased is judged or (rebased is None and look > 1):
                break
            judged = rebased or judged
            if judged.end.mission != "promoted":
                break
        return judged

    async def _rebase_once(
        self, request: MissionRequest, judged: JudgedAttempt, number: int, name: str
    ) -> JudgedAttempt | None:
        """Return a good result on the branch as it is now; itself where it stays, `None` where nothing moved."""
        journal, services, last = self._journal, self._services, number >= request.attempts
        rebase = await record_rebase(
            *(journal, services.store, services.depot, judged.context.base, judged.result.tree),
            step=f"merge/{name}",
            number=number,
        )
        if rebase is None or (rebase.count and last):
            return None if rebase is None else judged
        self.fault("met")
        context = await self.prepare_base(request, rebase.base)
        changes = services.depot.diff(rebase.base.tree, rebase.tree)
        result = replace(judged.result, tree=rebase.tree, changes=changes)
        if rebase.count:
            where = rebase.base.branch or rebase.base.revision
            reason = conflict_reason(rebase.conflicts, branch=where, count=rebase.count)
            stored = store_report_message(services.store, journal.state, conflict_report(rebase), number)
            end = AttemptEnd(status="refused", mission="refused", reasons=(reason,))
            rebased = replace(judged, context=context, result=result, end=end, report=stored)
        else:
            judge = partial(judge_tree, context, result.tree, scope="merged", before=judged.verdict)
            rebased = await self._record_verdict(f"merge-verdict/{name}", judge, result, context, number)
            if last and rebased.end.mission == "refused":
                return judged
        # Only now, with the verdict in the log: a crash before this line finds both recorded and comes here again.
        advance_base(journal, rebase)
        self.fault("moved")
        return rebased

    async def _conclude(self, judged: JudgedAttempt) -> None:
        result, end = judged.result, judged.end
        if end.mission == "promoted" and self._role.writes:
            stop_at(self._journal, BEFORE_PROMOTION)
            await self.promote(judged.context, result.tree, judged.verdict)
            return
        handed = judge_failing_test(judged.verdict) is not None
        # A task's is the base of the next one: there its coordinator knows what to do with it, and not a person.
        status = "promoted" if handed and self._journal.state.parent else end.mission
        finished = MissionFinished(status=status, reasons=end.reasons, reverted=result.reverted)
        asks = end.mission == "waiting" and not handed
        question = QuestionAsked(question=PROMOTE, tree=result.tree, reasons=end.reasons, kind="decision")
        self._record_end(finished, *([question] if asks else []))

    async def judge_again(
        self, base: Base, tree: str, *, scope: VerdictScope = "attempt", meanwhile: Meanwhile = wait_idly
    ) -> tuple[Verdict, BaseContext]:
        """Judge a tree that an earlier run left, by today's gates and areas; the verdict is recorded."""
        context = await self.prepare_base(self._request, base)
        await meanwhile(context.validator)
        verdict = await judge_tree(context, tree, scope=scope)
        self._journal.record(VerdictGiven(verdict=verdict))
        return verdict, context

    async def promote(self, context: BaseContext, tree: str, verdict: Verdict, *, approved: bool = False) -> None:
        """Promote a validated tree, export it, apply it where asked; the mission is settled afterwards.

        Once begun it is finished even when the task is cancelled: half a promotion helps nobody.
        """
        await self._control.finish(self._promote(context, tree, verdict, approved))

    async def _promote(self, context: BaseContext, tree: str, verdict: Verdict, approved: bool) -> None:
        async def judge_merged(candidate: str) -> Verdict:
            # A limit of its own: until a verdict says so nothing is to be promoted, and nothing half done.
            async with self._control.limited(self._control.seconds_left()):
                output = await self._journal.step(
                    "verdict/merged",
                    candidate,
                    partial(judge_tree, context, candidate, scope="merged", before=verdict),
                    events=lambda merged: (VerdictGiven(verdict=merged),),
                )
            return convert_to(output, Verdict)

        try:
            await self._promoter.promote(context.base, tree, verdict, validate=judge_merged, approved=approved)
        except RefusedError as error:
            if self._journal.state.commit is not None:  # an earlier promotion stands as it was
                raise
            reason = Reason(code=error.code, message=error.message)
            self._record_end(MissionFinished(status="refused", reasons=(reason,)))
            return
        await self._deliver()

    async def deliver(self) -> None:
        """Export and apply a promotion that stands and was not delivered; the mission is settled afterwards."""
        await self._control.finish(self._deliver())

    async def _deliver(self) -> None:
        if not self._journal.state.parent:  # what a task comes to its coordinator exports, with the rest
            await self._promoter.deliver()
        self._record_end(MissionFinished(status="promoted"), durable=True)

    def _settle(self, status: MissionStatus, attempt: AttemptStatus, reason: Reason) -> None:
        """Settle a mission that did not come to its own end, its running attempt first."""
        state = self._journal.state
        for running in [each for each in state.attempts if each.status == "running"]:
            # Its step has no end and so no duration: what counts is this worker's own clock.
            seconds = self._services.clock.monotonic() - self._journal.queued_seconds - self._attempt_started
            self._journal.record(*settle_lost_calls(self._services.store, state, running.id))
            counted = self._journal.state.attempt(running.number) or running
            self._journal.record(attempt_end(counted, attempt, (reason,), seconds=seconds))
            self._admission.record_change(self._request, running.number)
            archive_replies(self._services.store, self._journal.mission, running.id)
        if state.status != "promoted":
            self._record_end(MissionFinished(status=status, reasons=(reason,)))

    def _record_end(self, finished: MissionFinished, *before: Payload, durable: bool = False) -> None:
        """Record a mission's end, and which messages no agent received until then."""
        self._journal.record(*before, *events_of_mission_end(self._journal.state, finished), durable=durable)
