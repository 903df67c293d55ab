"""What the router has learned: joint normal beliefs about the skill and the price of arms, per kind of task.

Success is a probit model with the difficulty of the task shared by all arms, and a part of it shared by the models
of one family. Three weights of the shared difficulty are kept side by side and weighed by their likelihood. An
update matches the first two moments of the posterior after one verdict (assumed density filtering: Opper, 1998).
The log price of an attempt is normal, with a part shared by all attempts on the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from chargehand.decisions.routing.records import (
    AttemptEnds,
    HistoryRecord,
    RouterCandidate,
    TaskBegins,
    TruthFound,
)
from chargehand.decisions.routing.value import DIFFICULTY, FAMILY, FAMILY_SHARE

Array = NDArray[np.float64]

# Weights of the shared difficulty.
RHOS = (0.4, 0.55, 0.72)
# The share of the variance of log prices that all attempts on a task have in common.
TASK_SHARE = 0.45
# The variance of log prices at the start, and how many costs it counts as; for one arm, how many costs of all.
_SPREAD, _SPREAD_COUNT, _ARM_COUNT = 0.77, 6.0, 4.0
# Arms without a published prior deviate from the level with these variances.
_SKILL_VARIANCE, _PRICE_VARIANCE = 0.33, 1.31
# An arm that fails more often than expected: slack and limit of the cumulative sum, and the variance that an alarm
# adds, so that newer outcomes count for more.
_SLACK, _LIMIT, _ALARM = 0.15, 2.5, 0.45
# Later truth (survived, reverted) is itself wrong at these rates.
_TRUTH_RATES = (0.05, 0.05)
_MOST_OPEN_TASKS = 256
_POINTS = np.array([point for point, _ in DIFFICULTY])
_WEIGHTS = np.array([weight for _, weight in DIFFICULTY])
_PARTS = np.array([point for point, _ in FAMILY])
_PART_WEIGHTS = np.tile(np.array([weight for _, weight in FAMILY]), (len(DIFFICULTY), 1))
_RHO = np.array(RHOS)
_START = np.tile(_WEIGHTS, (len(RHOS), 1))
_PART_START = np.tile(_PART_WEIGHTS, (len(RHOS), 1, 1))
# The sum of a difficulty and a family's own part, which is added to a skill, for each weight.
_HARD = np.sqrt(_RHO)[:, None, None] * _POINTS[:, None] + math.sqrt(FAMILY_SHARE) * _PARTS
_ROOT2, _ROOT_2PI = math.sqrt(2), math.sqrt(2 * math.pi)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def normal_cdf(z: Array) -> Array:
    """Return the standard normal distribution function."""
    found: Array = np.asarray(_erfc(z / -_ROOT2), dtype=np.float64) * 0.5
    return found


class TaskBelief(Struct, frozen=True, eq=False, kw_only=True):
    """What the attempts on one task say of it: the difficulty, each family's part, and the price.

    `difficulty` has the weights of its points, shape (3, 9), a row for each weight of the shared difficulty;
    `families` those of each family's part given the difficulty, shape (3, 9, 5).
    """

    kind: str
    difficulty: Array = _START
    families: Mapping[str, Array] = {}
    price: float = 0.0
    price_variance: float | None = None
    tried: tuple[str, ...] = ()

    def part(self, number: int, family: str) -> Array:
        """Return the weights of a family's part (columns) given the difficulty (rows), under one weight."""
        found: Array = self.families.get(family, _PART_START)[number]
        return found


class KindBelief(Struct, frozen=True, eq=False, kw_only=True):
    """Beliefs about n - 1 arms in one kind of task; row 0 of means and covariances is the level of the kind.

    `skills` has the shape (3, n) and `skill_covariances` (3, n, n), for each weight of the shared difficulty.
    """

    arms: tuple[RouterCandidate, ...]
    skills: Array
    skill_covariances: Array
    log_weights: Array
    prices: Array
    price_covariance: Array
    squares: float = _SPREAD * _SPREAD_COUNT
    count: float = _SPREAD_COUNT
    arm_squares: Mapping[str, float] = {}
    costs: Mapping[str, tuple[int, float]] = {}
    drift: Mapping[str, float] = {}
    outcomes: int = 0
    spent: float = 0.0

    @property
    def index(self) -> dict[str, int]:
        """The row of each arm."""
        return {each.id: number for number, each in enumerate(self.arms, 1)}

    @property
    def task_variance(self) -> float:
        """The variance of log prices that a task adds to all its attempts."""
        return TASK_SHARE * self.squares / self.count

    @property
    def weights(self) -> Array:
        """The probabilities of the weights of the shared difficulty."""
        found: Array = np.exp(self.log_weights - self.log_weights.max())
        found /= found.sum()
        return found

    @property
    def shared_spread(self) -> float:
        """The variance of log prices between tasks, over all arms."""
        return self.squares / self.count

    def spread(self, arm: str) -> float:
        """Return the variance of an arm's log price between tasks."""
        number = self.costs.get(arm, (0, 0.0))[0]
        return (_ARM_COUNT * self.shared_spread + self.arm_squares.get(arm, 0.0)) / (_ARM_COUNT + number)


class RouterState(Struct, frozen=True, eq=False):
    """All beliefs; folding a record returns a new state and changes nothing of this one."""

    false_green: float = 0.0
    false_red: float = 0.0
    kinds: Mapping[str, KindBelief] = {}
    tasks: Mapping[str, TaskBelief] = {}
    last: str = ""
    begun: int = 0
    spent: float = 0.0

    def fold(self, records: Iterable[HistoryRecord], candidates: Sequence[RouterCandidate]) -> RouterState:
        """Return the state after more records; `candidates` have the priors of the arms."""
        known = {each.id: each for each in candidates}
        state = self
        for record in records:
            match record:
                case TaskBegins():
                    state = state._begin(record)
                case AttemptEnds():
                    state = state._end(record, known)
                case TruthFound():
                    state = state._learn(record, known)
        return state

    @property
    def task(self) -> TaskBelief:
        """The task that began last."""
        return self.tasks.get(self.last, TaskBelief(kind=""))

    def belief(self, kind: str, candidates: Sequence[RouterCandidate]) -> KindBelief:
        """Return the beliefs about a kind of task, with all candidates in them."""
        return _with_arms(self.kinds.get(kind), candidates)

    def _begin(self, record: TaskBegins) -> RouterState:
        tasks = {key: each for key, each in self.tasks.items() if key != record.task}
        if len(tasks) >= _MOST_OPEN_TASKS:
            tasks = dict(islice(tasks.items(), 1, None))
        tasks[record.task] = TaskBelief(kind=record.features.get("kind", ""))
        return replace(self, tasks=tasks, last=record.task, begun=self.begun + 1)

    def _end(self, record: AttemptEnds, known: Mapping[str, RouterCandidate]) -> RouterState:
        task = self.tasks.get(record.task, TaskBelief(kind=""))
        arm = known.get(record.arm) or RouterCandidate(id=record.arm, agent=record.arm)
        kind = self.belief(task.kind, [arm])
        cost = record.cost if record.cost is not None and 0 < record.cost < math.inf else None
        spent = cost if cost is not None else 0.0 if arm.is_free else _expected_price(kind, arm.id)
        kind = replace(kind, spent=kind.spent + spent)
        if cost is not None:
            kind, task = _learn_price(kind, task, arm.id, cost)
        rates = (self.false_green, self.false_red)
        kind, task = _learn_verdict(kind, task, arm, record.verdict == "green", rates)
        task = replace(task, tried=(*task.tried, arm.id))
        return replace(
            self,
            kinds={**self.kinds, task.kind: kind},
            tasks={**self.tasks, record.task: task},
            spent=self.spent + spent,
        )

    def _learn(self, record: TruthFound, known: Mapping[str, RouterCandidate]) -> RouterState:
        arm = known.get(record.arm) or RouterCandidate(id=record.arm, agent=record.arm)
        before = self.belief(record.kind, [arm])
        kind, _ = _learn_verdict(before, TaskBelief(kind=record.kind), arm, record.is_right, _TRUTH_RATES)
        # Another word on a known attempt: `outcomes` counts attempts.
        return replace(self, kinds={**self.kinds, record.kind: replace(kind, outcomes=before.outcomes)})


def chances_now(task: TaskBelief, number: int, families: Sequence[str], skills: Array) -> Array:
    """Return the chance of each skill to solve a task now, under one weight of the shared difficulty."""
    rho = RHOS[number]
    hard = skills[:, None] + math.sqrt(rho) * _POINTS
    found: Array = normal_cdf(hard / math.sqrt(1 - rho)) @ task.difficulty[number]
    for place, family in enumerate(families):
        if family in task.families:  # its own part is known to some degree
            own = hard[place][:, None] + math.sqrt(FAMILY_SHARE) * _PARTS
            solved = (normal_cdf(own / math.sqrt(1 - rho - FAMILY_SHARE)) * task.part(number, family)).sum(axis=1)
            found[place] = solved @ task.difficulty[number]
    return found


def _with_arms(kind: KindBelief | None, candidates: Sequence[RouterCandidate]) -> KindBelief:
    """Return the beliefs with rows for all candidates; a new arm shares the knowledge of the level."""
    if kind is None:
        level = candidates[0].level
        kind = KindBelief(
            arms=(),
            skills=np.full((len(RHOS), 1), level.skill),
            skill_covariances=np.full((len(RHOS), 1, 1), level.skill_variance),
            log_weights=np.zeros(len(RHOS)),
            prices=np.array([level.log_price]),
            price_covariance=np.array([[level.log_price_variance]]),
        )
    present = {each.id for each in kind.arms}
    new = [each for each in candidates if each.id not in present]
    if not new:
        return kind
    skill = np.array([each.prior.skill if each.prior else 0.0 for each in new])
    price = np.array([each.prior.log_price if each.prior else 0.0 for each in new])
    skill_var = [each.prior.skill_variance if each.prior else _SKILL_VARIANCE for each in new]
    price_var = [each.prior.log_price_variance if each.prior else _PRICE_VARIANCE for each in new]
    return replace(
        kind,
        arms=(*kind.arms, *new),
        skills=np.concatenate((kind.skills, kind.skills[:, :1] + skill), axis=1),
        skill_covariances=np.stack([_grow(matrix, skill_var) for matrix in kind.skill_covariances]),
        prices=np.append(kind.prices, kind.prices[0] + price),
        price_covariance=_grow(kind.price_covariance, price_var),
    )


def _grow(matrix: Array, variances: Sequence[float]) -> Array:
    old, new = len(matrix), len(variances)
    grown = np.empty((old + new, old + new))
    grown[:old, :old] = matrix
    grown[old:, :old] = matrix[0]
    grown[:old, old:] = matrix[0][:, None]
    grown[old:, old:] = matrix[0, 0] + np.diag(np.array(variances))
    return grown


def _expected_price(kind: KindBelief, arm: str) -> float:
    row = kind.index[arm]
    return math.exp(float(kind.prices[row]) + kind.spread(arm) / 2)


def _learn_price(kind: KindBelief, task: TaskBelief, arm: str, cost: float) -> tuple[KindBelief, TaskBelief]:
    row, spread = kind.index[arm], kind.spread(arm)
    shared = kind.task_variance if task.price_variance is None else task.price_variance
    own = (1 - TASK_SHARE) * spread
    column = kind.price_covariance[:, row]
    total = float(column[row]) + shared + own
    error = math.log(cost) - float(kind.prices[row]) - task.price
    square = error * error * spread / total
    number, known = kind.costs.get(arm, (0, 0.0))
    kind = replace(
        kind,
        prices=kind.prices + column * (error / total),
        price_covariance=kind.price_covariance - np.outer(column, column) / total,
        squares=kind.squares + square,
        count=kind.count + 1,
        arm_squares={**kind.arm_squares, arm: kind.arm_squares.get(arm, 0.0) + square},
    )
    task = replace(
        task,
        price=task.price + shared * error / total,
        price_variance=shared - shared * shared / total,
    )
    # A cost is kept as it would be on a task of usual size.
    return replace(kind, costs={**kind.costs, arm: (number + 1, known + cost * math.exp(-task.price))}), task


def _learn_verdict(
    kind: KindBelief, task: TaskBelief, arm: RouterCandidate, green: bool, rates: tuple[float, float]
) -> tuple[KindBelief, TaskBelief]:
    row, family = kind.index[arm.id], arm.family
    false_green, scale = rates[0], 1 - rates[0] - rates[1]
    part = task.families.get(family, _PART_START)
    joint = task.difficulty[:, :, None] * part
    width = np.sqrt(1 - _RHO - FAMILY_SHARE + kind.skill_covariances[:, row, row])
    z = (kind.skills[:, row, None, None] + _HARD) / width[:, None, None]
    likely = false_green + scale * normal_cdf(z)
    slope = scale / _ROOT_2PI * np.exp(-0.5 * z * z) / width[:, None, None]
    if not green:
        likely, slope = 1 - likely, -slope
    likely = np.maximum(likely, 1e-12)
    evidence = (joint * likely).sum(axis=(1, 2))
    sloped = joint * slope
    first = sloped.sum(axis=(1, 2)) / evidence
    second = (sloped * -z).sum(axis=(1, 2)) / (width * evidence) - first * first
    expected = float(kind.weights @ (evidence if green else 1 - evidence))
    columns = kind.skill_covariances[:, :, row]
    weighted = part * likely
    sums = weighted.sum(axis=2)
    kind = replace(
        kind,
        skills=kind.skills + columns * first[:, None],
        skill_covariances=kind.skill_covariances
        + columns[:, :, None] * columns[:, None, :] * second[:, None, None],
        log_weights=kind.log_weights + np.log(evidence),
        outcomes=kind.outcomes + 1,
    )
    task = replace(
        task,
        difficulty=task.difficulty * sums / evidence[:, None],
        families={**task.families, family: weighted / sums[:, :, None]},
    )
    kind = _watch(kind, arm.id, expected - green)
    return kind, task


def _watch(kind: KindBelief, arm: str, loss: float) -> KindBelief:
    """Add to the arm's cumulative sum of unexpected failures (CUSUM: Page, 1954); an alarm widens its belief."""
    total = max(0.0, kind.drift.get(arm, 0.0) + loss - _SLACK)
    if total <= _LIMIT:
        return replace(kind, drift={**kind.drift, arm: total})
    row, wider = kind.index[arm], kind.skill_covariances.copy()
    wider[:, row, row] += _ALARM
    return replace(kind, drift={**kind.drift, arm: 0.0}, skill_covariances=wider)
