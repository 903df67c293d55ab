"""How often a mission that is followed is looked at, and which of its waits are worth telling."""

from __future__ import annotations

import time

from chargehand.core.records import Reason

# Between two looks at the log of a mission that is followed: queries of a millisecond each.
LOOK_SECONDS = 0.2
# A worker that was just started has taken a mission up by then.
_PATIENCE_SECONDS = 5.0


class Patience:
    """Passes on why something waits once it has waited for a while; asked again at each look."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasting(self, reason: Reason | None) -> Reason | None:
        """Return the reason where there has been one for long enough, `None` otherwise."""
        if reason is None:
            self._since = None
            return None
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return reason if now - self._since >= _PATIENCE_SECONDS else None
