"""The networks that ship with the product."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from chargehand.core.errors import NotFoundError, nearest
from chargehand.decisions.beliefs.formats import read_network
from chargehand.decisions.beliefs.network import BeliefNetwork

FAILURE_CAUSE, PROMOTION_RISK = "failure-cause", "promotion-risk"
SHIPPED = (FAILURE_CAUSE, PROMOTION_RISK)


@cache
def shipped_network(name: str) -> BeliefNetwork:
    """Return a network of `SHIPPED`. Raises `NotFoundError`."""
    if name not in SHIPPED:
        raise NotFoundError(f"no network {name!r} is shipped", hint=nearest(name, SHIPPED))
    return read_network((files("chargehand.decisions.beliefs.shipped") / f"{name}.ndjson").read_bytes())
