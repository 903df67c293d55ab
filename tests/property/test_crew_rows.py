"""A crew on a terminal of any size: no row too wide, never too many, and whoever needs a person is told of."""

from __future__ import annotations

import itertools
import re
import shlex
from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from chargehand.app.progress.crew import Crew, CrewCost, CrewStanding, CrewTask, PersonNeed
from chargehand.app.progress.crew_rows import crew_rows, wrap_command

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
def test_it_fits_and_tells_of_everybody_who_needs_a_person(
    crew: Crew, width: int, height: int, notice: str
) -> None:
    rows = crew_rows(crew, now=NOW, width=width, height=height, notice=notice)
    assert len(rows) <= height
    assert all(cell_len(row.text) <= width for row in rows)
    assert not {"\n", "\t", "\x1b"} & {letter for row in rows for letter in row.text}
    marked = [row.text for row in rows if row.text.startswith("!")]
    assert bool(marked) is bool(crew.needs) or width == 1
    if len(marked) < len(crew.needs) and width >= 10:  # each has a row, or the last one counts those without
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
    # Those that work are never hidden behind those that wait.
    if any(each.endswith((" work", " works")) for each in itertools.chain(*counts)):
        assert set(shown) <= {"works"}


@given(st.lists(IDS, min_size=1, max_size=3), st.integers(20, 140))
def test_a_command_is_one_that_a_shell_reads_however_it_is_broken(names: list[str], width: int) -> None:
    words = ("chargehand", "mission", "answer", *names, shlex.quote("ISO 8601, or what"))
    lines = wrap_command(words, width)
    assert all(cell_len(line) <= width for line in lines)
    if lines:
        assert shlex.split("\n".join(lines).replace("\\\n", "")) == [*words[:-1], "ISO 8601, or what"]
    else:  # only where what is quoted has no room
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
def test_the_question_and_its_command_are_there_with_many_tasks(width: int, height: int) -> None:
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


def test_what_ended_last_comes_first_and_time_and_money_have_columns() -> None:
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
