"""Lessons of users and projects, and the missions that each was recalled for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from chargehand.core.clock import Clock
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.store.chain import is_moment
from chargehand.store.database.connection import Database, Transaction

_COLUMNS = "id, project, user, shared, created, mission, content"
_USES = "lesson, mission, shown, green, attempts, cost_usd"
# A lesson is visible to its author, and to all users of its project once it is shared.
_VISIBLE = "content <> x'' AND (shared = 1 OR user = :user)"
_FORGOTTEN = "content = x'' AND (shared = 1 OR user = :user)"


class LessonRow(Struct, frozen=True, kw_only=True):
    """A lesson of `user`, visible to others in its project if `shared`; `created` is ISO 8601 in UTC.

    `mission` is the one it was derived from, "" if a person wrote it.
    """

    id: str
    project: str
    user: str
    shared: bool
    created: str
    mission: str
    content: bytes


class LessonUse(Struct, frozen=True, kw_only=True):
    """A mission that a lesson was recalled for: shown or withheld, and its outcome, `None` while it has none.

    `green` says whether the first attempt passed, `cost_usd` is `None` if unknown.
    """

    lesson: str
    mission: str
    shown: bool
    green: bool | None = None
    attempts: int | None = None
    cost_usd: float | None = None


class Lessons:
    """The lessons of all projects; the content of a forgotten one is erased."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(self, row: LessonRow) -> bool:
        """Store a lesson; return `False` if its id was stored before, even if it was forgotten since.

        `created` is set here. Raises `StoreError`.
        """
        created = self._clock.now().isoformat(timespec="microseconds")
        values = (row.id, row.project, row.user, int(row.shared), created, row.mission, row.content)
        insert = f"INSERT OR IGNORE INTO lessons ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
        with self._database.write() as connection:
            return bool(connection.execute(insert, values).rowcount)

    def problems(self) -> Iterator[str]:
        """Yield rows that no program of ours writes. Raises `StoreError`."""
        with self._database.read() as connection:
            for lesson, content, shared, created in connection.execute(
                "SELECT id, content, shared, created FROM lessons ORDER BY id"
            ):
                is_good = isinstance(content, bytes) and shared in (0, 1) and isinstance(created, str)
                if not is_good or not is_moment(created) or (content and not _is_json(content)):
                    yield f"a row of lessons ({lesson!r}) was changed or damaged"

    def find(self, user: str, id: str, *, forgotten: bool = False) -> LessonRow:
        """Return the only lesson with that beginning of an id that a user may see; with `forgotten`, else a
        forgotten one.

        Raises `NotFoundError`, `UsageError` (`ambiguous`), `StoreError`.
        """
        found: list[LessonRow] = []
        for where in (_VISIBLE, _FORGOTTEN) if forgotten else (_VISIBLE,):
            rows = self._select(where, {"user": user})
            found = found or [row for row in rows if id and row.id.startswith((id, f"l-{id}"))]
        if not found:
            raise NotFoundError(f"there is no lesson {id!r}", hint="`chargehand memory list` shows them")
        if len(found) > 1:
            ids = ", ".join(row.id for row in found)
            raise UsageError(f"{id!r} matches {len(found)} lessons", code="ambiguous", hint=f"one of {ids}")
        return found[0]

    def share(self, id: str) -> None:
        """Make a lesson visible to all users of its project. Raises `StoreError`."""
        with self._database.write(durable=True) as connection:
            connection.execute("UPDATE lessons SET shared = 1 WHERE id = ? AND content <> x''", (id,))

    def forget(self, id: str) -> tuple[tuple[str, ...], bool]:
        """Erase a lesson's content and bookkeeping for good; return the missions that it was shown to.

        Also return whether no bytes of it remain: otherwise another process kept them in use, and the same call
        again removes them. Its id stays, so that a mission that continues does not store it again. Raises
        `StoreError`.
        """
        with self._database.write(durable=True) as connection:
            shown = connection.execute(
                "SELECT mission FROM lesson_uses WHERE lesson = ? AND shown = 1 ORDER BY mission", (id,)
            ).fetchall()
            connection.execute("DELETE FROM lesson_uses WHERE lesson = ?", (id,))
            connection.execute("UPDATE lessons SET content = x'' WHERE id = ?", (id,))
        return tuple(str(mission) for (mission,) in shown), self._database.truncate_log()

    def assign(
        self, mission: str, lessons: Iterable[str], choose: Callable[[str, Sequence[LessonUse]], bool]
    ) -> tuple[LessonUse, ...]:
        """Record the lessons recalled for a mission, once; return those recorded.

        `choose` gets a lesson with its earlier uses and returns whether it is shown. It is called inside the
        transaction: missions that start at once would otherwise count the same uses. Raises `StoreError`.
        """
        insert = "INSERT INTO lesson_uses (lesson, mission, shown) VALUES (?, ?, ?)"
        query = f"SELECT {_USES} FROM lesson_uses WHERE mission = ? ORDER BY rowid"
        with self._database.write() as connection:
            # A worker that died right after this had other lessons in mind than its successor may find.
            if not connection.execute(query, (mission,)).fetchall():
                for lesson in lessons:
                    shown = choose(lesson, _uses_of(connection, lesson))
                    connection.execute(insert, (lesson, mission, int(shown)))
            rows = connection.execute(query, (mission,)).fetchall()
        return tuple(map(_read_use, rows))

    def close_mission(self, mission: str, *, green: bool, attempts: int, cost_usd: float | None) -> int:
        """Book the outcome of a mission on its lessons, once; return how many. Raises `StoreError`."""
        update = "UPDATE lesson_uses SET green = ?, attempts = ?, cost_usd = ? WHERE mission = ? AND green IS NULL"
        with self._database.write() as connection:
            return int(connection.execute(update, (int(green), attempts, cost_usd, mission)).rowcount)

    def uses(self, lessons: Iterable[str]) -> dict[str, list[LessonUse]]:
        """Return the uses of lessons by id. Raises `StoreError`."""
        with self._database.read() as connection:
            return {lesson: _uses_of(connection, lesson) for lesson in lessons}

    def list(self, user: str, *, project: str | None = None, newest: int = -1) -> tuple[LessonRow, ...]:
        """Return the lessons that a user may see, oldest first, of one project or all; by default without limit.

        Raises `StoreError`.
        """
        # One condition for both cases would keep SQLite from using the index.
        where = _VISIBLE if project is None else f"project = :project AND {_VISIBLE}"
        return self._select(where, {"user": user, "project": project, "newest": newest})

    def _select(self, where: str, values: Mapping[str, object]) -> tuple[LessonRow, ...]:
        query = f"SELECT {_COLUMNS} FROM lessons WHERE {where} ORDER BY created DESC, id DESC LIMIT :newest"
        with self._database.read() as connection:
            rows = connection.execute(query, {"newest": -1, **values}).fetchall()
        return tuple(map(_read_row, reversed(rows)))


def _uses_of(connection: Transaction, lesson: str) -> list[LessonUse]:
    query = f"SELECT {_USES} FROM lesson_uses WHERE lesson = ? ORDER BY rowid"
    return [_read_use(row) for row in connection.execute(query, (lesson,))]


def _is_json(content: bytes) -> bool:
    try:
        msgspec.json.decode(content)
    except msgspec.DecodeError:
        return False
    return True


def _read_row(row: Sequence[Any]) -> LessonRow:
    lesson, project, user, shared, created, mission, content = row
    # A damaged file can hold values of any type.
    return LessonRow(
        id=str(lesson),
        project=str(project),
        user=str(user),
        shared=shared == 1,
        created=str(created),
        mission=str(mission),
        content=content if isinstance(content, bytes) else b"",
    )


def _read_use(row: Sequence[Any]) -> LessonUse:
    lesson, mission, shown, green, attempts, cost = row
    return LessonUse(
        lesson=str(lesson),
        mission=str(mission),
        shown=shown == 1,
        green=None if green is None else green == 1,
        attempts=attempts if isinstance(attempts, int) else None,
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
    )
