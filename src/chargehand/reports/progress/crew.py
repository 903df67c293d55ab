"""The state of a crew, computed from its records: active tasks, waits with reasons, and needs for a person."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from chargehand.core.mission_events import PROMOTE
from chargehand.core.plan_events import TASK_QUESTION, TaskProgress
from chargehand.core.plans import PLANNER, Plan, Task
from chargehand.core.records import Reason
from chargehand.core.state import ENDED, MissionState, MissionSummary, Question
from chargehand.missions.waiting import waiting_task

# In order of importance: a screen without room for all tasks shows the first ones.
# fmt: off
CrewStanding = Literal[
    "needs you", "works", "review", "merging", "queued", "held", "next", "waits",
    "failed", "rolled back", "left out", "done", "merged",
]
# fmt: on
_STEPS = {"agent": "agent working", "checks": "running checks", "setup": "running setup"}
_RUNGS = {
    "approach": "another approach",
    "model": "another model",
    "best_of": "side by side",
    "person": "as you said",
}
# The number of named tasks that another task waits for.
_MOST_NAMED = 3


class CrewCost(Struct, frozen=True, kw_only=True):
    """The cost of missions so far in USD; if not `known`, only its known part."""

    usd: float = 0.0
    known: bool = True


class PersonNeed(Struct, frozen=True, kw_only=True):
    """A pending need for a person: of a `task`, or "" for the coordinator.

    `message` is the question or the reason for waiting, `choices` the possible answers in words; `command` settles
    it, as shell words.
    """

    task: str
    message: str
    command: tuple[str, ...]
    choices: str = ""


class CrewTask(Struct, frozen=True, kw_only=True):
    """A task with its standing, and in words who works on it or what it waits for.

    `since` is when the current activity began, `ended` when the task ended (ISO 8601), "" for neither.
    """

    id: str
    standing: CrewStanding
    detail: str = ""
    since: str = ""
    cost: CrewCost = CrewCost()
    ended: str = ""


class Crew(Struct, frozen=True, kw_only=True):
    """A coordinator and its tasks in the order of its plan; `waits` is the reason if it should run and does not.

    `lately` are its last decisions, in words. Before it has a plan it is not `planned`, and its only task is the
    planner.
    """

    mission: str
    title: str
    status: str
    created: str
    finished: str = ""
    waited_seconds: float = 0.0
    planned: bool = True
    tasks: tuple[CrewTask, ...] = ()
    needs: tuple[PersonNeed, ...] = ()
    cost: CrewCost = CrewCost()
    waits: str = ""
    lately: tuple[str, ...] = ()


class CrewFacts(Struct, frozen=True, kw_only=True):
    """All facts that a crew is described from: its coordinator, and the missions of its tasks by id.

    `steps` are the purposes of the most recently opened sandboxes, by mission; `queued` says why missions wait
    that no worker has taken up, `waits` why the coordinator does.
    """

    state: MissionState
    children: Mapping[str, MissionSummary]
    steps: Mapping[str, str] = {}
    queued: Mapping[str, Reason] = {}
    waits: str = ""
    lately: tuple[str, ...] = ()


def describe_crew(facts: CrewFacts) -> Crew:
    """Describe the state of a crew."""
    state, progress = facts.state, facts.state.plan
    tasks = progress.plan.tasks if progress is not None else ()
    if progress is not None and progress.wanted:
        tasks = (PLANNER,) if progress.planners else ()
    needs = tuple(_needs(facts, tasks))
    by_task: dict[str, list[MissionSummary]] = {}
    for child in facts.children.values():
        by_task.setdefault(child.task, []).append(child)
    waiting = {need.task for need in needs}
    described = []
    for task in tasks:
        known = _progress_of(facts, task)
        standing, detail, since = _stand(facts, task, known, waiting)
        # From its missions: the state does not record in which order tasks ended.
        last = max((each.updated for each in _missions_of(facts, task)), default="")
        described.append(
            CrewTask(
                id=task.id,
                standing=standing,
                detail=detail,
                since=since,
                cost=_sum_cost(by_task.get(task.id, ())),
                ended=last if known.end is not None else "",
            )
        )
    request = state.request.text.strip() if state.request is not None else ""
    return Crew(
        mission=state.id,
        title=request.partition("\n")[0],
        # Between two of its decisions it is `planned` for a moment.
        status="running" if state.status == "planned" and facts.children else state.status,
        created=state.created,
        finished=state.finished,
        waited_seconds=state.waited_seconds,
        planned=progress is not None and not progress.wanted,
        tasks=tuple(described),
        needs=needs,
        cost=_sum_cost((state, *facts.children.values())),
        waits=facts.waits,
        lately=facts.lately,
    )


def _sum_cost(missions: Iterable[MissionSummary]) -> CrewCost:
    """Return the cost of missions' attempts; attempts copied to a follow-up were paid for before it."""
    attempts = [each for mission in missions for each in mission.attempts if not each.copied]
    known = all(each.cost_so_far is not None for each in attempts)
    return CrewCost(usd=sum(each.cost_usd or each.booked_usd for each in attempts), known=known)


# --- needs for a person


def _needs(facts: CrewFacts, tasks: Iterable[Task]) -> Iterator[PersonNeed]:
    """Yield the needs for a person: first those that stop everything, then by task in the order of the plan."""
    state = facts.state
    if state.status in ENDED:
        return
    # A breakpoint or a person paused it.
    if state.status == "paused" and not any(each.code == "worker_lost" for each in state.reasons):
        why = "; ".join(each.message for each in state.reasons) or "it is paused"
        yield PersonNeed(task="", message=why, command=_command("resume", state.id))
    for asked in state.questions.values():
        if asked.open and not asked.until and not asked.id.startswith(TASK_QUESTION):
            if asked.id == PROMOTE:
                why = "; ".join(each.message for each in state.reasons) or "it waits for an approval"
                command = _command("promote", state.id, "--reason", "TEXT")
                yield PersonNeed(task="", message=why, command=command)
            else:
                yield _answer(asked, "", ("answer", state.id), "")
    for task in tasks:
        for asked in state.questions.values():
            if asked.open and asked.id.startswith(f"{TASK_QUESTION}{task.id}/"):
                runs = _progress_of(facts, task).current
                ended = [facts.children[run.mission] for run in runs if run.mission in facts.children]
                why = "; ".join(
                    dict.fromkeys(each.message.rstrip(".") for child in ended for each in child.reasons)
                )
                yield _answer(asked, task.id, ("answer", state.id, "--task", task.id), why)
        waiting = [each for each in _missions_of(facts, task) if waiting_task(each) is not None]
        for child in waiting:
            yield _need_of_child(facts, child, alone=len(waiting) == 1 and task != PLANNER)


def _need_of_child(facts: CrewFacts, child: MissionSummary, *, alone: bool) -> PersonNeed:
    waits = waiting_task(child)
    assert waits is not None
    # Named by its task if it is the only waiting mission of the task.
    named = (facts.state.id, "--task", child.task) if alone else (child.id,)
    if waits.needs == "answer" and child.open_question is not None:
        return _answer(child.open_question, child.task, ("answer", *named), "")
    if waits.needs == "approval":
        command = _command("promote", *named, "--reason", "TEXT")
        return PersonNeed(task=child.task, message=waits.message, command=command, choices="or discard it")
    return PersonNeed(task=child.task, message=waits.message, command=_command("resume", child.id))


def _answer(asked: Question, task: str, words: tuple[str, ...], why: str) -> PersonNeed:
    choices = ", ".join(asked.options)
    if asked.options and not asked.closed:
        choices += ", or your own words"
    if asked.deadline:
        choices = "; ".join(filter(None, (choices, asked.deadline)))
    given = asked.options[0] if asked.options else "TEXT"
    message = f"{why}. {asked.text}" if why else asked.text
    return PersonNeed(task=task, message=message, command=_command(*words, given), choices=choices)


def _command(*words: str) -> tuple[str, ...]:
    return ("chargehand", "mission", *map(shlex.quote, words))


# --- standings of tasks


def _progress_of(facts: CrewFacts, task: Task) -> TaskProgress:
    plan = facts.state.plan
    return plan.tasks.get(task.id, TaskProgress()) if plan is not None else TaskProgress()


def _missions_of(facts: CrewFacts, task: Task) -> list[MissionSummary]:
    """Return the missions that work on a task now, and those that review their results."""
    known = _progress_of(facts, task)
    names = [run.mission for run in known.current]
    names += [each.mission for run in known.current for each in known.reviews_of(run.mission)]
    if task == PLANNER and facts.state.plan is not None:
        names = [each.mission for each in facts.state.plan.planners[-1:]]
    return [facts.children[name] for name in names if name in facts.children]


def _stand(facts: CrewFacts, task: Task, known: TaskProgress, waiting: set[str]) -> tuple[CrewStanding, str, str]:
    """Return a task's standing, its description, and when its current activity began."""
    missions = _missions_of(facts, task)
    if known.end is not None:
        outcome: CrewStanding = "left out" if known.end.outcome == "left_out" else known.end.outcome
        return "rolled back" if known.rolled_back else outcome, _tell_end(facts, task, known), ""
    if task.id in waiting:
        return "needs you", "", ""
    if not known.current and task != PLANNER:
        if known.held is not None:
            command = f"chargehand mission plan {facts.state.id} --start {task.id}"
            return "held", f"{known.held.message}; {command} begins it", ""
        assert facts.state.plan is not None
        open_ = [name for name in task.after if _end_missing(facts, name)]
        if not open_:
            at_once = facts.state.plan.plan.at_once
            return (
                "next",
                f"begins when one of {at_once} places is free" if at_once else "starts when a place is free",
                "",
            )
        more = len(open_) - _MOST_NAMED
        named = ", ".join(open_[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        blocked = _blockers(facts, facts.state.plan.plan, task, waiting)
        return "waits", f"after {named}" + (f"; {', '.join(blocked)} needs you" if blocked else ""), ""
    under_way = [each for each in missions if each.status not in ENDED]
    if not under_way:
        good = any(each.status == "promoted" for each in missions)
        # Its missions have ended, and the coordinator has not decided yet: it judges the tree that it merges.
        recorded = bool(missions) and all(run.mission in facts.children for run in known.current)
        if recorded:
            return "merging", "its result is judged and merged" if good else "choosing what to try next", ""
        return "queued", "begins", ""
    since = min(each.created for each in under_way)
    if all(each.status == "planned" for each in under_way):
        why = next((facts.queued[each.id].message for each in under_way if each.id in facts.queued), "begins")
        return "queued", _join(why, _tell_round(known)), ""
    if known.current and any(known.reviews_of(run.mission) for run in known.current):
        return "review", _join(_tell_reviews(facts, known), _tell_round(known)), since
    return "works", _tell_work(facts, task, known, under_way), since


def _end_missing(facts: CrewFacts, task: str) -> bool:
    assert facts.state.plan is not None
    return facts.state.plan.tasks.get(task, TaskProgress()).end is None


def _blockers(facts: CrewFacts, plan: Plan, task: Task, waiting: set[str]) -> list[str]:
    """Return the tasks that a task depends on, directly or indirectly, and that wait for a person."""
    after = {each.id: each.after for each in plan.tasks}
    seen: set[str] = set()
    open_ = list(task.after)
    while open_:
        name = open_.pop()
        if name not in seen and _end_missing(facts, name):
            seen.add(name)
            open_ += after.get(name, ())
    return [each.id for each in plan.tasks if each.id in seen & waiting][:_MOST_NAMED]


def _tell_work(facts: CrewFacts, task: Task, known: TaskProgress, under_way: list[MissionSummary]) -> str:
    working = [each for each in under_way if each.status == "running"] or under_way
    first = working[0]
    quota = first.waits_for_quota
    if quota is not None:
        step = quota.reason.message
    elif first.status == "planned":
        step = "queued"
    elif first.status != "running":
        step = "waiting for a worker to resume it"
    else:
        purpose = facts.steps.get(first.id, "")
        step = _STEPS.get(purpose, purpose) or "preparing"
    number = first.attempts[-1].number if first.attempts else 1
    attempt = f"attempt {number}" if number > 1 else ""
    beside = f"{len(working)} side by side" if len(working) > 1 else ""
    return _join(f"{_who(first, task)}: {step}", beside, attempt, _tell_round(known))


def _who(mission: MissionSummary, task: Task) -> str:
    """Return the role, agent and model of a mission."""
    request, role = mission.request, mission.role
    agent = role.agent if role is not None else request.agent if request is not None else task.agent
    kind, colon, program = agent.partition(":")
    if colon and kind == "command":  # a command line may follow the colon
        agent = program.split()[0].rpartition("/")[2] if program.split() else kind
    model = mission.attempts[-1].model if mission.attempts else None
    if not model and role is not None and role.models:
        model = role.models[0]
    name = role.role if role is not None else (request.role if request is not None else "") or task.role
    parts = (name or "developer", "" if agent == "native" and model else agent, model or "")
    return " ".join(filter(None, parts))


def _tell_reviews(facts: CrewFacts, known: TaskProgress) -> str:
    told = []
    for run in known.current:
        for each in known.reviews_of(run.mission):
            child = facts.children.get(each.mission)
            status = "planned" if child is None else child.status
            word = {"planned": "queued", "running": "works"}.get(status, "done" if status in ENDED else status)
            told.append(f"{each.role} {word}")
    return ", ".join(told)


def _tell_round(known: TaskProgress) -> str:
    """Return why a task is repeated, "" in its first round."""
    if known.round < 2:
        return ""
    rung = known.current[0].rung
    if rung == "returned" and known.returned:
        return f"round {known.round}, since {known.returned[-1].reason.message}"
    return f"round {known.round}" + (f", {_RUNGS[rung]}" if rung in _RUNGS else "")


def _tell_end(facts: CrewFacts, task: Task, known: TaskProgress) -> str:
    assert known.end is not None
    if known.end.reason is not None:
        return known.end.reason.message
    by = [run.mission for run in known.current if run.mission in facts.children]
    who = _who(facts.children[known.merged[-1].mission], task) if known.merged and by else ""
    reviewed = known.reviewed[-1].why if known.reviewed else ""
    return _join(f"by {who}" if who else "", reviewed, f"round {known.round}" if known.round > 1 else "")


def _join(*parts: str) -> str:
    return ", ".join(filter(None, parts))
