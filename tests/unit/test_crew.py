"""The state of a plan's tasks, in words and rows, from the state of their missions."""

from __future__ import annotations

import itertools
import re
import shlex
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import example as explicit
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from chargehand.core.attempt_events import RoleChosen
from chargehand.core.events import Payload
from chargehand.core.plan_events import (
    PlanMade,
    PlannerStarted,
    PlanProgress,
    PlanWanted,
    ReviewStarted,
    TaskEnded,
    TaskHeld,
    TaskMerged,
    TaskReturned,
    TaskReviewed,
    TaskStarted,
)
from chargehand.core.plans import Plan, Task
from chargehand.core.records import Base, MissionRequest, Reason
from chargehand.core.state import AttemptState, MissionState, MissionSummary, Question
from chargehand.missions.reading import already_rolled_back_error
from chargehand.reports import live_output
from chargehand.reports.outcome import next_commands
from chargehand.reports.plan_graph import PlanDocument, ReviewDocument, TaskDocument, plan_tree
from chargehand.reports.progress.crew import (
    Crew,
    CrewCost,
    CrewFacts,
    CrewStanding,
    CrewTask,
    PersonNeed,
    describe_crew,
)
from chargehand.reports.progress.crew_rows import crew_rows, wrap_command

ASKED = MissionRequest(
    text="new dates\nand more", agent="command:sh -c 'x'", command=(), slug="x", role="developer"
)
PLAN = Plan(
    tasks=(
        Task(id="a", text="A"),
        Task(id="b", text="B", reviewers=("reviewer", "security")),
        Task(id="c", text="C", after=("a", "b")),
        Task(id="d", text="D", after=("c",)),
        Task(id="e", text="E"),
    ),
    at_once=2,
)
HELD = Reason(code="collision_file", message="both change x.txt")


def started(task: str, mission: str, round: int = 1, **more: Any) -> TaskStarted:
    return TaskStarted(task=task, mission=mission, round=round, rung="first", base="0", why="", **more)


def child(id: str, task: str, status: str = "running", **more: Any) -> MissionSummary:
    attempts = [AttemptState(id="a", number=1, agent="x", workspace="w")] if status == "running" else []
    known: dict[str, Any] = {"attempts": attempts, "request": ASKED, "created": "2026-01-02T03:00:00+00:00"}
    return MissionSummary(id=id, parent="m", task=task, status=status, **(known | more))


def describe(events: list[Payload], *children: MissionSummary, **more: Any) -> Crew:
    progress = PlanProgress().after(PlanMade(plan=PLAN, identity="os:me"))
    for event in events:
        progress = progress.after(event)
    questions = more.pop("questions", {})
    state = MissionState(id="m", status="running", request=ASKED, plan=progress, questions=questions)
    facts = CrewFacts(state=state, children={each.id: each for each in children}, **more)
    return describe_crew(facts)


def by_id(crew: Crew) -> dict[str, CrewTask]:
    return {task.id: task for task in crew.tasks}


def test_standings_and_details_of_tasks() -> None:
    crew = describe(
        [started("a", "m-a"), TaskHeld(task="b", reason=HELD)],
        child("m-a", "a"),
        steps={"m-a": "checks"},
    )
    assert (crew.title, [task.standing for task in crew.tasks]) == (
        "new dates",
        ["works", "held", "waits", "waits", "next"],
    )
    tasks = by_id(crew)
    assert tasks["a"].detail == "developer sh: running checks"
    assert tasks["a"].since
    assert tasks["b"].detail == "both change x.txt; chargehand mission plan m --start b begins it"
    assert tasks["c"].detail == "after a, b"
    assert tasks["e"].detail == "begins when one of 2 places is free"
    assert crew.needs == ()


def test_reviews_rounds_and_ends() -> None:
    events: list[Payload] = [
        started("a", "m-a"),
        TaskMerged(task="a", mission="m-a", commit="1", tree="2"),
        TaskEnded(task="a", outcome="merged"),
        started("b", "m-b"),
        ReviewStarted(task="b", mission="m-r", of="m-b", role="reviewer", tree="2"),
        ReviewStarted(task="b", mission="m-s", of="m-b", role="security", tree="2"),
    ]
    missions = [child("m-a", "a", "promoted"), child("m-b", "b", "promoted"), child("m-r", "b", "promoted")]
    crew = by_id(describe(events, *missions, child("m-s", "b", "planned")))
    assert (crew["a"].standing, crew["a"].detail) == ("merged", "by developer sh")
    assert (crew["b"].standing, crew["b"].detail) == ("queued", "begins")
    crew = by_id(describe(events, *missions, child("m-s", "b")))
    assert (crew["b"].standing, crew["b"].detail) == ("review", "reviewer done, security works")
    done = child("m-s", "b", "promoted")
    assert by_id(describe(events, *missions, done))["b"].standing == "merging"
    why = Reason(code="review_objected", message="1 of 2 objects")
    events += [
        TaskReviewed(task="b", of="m-b", decision="revise", why="1 of 2 objects", votes=()),
        TaskReturned(task="b", mission="m-b", reason=why, base="1", tree="2", evidence="f"),
        TaskStarted(task="b", mission="m-b2", round=2, rung="returned", base="1", why=""),
    ]
    model = RoleChosen(
        role="developer", digest="", artifact="", origin="", agent="native", models=("fast",), writes=True, why=""
    )
    again = child("m-b2", "b", role=model)
    crew = by_id(describe(events, *missions, done, again, steps={"m-b2": "agent"}))
    assert crew["b"].standing == "works"
    assert crew["b"].detail == "developer fast: agent working, round 2, since 1 of 2 objects"
    events.append(TaskEnded(task="b", outcome="left_out", reason=Reason(code="left_out", message="a person did")))
    left = by_id(describe(events, *missions, done, again))["b"]
    assert (left.standing, left.detail) == ("left out", "a person did")


def test_tasks_that_need_a_person_have_a_command_and_block_dependents() -> None:
    own = Question(
        id="task/a/1", text="Try it again?", options=("retry", "skip"), tree="", attempt=None, kind="decision"
    )
    asks = Question(id="q", text="Which way?", options=(), tree="", attempt="a1")
    reason = Reason(code="agent_failed", message="the agent gave up.")
    crew = describe(
        [started("a", "m-a"), started("b", "m-b")],
        child("m-a", "a", "failed", reasons=(reason,)),
        child("m-b", "b", "waiting", questions={"q": asks}),
        questions={"task/a/1": own},
    )
    first, second = crew.needs
    assert first.message == "the agent gave up. Try it again?"
    assert " ".join(first.command) == "chargehand mission answer m --task a retry"
    assert first.choices == "retry, skip, or your own words"
    assert (second.task, second.message) == ("b", "Which way?")
    assert " ".join(second.command) == "chargehand mission answer m --task b TEXT"
    tasks = by_id(crew)
    assert [tasks[name].standing for name in "ab"] == ["needs you", "needs you"]
    assert tasks["d"].detail == "after c; a, b needs you"


def test_an_approval_a_pause_and_the_plan_itself_need_a_person() -> None:
    reason = Reason(code="surface", message="a check surface was changed")
    events: list[Payload] = [started("a", "m-a"), started("b", "m-b"), started("e", "m-e", candidate=1)]
    waiting = [
        child("m-a", "a", "waiting", reasons=(reason,)),
        child("m-b", "b", "paused"),
        child("m-e", "e", "paused", reasons=(Reason(code="worker_lost", message="lost"),)),
    ]
    crew = describe(events, *waiting)
    approval, pause = crew.needs
    assert " ".join(approval.command) == "chargehand mission promote m --task a --reason TEXT"
    assert approval.message == "a check surface was changed"
    assert " ".join(pause.command) == "chargehand mission resume m-b"
    # A worker that died needs no person.
    assert by_id(crew)["e"].standing == "works"
    unclear = Question(id="plan/x", text="Which?", options=("ISO 8601",), tree="", attempt=None, closed=True)
    (need,) = describe([], questions={"plan/x": unclear}).needs
    assert (need.task, need.choices, need.command[-1]) == ("", "ISO 8601", "'ISO 8601'")


def test_the_planner_is_the_only_task_before_the_plan_exists() -> None:
    progress = PlanProgress().after(PlanWanted()).after(PlannerStarted(mission="m-p", round=1))
    asks = Question(id="q", text="Which way?", options=(), tree="", attempt="a1")
    for questions, standing in (({}, "works"), ({"q": asks}, "needs you")):
        child_ = child("m-p", "planner", "waiting" if questions else "running", questions=questions)
        state = MissionState(id="m", status="running", request=ASKED, plan=progress)
        crew = describe_crew(CrewFacts(state=state, children={"m-p": child_}))
        assert (crew.planned, [(task.id, task.standing) for task in crew.tasks]) == (
            False,
            [("planner", standing)],
        )
        assert [" ".join(need.command) for need in crew.needs] == ["chargehand mission answer m-p TEXT"] * len(
            questions
        )
        rows = [row.text for row in crew_rows(crew, now=datetime.now(UTC), width=80, height=24)]
        assert rows[1] == "a planner makes its plan first"


def test_the_cost_is_the_sum_of_all_missions_and_may_be_unknown() -> None:
    def paid(known: bool, usd: float | None, **more: Any) -> list[AttemptState]:
        attempt = AttemptState(
            id="a",
            number=1,
            agent="x",
            workspace="w",
            calls=2,
            cost_known=known,
            cost_usd=usd,
            **more,
        )
        return [attempt]

    events: list[Payload] = [started("a", "m-a"), started("b", "m-b")]
    first = child("m-a", "a", attempts=paid(True, 0.25))
    crew = describe(events, first, child("m-b", "b", attempts=paid(True, 0.5)))
    assert (crew.cost.usd, crew.cost.known, by_id(crew)["a"].cost.usd) == (0.75, True, 0.25)
    # A follow-up does not pay again for attempts that it copied.
    copied = child("m-b", "b", attempts=paid(True, 0.5, copied=True))
    assert describe(events, first, copied).cost.usd == 0.25
    unknown = describe(events, first, child("m-b", "b", attempts=paid(False, None, booked_usd=1.0)))
    assert (unknown.cost.usd, unknown.cost.known) == (1.25, False)


def test_no_refused_command_is_offered_after_a_plan_is_rolled_back() -> None:
    base = Base(commit="0" * 40, tree="t", revision="HEAD")
    state = MissionState(id="m", status="promoted", commit="1" * 40, tree="t", base=base)
    assert "promotes it again" in next_commands(state)[0]
    state.plan = PlanProgress()
    assert next_commands(state) == ()
    assert already_rolled_back_error(state).hint == "chargehand mission show m"


@pytest.mark.parametrize("pause", [None, 5])
def test_a_wait_is_reported_only_after_a_delay(monkeypatch: pytest.MonkeyPatch, pause: int | None) -> None:
    moments = itertools.count()
    monkeypatch.setattr(live_output.time, "monotonic", lambda: float(next(moments)))
    patience = live_output.Patience()
    reason = Reason(code="no_worker", message="no worker is running")
    told = [patience.lasting(None if number == pause else reason) for number in range(12)]
    assert told == [None] * 10 + [reason] * 2 if pause is None else [None] * 12


def test_a_plan_is_shown_as_a_tree() -> None:
    tasks = [
        TaskDocument(id=name, text=name, status="pending", after=before, missions=(), reviews=(), reason=None)
        for name, before in (("a", ()), ("d", ("a", "b")), ("b", ("a",)), ("c", ()))
    ]
    shown = plan_tree(PlanDocument(mission="m", status="planned", planners=(), tasks=tasks, plan=Plan(tasks=())))
    assert [(row.name, row.why) for row in shown] == [
        ("a", ""),
        ("  b", ""),
        ("    d", "also after a"),
        ("c", ""),
    ]


def test_reviews_of_the_last_result_are_listed_below_their_task() -> None:
    def review(mission: str, of: str, vote: str | None, *points: str) -> ReviewDocument:
        return ReviewDocument(mission=mission, of=of, role="reviewer", status="promoted", vote=vote, points=points)

    reviews = (
        review("m-r1", "m-1", "objects", "first"),
        review("m-r2", "m-2", "objects", "say\x1b[2J two", "and more"),
        review("m-r3", "m-2", None),
    )
    task = TaskDocument(
        id="a", text="A", status="in_review", after=(), missions=("m-1", "m-2"), reviews=reviews, reason=None
    )
    rows = plan_tree(PlanDocument(mission="m", status="running", planners=(), tasks=[task], plan=Plan(tasks=())))
    assert [(row.name, row.mission, row.why) for row in rows] == [
        ("a", "m-2", ""),
        ("  review: reviewer", "m-r2", "objects: say two; and more"),
        ("  review: reviewer", "m-r3", ""),
    ]


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEXTS = st.text(max_size=200) | st.sampled_from(
    ["日付と時刻 " * 20, "größer", "a\nb\tc\x1b[2J", "e\u0301❤\ufe0f" * 40, ""]
)
IDS = st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,63}\Z")
COSTS = st.builds(CrewCost, usd=st.floats(0, 1e6), known=st.booleans())
STANDINGS: tuple[CrewStanding, ...] = get_args(CrewStanding)


@st.composite
def crews(draw: st.DrawFn) -> Crew:
    names = draw(st.lists(IDS, unique=True, max_size=40))
    tasks = tuple(
        CrewTask(
            id=name,
            standing=draw(st.sampled_from(STANDINGS)),
            detail=draw(TEXTS),
            since=draw(st.sampled_from(["", "2026-01-02T03:00:00+00:00", "damaged"])),
            cost=draw(COSTS),
            ended=draw(st.sampled_from(["", "2026-01-02T03:00:00+00:00"])),
        )
        for name in names
    )
    asking = [task.id for task in tasks if task.standing == "needs you"] + [""] * draw(st.integers(0, 1))
    needs = tuple(
        PersonNeed(
            task=name,
            message=draw(TEXTS),
            choices=draw(TEXTS),
            command=("chargehand", "mission", "answer", "m-1m89w6bpk0mksb", "--task", name or "x", "'a b'"),
        )
        for name in asking
    )
    return Crew(
        mission="m-1m89w6bpk0mksb",
        title=draw(TEXTS),
        status="running",
        created="2026-01-02T03:00:00+00:00",
        tasks=tasks,
        needs=needs,
        cost=draw(COSTS),
        waits=draw(st.sampled_from(["", "no worker is running"])),
        lately=tuple(draw(st.lists(TEXTS, max_size=10))),
    )


@given(crews(), st.integers(1, 200), st.integers(1, 60), st.sampled_from(["", "Ctrl-C: pause"]))
def test_the_crew_view_fits_and_shows_or_counts_every_need(
    crew: Crew, width: int, height: int, notice: str
) -> None:
    rows = crew_rows(crew, now=NOW, width=width, height=height, notice=notice)
    assert len(rows) <= height
    assert all(cell_len(row.text) <= width for row in rows)
    assert not {"\n", "\t", "\x1b"} & {letter for row in rows for letter in row.text}
    marked = [row.text for row in rows if row.text.startswith("!")]
    assert bool(marked) is bool(crew.needs) or width == 1
    if len(marked) < len(crew.needs) and width >= 10:  # each has a row, or the last one counts the rest
        rest = len(crew.needs) - len(marked) + 1
        assert marked[-1].startswith(f"! {rest}"[:width].rstrip()), marked
        assert len(rows) == height


@given(st.lists(st.sampled_from(STANDINGS), max_size=60), st.integers(140, 200), st.integers(4, 60))
def test_every_task_is_shown_or_counted(standings: list[CrewStanding], width: int, height: int) -> None:
    others = [each for each in standings if each != "needs you"]
    tasks = tuple(CrewTask(id=f"t{number}", standing=each) for number, each in enumerate(others))
    crew = replace(example(4), tasks=tasks, needs=())
    rows = [row.text for row in crew_rows(crew, now=NOW, width=width, height=height)]
    shown = [row.split()[-1] for row in rows if re.match(r". t[0-9]+ ", row)]
    hidden = [int(row.split()[1]) for row in rows if row.startswith("  and ")]
    assert len(shown) + sum(hidden) == len(others)
    counts = [row.split(": ")[1].split(", ") for row in rows if row.startswith("  and ")]
    assert sum(int(each.split()[0]) for each in itertools.chain(*counts)) == sum(hidden)
    # Working tasks are never hidden behind waiting ones.
    if any(each.endswith((" work", " works")) for each in itertools.chain(*counts)):
        assert set(shown) <= {"works"}


@given(st.lists(IDS, min_size=1, max_size=3), st.integers(20, 140))
@explicit(["0" * 15], 20)
def test_a_wrapped_command_remains_valid_for_a_shell(names: list[str], width: int) -> None:
    words = ("chargehand", "mission", "answer", *names, shlex.quote("ISO 8601, or what"))
    lines = wrap_command(words, width)
    assert all(cell_len(line) <= width for line in lines)
    if lines:
        assert shlex.split("\n".join(lines).replace("\\\n", "")) == [*words[:-1], "ISO 8601, or what"]
    else:  # only if there is no room for the quoted text
        assert width < 30


def example(count: int) -> Crew:
    tasks = [
        CrewTask(id="asker", standing="needs you"),
        CrewTask(
            id="parser", standing="works", detail="developer: agent working", since="2026-01-02T03:03:05+00:00"
        ),
        CrewTask(id="printer", standing="held", detail="the tasks 'parser' and 'printer' may both change 'a.txt'"),
        CrewTask(id="a-task-with-a-name-that-is-long-and-ends-in-two", standing="merged", ended="1"),
    ]
    tasks += [CrewTask(id=f"t{number}", standing="waits", detail="after parser") for number in range(count - 4)]
    need = PersonNeed(
        task="asker",
        message="Which format? " * 12,
        choices="ISO, RFC",
        command=("chargehand", "mission", "answer", "m-1m89w6bpk0mksb", "--task", "asker", "ISO"),
    )
    return Crew(
        mission="m-1m89w6bpk0mksb",
        title="new dates",
        status="running",
        created="2026-01-02T03:00:00+00:00",
        tasks=tuple(tasks),
        needs=(need,),
        cost=CrewCost(usd=0.5),
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 24), (140, 40), (80, 12)])
def test_the_question_and_its_command_are_shown_with_many_tasks(width: int, height: int) -> None:
    rows = [row.text for row in crew_rows(example(30), now=NOW, width=width, height=height, notice="Ctrl-C")]
    text = "\n".join(rows)
    assert "1 of 30 merged, 1 needs you, 1 works, 1 held, 26 wait" in text
    assert shlex.split(text.split("  chargehand")[1].split("\n>")[0])[-1] == "ISO"
    assert rows[2].startswith("! asker needs you: Which format?")
    order = [
        number for number, row in enumerate(rows) for name in ("> parser", "~ printer", "  t0") if name in row
    ]
    assert order == sorted(order)
    assert rows[-1] == "Ctrl-C"
    assert [row for row in rows if row.startswith("  and ")] or height == 40


def test_tasks_are_ordered_by_end_and_show_time_and_cost() -> None:
    crew = example(4)
    tasks = (
        replace(crew.tasks[1], cost=CrewCost(usd=0.25)),
        CrewTask(id="early", standing="merged", ended="2026-01-02T03:00:00+00:00"),
        CrewTask(id="late", standing="done", ended="2026-01-02T03:02:00+00:00"),
        CrewTask(id="back", standing="failed", detail="why"),
    )
    rows = [row.text for row in crew_rows(replace(crew, tasks=tasks, needs=()), now=NOW, width=80, height=24)]
    assert rows[0].endswith("running  4:05  0.5000 USD")
    assert rows[2].split()[-3:] == ["1:00", "0.2500", "USD"]
    assert [row.split()[0] for row in rows[3:6]] == ["x", "late", "early"]
    unknown = replace(crew, cost=CrewCost(usd=0.5, known=False))
    assert "up to 0.5000 USD" in crew_rows(unknown, now=NOW, width=80, height=24)[0].text
