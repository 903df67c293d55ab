"""Compares the chances of recorded choices and forecasts with outcomes, and computes forecasts again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from msgspec import Struct

from chargehand.configuration.extras import has_extra
from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.events import Event, read_payload
from chargehand.core.mission_events import AgentSelected, ForecastMade, MissionCreated
from chargehand.core.records import Band, ChoiceReason
from chargehand.core.truth import LATER_WORDS, TRUTH_TYPES, MissionTruth
from chargehand.decisions.explanation import check_forecast, read_chance
from chargehand.reports.documents import Document
from chargehand.reports.outcomes import judge_attempt
from chargehand.reports.reading import StateReader
from chargehand.store.rows import MissionFilter, MissionListing

_BINS = 10
# The standard normal quantile of an 80 % interval.
_QUANTILE = 1.2815515655446004
_TYPES = (MissionCreated.type, AgentSelected.type, AttemptStarted.type, ForecastMade.type, *sorted(TRUTH_TYPES))
# A mission that ended so has used up its attempts, money or time.
_FAILED = ("refused", "failed", "exhausted")


class ReliabilityBin(Struct, frozen=True, kw_only=True):
    """The predictions from `low` to `high`: their number, how many came true, mean chance and observed rate.

    The rate has an 80 % interval (Wilson) from `rate_low` to `rate_high`.
    """

    low: float
    high: float
    count: int
    good: int
    predicted: float
    rate: float
    rate_low: float
    rate_high: float


class Reliability(Struct, frozen=True, kw_only=True):
    """Predicted chances against what happened, in tenths of the chance; empty tenths are left out.

    `brier` is the mean squared error of the chances, `rate_brier` that of the plain rate of all; `None` without a
    prediction whose outcome is known. `open` counts those without one.
    """

    bins: tuple[ReliabilityBin, ...]
    count: int
    open: int
    brier: float | None
    rate_brier: float | None


class ReliabilityDocument(Document, frozen=True):
    """The reliability of learned choices and of forecasts in the newest missions.

    `learns` says whether decisions are learned now, `installed` whether the optional part for that is there.
    """

    missions: int
    learns: bool
    installed: bool
    choices: Reliability
    forecasts: Reliability


class RecordedForecast(Struct, frozen=True, kw_only=True):
    """A forecast as it was recorded after so many attempts (of a plan: ended tasks), and what happened.

    `tasks` counts the unfinished tasks of a plan, 0 for a mission without one. `is_good` says whether an attempt
    passed after it, or all tasks of the plan got done; `None` while that is open. `cost_usd` and `seconds` have
    the forecast bands of the mission's totals, `spent_usd` and `used_seconds` the totals of its attempts so far
    (of a plan: of the missions of its tasks, and no time). `seed` is `None` for forecasts of earlier versions.
    `reproduced` says whether seed and recorded beliefs give it again; `None`: it has none, they are of another
    version, or an optional part is not installed.
    """

    mission: str
    time: str
    after: int
    chance: float
    cost_usd: Band | None
    seconds: Band | None
    outcomes: int
    is_guess: bool
    seed: int | None
    samples: int
    reproduced: bool | None
    is_good: bool | None
    spent_usd: float | None
    used_seconds: float | None
    tasks: int = 0


class ForecastList(Document, frozen=True):
    """Forecasts of the newest missions, the newest first; the rest is as in `ReliabilityDocument`."""

    learns: bool
    installed: bool
    forecasts: tuple[RecordedForecast, ...]


class _Prediction(Struct, frozen=True):
    chance: float
    is_good: bool | None


def measure_reliability(reader: StateReader, *, limit: int) -> ReliabilityDocument:
    """Return the reliability of predictions in the newest `limit` missions.

    Raises `StoreError`, `ConfigError`.
    """
    choices, forecasts = list[_Prediction](), list[_Prediction]()
    listings = reader.store.log.summaries(wanted=MissionFilter(limit=limit))
    for listing in listings:
        lines = [*reader.store.log.read(listing.row.id, types=_TYPES)]
        choices += _read_choices(listing, lines)
        forecasts += [
            _Prediction(made.forecast.chance, _judge_forecast(listing, made)) for _, made in _read_forecasts(lines)
        ]
    return ReliabilityDocument(
        missions=len(listings),
        learns=reader.user_configuration().config.decisions.learned,
        installed=has_extra("decisions"),
        choices=_measure(choices),
        forecasts=_measure(forecasts),
    )


def list_forecasts(reader: StateReader, *, limit: int) -> ForecastList:
    """Return the recorded forecasts of the newest `limit` missions. Raises `StoreError`, `ConfigError`."""
    listings = reader.store.log.summaries(wanted=MissionFilter(limit=limit))
    return ForecastList(
        learns=reader.user_configuration().config.decisions.learned,
        installed=has_extra("decisions"),
        forecasts=tuple(each for listing in reversed(listings) for each in _list(reader, listing)),
    )


def _list(reader: StateReader, listing: MissionListing) -> Iterator[RecordedForecast]:
    lines = reader.store.log.read(listing.row.id, types=(ForecastMade.type,))
    attempts = [each for each in listing.summary.attempts if not each.copied]
    costs = [each.cost_so_far for each in attempts]
    known = [cost for cost in costs if cost is not None]
    spent, plan = sum(known) if len(known) == len(costs) else None, listing.summary.tasks
    for time, made in reversed([*_read_forecasts(lines)]):
        forecast = made.forecast
        yield RecordedForecast(
            mission=listing.row.id,
            time=time,
            after=made.after,
            chance=forecast.chance,
            cost_usd=forecast.cost_usd,
            seconds=forecast.seconds,
            outcomes=forecast.outcomes,
            is_guess=forecast.is_guess,
            seed=forecast.seed,
            samples=forecast.samples,
            reproduced=check_forecast(forecast),
            is_good=_judge_forecast(listing, made),
            spent_usd=spent if plan is None else plan.cost_usd,
            used_seconds=sum(each.seconds or 0.0 for each in attempts) if plan is None else None,
            tasks=forecast.tasks,
        )


def _read_forecasts(lines: Iterable[Event]) -> Iterator[tuple[str, ForecastMade]]:
    for line in lines:
        if isinstance(payload := read_payload(line), ForecastMade):
            yield line.time, payload


def _judge_forecast(listing: MissionListing, made: ForecastMade) -> bool | None:
    """Return whether a later attempt passed, or all tasks got done; `None` while that is open."""
    tally = listing.summary.tasks
    if tally is not None:
        if tally.left_out or tally.failed:
            return False
        if tally.total and tally.ended >= tally.total:
            return True
        return False if listing.summary.status in _FAILED else None
    later = [each for each in listing.summary.attempts if each.number > made.after and not each.copied]
    if any(judge_attempt(each) for each in later):
        return True
    return False if listing.summary.status in _FAILED else None


def _read_choices(listing: MissionListing, lines: Sequence[Event]) -> Iterator[_Prediction]:
    """Yield the chance of each learned choice with the end of the attempt that followed; later words count."""
    seen: tuple[ChoiceReason, ...] = ()
    chance, chances = None, dict[str, float]()
    for line in lines:
        match read_payload(line):
            case MissionCreated(chosen=reasons) | AgentSelected(reasons=reasons) if reasons and reasons != seen:
                seen, chance = reasons, read_chance(reasons)
            case AttemptStarted(attempt=attempt) if chance is not None:
                chances[attempt], chance = chance, None  # a further attempt by the same choice has another chance
            case _:
                pass
    truth = MissionTruth.of(line for line in lines if line.type in TRUTH_TYPES)
    spoken = any(line.type in LATER_WORDS for line in lines)
    for each in listing.summary.attempts:
        if not each.copied and each.id in chances:
            word = truth.find_word(each.id) if spoken and each.ended_well else None
            yield _Prediction(chances[each.id], judge_attempt(each) if word is None else word)


def _measure(made: Sequence[_Prediction]) -> Reliability:
    known = [(each.chance, each.is_good) for each in made if each.is_good is not None]
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(_BINS)]
    for each in known:
        bins[min(int(each[0] * _BINS), _BINS - 1)].append(each)
    rate = fmean(good for _, good in known) if known else 0.0
    return Reliability(
        bins=tuple(_read_bin(place, some) for place, some in enumerate(bins) if some),
        count=len(known),
        open=len(made) - len(known),
        brier=fmean((chance - good) ** 2 for chance, good in known) if known else None,
        rate_brier=rate * (1 - rate) if known else None,
    )


def _read_bin(place: int, some: Sequence[tuple[float, bool]]) -> ReliabilityBin:
    count, good, square = len(some), sum(good for _, good in some), _QUANTILE**2
    rate = good / count
    middle = (rate + square / (2 * count)) / (1 + square / count)
    half = _QUANTILE / (1 + square / count) * math.sqrt(rate * (1 - rate) / count + square / (4 * count * count))
    return ReliabilityBin(
        low=place / _BINS,
        high=(place + 1) / _BINS,
        count=count,
        good=good,
        predicted=fmean(chance for chance, _ in some),
        rate=rate,
        rate_low=max(0.0, middle - half),
        rate_high=min(1.0, middle + half),
    )
