"""Small random decision processes against the best of all their policies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chargehand.core.errors import UsageError
from chargehand.decisions.processes.mdp import DecisionProcess, Transition, dense_process, sparse_process
from chargehand.decisions.processes.solving import evaluate_policy, iterate_policies, iterate_values


@st.composite
def processes(draw: st.DrawFn, *, discount: float | None = None) -> tuple[np.ndarray, np.ndarray, DecisionProcess]:
    states, actions = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    table = generator.gamma(0.4, size=(actions, states, states)) * (
        generator.random((actions, states, states)) < 0.7
    )
    table[:, np.arange(states), generator.integers(states, size=states)] += 0.2
    table /= table.sum(axis=2, keepdims=True)
    rewards = generator.integers(-5, 6, size=(states, actions)).astype(float)
    chosen = draw(st.sampled_from([0.0, 0.5, 0.9, 0.99])) if discount is None else discount
    if discount == 1:  # the last state ends the task, every step costs
        table[:, -1], rewards = 0.0, -np.abs(rewards) - 1
        table[:, -1, -1], rewards[-1] = 1.0, 0.0
    return table, rewards, dense_process(table, rewards, discount=chosen)


def best_of_all(process: DecisionProcess) -> np.ndarray:
    """Return the best value of each state over all deterministic policies that end."""
    states, actions = process.rewards.shape
    best = np.full(states, -np.inf)
    for policy in itertools.product(range(actions), repeat=states):
        try:
            values = evaluate_policy(process, np.where(process.terminal, -1, policy))
        except UsageError:  # it never ends
            continue
        best = np.maximum(best, values)
    return best


@given(processes())
@settings(max_examples=150, deadline=None)
def test_both_solvers_find_the_best_of_all_policies(drawn: tuple[np.ndarray, np.ndarray, DecisionProcess]) -> None:
    process = drawn[2]
    best = best_of_all(process)
    by_values, by_policies = iterate_values(process), iterate_policies(process)
    assert np.abs(by_values.values - best).max() <= by_values.bound + 1e-9
    assert by_values.bound <= 1e-8
    assert np.abs(by_policies.values - best).max() <= 1e-6
    for solution in (by_values, by_policies):
        assert np.abs(evaluate_policy(process, solution.policy) - best).max() <= 1e-6
    assert by_values.policy.tolist() == by_policies.policy.tolist()


@given(processes(discount=1.0))
@settings(max_examples=150, deadline=None)
def test_tasks_that_end_are_solved_without_a_discount(
    drawn: tuple[np.ndarray, np.ndarray, DecisionProcess],
) -> None:
    process = drawn[2]
    best = best_of_all(process)
    if not np.isfinite(best).all():
        with pytest.raises(UsageError):
            iterate_policies(process)
        return
    assert np.abs(iterate_policies(process).values - best).max() <= 1e-6 * max(1, np.abs(best).max())
    if not np.isfinite(iterate_policies(process).bound):  # value iteration has no stop rule then
        with pytest.raises(UsageError, match="never reach a terminal state"):
            iterate_values(process)
        return
    tolerance = 1e-6 * max(1, np.abs(best).max())
    solution = iterate_values(process, tolerance=tolerance)
    assert np.abs(solution.values - best).max() <= 2 * tolerance


@given(processes())
@settings(max_examples=50, deadline=None)
def test_sparse_and_dense_arrays_give_the_same_process(
    drawn: tuple[np.ndarray, np.ndarray, DecisionProcess],
) -> None:
    table, rewards, dense = drawn
    entries = [
        Transition(int(state), int(action), int(to), float(table[action, state, to]))
        for action, state, to in np.argwhere(table)
    ]
    sparse = sparse_process(entries, rewards, discount=dense.discount)
    assert np.allclose(iterate_policies(sparse).values, iterate_policies(dense).values, atol=1e-12)
