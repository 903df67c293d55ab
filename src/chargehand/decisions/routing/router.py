"""The router: chooses the arm to try next, or to stop; forecasts the cost of the next tasks.

`choose`, `prepare` and `forecast` are the functions for use without the product, such as in a comparison of
policies. All are pure: equal arguments give equal results.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chargehand.decisions.routing.conclusion import DrawnArm, conclude, replay
from chargehand.decisions.routing.forecast import forecast
from chargehand.decisions.routing.prior import PriorRow, prepare
from chargehand.decisions.routing.records import (
    ArmEstimates,
    ExcludedArm,
    HistoryRecord,
    RouterBudget,
    RouterCandidate,
    RouterChoice,
    RouterDraw,
)
from chargehand.decisions.routing.state import (
    RHOS,
    Array,
    KindBelief,
    RouterState,
    TaskBelief,
    chances_now,
)

__all__ = ["PriorRow", "choose", "choose_from", "fold_history", "forecast", "prepare", "replay"]

# A draw uses this part of the standard deviation of a belief: all of it explores more than it pays.
_DRAWN = 0.5
# The part is divided by sqrt(1 + n / 40) after n outcomes of the kind: the first draws teach the most, and later
# ones would mostly try arms again that are known to be worse.
_SETTLED = 40
# The arms whose orders are compared.
_COMPARED = 6
# How much an estimate of the model counts against costs seen, in attempts.
_MODEL_COUNT = 2.0
# An arm without a known price is tried if the quantile of its price at this many deviations is bearable.
_CAUTION = 0.84
# Its price may be so many times the worth of a solved task, or a tenth of all that was spent on the kind.
_DEAREST = 5.0
_LONGEST_PACE = 5.0
_KEPT_FOLDS = 8


class _FoldedRecords(NamedTuple):
    """A folded history: the first `size` records of `source`, up to `last`."""

    source: Sequence[HistoryRecord]
    size: int
    last: HistoryRecord | None
    state: RouterState

    def begins(self, history: Sequence[HistoryRecord]) -> bool:
        """Return whether a history begins with this one; of the same list only the length and `last` are read."""
        if len(history) < self.size:
            return False
        if history is self.source:
            return self.size == 0 or history[self.size - 1] is self.last
        return len(self.source) >= self.size and history[: self.size] == self.source[: self.size]


_folds: OrderedDict[tuple[object, ...], _FoldedRecords] = OrderedDict()
_folds_lock = threading.Lock()


def choose(
    history: Sequence[HistoryRecord], candidates: Sequence[RouterCandidate], budget: RouterBudget, seed: int
) -> RouterChoice:
    """Return the choice for the task that began last in `history`.

    Raises `ValueError` without candidates, with two of one id, or with a budget that is not possible.
    """
    check_arguments(candidates, budget)
    state = fold_history(history, candidates, budget)
    return choose_from(state, state.task, candidates, budget, seed)


def check_arguments(candidates: Sequence[RouterCandidate], budget: RouterBudget) -> None:
    """Raise `ValueError` without candidates, with two of one id, or with a budget that is not possible."""
    ids = [each.id for each in candidates]
    twice = sorted({each for each in ids if ids.count(each) > 1}) if len({*ids}) < len(ids) else []
    if not ids or twice:
        raise ValueError(
            f"candidates with the same id: {', '.join(twice)}" if twice else "there are no candidates"
        )
    money = (budget.worth, budget.check_price, budget.wrong_price or 0.0, budget.per_task or 0.0)
    for value in money:
        if not 0 <= value < math.inf:
            raise ValueError(f"an amount of money is a number of USD from 0, got {value}")
    rates = (budget.false_green, budget.false_red)
    if not (min(rates) >= 0 and sum(rates) < 1):
        raise ValueError(f"the rates of wrong verdicts are from 0 and together less than 1, got {rates}")


def fold_history(
    history: Sequence[HistoryRecord], candidates: Sequence[RouterCandidate], budget: RouterBudget
) -> RouterState:
    """Return the state after all records; a history that extends an earlier one is folded from there.

    A list that was given before may only have been extended since.
    """
    key = (tuple(candidates), budget.false_green, budget.false_red)
    with _folds_lock:
        known = _folds.get(key)
    if known is None or not known.begins(history):
        known = _FoldedRecords((), 0, None, RouterState(budget.false_green, budget.false_red))
    new = history[known.size :]
    state = known.state.fold(new, candidates)
    with _folds_lock:
        _folds[key] = _FoldedRecords(history, known.size + len(new), new[-1] if new else known.last, state)
        _folds.move_to_end(key)
        while len(_folds) > _KEPT_FOLDS:
            _folds.popitem(last=False)
    return state


def estimate_arms(state: RouterState, task: TaskBelief, candidates: Sequence[RouterCandidate]) -> ArmEstimates:
    """Return the mean beliefs about candidates on a task, under the most probable weight of the difficulty."""
    kind = state.belief(task.kind, candidates)
    number = int(kind.weights.argmax())
    rows = np.array([kind.index[each.id] for each in candidates], dtype=int)
    return ArmEstimates(
        rho=RHOS[number],
        arm_families=tuple(each.family for each in candidates),
        skills=tuple(float(each) for each in kind.skills[number][rows]),
        deviations=tuple(np.sqrt(kind.skill_covariances[number][rows, rows]).tolist()),
        prices=tuple(map(float, _prices(kind, task, candidates, kind.prices[rows]))),
        costs=tuple(kind.costs.get(each.id, (0, 0.0))[0] for each in candidates),
        difficulty=tuple(float(each).hex() for each in task.difficulty[number]),
        families={
            family: tuple(tuple(float(x).hex() for x in row) for row in task.part(number, family))
            for family in sorted({each.family for each in candidates})
        },
        outcomes=kind.outcomes,
    )


def choose_from(
    state: RouterState,
    task: TaskBelief,
    candidates: Sequence[RouterCandidate],
    budget: RouterBudget,
    seed: int,
) -> RouterChoice:
    """Return the choice for a task in a folded state."""
    kind = state.belief(task.kind, candidates)
    worth = _pace(state, budget)
    rows = kind.index
    generator = np.random.default_rng(seed)
    number = int(generator.choice(len(RHOS), p=kind.weights)) if budget.explores else int(kind.weights.argmax())
    free = [each for each in candidates if each.id not in task.tried]
    excluded = [ExcludedArm(id=each.id, reason="tried") for each in candidates if each.id in task.tried]
    picked = np.array([rows[each.id] for each in free], dtype=int)
    scale = _DRAWN / math.sqrt(1 + kind.outcomes / _SETTLED) if budget.explores else 0.0
    skills = _draw(kind.skills[number], kind.skill_covariances[number], picked, scale, generator)
    logs = _draw(kind.prices, kind.price_covariance, picked, scale, generator)
    prices = _prices(kind, task, free, logs)
    possible = []
    for place, each in enumerate(free):
        reason = _find_obstacle(kind, rows[each.id], each, prices[place], worth, budget)
        if reason is None:
            possible.append(place)
        else:
            excluded.append(reason)
    chances = chances_now(task, number, [free[place].family for place in possible], skills[possible]).tolist()
    compared = [possible[place] for place in _outline(chances, [prices[place] for place in possible])]
    excluded += [ExcludedArm(id=free[p].id, reason="worse") for p in possible if p not in compared]
    families = {free[place].family for place in compared}
    draw = RouterDraw(
        rho=RHOS[number],
        worth=worth,
        wrong_price=worth if budget.wrong_price is None else budget.wrong_price,
        attempts_left=budget.attempts - len(task.tried),
        difficulty=tuple(float(each).hex() for each in task.difficulty[number]),
        families={
            family: tuple(tuple(float(x).hex() for x in row) for row in task.part(number, family))
            for family in sorted(families)
        },
        budget=budget,
    )
    arms, chosen_rows = [free[place] for place in compared], picked[compared]
    means = chances_now(task, number, [each.family for each in arms], kind.skills[number][chosen_rows]).tolist()
    expected = _prices(kind, task, arms, kind.prices[chosen_rows])
    drawn = [
        DrawnArm(
            id=arm.id,
            family=arm.family,
            skill=float(skills[place]).hex(),
            price=prices[place].hex(),
            expected_chance=mean,
            expected_price=usual,
            costs=kind.costs.get(arm.id, (0, 0.0))[0],
        )
        for arm, place, mean, usual in zip(arms, compared, means, expected, strict=True)
    ]
    return conclude(drawn, draw, tuple(excluded), kind.outcomes)


def _pace(state: RouterState, budget: RouterBudget) -> float:
    """Return the worth of a solved task, raised while tasks cost less than `per_task` and lowered while more."""
    if not budget.per_task:
        return budget.worth
    finished = max(state.begun - 1, 0)
    exponent = 0.05 * (finished - state.spent / budget.per_task)
    return budget.worth * math.exp(min(max(exponent, -_LONGEST_PACE), _LONGEST_PACE))


def _draw(mean: Array, covariance: Array, rows: Array, scale: float, generator: np.random.Generator) -> Array:
    means: Array = mean[rows]
    if not scale or not len(rows):
        return means
    root = np.linalg.cholesky(covariance[np.ix_(rows, rows)] + 1e-9 * np.eye(len(rows)))
    drawn: Array = means + scale * (root @ generator.standard_normal(len(rows)))
    return drawn


def _prices(kind: KindBelief, task: TaskBelief, arms: Sequence[RouterCandidate], logs: Array) -> list[float]:
    """Return the expected cost of each arm's attempt on this task: of the model, but not below the costs seen."""
    usual_size = kind.task_variance
    change = (usual_size if task.price_variance is None else task.price_variance) - usual_size
    size, shared = math.exp(task.price), kind.shared_spread
    found = []
    for arm, log in zip(arms, logs.tolist(), strict=True):
        number, seen = kind.costs.get(arm.id, (0, 0.0))
        spread = shared if not number else kind.spread(arm.id)
        usual = math.exp(log + max(spread + change, 0.0) / 2)
        price = max(usual, (_MODEL_COUNT * usual + seen) / (_MODEL_COUNT + number)) * size
        found.append(0.0 if arm.is_free else price)
    return found


def _find_obstacle(
    kind: KindBelief, row: int, arm: RouterCandidate, price: float, worth: float, budget: RouterBudget
) -> ExcludedArm | None:
    if budget.money_left is not None and price > budget.money_left:
        return ExcludedArm(id=arm.id, reason="no_money")
    if not arm.is_free and not kind.costs.get(arm.id):
        high = float(kind.prices[row]) + _CAUTION * math.sqrt(float(kind.price_covariance[row, row]))
        if high > 700 or math.exp(high) > max(_DEAREST * worth, kind.spent / 10):
            return ExcludedArm(id=arm.id, reason="price_unknown")
    return None


def _outline(chances: Sequence[float], prices: Sequence[float]) -> list[int]:
    """Return up to six arms: the upper convex hull of chance over price, then that of the rest, and so on."""
    left, found = list(range(len(chances))), list[int]()
    while left and len(found) < _COMPARED:
        hull: list[int] = []
        for each in sorted(left, key=lambda place: (prices[place], -chances[place], place)):
            if hull and chances[each] <= chances[hull[-1]]:
                continue
            while len(hull) > 1 and _is_below(chances, prices, hull[-2], hull[-1], each):
                hull.pop()
            hull.append(each)
        found += hull
        left = [each for each in left if each not in hull]
    return found[:_COMPARED]


def _is_below(chances: Sequence[float], prices: Sequence[float], low: int, middle: int, high: int) -> bool:
    rise, run = chances[middle] - chances[low], prices[middle] - prices[low]
    return rise * (prices[high] - prices[low]) <= (chances[high] - chances[low]) * run
