"""Lists of missions from their projected rows; what did not change since the last list is not read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from chargehand.core.state import MissionSummary
from chargehand.store.database import summaries
from chargehand.store.database.connection import Database
from chargehand.store.rows import (
    MOST_KNOWN,
    IsLive,
    KnownListing,
    MissionListing,
    OwnerLiveness,
    read_listing,
    select_listings,
)

# Lists that are kept whole, each with what one server's pages ask for again and again.
_MOST_LISTS = 8
_OWNERS = "SELECT DISTINCT owner FROM missions WHERE owner IS NOT NULL"


class _KeptList(Struct, frozen=True, kw_only=True):
    """A list as of one version of the database (none where it was asked for once), and who was alive then."""

    version: int | None
    alive: Mapping[str, bool]
    listings: tuple[MissionListing, ...]


class Listings:
    """Lists missions; safe between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[object, KnownListing] = {}
        self._kept: dict[object, _KeptList] = {}

    def refresh(self) -> bool:
        """Make stale rows anew; tell whether some are left, as where this program may not write."""
        with self._database.read() as connection:
            stale = summaries.stale(connection)
        if stale and not self._database.read_only:
            with self._database.write() as connection:
                summaries.refresh(connection)
            return False
        return bool(stale)

    def select(
        self,
        is_live: IsLive | None,
        where: str,
        values: dict[str, Any],
        *,
        fits: Callable[[MissionSummary], bool] | None = None,
        limit: int | None = None,
        measures: bool = False,
    ) -> tuple[MissionListing, ...]:
        """Return the missions for which a condition holds with these values, and that fit, at most `limit`.

        `fits` depends on nothing but the condition and its values. Raises `StoreError`.
        """
        key = (where, tuple(sorted(values.items())), limit, measures)
        kept, alive = self._kept.pop(key, None), OwnerLiveness(is_live)
        # Before anything is read: a list is of this version or of a later one, and then it is read once more.
        version = None if kept is None else self._database.version()
        if kept is None or version is None or version != kept.version or alive.of(kept.alive) != kept.alive:
            kept = self._read(key, version, alive, fits)
        if len(kept.listings) <= MOST_KNOWN:
            self._kept[key] = kept
        while len(self._kept) > _MOST_LISTS:
            self._kept.pop(next(iter(self._kept)), None)
        return kept.listings

    def _read(
        self, key: Any, version: int | None, alive: OwnerLiveness, fits: Callable[[MissionSummary], bool] | None
    ) -> _KeptList:
        where, values, limit, measures = key
        self.refresh()
        query = f"{select_listings(measures=measures)} WHERE {where}"
        while True:
            # Holders are looked at before the snapshot: one that ends in between has left all its lines in it. Who
            # holds a mission only since then was not looked at: then all is read once more.
            with self._database.read() as connection:
                owners = [owner for (owner,) in connection.execute(_OWNERS)]
                if not alive.learn(owners):
                    rows = connection.execute(query, dict(values) | {"form": summaries.FORM})
                    made = (read_listing(connection, row, alive=alive, known=self._known) for row in rows)
                    fitting = (each for each in made if fits is None or fits(each.summary))
                    found = tuple(islice(fitting, limit))
                    return _KeptList(version=version, alive=alive.of(owners), listings=found)
            alive.ask()
