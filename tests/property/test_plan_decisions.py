"""The coordinator's decisions as a model: random plans, whose child missions end at random."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.events import Payload
from chargehand.core.messages import Delegation
from chargehand.core.plan_events import (
    PlanMade,
    PlannerStarted,
    PlanProgress,
    PlanWanted,
    ReviewStarted,
    ReviewVote,
    TaskDelegated,
    TaskEnded,
    TaskHeld,
    TaskMerged,
    TaskProgress,
    TaskReturned,
    TaskReviewed,
    TaskStarted,
)
from chargehand.core.plans import Plan, Task, predecessors
from chargehand.core.records import MissionStatus, Reason
from chargehand.missions.coordination.decisions import (
    Ask,
    EndTask,
    Finish,
    Hold,
    Merge,
    Move,
    Review,
    Start,
    StopChild,
    Wait,
    Weigh,
    decide,
)
from chargehand.missions.coordination.reviews import MOST_REVISIONS, OBJECTED, weigh
from chargehand.missions.coordination.situation import ChildMission, Ladder, Situation
from chargehand.missions.planning.delegation import DEEPEST_DELEGATION, MOST_DELEGATED, plan_with_delegations
from chargehand.missions.planning.replanning import check_new_plan

WHY = Reason(code="test", message="so it goes")
ENDS: tuple[MissionStatus, ...] = (
    "promoted",
    "promoted",
    "promoted",
    "refused",
    "failed",
    "cancelled",
    "discarded",
)


class World:
    """The surroundings of the decisions: children that end, a queue that merges, a person who answers."""

    def __init__(
        self,
        plan: Plan,
        seed: int,
        models: tuple[str, ...],
        shared: set[str],
        *,
        changing: float = 0.0,
        conflicting: float = 0.0,
        delegating: float = 0.0,
    ) -> None:
        self.plan = plan
        self.tip = "0"
        self.elapsed = 0.0
        self.delegating = delegating
        self.handed_on: dict[str, int] = {}
        self.conflicting = conflicting
        self.changing = changing
        self.chance = random.Random(seed)
        self.progress = PlanProgress().after(PlanMade(plan=plan, identity="ada"))
        self.children: dict[str, ChildMission] = {}
        self.answers: dict[str, str | None] = {}
        self.models = models
        self.shared = shared
        self.finished: Finish | None = None
        self.most_at_once = 0
        self.asked = 0
        self.replanned = 0
        self.dropped: set[str] = set()

    def situation(self) -> Situation:
        return Situation(
            progress=self.progress,
            children=self.children,
            answers=self.answers,
            at_once=self.plan.at_once or 3,
            is_strict=self.plan.at_once > 0,
            elapsed=self.elapsed,
            ladders=lambda task: Ladder(models=task.models or self.models),
            collides=lambda a, b: WHY if {a.id, b.id} <= self.shared else None,
            tip=self.tip,
            changes=lambda mission: ("f", "g")[len(mission) % 2 :],
        )

    def run(self) -> None:
        """Run the plan until it is finished; a plan that never ends is a fault."""
        most = 60 * len(self.plan.tasks) + 60 + (1_000 if self.delegating else 0)
        for _ in range(most):
            if self.finished is not None:
                return
            self.elapsed += self.chance.random()
            moves = decide(self.situation())
            assert moves
            self.late_ones_are_stopped(moves)
            for number, move in enumerate(moves):
                if isinstance(move, Wait | Finish):
                    assert number == len(moves) - 1
                if not isinstance(move, Finish) and self.chance.random() < self.changing and self.change():
                    break  # as the coordinator does: moves decided on another plan are not carried out
                self.do(move)
                # A coordinator that takes over after a crash here ends it too.
                if not self.finished and any(each.end and each.end.outcome == "failed" for each in self.in_plan()):
                    last = decide(self.situation())[-1]
                    assert isinstance(last, Finish)
                    assert last.stopped is not None
            # A coordinator that takes over decides the same from the same log.
            assert decide(self.situation()) == decide(self.situation())
        raise AssertionError(f"it goes on for ever: {self.progress}")

    def in_plan(self) -> list[TaskProgress]:
        return [self.progress.tasks[task.id] for task in self.plan.tasks]

    def late_ones_are_stopped(self, moves: list[Move]) -> None:
        stopped = {move.mission for move in moves if isinstance(move, StopChild)}
        for task in self.plan.tasks:
            current = self.progress.tasks[task.id].current
            runs = self.situation().runs(task.id)
            late = bool(current) and current[-1].due is not None and current[-1].due <= self.elapsed
            if late and self.situation().works(task.id) and not any(run.status == "promoted" for run in runs):
                assert {run.id for run in runs if run.is_open} <= stopped

    def do(self, move: object) -> None:
        match move:
            case Start():
                self.start(move)
            case Hold():
                self.hold(move)
            case Merge():
                self.merge(move)
            case Review() | Weigh():
                self.review(move) if isinstance(move, Review) else self.weigh(move)
            case StopChild():
                assert self.children[move.mission].is_open
                self.end(move.mission, "cancelled")
            case EndTask():
                self.note(TaskEnded(task=move.task, outcome=move.outcome, reason=move.reason))
            case Ask():
                assert move.question not in self.answers
                assert move.reasons
                self.answers[move.question] = None
                self.asked += 1
            case Finish():
                self.finished = move
            case Wait():
                self.wait(move)

    def change(self) -> bool:
        """Try another plan, with tasks dropped, added or delayed; return whether it is accepted."""
        if self.replanned == 12:
            return False
        kept = [task for task in self.plan.tasks if self.chance.random() < 0.8]
        names = {task.id for task in kept}
        kept = [replace(task, after=tuple(each for each in task.after if each in names)) for task in kept]
        new = Task(
            id=f"n{self.replanned}", text="new", after=tuple(self.chance.sample(sorted(names), len(names) // 2))
        )
        plan = replace(self.plan, tasks=tuple(self.chance.sample([*kept, new], len(kept) + 1)))
        before = self.progress
        try:
            check_new_plan(before, plan)
        except RefusedError:
            begun = {name for name, known in before.tasks.items() if known.runs or known.end}
            assert any(before.plan.task(name) != plan.task(name) for name in begun)
            return False
        self.replanned += 1
        self.dropped |= {task.id for task in self.plan.tasks} - {task.id for task in plan.tasks}
        for name in self.answers:  # as `events_of_new_plan` does with decisions that are no longer needed
            if plan.task(name.removeprefix("task/").rpartition("/")[0]) is None:
                self.answers[name] = self.answers[name] or "dropped"
        self.plan = plan
        self.progress = before.after(PlanMade(plan=plan, identity="ada"))
        # No finished work is lost, and no started task has changed.
        for name, known in before.tasks.items():
            assert self.progress.tasks[name] == known
            if known.end is not None or (known.runs and name not in self.dropped):
                assert plan.task(name) == before.plan.task(name)
        return True

    def note(self, event: Payload) -> None:
        self.progress = self.progress.after(event)

    def start(self, move: Start) -> None:
        task = self.plan.task(move.task)
        known = self.progress.tasks[move.task]
        assert task is not None
        assert move.task not in self.dropped
        assert known.end is None
        assert move.round == known.round + 1
        assert all(self.progress.tasks[before].end is not None for before in task.after)
        assert not any(child.is_open for child in self.situation().runs(move.task))
        if (
            move.rung != "person" and self.chance.random() < self.conflicting
        ):  # the tests that it was to be given conflict
            question = f"task/{move.task}/{known.round}"
            assert question not in self.answers
            self.answers[question] = None
            self.asked += 1
            return
        if move.rung == "returned":
            self.nobody_else_does_it_again(known)
        if move.round == 1:
            # A dropped task is never merged: no task waits for its mission to stop.
            planned = {each.id for each in self.plan.tasks} & self.shared - {move.task}
            others = [each for each in planned if self.situation().works(each)]
            assert move.task not in self.shared or not others
        for number, model in enumerate(move.models, 1):
            name = f"{move.task}.{move.round}.{number}"
            assert name not in self.children
            self.children[name] = ChildMission(id=name, status="planned")
            started = TaskStarted(
                task=move.task,
                mission=name,
                round=move.round,
                rung=move.rung,
                base="0" * 40,
                why=move.why,
                candidate=number,
                model=model,
                due=move.due,
            )
            self.note(started)
        before = known.current[-1].due if known.current else None
        assert (move.due is None) == (task.deadline is None)
        if move.due is not None and move.rung in ("first", "person"):
            assert move.due == self.elapsed + (task.deadline or 0.0)
        elif move.due is not None:
            assert before == move.due > self.elapsed, "its rounds have one deadline"
        now = self.situation()
        working = [each.id for each in self.plan.tasks if now.works(each.id)]
        places = sum(self.takes_place(each) for each in working)
        going_on = sum(now.works(each.id) and now.goes_on(each.id) for each in self.plan.tasks)
        self.most_at_once = max(self.most_at_once, going_on)
        at_once = self.plan.at_once
        assert places <= at_once if at_once else move.round > 1 or going_on <= 3
        assert move.round > 1 or len(working) < 2 * at_once or not at_once

    def takes_place(self, task: str) -> bool:
        """Return whether a task is active, or waits for a person."""
        now, asked = self.situation(), f"task/{task}/{self.progress.tasks[task].round}"
        waits = any(run.status in ("waiting", "paused") for run in now.runs(task))
        return now.goes_on(task) or waits or self.answers.get(asked, "") is None

    def hold(self, move: Hold) -> None:
        if move.reason.code == "collision_conflict":
            known = self.progress.tasks[move.task]
            assert known.given_back is not None or not known.conflicts
        else:
            others = self.shared - {move.task}
            # A task that it waits for may have been about to start when its tests were found to conflict.
            assert any(self.situation().works(each) or f"task/{each}/0" in self.answers for each in others)
        self.note(TaskHeld(task=move.task, reason=move.reason))

    def nobody_else_does_it_again(self, known: TaskProgress) -> None:
        """Check that of the tasks that conflicted in one file no other is being redone now."""
        assert known.given_back is not None
        for task in self.plan.tasks:
            other = self.progress.tasks[task.id]
            by_person = bool(other.runs) and other.runs[-1].rung == "person"  # it waits for no other task
            if (
                other is not known
                and other.end is None
                and not by_person
                and other.conflicts & {*known.given_back.paths}
            ):
                assert other.given_back is not None or not self.situation().goes_on(task.id)

    def review(self, move: Review) -> None:
        assert self.children[move.mission].status == "promoted"
        assert not self.progress.tasks[move.task].reviews_of(move.mission)
        for role in move.roles:
            name = f"{move.mission}/{role}"
            self.children[name] = ChildMission(id=name, status="planned")
            self.note(ReviewStarted(task=move.task, mission=name, of=move.mission, role=role, tree="1" * 40))

    def weigh(self, move: Weigh) -> None:
        """Decide as reviewers do: a promoted review objects or approves, and an objection may bring a test."""
        known = self.progress.tasks[move.task]
        votes = []
        for each in known.reviews_of(move.mission):
            child = self.children[each.mission]
            assert not child.is_open
            said = self.chance.choice(("approves", "approves", "objects")) if child.status == "promoted" else ""
            proven = said == "objects" and self.chance.random() < 0.2
            points = ("it is wrong",) if said == "objects" else ()
            vote = said or "abstained"
            votes.append(ReviewVote(mission=child.id, role=each.role, vote=vote, points=points, proven=proven))
        revisions = sum(each.reason.code == OBJECTED for each in known.returned)
        decision, why = weigh(votes, revisions=revisions)
        self.note(TaskReviewed(task=move.task, of=move.mission, decision=decision, why=why, votes=tuple(votes)))
        if any(vote.proven for vote in votes):
            assert decision == "revise"
        elif decision == "revise":
            assert revisions < MOST_REVISIONS
        if decision == "revise":
            reason = Reason(code=OBJECTED, message=why)
            self.note(
                TaskReturned(
                    task=move.task,
                    mission=move.mission,
                    reason=reason,
                    base="0" * 40,
                    tree="1" * 40,
                    evidence="f" * 64,
                )
            )

    def merge(self, move: Merge) -> None:
        task = self.plan.task(move.task)
        assert task is not None
        if task.reviewers:
            decided = self.progress.tasks[move.task].decision_on(move.mission)
            assert decided is not None
            assert decided.decision == "accepted" or "accept" in self.answers.values()
        child = self.children[move.mission]
        assert (child.status, child.changes) == ("promoted", True)
        known = self.progress.tasks[move.task]
        assert move.mission not in {each.mission for each in known.merged}
        earlier = [each for each in known.returned if each.mission == move.mission]
        assert all(each.paths and each.base != self.tip for each in earlier), "it was tried on this tip"
        if self.chance.random() < 0.3:
            back = TaskReturned(
                task=move.task,
                mission=move.mission,
                reason=WHY,
                base=self.tip,
                tree="1" * 40,
                evidence="f" * 64,
                paths=tuple(self.chance.sample(("f", "g"), self.chance.randint(0, 2))),
            )
            self.note(back)
            return
        self.tip += "0"
        self.note(TaskMerged(task=move.task, mission=move.mission, commit="0" * 40, tree="0" * 40))
        loop = task.loop
        self.delegate(task, move.mission)
        if loop is None or len(self.progress.tasks[move.task].merged) >= loop.most:
            self.note(TaskEnded(task=move.task, outcome="merged"))

    def delegate(self, task: Task, mission: str) -> None:
        """Let a task's agent delegate parts, valid and invalid, as the coordinator does when it merges."""
        if self.chance.random() >= self.delegating:
            return
        names = [f"p{number}" for number in range(self.chance.randint(1, 4))]
        parts = [
            Delegation(
                id=f"{name}{self.chance.choice(('', '', '', ' '))}",
                text="part",
                role=self.chance.choice(("developer", "developer", "developer", "")),
                after=tuple(self.chance.sample(names, self.chance.choice((0, 0, 1)))),
                deadline=self.chance.choice((None, 0.5, 5.0)),
            )
            for name in names
        ]
        before = self.progress
        try:
            plan = plan_with_delegations(before, task.id, parts)
        except UsageError as error:
            self.note(TaskDelegated(task=task.id, mission=mission, refused=Reason(code=error.code, message="no")))
            return
        added = tuple(each.id for each in plan.tasks if before.plan.task(each.id) is None)
        self.handed_on[task.id] = self.handed_on.get(task.id, 0) + len(added)
        assert self.handed_on[task.id] <= MOST_DELEGATED
        assert all(name.count(".") <= DEEPEST_DELEGATION for name in added)
        check_new_plan(before, plan)  # no started task has changed
        waiting = predecessors(plan)
        for each in before.plan.tasks:
            if task.id in each.after and not before.tasks[each.id].runs and each.delegated_by != task.id:
                assert waiting[each.id] >= set(added)
        self.note(TaskDelegated(task=task.id, mission=mission, tasks=added))
        self.plan = plan
        self.note(PlanMade(plan=plan, identity=f"task {task.id}"))

    def end(self, mission: str, status: MissionStatus) -> None:
        causes: Mapping[str, str] = {
            "refused": "check",
            "failed": self.chance.choice(("agent", "provider", "engine")),
        }
        self.children[mission] = replace(
            self.children[mission],
            status=status,
            changes=status == "promoted" and self.chance.random() < 0.9,
            reasons=(WHY,),
            cause=causes.get(status, "person"),
        )

    def wait(self, move: Wait) -> None:
        """Make something happen: an open child ends, or a person answers."""
        live = [child.id for child in self.children.values() if child.is_open]
        questions = [name for name, answer in self.answers.items() if answer is None]
        assert live or questions, "nothing is left that could ever happen"
        assert set(move.tasks) == {task.id for task in self.plan.tasks if self.situation().works(task.id)}
        going = [name for name in live if self.children[name].status in ("planned", "running")]
        assert bool(move.people) == (not going)
        if questions and (not live or self.chance.random() < 0.3):
            answers = (
                "retry",
                "skip",
                "try it otherwise",
                "accept",
                *(["stop"] if self.chance.random() < 0.1 else []),
            )
            self.answers[questions[0]] = self.chance.choice(answers) if self.asked < 30 else "skip"
            return
        chosen = self.chance.choice(live)
        if move.due is not None:
            assert move.due > self.elapsed
            if self.chance.random() < 0.3:
                self.elapsed = move.due
                return
        self.end(chosen, self.chance.choice(("waiting", "running", *ENDS)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = [f"t{number}" for number in range(draw(st.integers(1, 9)))]
    tasks = []
    for number, name in enumerate(names):
        before = draw(st.lists(st.sampled_from(names[:number]), unique=True, max_size=3)) if number else []
        loop = draw(st.sampled_from((None, None, None, 2, 3)))
        tasks.append(
            Task(
                id=name,
                text=name,
                after=tuple(before),
                candidates=draw(st.sampled_from((1, 1, 1, 3))),
                models=draw(st.sampled_from(((), ("x",), ("x", "y"), ("x", "y", "z")))),
                priority=draw(st.integers(-1, 1)),
                reviewers=draw(st.sampled_from(((), (), ("reviewer",), ("reviewer", "security", "tester")))),
                loop=None if loop is None else _loop(loop),
                deadline=draw(st.sampled_from((None, None, None, 1.0, 5.0))),
            )
        )
    return Plan(tasks=tuple(draw(st.permutations(tasks))), at_once=draw(st.integers(0, 3)))


def _loop(most: int) -> object:
    from chargehand.core.plans import Loop

    return Loop(most=most)


@given(plans(), st.integers(0, 2**32), st.sampled_from(((), ("m",), ("m", "n"))), st.data())
def test_every_plan_comes_to_an_end_whatever_its_tasks_do(
    plan: Plan, seed: int, models: tuple[str, ...], data: st.DataObject
) -> None:
    shared = set(data.draw(st.lists(st.sampled_from([task.id for task in plan.tasks]), unique=True)))
    delegating = data.draw(st.sampled_from((0.0, 0.0, 0.3)))
    world = World(plan, seed, models, shared, conflicting=0.05, delegating=delegating)
    world.run()
    assert world.finished is not None
    ended = {name: known.end for name, known in world.progress.tasks.items()}
    if world.finished.stopped is None:
        assert all(ended.values())
    assert not any(child.is_open for child in world.children.values())
    # No one pays for more revisions than the limit, plus those that a test demands.
    for known in world.progress.tasks.values():
        returned = sum(each.reason.code == OBJECTED for each in known.returned)
        proven = sum(vote.proven for each in known.reviewed for vote in each.votes)
        rounds = max(1, sum(run.rung == "person" for run in known.runs) + 1)
        assert returned <= (MOST_REVISIONS + proven) * rounds
    # A merged task is done, and a done task was merged or had nothing to do.
    for name, end in ended.items():
        if end is not None and end.outcome == "merged":
            assert world.progress.tasks[name].merged


@given(plans(), st.integers(0, 2**32), st.data())
def test_a_plan_that_changes_comes_to_an_end_with_each_task_done_once_and_in_order(
    plan: Plan, seed: int, data: st.DataObject
) -> None:
    shared = set(data.draw(st.lists(st.sampled_from([task.id for task in plan.tasks]), unique=True)))
    world = World(plan, seed, ("m", "n"), shared, changing=0.3, conflicting=0.05, delegating=0.2)
    world.run()
    assert world.finished is not None
    assert not any(child.is_open for child in world.children.values())
    if world.finished.stopped is None:
        assert all(world.progress.tasks[task.id].end is not None for task in world.plan.tasks)
    begun = [name.rpartition(".")[0] for name in world.children if "/" not in name]
    assert all(begun.count(each) <= 3 for each in begun)  # a round starts once, with at most three attempts


@pytest.mark.parametrize("at_once", [0, 3])
def test_tasks_that_wait_for_a_person_leave_their_places_to_others_unless_the_plan_counts_them(
    at_once: int,
) -> None:
    world = World(Plan(tasks=tuple(Task(id=name, text=name) for name in "abcdef"), at_once=at_once), 0, (), set())
    for move in decide(world.situation()):
        world.do(move)
    assert world.most_at_once == 3
    for name, child in world.children.items():
        world.children[name] = replace(child, status="waiting", reasons=(WHY,))
    begun = [move.task for move in decide(world.situation()) if isinstance(move, Start)]
    assert begun == ([] if at_once else ["d", "e", "f"])


def test_a_ladder_is_climbed_to_its_end_before_a_person_is_asked() -> None:
    plan = Plan(tasks=(Task(id="a", text="a", models=("x", "y")),))
    world = World(plan, 0, (), set())
    rungs = []
    for _ in range(20):
        moves = decide(world.situation())
        for move in moves:
            if isinstance(move, Start):
                rungs.append((move.rung, move.models))
            world.do(move) if not isinstance(move, Wait) else None
        if world.asked:
            break
        for name, child in world.children.items():
            if child.is_open:
                world.end(name, "refused")
    assert rungs == [("first", ("x",)), ("approach", (None,)), ("model", ("y",)), ("best_of", ("x", "y"))]


def test_of_several_good_reports_the_first_counts_alone() -> None:
    plan = Plan(tasks=(Task(id="a", text="a", candidates=2),))
    world = World(plan, 0, (), set())
    for move in decide(world.situation()):
        world.do(move)
    for name, child in world.children.items():
        world.children[name] = replace(child, status="promoted")
    (end,) = decide(world.situation())
    assert isinstance(end, EndTask)
    assert (end.outcome, end.mission) == ("done", world.situation().runs("a")[0].id)


def test_a_mission_that_is_late_is_stopped_once_and_then_waited_for() -> None:
    world = World(Plan(tasks=(Task(id="a", text="a", deadline=5.0),)), 0, (), set())
    for move in decide(world.situation()):
        world.do(move)
    world.elapsed = 6.0
    ((name, child),) = world.children.items()
    (stop,) = decide(world.situation())
    assert isinstance(stop, StopChild)
    for status in ("running", "paused"):
        world.children[name] = replace(child, status=status, stopping=True)
        (wait,) = decide(world.situation())
        assert isinstance(wait, Wait)
        assert (wait.tasks, wait.people) == (("a",), ())
        assert wait.due is not None, "it may end without a word"
    world.end(name, "cancelled")
    assert [type(move) for move in decide(world.situation())] == [Ask]


def test_a_planner_that_a_person_was_quicker_than_is_stopped() -> None:
    world = World(Plan(tasks=(Task(id="a", text="a"),)), 1, (), set())
    world.progress = PlanProgress().after(PlanWanted()).after(PlannerStarted(mission="planner", round=1))
    world.note(PlanMade(plan=world.plan, identity="ada"))
    world.children["planner"] = ChildMission(id="planner", status="running")
    assert StopChild(mission="planner", why="there is a plan") in decide(world.situation())
    world.run()
    assert world.children["planner"].status == "cancelled"


def begun(world: World) -> list[str]:
    """Return the tasks that start now."""
    return [move.task for move in decide(world.situation()) if isinstance(move, Start)]


def begin(world: World, *tasks: str, status: MissionStatus = "promoted") -> None:
    for name in tasks:
        world.do(Start(task=name, round=1, rung="first", why=""))
        child = ChildMission(id=f"{name}.1.1", status=status, changes=status == "promoted", reasons=(WHY,))
        world.children[child.id] = child


def test_results_that_wait_for_their_merge_leave_their_places_to_others() -> None:
    world = World(Plan(tasks=tuple(Task(id=name, text="x") for name in "abcdef"), at_once=2), 0, (), set())
    begin(world, "a", "b")
    merges = [Merge(task="a", mission="a.1.1"), Merge(task="b", mission="b.1.1")]
    moves = decide(world.situation())
    assert [move.task for move in moves[:-2] if isinstance(move, Start)] == ["c"]
    assert moves[-2:] == merges, "a task that can begin does so before anything is merged"
    begin(world, "c", status="running")
    assert decide(world.situation()) == merges
    # One result may wait while two tasks run; with more, the branch that others start from is far behind.
    world.children["c.1.1"] = ChildMission(id="c.1.1", status="promoted", changes=True)
    assert begun(world) == []
    world.note(TaskMerged(task="a", mission="a.1.1", commit="0" * 40, tree="0" * 40))
    world.note(TaskEnded(task="a", outcome="merged"))
    assert begun(world) == ["d"]


def test_with_a_single_slot_a_result_is_merged_before_the_next_task_starts() -> None:
    world = World(Plan(tasks=tuple(Task(id=name, text="x") for name in "ab"), at_once=1), 0, (), set())
    begin(world, "a")
    assert decide(world.situation()) == [Merge(task="a", mission="a.1.1")]


@pytest.mark.parametrize("status", ["running", "waiting"])
def test_a_returned_task_waits_for_a_free_slot(status: MissionStatus) -> None:
    world = World(Plan(tasks=tuple(Task(id=name, text="x") for name in "abc"), at_once=2), 0, (), set())
    begin(world, "a")
    begin(world, "b", "c", status=status)
    back = TaskReturned(task="a", mission="a.1.1", reason=WHY, base="0" * 40, tree="1" * 40, evidence="f" * 64)
    world.note(back)
    [waits] = decide(world.situation())
    assert isinstance(waits, Wait)
    # Only the tasks that need a person's answer are named.
    named = [reason.message.split()[1] for reason in waits.people]
    assert named == (["b", "c"] if status == "waiting" else [])
    world.children["b.1.1"] = ChildMission(id="b.1.1", status="promoted", changes=True)
    begins, merge = decide(world.situation())
    assert isinstance(begins, Start)
    assert (begins.task, begins.round, merge) == ("a", 2, Merge(task="b", mission="b.1.1"))
