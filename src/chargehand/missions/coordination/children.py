"""The child missions of a coordinator: their ids, their requests, and their creation."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.codec import convert_to
from chargehand.core.config import Config
from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.events import read_payload
from chargehand.core.ids import keyed_id
from chargehand.core.messages import EVERYONE
from chargehand.core.mission_events import MissionContinued, MissionCreated
from chargehand.core.plan_events import PLAN_QUESTION, PlanProgress, TaskProgress, TaskReturned
from chargehand.core.plans import Plan, Task
from chargehand.core.records import Base, MissionRequest, RedBase
from chargehand.core.state import MissionState
from chargehand.core.text import format_seconds, shown_path
from chargehand.missions.causes import FAILING_TEST
from chargehand.missions.coordination.decisions import Start
from chargehand.missions.coordination.reviews import OBJECTED
from chargehand.missions.fork import create_follow_up
from chargehand.missions.journal import MissionSubmission, create_mission
from chargehand.missions.promotion.rebase import rebase_onto
from chargehand.missions.reading import MissionReader, merged_checks, plan_seconds_left
from chargehand.missions.services import PreparedTask, Services, TaskWish
from chargehand.missions.steering import last_whole_attempt
from chargehand.missions.verdict.failure_policy import failure_policy
from chargehand.store.store import Store

_MOST_TEXT_BYTES = 90_000
_LONGEST_NOTE_CHARACTERS = 4_000

_REVIEW = """\
Look at a change that somebody else made; it passed all checks and is not merged yet. Your workspace holds it.

- Put each thing that has to be mended before it is merged into `open_points` of your last message, one entry each.
- Leave `open_points` empty where it can be merged as it is. Remarks and doubts belong in the summary.
- Say in `evidence` what you looked at and ran: without it an approval does not count.

Without a tool to finish with, write that message to the file that $CHARGEHAND_MESSAGE names: {"type":
"task_completion", "status": "success", "payload": {"summary": "...", "evidence": ["..."], "open_points": []}}.\
"""


def child_id(coordinator: str, task: str, round: int, candidate: int) -> str:
    """Return the id of a child mission: the same one whichever worker records it."""
    return keyed_id("mission", f"task {coordinator} {task} {round} {candidate}")


def failed_agents(store: Store, coordinator: MissionState, task: Task) -> frozenset[str]:
    """Return the agents that failed a task with `needs`: others that have the capability are tried first."""
    if not task.needs or coordinator.plan is None:
        return frozenset()
    runs = coordinator.plan.tasks.get(task.id, TaskProgress()).runs
    tried = (store.log.summary(run.mission).summary for run in runs)
    return frozenset(each.request.agent for each in tried if each.request is not None and each.commit is None)


def create_child(
    services: Services,
    coordinator: MissionState,
    task: Task,
    tip: Base,
    *,
    mission: str,
    move: Start,
    model: str | None,
    agent: str = "",
) -> str:
    """Create the mission that does a task from `tip` on, if it does not exist; return the commit that it starts
    at.

    `model` and `agent` are those that the round is to try. Failing tests added for the task are part of its base:
    the task cannot weaken its base. Raises `RefusedError` (`tests_conflict`) if they conflict, unless a person
    decided to start without them.
    """
    store, depot = services.store, services.depot
    assert coordinator.request is not None
    tests = _failing_tests(services, coordinator, task)
    if move.rung != "returned":
        tip = _add_tests(services, coordinator.id, tests, tip, partly=move.rung == "person")
    failed = failed_agents(services.store, coordinator, task)
    wish = TaskWish(model=model, agent=agent, avoid=failed, chosen=coordinator.chosen)
    prepared = services.prepare_task(coordinator.request, task, wish)
    request = _limit(services, coordinator, prepared.request)
    text = _child_text(services, coordinator, task, move, tests)
    accepted = failure_policy(services.config, coordinator.request, coordinator).accepted
    # Failing tests added for a task are on its base, and making them pass is the task.
    red_base: RedBase = "accept_known" if accepted and not tests else "go"
    request = replace(
        request, text=text, slug=coordinator.request.slug, apply=False, break_at=(), red_base=red_base
    )
    # Its result is merged only if it passes the checks of already merged tasks: its agent learns about them at
    # once.
    own = sorted({*merged_checks(coordinator), *request.extra_checks} - {*coordinator.request.extra_checks})
    prepared = replace(prepared, request=replace(request, extra_checks=(*coordinator.request.extra_checks, *own)))
    depot.keep_base(tip.commit)
    known = coordinator.plan.tasks.get(task.id, TaskProgress()) if coordinator.plan else TaskProgress()
    try:
        if move.rung == "returned":
            _create_returned(services, prepared, known.returned[-1], tests, mission=mission)
        else:
            record_child(services, coordinator, task, prepared, tip, mission=mission)
    except UsageError as error:
        if error.code != "mission_exists":  # an earlier worker already recorded it
            raise
    base = MissionReader(store=store, workers=services.workers).at_rest(mission).base
    return base.commit if base is not None else tip.commit


def create_review(
    services: Services, coordinator: MissionState, task: Task, made: MissionState, *, mission: str, role: str
) -> None:
    """Create the mission that reviews the promoted result of the child mission `made` in a role, if it does not
    exist.
    """
    depot = services.depot
    assert coordinator.request is not None
    assert coordinator.plan is not None
    assert made.commit is not None
    assert made.tree is not None
    assert made.promoted_on is not None
    member = coordinator.plan.plan.member(role)
    review = Task(id=task.id, text=task.text, role=role, agent=member.agent, models=member.models)
    wish = TaskWish(model=next(iter(member.models), None), chosen=coordinator.chosen)
    prepared = services.prepare_task(coordinator.request, review, wish)
    patch = depot.patch(made.promoted_on.tree, made.tree).decode(errors="replace")
    duties = "".join(f"\n- {each}" for each in task.acceptance)
    parts = [
        _REVIEW,
        f"What was asked:\n{task.text.strip()}" + (f"\n\nIt is done when:{duties}" if duties else ""),
        *_notes_for(coordinator.plan, role),
        f"The change:\n{patch[:_MOST_TEXT_BYTES]}",
    ]
    text = "\n\n".join(parts).encode()[:_MOST_TEXT_BYTES].decode(errors="ignore")
    request = replace(
        prepared.request, text=text, slug=coordinator.request.slug, apply=False, break_at=(), red_base="go"
    )
    depot.keep_base(made.commit)
    base = Base(commit=made.commit, tree=made.tree, revision=f"the result of {made.id}")
    try:
        record_child(services, coordinator, task, replace(prepared, request=request), base, mission=mission)
    except UsageError as error:
        if error.code != "mission_exists":
            raise


def record_child(
    services: Services,
    coordinator: MissionState,
    task: Task,
    prepared: PreparedTask,
    base: Base,
    *,
    mission: str,
) -> None:
    """Record the mission of a task, starting at `base`; raises `UsageError` (`mission_exists`) if it exists."""
    # The coordinator's configuration as in its first event, with the task's own money limit, and with the latest
    # total limit from a person.
    first = services.store.log.read(coordinator.id, types=("mission.created",))[0]
    created = read_payload(first)
    config: dict[str, object] = dict(created.config) if isinstance(created, MissionCreated) else {}
    given = [each.budget_usd for each in coordinator.continued.values() if each.budget_usd is not None]
    if task.budget_usd is not None or given:
        values = convert_to(config.get("values"), Config)
        limits = values.limits
        limits = replace(
            limits,
            task_usd=task.budget_usd or limits.task_usd,
            budget_usd=given[-1] if given else limits.budget_usd,
        )
        config["values"] = replace(values, limits=limits)
    create_mission(
        services.store,
        MissionSubmission(
            project=services.project,
            request=_limit(services, coordinator, prepared.request),
            repository=coordinator.repository,
            base=base,
            config=config,
            user=coordinator.user,
            parent=coordinator.id,
            task=task.id,
            chosen=prepared.chosen,
        ),
        mission=mission,
    )


def _limit(services: Services, coordinator: MissionState, request: MissionRequest) -> MissionRequest:
    """Return the request of a task with at most the time that its plan has left."""
    left = plan_seconds_left(coordinator, services.clock.now())
    seconds = request.seconds if left is None else min(request.seconds, max(1.0, left))
    return replace(request, seconds=seconds, plan_seconds=None)


class _HandedTests(Struct, frozen=True):
    """A tree with failing tests added to `base`, and its author."""

    base: Base
    tree: str
    by: str


def _failing_tests(services: Services, coordinator: MissionState, task: Task) -> list[_HandedTests]:
    """Return the failing tests that a task has to make pass: those of its direct predecessors and of its
    reviewers.
    """
    assert coordinator.plan is not None
    reader = MissionReader(store=services.store, workers=services.workers)
    tasks = coordinator.plan.tasks
    own = tasks.get(task.id, TaskProgress())
    proven = [vote.mission for each in own.reviewed for vote in each.votes if vote.proven]
    before = [run.mission for name in task.after if name in tasks for run in tasks[name].current]
    found = []
    for name in (*before, *proven):
        # The row before the log: most tasks added no test, and their logs may be long.
        ended = services.store.log.summary(name).summary
        if ended.status != "promoted" or not any(reason.code == FAILING_TEST for reason in ended.reasons):
            continue
        child = reader.at_rest(name)
        if child.base is not None and child.verdicts:
            found.append(_HandedTests(child.base, child.verdicts[-1].tree, child.task or name))
    return found


def _add_tests(
    services: Services, coordinator: str, tests: list[_HandedTests], on: Base, *, partly: bool = False
) -> Base:
    """Return a base with the tests on top; a conflict is refused, or its part omitted if `partly`."""
    for each in tests:
        rebase = rebase_onto(
            services.depot, each.base, on, each.tree, mission=coordinator, union=services.is_union
        )
        if rebase is not None and rebase.count and not partly:
            paths = ", ".join(shown_path(conflict.path) for conflict in rebase.conflicts)
            raise RefusedError(
                f"the failing tests of {each.by} conflict with {on.revision} in {paths}",
                code="tests_conflict",
                hint=f"chargehand mission plan {coordinator} names the missions that made them",
            )
        if rebase is not None:
            revision = f"{on.revision} with the tests of {each.by}"
            on = Base(commit=rebase.checkpoint.commit, tree=rebase.tree, revision=revision)
            services.depot.keep_base(on.commit)
    return on


def _create_returned(
    services: Services,
    prepared: PreparedTask,
    back: TaskReturned,
    tests: list[_HandedTests],
    *,
    mission: str,
) -> None:
    """Record a mission that continues a finished one, on top of later merges."""
    store, depot, request = services.store, services.depot, prepared.request
    source = MissionReader(store=store, workers=services.workers).at_rest(back.mission)
    after = last_whole_attempt(source)
    below = Base(commit=back.base, tree=depot.tree_of(back.base), revision="what was merged meanwhile")
    base = _add_tests(services, source.parent, tests, below)
    left = Base(commit=depot.commit(back.tree, (back.base,), "candidate"), tree=back.tree, revision="")
    tree = _add_tests(services, source.parent, tests, left).tree
    continued = MissionContinued(
        identity="coordinator",
        after=after,
        attempts=after + request.attempts,
        seconds=request.seconds,
        base=base,
        tree=tree,
    )
    request = replace(request, attempts=continued.attempts, seconds=continued.seconds)
    create_follow_up(store, depot, source.id, request, continued, made=mission, chosen=prepared.chosen)


def _child_text(
    services: Services, coordinator: MissionState, task: Task, move: Start, tests: list[_HandedTests]
) -> str:
    """Return the request for a task's agent: the task, its acceptance criteria, and useful facts."""
    assert coordinator.request is not None
    assert coordinator.plan is not None
    plan = coordinator.plan.plan
    parts = [task.text.strip()]
    duties = [each.text for each in plan.obligations if each.id in task.covers] + list(task.acceptance)
    if duties:
        parts.append("It is done when:\n" + "\n".join(f"- {each}" for each in duties))
    parts += _place_in_plan(plan, task)
    decided = [
        f"- {asked.text} {asked.answer}"
        for name, asked in coordinator.questions.items()
        if name.startswith(PLAN_QUESTION) and asked.answer
    ]
    if decided:
        parts.append("Decided by a person:\n" + "\n".join(decided))
    if coordinator.messages:
        said = "\n".join(f"- {each.text}" for each in coordinator.messages)
        parts.append(f"A person said about the whole, the latest last:\n{said}")
    if tests:
        by = ", ".join(dict.fromkeys(each.by for each in tests))
        parts.append(f"Tests that fail now were added for it by {by}. Make them pass; they stay as they are.")
    notes = [note for before in task.after if (note := _note(services, coordinator, before))]
    if notes:
        parts.append("What tasks before it reported:\n\n" + "\n\n".join(notes))
    parts += _notes_for(coordinator.plan, task.id, task.role)
    if move.rung == "returned":
        known = coordinator.plan.tasks[task.id].returned[-1]
        evidence = services.store.artifacts.get(known.evidence).decode(errors="replace")
        trouble = (
            "Your change passed the checks, and who looked at it objects. Your workspace holds it. Mend what they"
            " name, or say in your summary why it has to stay."
            if known.reason.code == OBJECTED
            else "Your change was good by itself, and is not together with what was merged since. Your workspace"
            " holds both. Make them good together."
        )
        parts.append(f"{trouble}\n\n{known.reason.message}\n\n{evidence[:_LONGEST_NOTE_CHARACTERS]}")
    elif move.rung in ("approach", "model", "best_of", "person"):
        parts.append(f"It was tried before, and did not succeed: {move.why}. Take another approach.")
    whole = coordinator.request.text.strip()
    if whole != task.text.strip():
        parts.append(f"This is one task of a larger request; others do the rest. The whole request:\n{whole}")
    return "\n\n".join(parts).encode()[:_MOST_TEXT_BYTES].decode(errors="ignore")


def _place_in_plan(plan: Plan, task: Task) -> list[str]:
    """Return the parts of a request that relate a task to others of its plan."""
    parts = []
    if task.contracts:
        parts.append(f"It touches what others rely on: {', '.join(task.contracts)}.")
    if task.delegated_by:
        parts.append(f"The agent of task {task.delegated_by} handed this on; your workspace has what it did.")
    if task.deadline is not None:
        parts.append(f"It has to be done within {format_seconds(task.deadline)}.")
    roles = dict.fromkeys(each.role for each in plan.team)
    if roles:
        parts.append(f"Parts of it can be handed on to these roles, where it needs them: {', '.join(roles)}.")
    return parts


def _notes_for(progress: PlanProgress, *readers: str) -> list[str]:
    """Return the part of a request with other tasks' notes for readers with these names."""
    lines = [
        f"{noted.task}: {text[:_LONGEST_NOTE_CHARACTERS]}"
        for noted in progress.notes_for(EVERYONE, *readers)
        for text in noted.notes.values()
    ]
    return (
        ["What others of this plan left for you to know (it is their word):\n\n" + "\n\n".join(lines)]
        if lines
        else []
    )


def _note(services: Services, coordinator: MissionState, task: str) -> str:
    """Return the final report of a preceding task, if its role reports."""
    assert coordinator.plan is not None
    known = coordinator.plan.tasks.get(task, TaskProgress())
    if not known.current:
        return ""
    summary = services.store.log.summary(known.current[-1].mission).summary
    return f"{task}: {summary.report.text[:_LONGEST_NOTE_CHARACTERS]}" if summary.report is not None else ""
