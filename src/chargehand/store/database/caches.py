"""Verdicts and inspections kept so that the same tree is not judged twice."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from datetime import timedelta

import msgspec
import sqlalchemy as sa

from chargehand.core.clock import Clock
from chargehand.core.codec import decode_as
from chargehand.core.records import Verdict
from chargehand.store.database.connection import Database
from chargehand.store.database.schema import inspections, verdicts


class Verdicts:
    """A cache: what cannot be read is a miss, never an error."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def get(self, project: str, tree: str, *, plan_digest: str) -> Verdict | None:
        """Return the verdict of this tree under this plan; `None` where there is none. Raises `StoreError`."""
        query = sa.select(verdicts.c.verdict).where(_is(project, tree, plan_digest))
        with self._database.read() as connection:
            kept = connection.execute(query).scalar_one_or_none()
        verdict = None if kept is None else _decoded(kept)
        return verdict if verdict is not None and verdict.tree == tree else None

    def put(self, project: str, verdict: Verdict, *, plan_digest: str) -> None:
        """Keep a verdict under its own tree, in place of an earlier one. Raises `StoreError`."""
        row = {
            "project": project,
            "tree": verdict.tree,
            "plan_digest": plan_digest,
            "verdict": msgspec.json.encode(verdict),
            "time": self._clock.now().isoformat(timespec="microseconds"),
        }
        with self._database.write() as connection:
            connection.execute(sa.delete(verdicts).where(_is(project, verdict.tree, plan_digest)))
            connection.execute(sa.insert(verdicts), row)


def _is(project: str, tree: str, plan_digest: str) -> sa.ColumnElement[bool]:
    return (verdicts.c.project == project) & (verdicts.c.tree == tree) & (verdicts.c.plan_digest == plan_digest)


def _decoded(kept: bytes) -> Verdict | None:
    try:
        return decode_as(kept, Verdict)
    except msgspec.MsgspecError:
        return None


_AT_ONCE = 500
_KEPT = timedelta(days=30)


class Inspections:
    """A cache: it may lose any entry at any time, and forgets those of a project that are 30 days old."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def get(self, project: str, keys: Collection[str]) -> dict[str, bytes]:
        """Return the entries that are there. Raises `StoreError`."""
        found: dict[str, bytes] = {}
        waiting = iter(keys)
        with self._database.read() as connection:
            while some := list(itertools.islice(waiting, _AT_ONCE)):
                query = sa.select(inspections.c.key, inspections.c.entry).where(
                    inspections.c.project == project, inspections.c.key.in_(some)
                )
                rows = connection.execute(query)
                found.update((key, bytes(entry)) for key, entry in rows if isinstance(entry, bytes | memoryview))
        return found

    def put(self, project: str, entries: Mapping[str, bytes]) -> None:
        """Keep entries, in place of earlier ones. Raises `StoreError`."""
        if not entries:
            return
        now = self._clock.now()
        time = now.isoformat(timespec="microseconds")
        rows = [{"project": project, "key": key, "entry": entry, "time": time} for key, entry in entries.items()]
        old = (now - _KEPT).isoformat(timespec="microseconds")
        mine = inspections.c.project == project
        with self._database.write() as connection:
            connection.execute(sa.delete(inspections).where(mine, inspections.c.time < old))
            same = sa.delete(inspections).where(mine, inspections.c.key == sa.bindparam("known"))
            connection.execute(same, [{"known": key} for key in entries])
            connection.execute(sa.insert(inspections), rows)
