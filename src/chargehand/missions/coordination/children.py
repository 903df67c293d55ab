"""The child missions of a coordinator: their ids, what they are asked, and how they are recorded."""

from __future__ import annotations

from msgspec.structs import replace

from chargehand.core.codec import convert_to
from chargehand.core.config import Config
from chargehand.core.errors import UsageError
from chargehand.core.fold import read_payload
from chargehand.core.ids import keyed_id
from chargehand.core.mission_events import MissionContinued, MissionCreated
from chargehand.core.plan_events import PLAN_QUESTION, TaskProgress, TaskReturned
from chargehand.core.plans import Task
from chargehand.core.records import Base, MissionRequest
from chargehand.core.state import MissionState
from chargehand.missions.coordination.decisions import Start
from chargehand.missions.fork import create_follow_up
from chargehand.missions.journal import create_mission
from chargehand.missions.reading import MissionReader
from chargehand.missions.services import Services
from chargehand.missions.steering import last_whole_attempt

# Kinds of agents that do the same again whatever they are told.
_DEAF = ("command", "patch")
_MOST_TEXT = 90_000
_LONGEST_NOTE = 4_000


def child_id(coordinator: str, task: str, round: int, candidate: int) -> str:
    """Return the id of a child mission: the same one whichever worker records it."""
    return keyed_id("mission", f"task {coordinator} {task} {round} {candidate}")


def listens(config: Config, agent: str) -> bool:
    """Tell whether an agent does something else when it is told something else."""
    kind, colon, _ = agent.partition(":")
    if not colon:
        named = config.agents.get(agent)
        kind = named.kind if named is not None else "native"
    return kind not in _DEAF


def create_child(
    services: Services,
    coordinator: MissionState,
    task: Task,
    tip: Base,
    *,
    mission: str,
    move: Start,
    model: str | None,
) -> str:
    """Record the mission that does a task from `tip` on, unless it is; return the commit that it begins at."""
    store, depot = services.store, services.depot
    assert coordinator.request is not None
    request = services.prepare_task(coordinator.request, task, model)
    text = _child_text(services, coordinator, task, move)
    request = replace(request, text=text, slug=coordinator.request.slug, apply=False)
    depot.keep_base(tip.commit)
    known = coordinator.plan.tasks.get(task.id, TaskProgress()) if coordinator.plan else TaskProgress()
    try:
        if move.rung == "returned":
            _create_returned(services, request, known.returned[-1], mission=mission)
        else:
            create_mission(
                store,
                project=services.project,
                request=request,
                repository=coordinator.repository,
                base=tip,
                config=_child_configuration(services, coordinator, task),
                user=coordinator.user,
                mission=mission,
                parent=coordinator.id,
                task=task.id,
            )
    except UsageError as error:
        if error.code != "mission_exists":  # a worker before came as far as this
            raise
    base = MissionReader(store=store, workers=services.workers).at_rest(mission).base
    return base.commit if base is not None else tip.commit


def _create_returned(services: Services, request: MissionRequest, back: TaskReturned, *, mission: str) -> None:
    """Record a mission that goes on where another one ended, on top of what was merged since."""
    store, depot = services.store, services.depot
    source = MissionReader(store=store, workers=services.workers).at_rest(back.mission)
    after = last_whole_attempt(source)
    base = Base(commit=back.base, tree=depot.tree_of(back.base), revision="what was merged meanwhile")
    continued = MissionContinued(
        identity="coordinator",
        after=after,
        attempts=after + request.attempts,
        seconds=source.seconds_of() + request.seconds,
        base=base,
        tree=back.tree,
    )
    request = replace(request, attempts=continued.attempts, seconds=continued.seconds)
    create_follow_up(store, depot, source.id, request, continued, made=mission)


def _child_configuration(services: Services, coordinator: MissionState, task: Task) -> dict[str, object]:
    """Return the coordinator's configuration as its first event has it, with the task's own limit of money."""
    first = services.store.log.read(coordinator.id, types=("mission.created",))[0]
    created = read_payload(first)
    config: dict[str, object] = dict(created.config) if isinstance(created, MissionCreated) else {}
    if task.budget_usd is not None:
        values = convert_to(config.get("values"), Config)
        limits = replace(values.limits, task_usd=task.budget_usd)
        config["values"] = replace(values, limits=limits)
    return config


def _child_text(services: Services, coordinator: MissionState, task: Task, move: Start) -> str:
    """Return what the agent of a task is asked: the task, what it must fulfil, and what it should know."""
    assert coordinator.request is not None
    assert coordinator.plan is not None
    plan = coordinator.plan.plan
    parts = [task.text.strip()]
    duties = [each.text for each in plan.obligations if each.id in task.covers] + list(task.acceptance)
    if duties:
        parts.append("It is done when:\n" + "\n".join(f"- {each}" for each in duties))
    if task.contracts:
        parts.append(f"It touches what others rely on: {', '.join(task.contracts)}.")
    decided = [
        f"- {asked.text} {asked.answer}"
        for name, asked in coordinator.questions.items()
        if name.startswith(PLAN_QUESTION) and asked.answer
    ]
    if decided:
        parts.append("Decided by a person:\n" + "\n".join(decided))
    notes = [note for before in task.after if (note := _note(services, coordinator, before))]
    if notes:
        parts.append("What tasks before it reported:\n\n" + "\n\n".join(notes))
    if move.rung == "returned":
        known = coordinator.plan.tasks[task.id].returned[-1]
        evidence = services.store.artifacts.get(known.evidence).decode(errors="replace")
        parts.append(
            "Your change was good by itself, and is not together with what was merged since. Your workspace holds"
            f" both. Make them good together.\n\n{known.reason.message}\n\n{evidence[:_LONGEST_NOTE]}"
        )
    elif move.rung in ("approach", "model", "best_of", "person"):
        parts.append(f"It was tried before, and did not end well: {move.why}. Take another approach.")
    whole = coordinator.request.text.strip()
    if whole != task.text.strip():
        parts.append(f"This is one task of a larger request; others do the rest. The whole request:\n{whole}")
    return "\n\n".join(parts).encode()[:_MOST_TEXT].decode(errors="ignore")


def _note(services: Services, coordinator: MissionState, task: str) -> str:
    """Return the report that a task of before ended with, where its role reports."""
    assert coordinator.plan is not None
    known = coordinator.plan.tasks.get(task, TaskProgress())
    if not known.current:
        return ""
    summary = services.store.log.summary(known.current[-1].mission).summary
    return f"{task}: {summary.report.text[:_LONGEST_NOTE]}" if summary.report is not None else ""
