"""What the agents of a task leave for others: notes, and parts that they hand on, as events of the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from chargehand.core.errors import ChargehandError, InfrastructureError
from chargehand.core.events import Payload
from chargehand.core.plan_events import PlanMade, PlanProgress, TaskDelegated, TaskNoted
from chargehand.core.records import MissionRequest, Reason
from chargehand.core.text import printable
from chargehand.missions.coordination.reviews import last_completion
from chargehand.missions.planning.delegation import plan_with_delegations
from chargehand.missions.reading import MissionReader
from chargehand.missions.services import Services


def read_notes(look: MissionReader, task: str, *missions: str) -> list[TaskNoted]:
    """Return what child missions of a task, or of its review, left for others in their last messages."""
    notes = ((name, last_completion(look.at_rest(name))) for name in missions)
    return [TaskNoted(task=task, mission=name, notes=each.notes) for name, each in notes if each and each.notes]


def add_delegations(
    services: Services,
    look: MissionReader,
    request: MissionRequest,
    progress: PlanProgress,
    task: str,
    missions: Sequence[str],
) -> list[Payload]:
    """Return the events with which what child missions of a task hand on joins the plan, or is refused; may block.

    A refusal stands in the log, and its task stays merged. Raises `InfrastructureError`.
    """
    events: list[Payload] = []
    for mission in missions:
        said = last_completion(look.at_rest(mission))
        if said is None or not said.delegate:
            continue
        try:
            plan = plan_with_delegations(progress, task, said.delegate)
            added = tuple(each for each in plan.tasks if progress.plan.task(each.id) is None)
            # Somebody must be able to do them.
            services.check_plan(request, replace(plan, tasks=added))
        except InfrastructureError:  # ours: the same parts may be good once it is mended
            raise
        except ChargehandError as error:
            refused = Reason(code=error.code, message=printable(error.message))
            events.append(TaskDelegated(task=task, mission=mission, refused=refused))
            continue
        told = TaskDelegated(task=task, mission=mission, tasks=tuple(each.id for each in added))
        made = PlanMade(plan=plan, identity=f"task {task}")
        progress = progress.after(told).after(made)
        events += [told, made]
    return events
