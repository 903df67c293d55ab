"""What inspection read of changes, by key: a cache whose entries are checked by whoever made them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from datetime import timedelta

import sqlalchemy as sa

from chargehand.core.clock import Clock
from chargehand.store._database import Database
from chargehand.store._schema import inspections

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
