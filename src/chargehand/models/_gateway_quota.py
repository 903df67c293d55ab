"""A call that nobody answers for want of quota: refused until the first of them has it again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from chargehand.models._contract import QuotaRest, ServedModel
from chargehand.models._gateway_bill import Desk
from chargehand.models._gateway_fault import GatewayFault
from chargehand.models._gateway_retry import LONGEST_SECONDS
from chargehand.models._health import Standing


class Asked(Protocol):
    """A model that was, or would be, asked."""

    @property
    def served(self) -> ServedModel:
        """The model."""
        ...

    @property
    def standing(self) -> Standing | None:
        """How its provider does, where that is known."""
        ...


def no_quota(asked: Sequence[Asked]) -> bool:
    """Tell whether any of these rests, by its provider's own word, for longer than a client waits."""
    return any(one.standing is not None and one.standing.resting > LONGEST_SECONDS for one in asked)


def quota_fault(desk: Desk, asked: Sequence[Asked]) -> GatewayFault:
    """Return the refusal of a call that none of these answers, and tell the desk of it.

    What their providers asked for counts, not how long we leave one alone that failed: that one may be down for
    good, and would be asked again and again.
    """
    waits = [(one.standing.resting, one.served) for one in asked if one.standing is not None]
    wait, served = min((found for found in waits if found[0] > 0), key=lambda found: found[0])
    until = desk.clock.now() + timedelta(seconds=wait)
    desk.on_quota(QuotaRest(model=asked[0].served.name, provider=served.provider, until=until))
    return GatewayFault(
        "quota_exhausted",
        f"model {served.name!r} has no quota left for {wait:.0f} s: its provider ({served.provider}) says so",
        wait=wait,
    )
