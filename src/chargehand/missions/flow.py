"""The steps of a single mission: selection of agent and model, attempts with their verdicts, promotion.

Read it from `MissionFlow.run` down. Everything that costs money, time or a sandbox runs inside `Journal.step`. A
worker that takes the mission over runs the same code and gets the recorded outputs, up to the first step without
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from chargehand.agents.contract import Agent, Assignment
from chargehand.agents.roles import NO_ROLE
from chargehand.core.codec import convert_to
from chargehand.core.events import Payload
from chargehand.core.ids import new_id
from chargehand.core.mission_events import PROMOTE, AgentSelected, MissionFinished, QuestionAsked
from chargehand.core.records import MissionRequest, Reason
from chargehand.missions._messages import events_of_attempt_end, record_mission_end, requires_next_attempt
from chargehand.missions.attempt.admission import PATCH_AGENT, Admission, provider_fault
from chargehand.missions.attempt.log import archive_replies
from chargehand.missions.attempt.result import AttemptResult
from chargehand.missions.attempt.runner import AttemptRunner
from chargehand.missions.attempt.settlement import AttemptSettlement
from chargehand.missions.breakpoints import PROMOTE as BEFORE_PROMOTION
from chargehand.missions.breakpoints import stop_at
from chargehand.missions.control import GRACE_SECONDS, Control
from chargehand.missions.forecasting import heed_forecast, note_forecast
from chargehand.missions.journal import Journal
from chargehand.missions.results.candidates import CandidateJudge, JudgedAttempt
from chargehand.missions.results.delivery import ResultDelivery
from chargehand.missions.results.lessons import close_lessons, recall_lessons, recorded_lessons
from chargehand.missions.results.tree_judge import BaseContext, TreeJudge
from chargehand.missions.services import Services
from chargehand.missions.transcript import WORK
from chargehand.missions.verdict.judgement import judge_failing_test, load_role, report_event, role_event
from chargehand.missions.verdict.red_base import heed_red_base
from chargehand.sandbox.contract import OnOutput


class MissionFlow:
    """Runs the steps of one mission without a plan; the output of its agents goes to `on_output`."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        control: Control,
        *,
        judge: TreeJudge,
        delivery: ResultDelivery,
        admission: Admission,
        attempts: AttemptSettlement,
        on_output: OnOutput | None = None,
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._judge = judge
        self._delivery = delivery
        self._admission = admission
        self._attempts = attempts
        self._on_output = on_output
        self._role = NO_ROLE

    async def run(self) -> None:
        """Choose an agent, run its attempts, and deliver a good result; afterwards the mission is settled or
        waiting.

        Raises the errors by which `MissionRun.run` settles it.
        """
        assert self._journal.state.request is not None
        asked = self._journal.state.request
        request = await self._admission.admitted(asked, 1)
        if request is None:
            message = "an attempt is not worth its cost"
            ended = MissionFinished(status="refused", reasons=(Reason(code="not_worth_it", message=message),))
            record_mission_end(self._journal, ended)
            return
        await heed_forecast(self._services, self._journal, request)
        agent = self._services.open_agent(request)
        self._role = load_role(self._services.store, request)

        async def select() -> object:
            reason = request.why or "named in the request"
            reasons = msgspec.to_builtins(self._journal.state.chosen if request == asked else ())
            return {"agent": agent.name, "kind": agent.kind, "reason": reason, "reasons": reasons}

        def selected_events(output: dict[str, Any]) -> Sequence[Payload]:
            selected = convert_to(output, AgentSelected)
            return (selected,) if self._role is NO_ROLE else (selected, role_event(request, self._role))

        # The imports of a native agent take seconds, so they run while environment and base are prepared.
        preparing = asyncio.create_task(asyncio.to_thread(agent.prepare))
        try:
            # Attempts start at the base that the request named; a later rebase moves on from there.
            assert self._journal.state.first_base is not None
            context = await self._judge.prepare_base(request, self._journal.state.first_base)
            await heed_red_base(self._journal, self._services.store, request, context.validator)
            # Recorded, because the configuration may name another agent when the mission is resumed.
            await self._journal.step("agent", request.agent, select, events=selected_events)
            await preparing
            if self._role.writes:
                await recall_lessons(self._services, self._journal, asked)
            await self._run_attempts(request, agent, context)
        finally:
            await asyncio.gather(preparing, return_exceptions=True)

    async def _run_attempts(self, request: MissionRequest, agent: Agent, context: BaseContext) -> None:
        """Run attempts, each with the report on the previous one, and settle the mission by the last result."""
        candidates = CandidateJudge(self._services, self._journal, self._control, self._judge, role=self._role)
        begun = self._journal.state.continued.get(0)
        tree: str = begun.tree if begun is not None and begun.tree else context.base.tree
        feedback: str | None = None
        number, most, fault = 0, request.attempts, ""
        judged: JudgedAttempt | None = None
        wanted = False
        while True:
            number += 1
            admitted = request
            if judged is not None:
                chosen = await self._admission.admitted(request, number, fault=fault, wanted=wanted)
                if chosen is None:  # its chooser expects nothing of another attempt
                    await self._conclude(judged)
                    return
                admitted = chosen
            if admitted != request:  # the requested agent or model has failed too often
                request, agent = admitted, self._services.open_agent(admitted)
                # A patch is made for the tree of the base.
                tree = context.base.tree if admitted.agent == PATCH_AGENT else tree
            self._attempts.begin()
            result = await self._run_attempt(request, agent, context, number, tree, feedback)
            self._judge.fault("agent")
            judged = await candidates.judge(request, result, context, number)
            # A person may have changed the result since, while the mission was paused or after it ended.
            judged = await candidates.heed_person(request, judged, number)
            another = number < most and requires_next_attempt(self._journal.state, number)
            good = judged.end.mission == "promoted" and self._role.writes and not another
            async with self._judge.queue.delivery(wanted=good):
                if request.apply and good:
                    judged = await candidates.rebase(request, judged, number)
                end = judged.end
                self._attempts.finish(number, end.status, end.reasons)
                # A native agent fails when its model is unavailable, its context is full or it does not finish:
                # another attempt would fail alike.
                hopeless = agent.checkpoints_itself and result.outcome.claim == "failed"
                good = end.mission in ("promoted", "waiting")
                # The provider failed, not the work: one more attempt follows, as a person or the request says.
                continued = self._journal.state.continued.get(number)
                # A person's change to the result is not given to the agent again unless the person says so.
                final = number >= most or hopeless or (judged.restored and not another)
                fault = provider_fault(self._journal.state.attempt(number)) if final and not continued else ""
                if fault:
                    most = number + 1
                elif not continued and (final or end.mission == "exhausted" or (good and not another)):
                    await self._conclude(judged)
                    return
            await note_forecast(self._services, self._journal, request, number)
            # A good attempt has no report on faults: another attempt follows only for a person's message.
            context, tree, feedback = judged.context, judged.result.tree, None if good else judged.report
            wanted = another or continued is not None
            if continued and continued.base:  # its result is promoted: continue from there
                context = await self._judge.prepare_base(request, continued.base)
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
        """Run one attempt, or return its recorded result."""
        depot = self._services.depot
        load_result = partial(AttemptResult.from_record, base=context.base, depot=depot)
        runner = AttemptRunner(
            self._services,
            self._journal,
            self._control,
            environment=context.validator.environment,
            inspector=context.inspector,
            provisioner=self._judge.provisioner,
            queue=self._judge.queue,
            on_output=self._on_output,
        )

        async def work() -> object:
            begun = self._journal.state.attempt(number)
            assignment = Assignment(
                mission=self._journal.mission,
                attempt=begun.id if begun else new_id("attempt"),
                number=number,
                request=request.text,
                report=self._services.store.artifacts.get(feedback) if feedback else None,
                # The control's clock, not just the recorded steps: setup and the base's checks took time too.
                seconds=max(1.0, self._control.seconds_left() - GRACE_SECONDS),
                messages=tuple(message.text for message in self._journal.state.messages),
                allow=request.allow,
                forbid=request.forbid,
                tree=tree,
                role=self._role,
                in_plan=bool(self._journal.state.parent),
                # An earlier attempt may have removed it; the report explains that problem.
                lessons=tuple(each.text for each in recorded_lessons(self._services, self._journal) if each.shown),
                directory=request.directory if depot.has_directory(tree, request.directory) else "",
            )
            return (await runner.run(agent, assignment, tree=tree)).to_record()

        def events(record: Any) -> Sequence[Payload]:
            # Written with the end of the step, so that a restarted attempt records them once.
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

    async def _conclude(self, judged: JudgedAttempt) -> None:
        """Promote the last attempt's result if it is good; otherwise settle the mission by that attempt's end."""
        result, end = judged.result, judged.end
        await close_lessons(self._services, self._journal, good=end.mission in ("promoted", "waiting"))
        if end.mission == "promoted" and self._role.writes:
            stop_at(self._journal, BEFORE_PROMOTION)
            await self._delivery.promote(judged.context, result.tree, judged.verdict)
            return
        handed = judge_failing_test(judged.verdict) is not None
        # A task's failing test becomes the base of the next task: its coordinator needs no person's decision.
        status = "promoted" if handed and self._journal.state.parent else end.mission
        finished = MissionFinished(status=status, reasons=end.reasons, reverted=result.reverted)
        asks = end.mission == "waiting" and not handed
        question = QuestionAsked(question=PROMOTE, tree=result.tree, reasons=end.reasons, kind="decision")
        record_mission_end(self._journal, finished, *([question] if asks else []))
