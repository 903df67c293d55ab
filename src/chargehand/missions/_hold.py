"""Holding a mission: at most one worker does, and one that was given up can no longer write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from chargehand.core.errors import RefusedError, StoreError
from chargehand.store.log import EventLog, MissionRow


class Liveness(Protocol):
    """What tells whether a mission is held."""

    def live(self, row: MissionRow, /) -> bool:
        """Tell whether a living worker holds the mission right now."""
        ...


@contextlib.contextmanager
def hold(log: EventLog, mission: str, *, worker: str, look: Liveness) -> Iterator[int]:
    """Hold a mission for the block, as `worker`, and yield the epoch to write under.

    Raises `RefusedError` (`mission_held`) where a living worker holds it, `NotFoundError`.
    """
    row = log.get(mission)
    if look.live(row):
        raise RefusedError(
            f"mission {mission!r} is held by another process",
            code="mission_held",
            hint=f"chargehand mission cancel {mission} stops it",
        )
    epoch = log.claim(mission, owner=worker, epoch=row.epoch)
    try:
        yield epoch
    finally:
        with contextlib.suppress(StoreError):  # a full disk, say: the lock goes with this process all the same
            log.release(mission, epoch=epoch)
