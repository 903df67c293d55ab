"""The life of a mission or task as a Markov chain over its statuses."""

from __future__ import annotations

from collections.abc import Mapping

from chargehand.core.records import MissionStatus
from chargehand.decisions.processes.markov import HoldingTime as HoldingTime
from chargehand.decisions.processes.markov import ReachingForecast, StateChain, forecast_reaching, learn_chain

_ENDS = ("promoted", "refused", "failed", "exhausted", "cancelled", "discarded")
# The statuses that can follow each status of a mission that has not ended.
_SUCCESSORS: Mapping[str, tuple[str, ...]] = {
    "planned": ("running", "paused", "waiting", "failed", "cancelled"),
    "running": ("waiting", "paused", *_ENDS),
    "waiting": ("running", "paused", *_ENDS),
    "paused": ("running", "waiting", "cancelled", "discarded"),
}


def learn_mission_chain(
    counts: Mapping[tuple[MissionStatus, MissionStatus], float],
    holding: Mapping[MissionStatus, HoldingTime] | None = None,
) -> StateChain:
    """Return the chain of counted changes of status, with the times spent in each. Raises `UsageError`."""
    return learn_chain(
        _SUCCESSORS,
        {(str(old), str(new)): count for (old, new), count in counts.items()},
        holding={str(status): time for status, time in (holding or {}).items()},
    )


def forecast_person(chain: StateChain, status: MissionStatus) -> ReachingForecast:
    """Return whether and when a mission in a status next waits for a person."""
    return forecast_reaching(chain, ("waiting",))[status]


def forecast_end(chain: StateChain, status: MissionStatus) -> ReachingForecast:
    """Return when a mission in a status ends, in whatever way."""
    return forecast_reaching(chain, _ENDS)[status]
