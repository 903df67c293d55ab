"""Finite Markov decision processes: their arrays, validated once.

Rewards are expected rewards of a state and an action. A state is terminal if it allows no action, or if all its
actions stay in it with probability 1 and reward 0; its value is 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from chargehand.core.errors import UsageError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
# Rows may miss a sum of 1 by the rounding of a file that was written with 9 digits.
_ROW_TOLERANCE = 1e-8


class Transition(NamedTuple):
    """A possible transition: from `state` by `action` to `successor`, with its probability."""

    state: int
    action: int
    successor: int
    probability: float


class DecisionProcess(Struct, frozen=True, kw_only=True):
    """A validated process of S states and A actions; made by `dense_process` or `sparse_process`.

    `pairs[i]` is `state * A + action` of the entry that leads to `successors[i]` with `probabilities[i]`, in
    ascending order. `rewards` and `allowed` have the shape (S, A), `terminal` the shape (S,).
    """

    pairs: Integers
    successors: Integers
    probabilities: Floats
    rewards: Floats
    allowed: Booleans
    terminal: Booleans
    discount: float

    def action_values(self, values: Floats) -> Floats:
        """Return the value of each action, shape (S, A), given the values of the states; -inf if not allowed."""
        weighted = self.probabilities * values[self.successors]
        expected = np.bincount(self.pairs, weighted, minlength=self.rewards.size).reshape(self.rewards.shape)
        return np.where(self.allowed, self.rewards + self.discount * expected, -np.inf)

    def chain(self, policy: Integers) -> Floats:
        """Return the transition matrix, shape (S, S), of a policy; rows of terminal states are zero."""
        states, actions = self.rewards.shape
        chosen = (policy[self.pairs // actions] == self.pairs % actions) & ~self.terminal[self.pairs // actions]
        matrix = np.zeros((states, states))
        np.add.at(matrix, (self.pairs[chosen] // actions, self.successors[chosen]), self.probabilities[chosen])
        return matrix


def dense_process(
    transitions: ArrayLike, rewards: ArrayLike, *, discount: float, allowed: ArrayLike | None = None
) -> DecisionProcess:
    """Return a process from transitions of shape (A, S, S) and rewards of shape (S, A).

    `allowed`, shape (S, A), forbids actions; their rows and rewards are ignored. Raises `UsageError`
    (`process_invalid`) with the place and the value.
    """
    table = np.asarray(transitions, dtype=np.float64)
    if table.ndim != 3 or table.shape[1] != table.shape[2] or 0 in table.shape:
        raise _invalid(f"transitions have the shape {table.shape}, not (actions, states, states)")
    actions, states = table.shape[:2]
    mask = _read_allowed(allowed, states, actions)
    used = np.moveaxis(table, 0, 1)  # (S, A, S)
    found = np.nonzero((used != 0) & mask[:, :, None])  # NaN is not 0
    return _make(found[0] * actions + found[1], found[2], used[found], rewards, mask, discount)


def sparse_process(
    transitions: Iterable[Transition], rewards: ArrayLike, *, discount: float, allowed: ArrayLike | None = None
) -> DecisionProcess:
    """Return a process from its possible transitions and rewards of shape (S, A).

    Probabilities of equal transitions are added. Raises `UsageError` (`process_invalid`) as `dense_process` does.
    """
    reward = np.asarray(rewards, dtype=np.float64)
    if reward.ndim != 2 or 0 in reward.shape:
        raise _invalid(f"rewards have the shape {reward.shape}, not (states, actions)")
    states, actions = reward.shape
    mask = _read_allowed(allowed, states, actions)
    entries = []
    for each in transitions:
        if not (0 <= each.state < states and 0 <= each.successor < states and 0 <= each.action < actions):
            raise _invalid(f"{each} is outside the {states} states and {actions} actions of the rewards")
        if each.probability != 0 and mask[each.state, each.action]:
            entries.append((each.state * actions + each.action, each.successor, each.probability))
    entries.sort(key=lambda entry: entry[:2])
    columns = np.array(entries, dtype=np.float64).reshape(-1, 3)
    pairs, successors = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
    return _make(pairs, successors, columns[:, 2], reward, mask, discount)


def _make(
    pairs: Integers,
    successors: Integers,
    probabilities: Floats,
    rewards: ArrayLike,
    allowed: Booleans,
    discount: float,
) -> DecisionProcess:
    reward = np.asarray(rewards, dtype=np.float64)
    if reward.shape != allowed.shape:
        raise _invalid(f"rewards have the shape {reward.shape}, not (states, actions) = {allowed.shape}")
    if not 0 <= discount <= 1:
        raise _invalid(f"the discount is {discount!r}, not a number from 0 to 1")
    bad = np.argwhere(~np.isfinite(reward) & allowed)
    if bad.size:
        state, action = bad[0]
        raise _invalid(f"the reward of state {state}, action {action} is {reward[state, action]}")
    actions = allowed.shape[1]
    wrong = np.nonzero(~(np.isfinite(probabilities) & (probabilities > 0)))[0]
    if wrong.size:
        state, action = divmod(int(pairs[wrong[0]]), actions)
        found = probabilities[wrong[0]]
        raise _invalid(f"a probability of state {state}, action {action} is {found}, not a number from 0 to 1")
    sums = np.bincount(pairs, probabilities, minlength=reward.size).reshape(reward.shape)
    off = np.argwhere(allowed & (np.abs(sums - 1) > _ROW_TOLERANCE))
    if off.size:
        state, action = off[0]
        raise _invalid(
            f"the probabilities of state {state}, action {action} sum to {sums[state, action]:.9g}, not to 1"
        )
    reward = np.where(allowed, reward, 0.0)
    leaves = np.bincount(pairs, successors != pairs // actions, minlength=reward.size).reshape(reward.shape) > 0
    terminal = ~(allowed & (leaves | (reward != 0))).any(axis=1)
    return DecisionProcess(
        pairs=pairs,
        successors=successors,
        probabilities=probabilities / sums.reshape(-1)[pairs],
        rewards=reward,
        allowed=allowed & ~terminal[:, None],
        terminal=terminal,
        discount=float(discount),
    )


def _read_allowed(allowed: ArrayLike | None, states: int, actions: int) -> Booleans:
    mask = np.ones((states, actions), dtype=np.bool_) if allowed is None else np.asarray(allowed, dtype=np.bool_)
    if mask.shape != (states, actions):
        raise _invalid(f"allowed has the shape {mask.shape}, not (states, actions) = {(states, actions)}")
    return mask


def _invalid(message: str) -> UsageError:
    hint = "each allowed state and action needs probabilities that sum to 1 and a finite reward"
    return UsageError(message, code="process_invalid", hint=hint)
