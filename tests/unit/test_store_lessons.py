"""Stored lessons: what a mission reads of them, and what stays of an erased one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chargehand.core.clock import SystemClock
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.database.connection import Database
from chargehand.store.lessons import LessonRow
from chargehand.store.store import Store, open_store

REMARK = b"a very special remark"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store that waits for no other process."""
    open_store(tmp_path / "s").close()
    with Store(Database(tmp_path / "s", read_only=False, busy_seconds=0), clock=SystemClock()) as store:
        yield store


def add(store: Store, name: str, *, project: str = "p", user: str = "u", shared: bool = False) -> None:
    row = LessonRow(
        id=name, project=project, user=user, shared=shared, created="", mission="", content=b'"' + REMARK + b'"'
    )
    assert store.lessons.add(row)


def bytes_left(store: Store) -> bool:
    return any(REMARK in path.read_bytes() for path in store.home.glob("store.db*"))


def test_a_lesson_is_erased_once_no_process_reads_its_bytes(store: Store) -> None:
    add(store, "l-1")
    with open_store(store.home) as other, other.database.read() as reading:
        reading.execute("SELECT count(*) FROM lessons").fetchone()
        assert store.lessons.forget("l-1") == ((), False)
        assert bytes_left(store)
    with pytest.raises(NotFoundError):
        store.lessons.find("u", "l-1")
    # The way out is the same call again.
    assert store.lessons.forget(store.lessons.find("u", "l-1", forgotten=True).id) == ((), True)
    assert not bytes_left(store)


def test_an_erased_line_says_that_its_bytes_remain(store: Store) -> None:
    secret = StepFinished(step="s", input="i", output="the-secret-word", seconds=1.5)
    request = MissionRequest(text="x", agent="a", command=(), slug="x")
    store.log.append("m-1", MissionCreated(project="p", repository="/r", request=request), secret)
    with open_store(store.home) as other, other.database.read() as reading:
        reading.execute("SELECT count(*) FROM events").fetchone()
        with pytest.raises(StoreError) as caught:
            store.erase_payload("m-1", 2, reason="asked")
    assert (caught.value.code, "may remain" in caught.value.message) == ("store_busy", True)
    store.erase_payload("m-1", 2, reason="asked")


def test_a_forgotten_lesson_is_found_by_those_who_saw_it(store: Store) -> None:
    for name, shared in (("l-11", True), ("l-12", False)):
        add(store, name, shared=shared)
        store.lessons.forget(name)
    assert store.lessons.find("other", "l-1", forgotten=True).id == "l-11"
    add(store, "l-13")
    # A lesson that still exists comes first.
    assert store.lessons.find("u", "l-1", forgotten=True).id == "l-13"


def test_a_mission_reads_the_newest_lessons_of_its_project_by_the_index(store: Store) -> None:
    for number in range(6):
        add(store, f"l-{number}", project="p" if number % 2 else "q")
    said: list[str] = []
    with store.database.read() as connection:
        connection.set_trace_callback(said.append)
    assert [row.id for row in store.lessons.list("u", project="p", newest=2)] == ["l-3", "l-5"]
    assert [row.id for row in store.lessons.list("u", project="p")] == ["l-1", "l-3", "l-5"]
    (query, _) = (each for each in said if each.startswith("SELECT"))
    with store.database.read() as connection:
        plan = [str(row[-1]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert plan[0] == "SEARCH lessons USING INDEX lessons_by_project (project=?)"
