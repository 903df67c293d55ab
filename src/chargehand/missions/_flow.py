"""The seven steps of a mission, as plain functions over recorded steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import asdict
from typing import TypeVar

import msgspec

from chargehand.agents import Agent, Assignment
from chargehand.checks import Areas, CheckPlan, detect_checks, report
from chargehand.core import (
    AgentSelected,
    AttemptFinished,
    AttemptStatus,
    Base,
    BaseResolved,
    ChargehandError,
    MissionFinished,
    MissionRequest,
    MissionState,
    MissionStatus,
    QuestionAsked,
    Reason,
    RefusedError,
    Verdict,
    new_id,
)
from chargehand.missions._attempt import AttemptRunner, Left
from chargehand.missions._environment import environment_layer
from chargehand.missions._journal import Journal
from chargehand.missions._judgement import End, after_checks, before_checks
from chargehand.missions._places import Ground
from chargehand.missions._promote import Fault, Promoter, no_fault
from chargehand.missions._reader import DepotReader
from chargehand.missions._services import Services
from chargehand.missions._system import system_errors
from chargehand.missions._validate import Gates, Validator
from chargehand.sandbox import OnOutput

_T = TypeVar("_T")
_GRACE_SECONDS = 15.0
"""An agent is stopped at the mission's time limit; its last writes are still kept as a checkpoint."""


class MissionFlow:
    """One mission from its request to its end."""

    def __init__(
        self, services: Services, journal: Journal, *, fault: Fault = no_fault, on_output: OnOutput | None = None
    ) -> None:
        self._services = services
        self._journal = journal
        self._fault = fault
        self._on_output = on_output
        self._promoter = Promoter(services, journal, fault=fault)
        self._started = services.clock.monotonic()
        self._attempt_started = self._started

    async def run(self, request: MissionRequest, *, base: Base) -> MissionState:
        """Go through the seven steps; the mission is settled when this returns or raises.

        Cancelling the task settles it as `cancelled`, running out of time as `exhausted`; errors of our own
        machinery and of the configuration settle it as `failed` and are raised on.
        """
        try:
            async with asyncio.timeout(request.seconds + _GRACE_SECONDS):
                with system_errors():
                    await self._steps(request, base)
        except TimeoutError:
            message = f"the {request.seconds:.0f} s of the mission are up"
            self._settle("exhausted", "timed_out", Reason(code="time", message=message))
        except asyncio.CancelledError:
            message = "a person cancelled the mission"
            self._settle("cancelled", "cancelled", Reason(code="cancelled", message=message))
            raise
        except ChargehandError as error:
            self._settle("failed", "failed", Reason(code=error.code, message=error.message))
            if not isinstance(error, RefusedError):
                raise
        return self._journal.state

    async def _steps(self, request: MissionRequest, resolved: Base) -> None:
        base = await self._base(resolved)
        environment = await environment_layer(self._services, self._journal, base)
        self._fault("environment")
        ground = Ground(base=base, environment=environment)
        gates = find_gates(self._services, base, request)
        validator = Validator(self._services, self._journal, ground=ground, gates=gates)
        await validator.base()
        agent = self._services.open_agent(request.agent)
        reason = "named on the command line or in the configuration"
        self._journal.note(AgentSelected(agent=agent.name, kind=agent.kind, reason=reason))
        areas = areas_of(self._services, request, gates)
        runner = AttemptRunner(
            self._services, self._journal, ground=ground, areas=areas, on_output=self._on_output
        )
        await self._attempts(request, agent, runner, validator)

    async def _base(self, base: Base) -> Base:
        async def record() -> object:
            self._journal.note(BaseResolved(base=base))
            return asdict(base)

        recorded = await self._journal.step("base", {"commit": base.commit}, record)
        return msgspec.convert(recorded, Base)

    async def _attempts(
        self, request: MissionRequest, agent: Agent, runner: AttemptRunner, validator: Validator
    ) -> None:
        """Let the agent try, give it the report of what was wrong, and end with the last try's end."""
        base = self._known_base()
        tree, feedback = base.tree, None
        for number in range(1, request.attempts + 1):
            self._attempt_started = self._services.clock.monotonic()
            assignment = Assignment(
                mission=self._journal.mission,
                attempt=new_id("attempt"),
                number=number,
                request=request.text,
                report=feedback,
                seconds=max(1.0, request.seconds - (self._attempt_started - self._started)),
            )
            left = await runner.run(agent, assignment, tree=tree)
            self._fault("agent")
            end, verdict = await self._judge(request, base, left, validator, assignment.attempt)
            self._finish_attempt(assignment.attempt, end, left)
            last = number == request.attempts or end.mission in ("promoted", "waiting", "exhausted")
            if last:
                await self._conclude(base, left, end, verdict, validator)
                return
            tree = left.tree
            feedback = report(verdict, validator.outputs, reverted=left.reverted).encode()

    async def _judge(
        self, request: MissionRequest, base: Base, left: Left, validator: Validator, attempt: str
    ) -> tuple[End, Verdict]:
        early = before_checks(left, base_tree=base.tree, partial=request.partial)
        if early is not None:
            findings = (*left.findings, *left.discarded)
            return early, Verdict(tree=left.tree, scope="attempt", status="red", findings=findings)
        verdict = await validator.candidate(
            left.tree, scope="attempt", changes=left.changes, findings=left.findings, attempt=attempt
        )
        self._fault("verdict")
        return after_checks(verdict), verdict

    def _finish_attempt(self, attempt: str, end: End, left: Left) -> None:
        self._journal.note(
            AttemptFinished(
                attempt=attempt,
                status=end.status,
                seconds=self._services.clock.monotonic() - self._attempt_started,
                reasons=end.reasons,
                cost_usd=left.outcome.cost_usd,
                cost_known=left.outcome.cost_known,
            )
        )

    async def _conclude(self, base: Base, left: Left, end: End, verdict: Verdict, validator: Validator) -> None:
        if end.mission == "waiting":
            self._journal.note(QuestionAsked(question="promote", tree=left.tree, reasons=end.reasons))
        if end.mission != "promoted":
            self._journal.note(MissionFinished(status=end.mission, reasons=end.reasons, reverted=left.reverted))
            return
        await self.promote(base, left.tree, verdict, validator)

    async def promote(
        self, base: Base, tree: str, verdict: Verdict, validator: Validator, *, approved: bool = False
    ) -> None:
        """Promote a validated tree, export it, apply it where asked; the mission is settled afterwards.

        Once begun it is finished even when the task is cancelled: half a promotion helps nobody.
        """
        await _to_the_end(self._promote(base, tree, verdict, validator, approved))

    async def _promote(
        self, base: Base, tree: str, verdict: Verdict, validator: Validator, approved: bool
    ) -> None:
        async def merged(candidate: str) -> Verdict:
            changes = self._services.depot.diff(base.tree, candidate)
            return await validator.candidate(
                candidate, scope="merged", changes=changes, findings=verdict.findings, attempt=None
            )

        try:
            await self._promoter.promote(base, tree, verdict, validate=merged, approved=approved)
        except RefusedError as error:
            if self._journal.state.commit is not None:  # an earlier promotion stands as it was
                raise
            reason = Reason(code=error.code, message=error.message)
            self._journal.note(MissionFinished(status="refused", reasons=(reason,)))
            return
        await self._deliver()

    async def deliver(self) -> None:
        """Bring a promotion to where it was wanted and could not come; the mission is settled afterwards."""
        await _to_the_end(self._deliver())

    async def _deliver(self) -> None:
        await self._promoter.deliver()
        self._journal.note(MissionFinished(status="promoted"), durable=True)

    def _known_base(self) -> Base:
        base = self._journal.state.base
        assert base is not None
        return base

    def _settle(self, status: MissionStatus, attempt: AttemptStatus, reason: Reason) -> None:
        """Settle a mission that did not come to its own end, its running attempt first."""
        state = self._journal.state
        for running in state.attempts:
            if running.status == "running":
                seconds = self._services.clock.monotonic() - self._attempt_started
                self._journal.note(
                    AttemptFinished(attempt=running.id, status=attempt, seconds=seconds, reasons=(reason,))
                )
        if state.status != "promoted":
            self._journal.note(MissionFinished(status=status, reasons=(reason,)))


def find_gates(services: Services, base: Base, request: MissionRequest) -> Gates:
    """Return what a tree must pass: the configured commands, else the detected ones, and what was added."""
    configured = services.config.project.checks
    if request.only_checks is not None:
        commands = request.only_checks
    elif configured is not None:
        commands = configured
    else:
        commands = tuple(detect_checks(DepotReader(services.depot), base.tree).commands)
    added = tuple(check for check in request.extra_checks if check not in commands)
    plan = CheckPlan(
        commands=(*commands, *added),
        seconds_each=services.config.limits.check_time,
        acceptance=request.check_files,
    )
    none_wanted = request.only_checks is None and configured == () and not added
    return Gates(plan=plan, acceptance=request.check_files, explicit_none=none_wanted)


def areas_of(services: Services, request: MissionRequest, gates: Gates) -> Areas:
    """Return what the mission may change: the project's areas, narrowed by the request."""
    project = services.config.project
    return Areas(
        allow=request.allow or project.allow,  # the request's is already met with the project's
        forbid=(*project.forbid, *request.forbid),
        protect=project.protect,
        commands=gates.plan.commands,
    )


async def _to_the_end(work: Awaitable[_T]) -> _T:
    """Await `work` even through a cancellation, which is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
