"""Markov chains with absorbing states: learned from counts, and how soon they reach given states.

A chain may be semi-Markov: each state has a holding time, independent of the next state, with mean and variance.
Formulas: Kemeny and Snell, Finite Markov Chains, 1960, chapter 3; conditioning on a target by Doob's h-transform.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct

from chargehand.core.errors import NotFoundError, UsageError, nearest
from chargehand.decisions.processes.mdp import Floats
from chargehand.decisions.processes.reachability import find_reaching

# The Dirichlet parameter of each possible transition before any is counted (Jeffreys).
_SMOOTHING = 0.5


class HoldingTime(Struct, frozen=True):
    """The time that a visit of a state takes: mean in seconds, variance in seconds squared."""

    mean: float
    variance: float = 0.0


class StateChain(Struct, frozen=True, kw_only=True):
    """A chain of named states with its transition matrix, shape (S, S); rows of absorbing states are zero.

    `holding` has the known times; those of absorbing states do not count.
    """

    states: tuple[str, ...]
    matrix: Floats
    holding: Mapping[str, HoldingTime] = {}

    def index(self, state: str) -> int:
        """Return the place of a state. Raises `NotFoundError`."""
        if state not in self.states:
            raise NotFoundError(f"the chain has no state {state!r}", hint=nearest(state, self.states))
        return self.states.index(state)


class ReachingForecast(Struct, frozen=True, kw_only=True):
    """The probability of ever reaching a target, and the steps and seconds until then, given that it is reached.

    Means and variances are NaN if the probability is 0. Those of seconds are `None` if a state on the way has no
    holding time.
    """

    probability: float
    steps_mean: float
    steps_variance: float
    seconds_mean: float | None
    seconds_variance: float | None


_REACHED = ReachingForecast(
    probability=1.0, steps_mean=0.0, steps_variance=0.0, seconds_mean=0.0, seconds_variance=0.0
)
_NEVER = ReachingForecast(
    probability=0.0, steps_mean=math.nan, steps_variance=math.nan, seconds_mean=math.nan, seconds_variance=math.nan
)


def learn_chain(
    successors: Mapping[str, Sequence[str]],
    counts: Mapping[tuple[str, str], float],
    *,
    holding: Mapping[str, HoldingTime] | None = None,
) -> StateChain:
    """Return the chain of counted transitions; a row is the mean of a Dirichlet distribution, 0.5 per successor.

    `successors` names the possible next states of each state; a state without any is absorbing. Raises
    `UsageError` (`process_invalid`) for a count of an impossible transition, or a wrong count or holding time.
    """
    states = tuple(dict.fromkeys([*successors, *(each for row in successors.values() for each in row)]))
    matrix = np.zeros((len(states), len(states)))
    for source, targets in successors.items():
        for target in targets:
            matrix[states.index(source), states.index(target)] = _SMOOTHING
    for (source, target), count in counts.items():
        if target not in successors.get(source, ()):
            raise _invalid(f"a transition from {source!r} to {target!r} was counted, which is impossible")
        if not 0 <= count < math.inf:
            raise _invalid(f"the count of {source!r} to {target!r} is {count!r}, not a number from 0 on")
        matrix[states.index(source), states.index(target)] += count
    for state, time in (holding or {}).items():
        if state not in states or not (0 <= time.mean < math.inf and 0 <= time.variance < math.inf):
            raise _invalid(f"the holding time {time} of {state!r} is not one of a state and from 0 on")
    totals = matrix.sum(axis=1, keepdims=True)
    matrix = np.divide(matrix, totals, out=np.zeros_like(matrix), where=totals > 0)
    return StateChain(states=states, matrix=matrix, holding=dict(holding or {}))


def forecast_reaching(chain: StateChain, targets: Collection[str]) -> Mapping[str, ReachingForecast]:
    """Return, for each state, when the chain first reaches any of `targets` from there.

    With h the probability of reaching, the chain that is known to reach them has the transitions p(i, j) h(j) /
    h(i); with N the inverse of I minus its part between other states, steps have the mean N 1 and seconds N m, and
    second moments follow from those of the holding times. Raises `NotFoundError` for an unknown target.
    """
    if not targets:
        raise _invalid("no target state was given")
    goal = np.zeros(len(chain.states), dtype=np.bool_)
    goal[[chain.index(each) for each in targets]] = True
    way = np.nonzero(find_reaching(chain.matrix > 0, goal) & ~goal)[0]
    inner = chain.matrix[np.ix_(way, way)]
    reach = np.linalg.solve(np.eye(len(way)) - inner, chain.matrix[np.ix_(way, np.nonzero(goal)[0])].sum(axis=1))
    conditional = inner * reach[None, :] / reach[:, None]
    steps = _moments(conditional, np.ones(len(way)), np.zeros(len(way)))
    times = [chain.holding.get(chain.states[place]) for place in way]
    means = np.array([0.0 if time is None else time.mean for time in times])
    variances = np.array([0.0 if time is None else time.variance for time in times])
    seconds = _moments(conditional, means, variances)
    unknown = find_reaching(conditional > 0, np.array([time is None for time in times], dtype=np.bool_))
    found = {
        state: _REACHED if is_goal else _NEVER for state, is_goal in zip(chain.states, goal.tolist(), strict=True)
    }
    for own, place in enumerate(way):
        found[chain.states[place]] = ReachingForecast(
            probability=min(1.0, float(reach[own])),
            steps_mean=float(steps[0][own]),
            steps_variance=float(steps[1][own]),
            seconds_mean=None if unknown[own] else float(seconds[0][own]),
            seconds_variance=None if unknown[own] else float(seconds[1][own]),
        )
    return found


def absorption_probabilities(chain: StateChain, state: str) -> Mapping[str, float]:
    """Return the probability that the chain ends in each absorbing state, from `state`."""
    chain.index(state)
    absorbing = [each for each, row in zip(chain.states, chain.matrix, strict=True) if not row.any()]
    return {each: forecast_reaching(chain, [each])[state].probability for each in absorbing}


def _moments(matrix: Floats, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance of the sum of holding times until a substochastic chain is left, for each state."""
    system = np.eye(len(means)) - matrix
    total = np.asarray(np.linalg.solve(system, means), np.float64)
    second = np.linalg.solve(system, variances + means**2 + 2 * means * (matrix @ total))
    return total, np.maximum(np.asarray(second, np.float64) - total**2, 0.0)


def _invalid(message: str) -> UsageError:
    return UsageError(message, code="process_invalid", hint="name the chain's own states, and counts from 0 on")
