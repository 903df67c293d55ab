"""The coordinator's next moves, as a pure function of its plan, its log and the states of its child missions.

Nothing here reads a clock, a file or the store, so every decision can be tried out in a test, and a worker that
takes a coordinator over decides the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from chargehand.core.choices import (
    Candidate,
    ChoiceContext,
    KnownModel,
    PossibleCandidate,
    Strategy,
    TriedCandidate,
    render_reason,
    render_reasons,
    task_work,
)
from chargehand.core.plan_events import (
    PlanProgress,
    Rung,
    TaskOutcome,
    TaskProgress,
)
from chargehand.core.plans import Task
from chargehand.core.records import ChoiceReason, Reason
from chargehand.missions.causes import FAILING_TEST
from chargehand.missions.coordination.situation import (
    ChildMission,
    Ladder,
    Situation,
    question_about,
    wait_for_turn,
)

# How often a result that failed after merging is returned to its author before a person is asked.
MOST_RETURNS = 2
# How soon to check whether a mission that was asked to stop has ended.
_STOP_SECONDS = 60.0
RETRY, SKIP, STOP, ACCEPT = "retry", "skip", "stop", "accept"


class Start(Struct, frozen=True, kw_only=True):
    """Start a round of a task: one child mission for each of `models`, `None` for its default model.

    `agents` name the agent of each, if the round is to try another one than the task's own ("", and if empty). It
    is stopped at second `due` of the plan's clock, `None` for never.
    """

    task: str
    round: int
    rung: Rung
    why: str
    models: tuple[str | None, ...] = (None,)
    agents: tuple[str, ...] = ()
    considered: tuple[str, ...] = ()
    reasons: tuple[ChoiceReason, ...] = ()
    due: float | None = None


class Hold(Struct, frozen=True, kw_only=True):
    """Hold back a task that could start."""

    task: str
    reason: Reason


class Merge(Struct, frozen=True, kw_only=True):
    """Merge a child mission's promoted result."""

    task: str
    mission: str


class StopChild(Struct, frozen=True, kw_only=True):
    """Stop a child mission whose result is no longer needed; its work is kept."""

    mission: str
    why: str


class Review(Struct, frozen=True, kw_only=True):
    """Let a task's reviewers review a child mission's promoted result before it is merged."""

    task: str
    mission: str
    roles: tuple[str, ...]


class Weigh(Struct, frozen=True, kw_only=True):
    """Decide on a child mission's promoted result: all its reviewers are done."""

    task: str
    mission: str


class EndTask(Struct, frozen=True, kw_only=True):
    """End a task without a merge; `mission` is the child mission whose result counts.

    `choice` says why another round is not worth it, if so.
    """

    task: str
    outcome: TaskOutcome
    reason: Reason
    mission: str = ""
    choice: tuple[ChoiceReason, ...] = ()


class Ask(Struct, frozen=True, kw_only=True):
    """Ask a person how to handle a task; `choice` says why no other round comes first, if one is possible."""

    task: str
    question: str
    reasons: tuple[Reason, ...]
    options: tuple[str, ...] = (RETRY, SKIP, STOP)
    choice: tuple[ChoiceReason, ...] = ()


class Finish(Struct, frozen=True, kw_only=True):
    """End the mission: all its tasks are done, or a person stopped it over one."""

    stopped: Reason | None = None


class Wait(Struct, frozen=True, kw_only=True):
    """Do nothing until there is news: from children, or from `people` if only people have work to do.

    At second `due` of the plan's clock the next deadline of a task is over; `None` means no deadline.
    """

    tasks: tuple[str, ...]
    people: tuple[Reason, ...] = ()
    due: float | None = None


_MOVES_THAT_WORK = (Start, Review, Weigh)
Move = Start | Hold | Merge | StopChild | Review | Weigh | EndTask | Ask | Finish | Wait


def decide(now: Situation) -> list[Move]:
    """Return the next moves in order, at least one. `Finish` and `Wait` come last and alone."""
    plan = now.progress.plan
    moves = _postpone(now, [move for task in plan.tasks if now.works(task.id) for move in _go_on(now, task)])
    failed = [move for move in moves if isinstance(move, EndTask) and move.outcome == "failed"]
    # Also a task whose failed end was recorded by a worker that died before it ended the mission.
    ends = (now.of(task.id).end for task in plan.tasks)
    before = [end.reason for end in ends if end is not None and end.outcome == "failed"]
    stopped = next(filter(None, (*(move.reason for move in failed), *before)), None)
    if stopped is not None:
        left: list[Move] = [StopChild(mission=each, why="the mission is stopped") for each in _open_children(now)]
        return [*failed, *left, Finish(stopped=stopped)]
    dropped = [name for name in now.progress.tasks if plan.task(name) is None]
    moves += [
        StopChild(mission=run.id, why=f"task {name} was dropped from the plan")
        for name in dropped
        for run in (*now.runs(name), *now.reviews(name))
        if run.is_open and not run.stopping
    ]
    # A planner is stopped once a person has set a plan.
    planners = (now.children.get(each.mission) for each in now.progress.planners)
    moves += [
        StopChild(mission=each.id, why="there is a plan")
        for each in planners
        if each is not None and each.is_open and not each.stopping
    ]
    moves += _begin(now, _free_places(now, moves))
    if moves:
        # A merge takes as long as its checks: ready tasks work meanwhile.
        return sorted(moves, key=lambda move: isinstance(move, Merge))
    if all(now.of(task.id).end is not None for task in plan.tasks):
        unneeded: list[Move] = [StopChild(mission=each, why="all tasks are done") for each in _open_children(now)]
        return [*unneeded, Finish()]
    return [_wait(now)]


def next_due(progress: PlanProgress, elapsed: float) -> float | None:
    """Return the second of the plan's clock at which the next running task is overdue, `None` for never."""
    known = (progress.tasks.get(task.id, TaskProgress()) for task in progress.plan.tasks)
    dues = (run.due for each in known if each.end is None for run in each.current if run.due is not None)
    return min((due for due in dues if due > elapsed), default=None)


def stop_late(now: Situation) -> list[StopChild]:
    """Return the moves of `decide` that stop missions at their deadlines, for use during another move."""
    late = (task for task in now.progress.plan.tasks if now.works(task.id) and now.overdue(task) is not None)
    return [move for task in late for move in _go_on(now, task) if isinstance(move, StopChild)]


def _open_children(now: Situation) -> Iterable[str]:
    return (child.id for child in now.children.values() if child.is_open)


def _wait(now: Situation) -> Wait:
    begun = [task for task in now.progress.plan.tasks if now.works(task.id)]
    working = [task.id for task in begun]
    # Each has a next round (otherwise there would be another move), but no free place for it.
    postponed = {task.id for task in begun for move in _go_on(now, task) if isinstance(move, Start)}
    people: list[Reason] = []
    for task in working:
        if now.goes_on(task):
            # A child that was asked to stop may have died without recording its end: it is checked again.
            stopping = any(run.is_open and run.stopping for name in working for run in now.runs(name))
            dues = [next_due(now.progress, now.elapsed), now.elapsed + _STOP_SECONDS if stopping else None]
            return Wait(tasks=tuple(working), due=min((due for due in dues if due is not None), default=None))
        runs = (*now.runs(task), *now.reviews(task))
        waiting = [run for run in runs if run.status in ("waiting", "paused")]
        for run in waiting:
            why = run.reasons[0].message if run.reasons else f"it is {run.status}"
            people.append(Reason(code="task_waits", message=f"task {task} ({run.id}): {why}"))
        # Otherwise its question is open, or there would be a move.
        if not (waiting or task in postponed or now.waits_for_turn(task)):
            late = next((now.overdue(each) for each in now.progress.plan.tasks if each.id == task), None)
            reasons = (*((late,) if late is not None else ()), *(reason for run in runs for reason in run.reasons))
            why = f": {reasons[0].message}" if reasons else ""
            people.append(Reason(code="task_stuck", message=f"task {task} needs a person's decision{why}"))
    # Tasks that could not start, about which a person is asked.
    unbegun = (
        each.id for each in now.progress.plan.tasks if now.of(each.id).end is None and not now.works(each.id)
    )
    for task in unbegun:
        if now.answers.get(question_about(task, 0), "") is None:
            people.append(Reason(code="task_stuck", message=f"task {task} needs a person's decision"))
    return Wait(tasks=tuple(working), people=tuple(people))


def _go_on(now: Situation, task: Task) -> list[Move]:
    """Return the next moves for a task whose child missions have news."""
    known, runs = now.of(task.id), now.runs(task.id)
    decided = {each.mission for each in known.merged} | {each.mission for each in known.returned}
    if decided & {run.id for run in runs}:
        return _next_round(now, task)  # this round is already decided
    good = [run for run in runs if run.status == "promoted"]
    if good:
        chosen = good[0]
        others = [
            StopChild(mission=run.id, why=f"{chosen.id} came first")
            for run in runs
            if run.is_open and not run.stopping and run != chosen
        ]
        if chosen.changes:
            return [*others, *_let_in(now, task, chosen)]
        handed = next((reason for reason in chosen.reasons if reason.code == FAILING_TEST), None)
        if handed is not None and not any(task.id in other.after for other in now.progress.plan.tasks):
            return [*others, *_ask(now, task, (handed,))]  # no task would make its test pass
        message = f"{chosen.id} ended well and changed nothing"
        reason = handed or Reason(code="report", message=message)
        return [*others, EndTask(task=task.id, outcome="done", reason=reason, mission=chosen.id)]
    going = [run for run in runs if run.is_open]
    if going and (late := now.overdue(task)) is not None:
        why = f"task {task.id}: {late.message}"
        return [StopChild(mission=run.id, why=why) for run in going if not run.stopping]
    return [] if going else _climb(now, task, runs)


def _let_in(now: Situation, task: Task, chosen: ChildMission) -> list[Move]:
    """Return the moves for a good result: merge it, after its reviewers accept it if the task has any."""
    known = now.of(task.id)
    decided = known.decision_on(chosen.id)
    if not task.reviewers or (decided is not None and decided.decision == "accepted"):
        held = None if known.conflicts else wait_for_turn(now, task, lambda: now.changes(chosen.id))
        if held is not None:
            return [] if held == known.held else [Hold(task=task.id, reason=held)]
        return [Merge(task=task.id, mission=chosen.id)]
    if decided is not None:
        why = Reason(code="review_disputed", message=decided.why)
        return _ask(now, task, (why,), accept=chosen)
    if not known.reviews_of(chosen.id):
        return [Review(task=task.id, mission=chosen.id, roles=task.reviewers)]
    if any(each.is_open for each in now.reviews(task.id)):
        return []
    return [Weigh(task=task.id, mission=chosen.id)]


def _next_round(now: Situation, task: Task) -> list[Move]:
    """Return the move after a round whose result was merged, in a loop, or was returned."""
    known = now.of(task.id)
    if question_about(task.id, known.round) in now.answers:
        return _ask(now, task, ())
    if (late := now.overdue(task)) is not None:
        return _ask(now, task, (late,))
    due = known.current[-1].due
    if (back := known.given_back) is not None:
        if len({each.mission for each in known.returned}) > MOST_RETURNS:
            return _ask(now, task, (back.reason,))
        if (held := wait_for_turn(now, task, lambda: back.paths)) is not None:
            return [] if held == known.held else [Hold(task=task.id, reason=held)]
        if back.paths and back.base != now.tip:  # others were merged since: it is tried on top of them
            return [Merge(task=task.id, mission=back.mission)]
        return [Start(task=task.id, round=known.round + 1, rung="returned", why=back.reason.message, due=due)]
    models = _side_by_side(now, task)
    why = "its loop continues"
    return [Start(task=task.id, round=known.round + 1, rung="loop", why=why, models=models, due=due)]


def _side_by_side(now: Situation, task: Task) -> tuple[str | None, ...]:
    """Return the models of the candidates that the plan starts side by side on a task."""
    models = now.ladders(task).models
    return tuple(models[each % len(models)] if models else None for each in range(task.candidates))


def _climb(now: Situation, task: Task, runs: Sequence[ChildMission]) -> list[Move]:
    """Return the next thing to try after a round without a good result."""
    known, ladder = now.of(task.id), now.ladders(task)
    if question_about(task.id, known.round) in now.answers:
        return _ask(now, task, ())
    if (late := now.overdue(task)) is not None:
        return _ask(now, task, (late,))
    reasons = tuple(dict.fromkeys(reason for run in runs for reason in run.reasons))
    is_repeat = task.loop is not None and not (task.loop.until or task.loop.while_)
    if is_repeat and known.merged and {reason.code for reason in reasons} == {"no_change"}:
        nothing = Reason(code="no_change", message=f"round {known.round} had nothing more to change")
        return [EndTask(task=task.id, outcome="done", reason=nothing)]
    why = "; ".join(reason.message for reason in reasons[:3]) or f"it ended {runs[0].status}"
    choice = now.decider.choose(_next_round_context(now, task, ladder))
    if choice.action == "stop":
        stopped = f"task {task.id} is not tried again: {render_reasons(choice.reasons)}"
        end = Reason(code="task_failed", message=stopped)
        return [EndTask(task=task.id, outcome="failed", reason=end, choice=choice.reasons)]
    if choice.chosen is None:
        return _ask(now, task, reasons, choice=choice.reasons)
    chosen, own = (choice.chosen, *choice.beside), ladder.agents[0].name
    considered = (
        f"{each.candidate.strategy}: {render_reason(each.excluded)}" for each in choice.considered if each.excluded
    )
    return [
        Start(
            task=task.id,
            round=known.round + 1,
            rung=choice.chosen.strategy or "approach",
            why=why,
            models=tuple(each.model for each in chosen),
            agents=tuple("" if each.agent == own else each.agent for each in chosen),
            considered=tuple(considered),
            reasons=choice.reasons,
            due=known.current[-1].due,
        )
    ]


def _next_round_context(now: Situation, task: Task, ladder: Ladder) -> ChoiceContext:
    """Return the facts for the choice of a task's next round."""
    known, own = now.of(task.id), ladder.agents[0]
    rungs: tuple[Strategy, ...] = ("model", "best_of")
    tried = (
        TriedCandidate(
            candidate=Candidate(agent=own.name, model=run.model),
            cause=now.child(run.mission).cause,
            rung=run.rung,
            round=run.round,
            ends=now.child(run.mission).reasons,
        )
        for run in known.runs
    )
    due = known.current[-1].due
    return ChoiceContext(
        moment="retry",
        kind=now.project,
        work=task_work(now.mission, task.id),
        candidates=(
            *(PossibleCandidate(agent=each, strategy="approach") for each in ladder.agents),
            *(
                PossibleCandidate(agent=own, model=KnownModel(name=model), strategy=rung)
                for rung in rungs
                for model in ladder.models
            ),
        ),
        current=Candidate(agent=own.name, model=known.current[-1].model),
        tried=tuple(tried),
        fresh=ladder.has_other,
        money_left=ladder.money_left,
        seconds_left=None if due is None else due - now.elapsed,
    )


def _ask(
    now: Situation,
    task: Task,
    reasons: tuple[Reason, ...],
    *,
    accept: ChildMission | None = None,
    choice: tuple[ChoiceReason, ...] = (),
) -> list[Move]:
    """Ask a person about a task, once per round, and follow the answer; a disputed result may be accepted."""
    known = now.of(task.id)
    question = question_about(task.id, known.round)
    options = (RETRY, SKIP, STOP) if accept is None else (ACCEPT, RETRY, SKIP, STOP)
    if question not in now.answers:
        return [Ask(task=task.id, question=question, reasons=reasons, options=options, choice=choice)]
    answer = now.answers[question]
    if answer is None:
        return []
    if accept is not None and answer.strip().lower() == ACCEPT:
        return [Merge(task=task.id, mission=accept.id)]
    if answer.strip().lower() == SKIP:
        left_out = Reason(code="left_out", message="a person left it out")
        return [EndTask(task=task.id, outcome="left_out", reason=left_out)]
    if answer.strip().lower() == STOP:
        stopped = Reason(code="task_failed", message=f"a person stopped the mission over task {task.id}")
        return [EndTask(task=task.id, outcome="failed", reason=stopped)]
    why = "a person had it tried again" if answer.strip().lower() == RETRY else f"a person said: {answer}"
    return [Start(task=task.id, round=known.round + 1, rung="person", why=why, due=now.due(task))]


def _free_places(now: Situation, moves: Sequence[Move]) -> int:
    """Return how many more tasks may work side by side, given the moves of the running ones.

    A result that waits for its merge takes no place: merges, one after the other, would keep agents idle. From the
    `at_once`-th on each takes one, since a new task would start on a branch that is far behind. So with one place,
    each task starts on the result of the previous one.
    """
    merging = {move.task for move in moves if isinstance(move, Merge)}
    moved = {move.task for move in moves if isinstance(move, _MOVES_THAT_WORK)}
    held = {move.task for move in moves if isinstance(move, Hold)}
    taken = waiting = 0
    for task in (each.id for each in now.progress.plan.tasks if now.works(each.id)):
        if task in moved or now.goes_on(task):
            taken += 1
        elif task in merging:
            waiting += 1
        elif now.is_strict and not (task in held or now.waits_for_turn(task)):
            taken += 1
    return now.at_once - taken - max(0, waiting - (now.at_once - 1))


def _postpone(now: Situation, moves: list[Move]) -> list[Move]:
    """Omit next rounds without a free place: other tasks took it while the result waited."""
    rounds = [move for move in moves if isinstance(move, Start)]
    # Each of them counts as taking a place: this many are too many.
    missing = max(0, -_free_places(now, moves))
    postponed = rounds[max(0, len(rounds) - missing) :]
    return [move for move in moves if move not in postponed]


def _begin(now: Situation, free: int) -> list[Move]:
    """Return the tasks that start, at most `free`, and those that could start but are held."""
    plan = now.progress.plan
    working = [task for task in plan.tasks if now.works(task.id)]
    moves: list[Move] = []
    ready = [
        task
        for task in plan.tasks
        if not now.of(task.id).runs
        and now.of(task.id).end is None
        and all(now.of(before).end is not None for before in task.after)
    ]
    for task in sorted(ready, key=lambda task: -task.priority):
        if free <= 0:
            break
        held = next((why for other in working if (why := now.collides(task, other))), None)
        if held is None and question_about(task.id, 0) in now.answers:
            answered = _ask(now, task, ())
            moves += answered
            begun = [task for move in answered if isinstance(move, Start)]
            working += begun
            free -= len(begun)
        elif held is None:
            first = _side_by_side(now, task)
            turn = "all tasks before it are done" if task.after else "no task comes before it"
            due = now.due(task)
            moves.append(Start(task=task.id, round=1, rung="first", why=turn, models=first, due=due))
            working.append(task)
            free -= 1
        elif now.of(task.id).held != held:
            moves.append(Hold(task=task.id, reason=held))
    return moves
