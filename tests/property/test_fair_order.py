"""The order in which workers take missions: projects, and the missions in them, share the workers fairly."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chargehand.app.worker import fair_order
from chargehand.store.rows import MissionRow

Waiting = tuple[str, str, int]
# Of each mission: its project, who asked for it, and one of a few coordinators (0: no coordinator).
MISSIONS = st.lists(
    st.tuples(st.sampled_from("pqr"), st.sampled_from(["ann", "bob"]), st.integers(0, 3)), max_size=40
)


def rows(missions: list[Waiting], prefix: str) -> list[MissionRow]:
    return [
        MissionRow(
            id=f"{prefix}{number}",
            project=project,
            created=f"2026-11-25T00:00:{number:02}",
            last_seq=1,
            last_hash="",
            parent=f"{project}-{user}-plan-{plan}" if plan else None,
            user=user,
        )
        for number, (project, user, plan) in enumerate(missions)
    ]


def family(row: MissionRow) -> tuple[str, str, str]:
    return row.project, row.user, row.parent or row.id


@given(waiting=MISSIONS, working=MISSIONS)
def test_the_order_always_prefers_the_least_served(waiting: list[Waiting], working: list[Waiting]) -> None:
    free, running = rows(waiting, "w"), rows(working, "r")
    order = fair_order(free, running)
    assert sorted(row.id for row in order) == sorted(row.id for row in free)
    taken: Counter[tuple[str, ...]] = Counter()
    for row in running:
        taken.update(family(row)[:depth] for depth in (1, 2, 3))
    for number, chosen in enumerate(order):
        rivals = order[number:]
        for depth in (1, 2, 3):  # the project, who asked in it, the mission with its tasks
            least = min(taken[family(row)[:depth]] for row in rivals)
            assert taken[family(chosen)[:depth]] == least
            rivals = [row for row in rivals if taken[family(row)[:depth]] == least]
        # Of those that have as little, the oldest comes first.
        assert chosen.created == min(row.created for row in rivals if _is_next(row, rivals))
        taken.update(family(chosen)[:depth] for depth in (1, 2, 3))


def _is_next(row: MissionRow, rows: list[MissionRow]) -> bool:
    return row.created == min(other.created for other in rows if family(other) == family(row))


def test_a_plan_of_many_tasks_keeps_no_other_mission_waiting() -> None:
    plan = [("p", "ann", 1)] * 30
    order = fair_order(rows([*plan, ("p", "ann", 0), ("q", "ann", 0)], "m"), [])
    assert [row.id for row in order[:3]] == ["m0", "m31", "m30"]


def test_a_user_with_many_missions_does_not_delay_others() -> None:
    many = [("p", "ann", 0)] * 30
    order = fair_order(rows([*many, ("p", "bob", 0), ("p", "bob", 0)], "m"), rows([("p", "ann", 0)], "r"))
    assert [row.id for row in order[:4]] == ["m30", "m0", "m31", "m1"]
