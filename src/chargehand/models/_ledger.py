"""Money kept in memory: for a gateway that belongs to no mission, and for tests."""

from __future__ import annotations

import threading

from chargehand.core.errors import ExhaustedError
from chargehand.core.ports import Spent

_ALERT = 0.8
_TOLERANCE = 1e-9


class MemoryLedger:
    """One limit in USD (`None`: no limit) over all calls of one gateway; safe between threads."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._booked: dict[str, float] = {}
        self._alerted = False

    @property
    def booked(self) -> float:
        """What counts as spent, in USD: costs, and reserves that are not settled."""
        with self._lock:
            return sum(self._booked.values())

    def left(self) -> float | None:
        """Return what may still be reserved."""
        return None if self._limit is None else max(0.0, self._limit - self.booked)

    def reserve(self, call: str, usd: float) -> tuple[Spent, ...]:
        """Reserve for a call; raises `ExhaustedError` (`budget`) where that is more than what is left."""
        with self._lock:
            spent = sum(self._booked.values())
            if self._limit is not None and spent + usd > self._limit + _TOLERANCE:
                raise ExhaustedError(
                    f"the attempt's limit of {self._limit:g} USD does not cover this call: {spent:.6f} USD are "
                    f"spent or reserved, and it could cost {usd:.6f} USD",
                    code="budget",
                    hint="raise the limit, or send less",
                )
            self._booked[call] = usd
            return self._alert(spent + usd)

    def secure(self) -> None:
        """Do nothing: there is no disk to wait for."""

    def settle(self, call: str, usd: float | None) -> None:
        """Book what a call cost; `None` leaves its reserve booked."""
        if usd is not None:
            with self._lock:
                self._booked[call] = usd

    def _alert(self, spent: float) -> tuple[Spent, ...]:
        if self._limit is None or self._alerted or spent < _ALERT * self._limit:
            return ()
        self._alerted = True
        return (Spent(limit="attempt", limit_usd=self._limit, spent_usd=spent),)
