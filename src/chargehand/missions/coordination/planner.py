"""The planner: a child mission whose report becomes its coordinator's plan, once it is as valid as a person's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from chargehand.core.errors import ChargehandError, InfrastructureError, UsageError
from chargehand.core.events import Payload
from chargehand.core.plan_events import PlanMade, PlannerStarted, PlanProposed
from chargehand.core.plans import PLANNER, Plan
from chargehand.core.records import MissionRequest, Reason
from chargehand.core.state import MissionState, total_cost
from chargehand.core.text import printable
from chargehand.missions.coordination.children import child_id, record_child
from chargehand.missions.coordination.decisions import Finish, Move, Wait
from chargehand.missions.coordination.situation import ChildMission
from chargehand.missions.journal import Journal
from chargehand.missions.plan_documents import parse_plan
from chargehand.missions.reading import MissionReader
from chargehand.missions.services import Services, TaskWish

# How often a planner is asked for another plan because the previous one is unusable.
MOST_REPAIRS = 2
# Causes of a planner's end after which another attempt may succeed.
_REPAIRABLE = {"agent", "check", "provider"}
# A fence on separate lines: models put one around a document, with words before and after it. An indented fence
# belongs to the plan.
_BLOCK = re.compile(r"^```(?:ya?ml|json)?[ \t]*\r?\n(.*?)^```[ \t]*\r?$", re.DOTALL | re.MULTILINE | re.IGNORECASE)
_MOST_TEXT_BYTES = 90_000
_AGAIN = """\
A plan for this was made before, and cannot be used. What is wrong with it, and the plan, follow. Report the whole
plan again, mended.\
"""


def find_plan(report: str) -> str:
    """Return the plan in a planner's report: the content of its last fenced block, or the whole report."""
    blocks = _BLOCK.findall(report)
    return blocks[-1] if blocks else report


class PlannerRuns:
    """Makes a plan for a coordinator without one; every decision is an event, as for its tasks."""

    def __init__(self, services: Services, journal: Journal) -> None:
        self._services = services
        self._journal = journal
        self._look = MissionReader(store=services.store, workers=services.workers)

    def go_on(self, children: Mapping[str, ChildMission]) -> list[Move]:
        """Ask a planner, or take its plan; return the moves left, empty once there is a plan.

        May block.
        """
        state = self._journal.state
        assert state.plan is not None
        assert state.request is not None
        asked = state.plan.planners
        if not asked:
            return self._start(1, ())
        last = asked[-1]
        child = children.get(last.mission) or ChildMission(id=last.mission, status="planned")
        if child.is_open:
            if child.status not in ("waiting", "paused"):
                return [Wait(tasks=())]
            why = child.reasons[0].message if child.reasons else f"it is {child.status}"
            reason = Reason(code="task_waits", message=f"the planner ({child.id}): {why}")
            return [Wait(tasks=(), people=(reason,))]
        made, plan, problem = self._look.at_rest(last.mission), None, None
        try:
            plan = self._read_plan(made, state.request)
        except InfrastructureError:  # our fault: another plan would fail too
            raise
        except ChargehandError as error:
            problem = error
        if not state.plan.wanted:  # a person set one meanwhile
            return []
        if problem is not None:
            return self._refuse_plan(last, child, made, problem)
        assert plan is not None
        self._journal.record(
            PlanProposed(mission=last.mission, cost_usd=total_cost((made,))),
            PlanMade(plan=plan, identity=PLANNER.id),
            durable=True,
        )
        return []

    def _read_plan(self, made: MissionState, request: MissionRequest) -> Plan:
        """Return the plan of a finished mission; raises `ChargehandError` that explains why it is unusable."""
        report = made.report
        if made.status != "promoted" or report is None or report.artifact is None:
            why = made.reasons[0] if made.reasons else Reason(code="no_report", message="it reported nothing")
            raise UsageError(f"the planner produced no plan: {why.message}", code=why.code)
        content = self._services.store.artifacts.get(report.artifact).decode(errors="replace")
        plan = parse_plan(find_plan(content).encode(), "plan")
        # A repository's text may influence the plan: so it does not decide which program works, or which provider
        # sees the code.
        known = {*self._services.config.models, *request.fallback, *((request.model,) if request.model else ())}
        choices = [(f"task {task.id!r}", task.agent, task.models) for task in plan.tasks]
        choices += [(f"team {each.role!r}", each.agent, each.models) for each in plan.team]
        for name, agent, models in choices:
            if agent not in ("", request.agent):
                message = f"plan: {name}: 'agent' is {agent!r}, and a person names the agents"
                raise UsageError(message, code="plan_invalid", hint="leave it out")
            foreign = next((model for model in models if model not in known), None)
            if foreign is not None:
                names = ", ".join(sorted(known)) or "there are none"
                message = f"plan: {name}: 'models' names {foreign!r}, which is not configured"
                raise UsageError(message, code="plan_invalid", hint=f"leave it out, or use one of: {names}")
        self._services.check_plan(request, plan)
        # A person's limits apply to plans that no person wrote.
        tasks = (
            replace(
                task,
                attempts=None if task.attempts is None else min(task.attempts, request.attempts),
                seconds=None if task.seconds is None else min(task.seconds, request.seconds),
            )
            for task in plan.tasks
        )
        return replace(plan, tasks=tuple(tasks))

    def _refuse_plan(
        self, last: PlannerStarted, child: ChildMission, made: MissionState, error: ChargehandError
    ) -> list[Move]:
        """Ask for another plan, reporting this one's problem; end the mission after too many attempts."""
        reason = Reason(code=error.code, message=printable(error.message))
        parts = [error.message, error.hint]
        if made.report is not None and made.report.artifact is not None:
            content = self._services.store.artifacts.get(made.report.artifact).decode(errors="replace")
            parts.append(f"The plan:\n{find_plan(content)}")
        evidence = "\n\n".join(filter(None, parts))
        proposed = PlanProposed(
            mission=last.mission,
            reason=reason,
            evidence=self._services.store.artifacts.put(
                evidence.encode(errors="replace"), kind="report", mission=self._journal.mission
            ),
            cost_usd=total_cost((made,)),
        )
        if last.round <= MOST_REPAIRS and (child.status == "promoted" or child.cause in _REPAIRABLE):
            return self._start(last.round + 1, (proposed,), evidence)
        self._journal.record(proposed)
        times = "once" if last.round == 1 else f"{last.round} times"
        message = f"a planner was asked {times} and produced no usable plan: {reason.message}"
        return [Finish(stopped=Reason(code="plan_failed", message=message))]

    def _start(self, round: int, before: tuple[Payload, ...], evidence: str = "") -> list[Move]:
        """Record a planner's mission under an id that follows from its round, unless an earlier worker did."""
        services, state = self._services, self._journal.state
        assert state.request is not None
        assert state.first_base is not None
        mission = child_id(state.id, "the plan", round, 1)
        whole = state.request
        prepared = services.prepare_task(whole, PLANNER, TaskWish(chosen=state.chosen))
        text = whole.text.strip() + (f"\n\n{_AGAIN}\n\n{evidence}" if evidence else "")
        text = text.encode(errors="replace")[:_MOST_TEXT_BYTES].decode(errors="ignore")
        request = replace(prepared.request, text=text, slug=whole.slug, apply=False, red_base="go")
        try:
            # It does not do any task: it plans them.
            task = replace(PLANNER, id="")
            record_child(
                services, state, task, replace(prepared, request=request), state.first_base, mission=mission
            )
        except UsageError as error:
            if error.code != "mission_exists":
                raise
        self._journal.record(*before, PlannerStarted(mission=mission, round=round))
        return []
