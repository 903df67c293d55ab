"""Limits on resources that clients hold while they are served: per account, and in total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Lock

from chargehand.core.errors import BusyError

_RETRY_SECONDS = 5


class Places:
    """Counts open resources by account; refuses more than `per_account` of one and `total` of all."""

    def __init__(self, what: str, *, per_account: int, total: int) -> None:
        self._what = what
        self._per_account = per_account
        self._total = total
        self._held: Counter[str] = Counter()
        self._lock = Lock()

    def take(self, account: str) -> Callable[[], None]:
        """Take a place and return the function that gives it back, once. Raises `BusyError`."""
        with self._lock:
            own, held = self._held[account], self._held.total()
            if own >= self._per_account or held >= self._total:
                whose = f"{own} of this account" if own >= self._per_account else f"{held}"
                raise BusyError(
                    f"too many {self._what} are open: {whose}",
                    retry_seconds=_RETRY_SECONDS,
                    hint=f"close some, or try again in {_RETRY_SECONDS} s",
                )
            self._held[account] += 1
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            with self._lock:
                if is_held:
                    is_held = False
                    self._held[account] -= 1
                    # Accounts that hold nothing take no memory.
                    self._held += Counter()

        return give_back
