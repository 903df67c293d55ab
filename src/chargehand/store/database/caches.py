"""Verdicts, inspections and flaky tests that later judgements reuse: an unreadable entry is a miss."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta

import msgspec

from chargehand.core.clock import Clock
from chargehand.core.codec import decode_as
from chargehand.core.records import FlakyTest, Verdict
from chargehand.store.database.connection import Database

_AT_ONCE = 500
_KEPT = timedelta(days=30)
_REMEMBERED = timedelta(days=90)


class Verdicts:
    """Verdicts by tree and plan; those of a project that are 30 days old are deleted."""

    def __init__(self, database: Database, *, clock: Clock, holds_artifact: Callable[[str], bool]) -> None:
        self._database = database
        self._clock = clock
        self._holds_artifact = holds_artifact

    def get(self, project: str, tree: str, *, plan_digest: str) -> Verdict | None:
        """Return the verdict of this tree under this plan, or `None` if it, or one of its artifacts, is lost.

        Raises `StoreError`.
        """
        query = "SELECT verdict FROM verdicts WHERE project = ? AND tree = ? AND plan_digest = ?"
        with self._database.read() as connection:
            row = connection.execute(query, (project, tree, plan_digest)).fetchone()
        try:
            verdict = None if row is None else decode_as(row[0], Verdict)
        # A cache: a damaged entry counts as missing, and is judged again and overwritten.
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
            return None
        if verdict is None or verdict.tree != tree:
            return None
        each = (artifact for check in verdict.checks for artifact in (check.artifact, check.ran, check.failed))
        named = {artifact for artifact in each if artifact}
        return verdict if all(map(self._holds_artifact, named)) else None

    def put(self, project: str, verdict: Verdict, *, plan_digest: str) -> None:
        """Store a verdict under its own tree, replacing an earlier one. Raises `StoreError`."""
        now = self._clock.now()
        row = (
            *(project, verdict.tree, plan_digest, msgspec.json.encode(verdict)),
            now.isoformat(timespec="microseconds"),
        )
        old = (now - _KEPT).isoformat(timespec="microseconds")
        with self._database.write() as connection:
            connection.execute("DELETE FROM verdicts WHERE project = ? AND time < ?", (project, old))
            connection.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?)", row)


class FlakyTests:
    """Tests of a project that both passed and failed on a base; each is dropped after 90 days without that."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def names(self, project: str, check: str) -> frozenset[str]:
        """Return the flaky tests of a check; the empty name means the whole check. Raises `StoreError`."""
        since = (self._clock.now() - _REMEMBERED).isoformat(timespec="microseconds")
        query = "SELECT test FROM flaky_tests WHERE project = ? AND check_name = ? AND time >= ?"
        with self._database.read() as connection:
            return frozenset(row[0] for row in connection.execute(query, (project, check, since)))

    def add(self, project: str, tests: Iterable[FlakyTest]) -> None:
        """Store tests, replacing earlier entries about them. Raises `StoreError`."""
        time = self._clock.now().isoformat(timespec="microseconds")
        rows = [(project, each.check, each.test, each.runs, each.failures, time) for each in tests]
        if rows:
            with self._database.write() as connection:
                connection.executemany("INSERT OR REPLACE INTO flaky_tests VALUES (?, ?, ?, ?, ?, ?)", rows)


class Inspections:
    """Results of inspections of changes, by key; their producer checks the entries.

    It may lose any entry at any time, and deletes those of a project that are 30 days old.
    """

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def get(self, project: str, keys: Collection[str]) -> dict[str, bytes]:
        """Return the existing entries. Raises `StoreError`."""
        found: dict[str, bytes] = {}
        waiting = iter(keys)
        with self._database.read() as connection:
            while some := list(itertools.islice(waiting, _AT_ONCE)):
                marks = ", ".join("?" * len(some))
                query = f"SELECT key, entry FROM inspections WHERE project = ? AND key IN ({marks})"
                rows = connection.execute(query, (project, *some))
                found.update((key, entry) for key, entry in rows if isinstance(entry, bytes))
        return found

    def put(self, project: str, entries: Mapping[str, bytes]) -> None:
        """Store entries, replacing earlier ones. Raises `StoreError`."""
        if not entries:
            return
        now = self._clock.now()
        time = now.isoformat(timespec="microseconds")
        old = (now - _KEPT).isoformat(timespec="microseconds")
        rows = [(project, key, entry, time) for key, entry in entries.items()]
        with self._database.write() as connection:
            connection.execute("DELETE FROM inspections WHERE project = ? AND time < ?", (project, old))
            connection.executemany("INSERT OR REPLACE INTO inspections VALUES (?, ?, ?, ?)", rows)
