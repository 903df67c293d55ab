"""The order in which workers take missions: projects and the missions in them share what there is."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chargehand.app.worker import fair_order
from chargehand.store.rows import MissionRow

# Of each mission: its project, and which of a few coordinators it belongs to (0: to none).
MISSIONS = st.lists(st.tuples(st.sampled_from("pqr"), st.integers(0, 3)), max_size=40)


def rows(missions: list[tuple[str, int]], prefix: str) -> list[MissionRow]:
    return [
        MissionRow(
            id=f"{prefix}{number}",
            project=project,
            created=f"2026-11-25T00:00:{number:02}",
            last_seq=1,
            last_hash="",
            parent=f"{project}-plan-{plan}" if plan else None,
        )
        for number, (project, plan) in enumerate(missions)
    ]


def family(row: MissionRow) -> tuple[str, str]:
    return row.project, row.parent or row.id


@given(waiting=MISSIONS, working=MISSIONS)
def test_nobody_gets_more_while_another_has_less_and_waits(
    waiting: list[tuple[str, int]], working: list[tuple[str, int]]
) -> None:
    free, running = rows(waiting, "w"), rows(working, "r")
    order = fair_order(free, running)
    assert sorted(row.id for row in order) == sorted(row.id for row in free)
    projects, families = Counter(row.project for row in running), Counter(map(family, running))
    for number, taken in enumerate(order):
        left = order[number:]
        assert projects[taken.project] == min(projects[row.project] for row in left)
        rivals = [row for row in left if row.project == taken.project]
        least = min(families[family(row)] for row in rivals)
        assert families[family(taken)] == least
        # Of those that have as little, the oldest.
        alike = [row.created for row in rivals if families[family(row)] == least and _is_next(row, rivals)]
        assert taken.created == min(alike)
        projects[taken.project] += 1
        families[family(taken)] += 1


def _is_next(row: MissionRow, rows: list[MissionRow]) -> bool:
    return row.created == min(other.created for other in rows if family(other) == family(row))


def test_a_plan_of_many_tasks_keeps_no_other_mission_waiting() -> None:
    plan = [("p", 1)] * 30
    order = fair_order(rows([*plan, ("p", 0), ("q", 0)], "m"), [])
    assert [row.id for row in order[:3]] == ["m0", "m31", "m30"]
