"""The prior of the router: skill and price of arms, learned from outcomes of other kinds of task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean

from msgspec import Struct
from msgspec.structs import replace

from chargehand.decisions.routing.records import ArmPrior, RouterCandidate, RouterPrior, find_family

# Variances of an arm's part over kinds of task, and of its deviation in one kind: measured on published outcomes.
_SKILL = (0.24, 0.09)
_PRICE = (0.69, 0.62)
# The variance of log prices within an arm and a kind.
_SPREAD = 0.77
_ROUNDS = 30
_NORMAL = NormalDist()

Key = tuple[str, str]


class PriorRow(Struct, frozen=True, kw_only=True):
    """One published outcome: the kind of task, agent, model, whether it was solved, its cost in USD if known."""

    kind: str
    agent: str
    model: str
    solved: bool
    cost: float | None = None


class ArmTally(Struct, frozen=True, kw_only=True):
    """The outcomes of one arm in one kind; `log_cost` is the sum of the log costs (USD) of the `priced` ones."""

    kind: str
    agent: str
    model: str
    attempts: int
    good: int
    priced: int
    log_cost: float

    def plus(self, other: ArmTally) -> ArmTally:
        """Return both tallies of the same arm and kind as one."""
        return replace(
            self,
            attempts=self.attempts + other.attempts,
            good=self.good + other.good,
            priced=self.priced + other.priced,
            log_cost=self.log_cost + other.log_cost,
        )


class _Cell(Struct, frozen=True):
    """The measured value of an arm in a kind, with its sampling variance."""

    value: float
    variance: float


class _Effects(Struct, frozen=True):
    """The parts of arms (mean, variance), and the mean level of the kinds."""

    arms: Mapping[Key, _Cell]
    level: float


class PublishedArm(Struct, frozen=True, kw_only=True):
    """The parts of one arm: mean and variance of its skill (probits) and of its log price (USD), if known."""

    agent: str
    model: str
    skill: tuple[float, float]
    log_price: tuple[float, float] | None = None


class PublishedPrior(Struct, frozen=True, kw_only=True):
    """A fitted prior: the mean levels of kinds of task, and the parts of arms."""

    skill: float
    log_price: float
    arms: tuple[PublishedArm, ...]


def prepare(prior_rows: Iterable[PriorRow], candidates: Sequence[RouterCandidate]) -> tuple[RouterCandidate, ...]:
    """Return the candidates with their priors from the rows, for `choose`; without rows they are unchanged.

    An arm without rows gets the mean of the same model with other agents, else half the mean of its family and
    half a regression on the list price.
    """
    rows = list(prior_rows)
    return add_prior(fit_prior(rows), candidates) if rows else tuple(candidates)


def fit_prior(rows: Sequence[PriorRow]) -> PublishedPrior:
    """Return the parts of the arms that explain the outcomes best."""
    tallies = _tally(rows)
    skill, price = _fit(_skills(tallies), _SKILL), _fit(_prices(tallies), _PRICE)
    return PublishedPrior(skill=skill.level, log_price=price.level, arms=_join_arms(skill.arms, price.arms))


def extend_prior(prior: PublishedPrior, tallies: Iterable[ArmTally]) -> PublishedPrior:
    """Return a prior that also knows the arms of further outcomes; the mean levels of kinds stay.

    The part of such an arm is that of the prior, or what the prior predicts of it, moved by its outcomes.
    """
    skill, price = _effects_of(prior)
    joined: dict[tuple[str, Key], ArmTally] = {}
    for each in tallies:
        cell = (each.kind, (each.agent, each.model))
        joined[cell] = joined[cell].plus(each) if cell in joined else each
    keys = {arm for _, arm in joined}
    found = []
    for effects, cells, variances in ((skill, _skills(joined), _SKILL), (price, _prices(joined), _PRICE)):
        begin = {key: effects.arms.get(key) or _predict_part(key, effects, variances) for key in keys}
        found.append({**effects.arms, **_fit(cells, variances, begin).arms})
    return replace(prior, arms=_join_arms(*found))


def _predict_part(key: Key, effects: _Effects, variances: tuple[float, float]) -> _Cell:
    agent, model = key
    part = _part(RouterCandidate(id=model, agent=agent, model=model), effects, variances, (0.0, 0.0))
    return _Cell(part.value, part.variance - variances[1])


def _join_arms(skills: Mapping[Key, _Cell], prices: Mapping[Key, _Cell]) -> tuple[PublishedArm, ...]:
    arms = []
    for (agent, model), cell in skills.items():
        cost = prices.get((agent, model))
        log_price = None if cost is None else (cost.value, cost.variance)
        arms.append(PublishedArm(agent=agent, model=model, skill=(cell.value, cell.variance), log_price=log_price))
    return tuple(arms)


def _effects_of(prior: PublishedPrior) -> tuple[_Effects, _Effects]:
    skill = _Effects({(each.agent, each.model): _Cell(*each.skill) for each in prior.arms}, prior.skill)
    priced = {(each.agent, each.model): _Cell(*each.log_price) for each in prior.arms if each.log_price}
    return skill, _Effects(priced, prior.log_price)


def add_prior(prior: PublishedPrior, candidates: Sequence[RouterCandidate]) -> tuple[RouterCandidate, ...]:
    """Return the candidates with their parts of a fitted prior, as `prepare` does."""
    skill, price = _effects_of(prior)
    level = RouterPrior(skill=skill.level, log_price=price.level)
    known = [each for each in candidates if each.list_price and (each.agent, each.model) in skill.arms]
    lines = [
        _line([(math.log(each.list_price or 1), found.arms[each.agent, each.model].value) for each in known])
        if all((each.agent, each.model) in found.arms for each in known)
        else (0.0, 0.0)
        for found in (skill, price)
    ]
    return tuple(replace(each, level=level, prior=_predict(each, skill, price, lines)) for each in candidates)


def _predict(
    each: RouterCandidate, skill: _Effects, price: _Effects, lines: Sequence[tuple[float, float]]
) -> ArmPrior:
    own = _part(each, skill, _SKILL, lines[0])
    cost = _part(each, price, _PRICE, lines[1])
    return ArmPrior(
        skill=own.value, skill_variance=own.variance, log_price=cost.value, log_price_variance=cost.variance
    )


def _part(
    each: RouterCandidate, effects: _Effects, variances: tuple[float, float], line: tuple[float, float]
) -> _Cell:
    shared, own = variances
    found = effects.arms.get((each.agent, each.model))
    if found is not None:
        return _Cell(found.value, found.variance + own)
    same = [cell for (_, model), cell in effects.arms.items() if model == each.model]
    if same:  # in another harness: a quarter of the variance between arms is added
        return _Cell(fmean(c.value for c in same), fmean(c.variance for c in same) + shared / 4 + own)
    family = [cell.value for (_, model), cell in effects.arms.items() if find_family(model) == each.family]
    value = fmean(family) / 2 if family else 0.0
    if each.list_price:
        value += (line[0] + line[1] * math.log(each.list_price)) / 2
    return _Cell(value, shared + own)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of least squares, zeros with fewer than five points."""
    if len(points) < 5:
        return 0.0, 0.0
    mx, my = fmean(x for x, _ in points), fmean(y for _, y in points)
    wide = math.fsum((x - mx) ** 2 for x, _ in points)
    slope = math.fsum((x - mx) * (y - my) for x, y in points) / wide if wide else 0.0
    return my - slope * mx, slope


def _tally(rows: Iterable[PriorRow]) -> dict[tuple[str, Key], ArmTally]:
    grouped: dict[tuple[str, Key], list[PriorRow]] = {}
    for row in rows:
        grouped.setdefault((row.kind, (row.agent, row.model)), []).append(row)
    found = {}
    for (kind, (agent, model)), own in grouped.items():
        logs = [math.log(row.cost) for row in own if row.cost is not None and row.cost > 0]
        found[kind, (agent, model)] = ArmTally(
            kind=kind,
            agent=agent,
            model=model,
            attempts=len(own),
            good=sum(row.solved for row in own),
            priced=len(logs),
            log_cost=math.fsum(logs),
        )
    return found


def _skills(tallies: Mapping[tuple[str, Key], ArmTally]) -> dict[tuple[str, Key], _Cell]:
    found = {}
    for key, each in tallies.items():
        rate = (each.good + 1) / (each.attempts + 2)
        value = _NORMAL.inv_cdf(rate)
        found[key] = _Cell(value, rate * (1 - rate) / each.attempts / _NORMAL.pdf(value) ** 2)
    return found


def _prices(tallies: Mapping[tuple[str, Key], ArmTally]) -> dict[tuple[str, Key], _Cell]:
    return {
        key: _Cell(each.log_cost / each.priced, _SPREAD / each.priced)
        for key, each in tallies.items()
        if each.priced
    }


def _fit(
    cells: Mapping[tuple[str, Key], _Cell],
    variances: tuple[float, float],
    begin: Mapping[Key, _Cell] | None = None,
) -> _Effects:
    """Fit value = level of the kind + part of the arm by alternating weighted means.

    Arms shrink towards where they `begin`, by default at 0.
    """
    shared, own = variances
    begin = begin or {}
    kinds = sorted({kind for kind, _ in cells})
    arms = sorted({arm for _, arm in cells})
    if not kinds:
        return _Effects({}, 0.0)
    levels = {kind: fmean(cell.value for (k, _), cell in cells.items() if k == kind) for kind in kinds}
    parts: dict[Key, _Cell] = {}
    by_arm = {arm: [(kind, cells[kind, arm]) for kind in kinds if (kind, arm) in cells] for arm in arms}
    for _ in range(_ROUNDS):
        for arm, found in by_arm.items():
            weights = [1 / (own + cell.variance) for _, cell in found]
            start = begin.get(arm, _Cell(0.0, shared))
            total = 1 / start.variance + math.fsum(weights)
            pulled = math.fsum(w * (c.value - levels[k]) for w, (k, c) in zip(weights, found, strict=True))
            parts[arm] = _Cell((start.value / start.variance + pulled) / total, 1 / total)
        for kind in kinds:
            pairs = [
                (1 / (own + c.variance), c.value - parts[a].value) for (k, a), c in cells.items() if k == kind
            ]
            levels[kind] = math.fsum(w * x for w, x in pairs) / math.fsum(w for w, _ in pairs)
    return _Effects(parts, fmean(levels.values()))
