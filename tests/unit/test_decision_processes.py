"""Markov decision processes: reference values, errors, and the promised distance to the optimum."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chargehand.core.errors import UsageError
from chargehand.decisions.processes.mdp import DecisionProcess, Transition, dense_process, sparse_process
from chargehand.decisions.processes.solving import evaluate_policy, iterate_policies, iterate_values

DATA = Path(__file__).parents[3] / "shared/data/decision_reference.json"
needs_data = pytest.mark.skipif(
    not DATA.exists() and not os.environ.get("CI"), reason="the reference values are not beside this checkout"
)
MAP = "SFFFFHFHFFFHHFFG"
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))


def reference(name: str) -> Any:
    return json.loads(DATA.read_text())[name]


def forest(discount: float) -> DecisionProcess:
    """Wait (a fire resets the forest with probability 0.1) or cut, in three ages."""
    wait = [[0.1, 0.9, 0], [0.1, 0, 0.9], [0.1, 0, 0.9]]
    cut = [[1.0, 0, 0]] * 3
    return dense_process([wait, cut], [[0, 0], [0, 1], [4, 2]], discount=discount)


def frozen_lake(discount: float, *, slippery: bool) -> DecisionProcess:
    transitions, rewards = [], np.zeros((16, 4))
    for state, letter in enumerate(MAP):
        for action in range(4):
            if letter in "GH":
                transitions.append(Transition(state, action, state, 1.0))
                continue
            moves = [(action + turn) % 4 for turn in (-1, 0, 1)] if slippery else [action]
            for move in moves:
                row, column = state // 4 + STEPS[move][0], state % 4 + STEPS[move][1]
                to = row * 4 + column if 0 <= row < 4 and 0 <= column < 4 else state
                transitions.append(Transition(state, action, to, 1 / len(moves)))
                rewards[state, action] += (MAP[to] == "G") / len(moves)
    return sparse_process(transitions, rewards, discount=discount)


def grid_world() -> DecisionProcess:
    """The grid of Sutton and Barto, example 3.5: A pays 10 and leads to A', B pays 5 and leads to B'."""
    transitions, rewards = np.zeros((4, 25, 25)), np.zeros((25, 4))
    for state in range(25):
        for action, (down, right) in enumerate(STEPS):
            row, column = state // 5 + down, state % 5 + right
            inside = 0 <= row < 5 and 0 <= column < 5
            to, reward = (row * 5 + column, 0.0) if inside else (state, -1.0)
            to, reward = {1: (21, 10.0), 3: (13, 5.0)}.get(state, (to, reward))
            transitions[action, state, to] = 1
            rewards[state, action] = reward
    return dense_process(transitions, rewards, discount=0.9)


@needs_data
@pytest.mark.parametrize("discount", [0.9, 0.96])
def test_forest_management_has_the_published_values_and_policy(discount: float) -> None:
    expected = reference(f"forest_g{discount}")
    for solution in (iterate_values(forest(discount)), iterate_policies(forest(discount))):
        assert np.allclose(solution.values, expected["V"], atol=1e-6, rtol=0)
        assert solution.policy.tolist() == expected["policy"]


@needs_data
@pytest.mark.parametrize("slippery", [True, False])
@pytest.mark.parametrize("discount", [0.99, 1.0])
def test_frozen_lake_has_the_published_value(discount: float, slippery: bool) -> None:
    expected = reference(f"FrozenLake-4x4-slip{int(slippery)}-g{discount}")["V0"]
    process = frozen_lake(discount, slippery=slippery)
    solution = iterate_policies(process)
    assert solution.values[0] == pytest.approx(expected, abs=1e-6)
    # The policy itself earns that value, so it is not only a number.
    assert evaluate_policy(process, solution.policy)[0] == pytest.approx(expected, abs=1e-6)
    if discount < 1:
        assert iterate_values(process).values[0] == pytest.approx(expected, abs=1e-6)
    else:
        with pytest.raises(UsageError, match="some policies never reach") as refused:
            iterate_values(process)
        assert refused.value.code == "process_improper"


@needs_data
def test_the_grid_of_sutton_and_barto_has_the_published_values() -> None:
    expected = np.array(reference("SB_gridworld_opt")).ravel()
    for solution in (iterate_values(grid_world()), iterate_policies(grid_world())):
        assert np.array_equal(np.round(solution.values, 1), expected)


def test_retrying_until_success_is_an_episodic_problem() -> None:
    """Retry costs 1 and succeeds with 1/4; a person costs 3 and always succeeds: 4 against 3."""
    retry = [[0.75, 0.25], [0, 1]]
    person = [[0.0, 1], [0, 1]]
    process = dense_process([retry, person], [[-1, -3], [0, 0]], discount=1)
    for solution in (iterate_values(process), iterate_policies(process)):
        assert solution.policy.tolist() == [1, -1]
        assert solution.values.tolist() == pytest.approx([-3, 0])
        assert solution.bound <= 1e-8
    cheaper = dense_process([retry, person], [[-0.7, -3], [0, 0]], discount=1)
    assert iterate_policies(cheaper).policy.tolist() == [0, -1]
    assert iterate_policies(cheaper).values[0] == pytest.approx(-2.8)


def test_ties_go_to_the_lowest_action() -> None:
    both = dense_process([[[0, 1], [0, 1]]] * 3, [[1, 2, 2], [0, 0, 0]], discount=0.5)
    assert iterate_values(both).policy.tolist() == [1, -1]
    assert iterate_policies(both).policy.tolist() == [1, -1]


def test_a_forbidden_action_is_never_chosen() -> None:
    allowed = [[True, False], [False, False]]
    nothing = float("nan")
    process = dense_process(
        [[[0, 1], [0, 0]], [[0, 0], [nothing, 0]]], [[1, nothing], [0, 0]], discount=1, allowed=allowed
    )
    assert iterate_policies(process).policy.tolist() == [0, -1]
    assert iterate_values(process).values.tolist() == [1, 0]


OK = [[[0.5, 0.5], [0, 1]]]
REWARDS = [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("transitions", "rewards", "discount", "message"),
    [
        ([[[0.5, 0.4], [0, 1]]], REWARDS, 0.9, "state 0, action 0 sum to 0.9, not to 1"),
        ([[[0.5, 0.5], [0, 0]]], REWARDS, 0.9, "state 1, action 0 sum to 0, not to 1"),
        ([[[float("nan"), 0.5], [0, 1]]], REWARDS, 0.9, "state 0, action 0 is nan"),
        ([[[float("inf"), 0.5], [0, 1]]], REWARDS, 0.9, "state 0, action 0 is inf"),
        ([[[1.5, -0.5], [0, 1]]], REWARDS, 0.9, "state 0, action 0 is -0.5"),
        (OK, [[float("inf")], [0.0]], 0.9, "reward of state 0, action 0 is inf"),
        (OK, [[float("nan")], [0.0]], 0.9, "reward of state 0, action 0 is nan"),
        (OK, [[1.0, 2.0], [0.0, 0.0]], 0.9, r"shape \(2, 2\), not"),
        (OK, REWARDS, 1.1, "discount is 1.1"),
        (OK, REWARDS, -0.1, "discount is -0.1"),
        (OK, REWARDS, float("nan"), "discount is nan"),
        ([[0.5, 0.5]], REWARDS, 0.9, r"shape \(1, 2\), not"),
        (np.zeros((0, 2, 2)), REWARDS, 0.9, r"shape \(0, 2, 2\)"),
    ],
)
def test_wrong_arrays_are_refused_with_place_and_value(
    transitions: Any, rewards: Any, discount: float, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        dense_process(transitions, rewards, discount=discount)
    assert refused.value.code == "process_invalid"


def test_wrong_sparse_entries_are_refused() -> None:
    for entry in (Transition(0, 0, 2, 1.0), Transition(-1, 0, 0, 1.0), Transition(0, 1, 0, 1.0)):
        with pytest.raises(UsageError, match="outside the 2 states and 1 actions"):
            sparse_process([entry], REWARDS, discount=0.9)


def test_a_task_that_cannot_end_is_refused() -> None:
    loop = dense_process([[[0, 1, 0], [1, 0, 0], [0, 0, 1]]], [[-1], [-1], [0]], discount=1)
    with pytest.raises(UsageError, match="from state 0") as refused:
        iterate_policies(loop)
    assert refused.value.code == "process_improper"


def test_rewards_that_can_be_collected_forever_are_refused() -> None:
    stay_or_end = [[[1.0, 0], [0, 1]], [[0.0, 1], [0, 1]]]
    with pytest.raises(UsageError, match="the policy never ends from state 0"):
        iterate_policies(dense_process(stay_or_end, [[1, 0], [0, 0]], discount=1))


def test_a_tolerance_below_rounding_is_refused() -> None:
    with pytest.raises(UsageError, match="not 1e-300") as refused:
        iterate_values(forest(0.999), tolerance=1e-300)
    assert refused.value.code == "process_invalid"
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="not a positive number"):
            iterate_values(forest(0.9), tolerance=wrong)
