"""Notes and delegated parts from the agents of a task, as events of the coordinator."""

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
    """Return the notes for others in the last messages of a task's or review's child missions."""
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
    """Return the events that add delegated parts of a task to the plan, or refuse them; may block.

    A refusal is recorded in the log, and its task stays merged. Raises `InfrastructureError`.
    """
    events: list[Payload] = []
    for mission in missions:
        said = last_completion(look.at_rest(mission))
        if said is None or not said.delegate:
            continue
        try:
            plan = plan_with_delegations(progress, task, said.delegate)
            added = tuple(each for each in plan.tasks if progress.plan.task(each.id) is None)
            # Some agent must be able to do them.
            services.check_plan(request, replace(plan, tasks=added))
        except InfrastructureError:  # our fault: the same parts may be valid once it is fixed
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
