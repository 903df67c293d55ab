"""Optimal values and policies of finite Markov decision processes.

With a discount of 1 the optimum is over *proper* policies: those that reach a terminal state with probability 1
from every state (Bertsekas and Tsitsiklis, An Analysis of Stochastic Shortest Path Problems, 1991).
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import UsageError
from chargehand.decisions.processes.mdp import DecisionProcess, Floats, Integers
from chargehand.decisions.processes.reachability import find_reaching

# Actions whose values differ by less, relative to the largest value (at least 1), are tied.
_TIE = 1e-9
_EPSILON = float(np.finfo(np.float64).eps)
_MOST_ROUNDS = 1_000_000


class ProcessSolution(Struct, frozen=True, kw_only=True):
    """Values, shape (S,), and the action of each state, -1 if it is terminal.

    No value is further than `bound` from the optimum; `inf` if the policy is optimal up to rounding, but some
    policies are improper, so that no bound is known.
    """

    values: Floats
    policy: Integers
    rounds: int
    bound: float


def iterate_values(process: DecisionProcess, *, tolerance: float = 1e-8) -> ProcessSolution:
    """Solve a process by value iteration until no value is further than `tolerance` from the optimum.

    Stop rule: let V' be the update of V, d the largest |V' - V|, and N the largest expected number of (discounted)
    steps to a terminal state, over all states and policies. Then |V' - V*| <= (N - 1) d. Proof: for an optimal
    policy with chain P, V* - V <= P (V* - V) + d, hence V* - V <= d N and V* - V' <= P (V* - V) <= d (N - 1); the
    greedy policy of V gives the other side. N is at most 1 / (1 - discount), which yields the usual bound
    (Puterman, Markov Decision Processes, 1994, theorem 6.3.1); with a discount of 1 it is computed first.

    Ties go to the action with the lowest index. Raises `UsageError`: `process_improper` if the discount is 1 and
    some policy never ends, `process_invalid` if rounding or the number of rounds prevents the tolerance.
    """
    if not tolerance > 0:
        raise UsageError(f"the tolerance is {tolerance!r}, not a positive number", code="process_invalid")
    steps = _longest_steps(process)
    if not math.isfinite(steps):
        raise _improper("some policies never reach a terminal state", "solve it by policy iteration")
    values = np.zeros(len(process.terminal))
    for rounds in range(1, _MOST_ROUNDS + 1):
        updated = _best_values(process, values)
        bound = (steps - 1) * float(np.abs(updated - values).max())
        values = updated
        if bound <= tolerance:
            policy = _lowest_best(process, values, margin=2 * bound)
            return ProcessSolution(values=values, policy=policy, rounds=rounds, bound=bound)
        if bound < 4 * steps * _EPSILON * float(np.abs(values).max()):
            break
    raise UsageError(
        f"value iteration reached a distance of {bound:.3g} from the optimum after {rounds} rounds, "
        f"not {tolerance!r}",
        code="process_invalid",
        hint="use a larger tolerance, or policy iteration",
    )


def iterate_policies(process: DecisionProcess) -> ProcessSolution:
    """Solve a process by policy iteration with exact evaluation.

    The first policy follows, in each state, the lowest action that can lead nearer to a terminal state (with a
    discount below 1, the lowest allowed action). An action changes only if that is strictly better, so that with a
    discount of 1 every policy stays proper. At the end ties go to the lowest action if all policies are proper;
    otherwise each state keeps its action. Raises `UsageError` (`process_improper`) if the discount is 1 and some
    state cannot reach a terminal state, or if rewards can be collected forever.
    """
    steps = _longest_steps(process)
    solution = _improve(process, _first_policy(process))
    if math.isfinite(steps):
        residual = float(np.abs(_best_values(process, solution.values) - solution.values).max(initial=0.0))
        policy = _lowest_best(process, solution.values, margin=0.0)
        return replace(solution, policy=policy, bound=steps * residual)
    return solution


def evaluate_policy(process: DecisionProcess, policy: Integers) -> Floats:
    """Return the exact values of a policy, shape (S,). Raises `UsageError` (`process_improper`)."""
    matrix = process.chain(policy)
    if process.discount == 1:
        stuck = np.nonzero(~find_reaching(matrix > 0, process.terminal))[0]
        if stuck.size:
            raise _improper(f"the policy never ends from state {stuck[0]}", "give rewards that favour an end")
    states = np.arange(len(policy))
    rewards = np.where(process.terminal, 0.0, process.rewards[states, np.maximum(policy, 0)])
    return np.asarray(np.linalg.solve(np.eye(len(policy)) - process.discount * matrix, rewards))


def _improve(process: DecisionProcess, policy: Integers) -> ProcessSolution:
    states = np.arange(len(policy))
    # Each round improves at least one state, so no policy comes twice; rounding cannot make it cycle either,
    # since a change needs more than the rounding of an evaluation.
    for rounds in range(1, _MOST_ROUNDS + 1):
        values = evaluate_policy(process, policy)
        actions = process.action_values(values)
        better = actions.argmax(axis=1)
        old = actions[states, np.maximum(policy, 0)]
        gains = np.zeros(len(policy))
        np.subtract(actions[states, better], old, out=gains, where=~process.terminal)
        changed = gains > _margin(values)
        if not changed.any():
            return ProcessSolution(values=values, policy=policy, rounds=rounds, bound=math.inf)
        policy = np.where(changed, better, policy)
    raise UsageError(f"policy iteration did not end in {_MOST_ROUNDS} rounds", code="process_invalid")


def _longest_steps(process: DecisionProcess) -> float:
    """Return the largest expected number of discounted steps of any policy; `inf` if some policy is improper."""
    if process.discount < 1:
        return 1 / (1 - process.discount)
    if _can_stay(process):
        return math.inf
    counting = replace(process, rewards=np.where(process.allowed, 1.0, 0.0))
    return float(_improve(counting, _first_policy(process)).values.max(initial=1.0))


def _can_stay(process: DecisionProcess) -> bool:
    """Return whether some policy stays forever in a set of states that are not terminal."""
    actions = process.rewards.shape[1]
    staying = ~process.terminal
    while True:
        leaves = np.bincount(process.pairs, ~staying[process.successors], minlength=process.rewards.size) > 0
        closed = process.allowed & ~leaves.reshape(-1, actions)
        smaller = staying & closed.any(axis=1)
        if (smaller == staying).all():
            return bool(staying.any())
        staying = smaller


def _first_policy(process: DecisionProcess) -> Integers:
    actions = process.rewards.shape[1]
    policy = np.where(process.terminal, -1, process.allowed.argmax(axis=1))
    if process.discount < 1:
        return policy
    reached = process.terminal.copy()
    while not reached.all():
        towards = np.bincount(process.pairs, reached[process.successors], minlength=process.rewards.size) > 0
        leading = process.allowed & towards.reshape(-1, actions)
        new = leading.any(axis=1) & ~reached
        if not new.any():
            state = int(np.nonzero(~reached)[0][0])
            raise _improper(f"no policy reaches a terminal state from state {state}", "use a discount below 1")
        policy = np.where(new, leading.argmax(axis=1), policy)
        reached |= new
    return policy


def _best_values(process: DecisionProcess, values: Floats) -> Floats:
    return np.where(process.terminal, 0.0, process.action_values(values).max(axis=1))


def _lowest_best(process: DecisionProcess, values: Floats, *, margin: float) -> Integers:
    actions = process.action_values(values)
    best = actions.max(axis=1, keepdims=True)
    tied = process.allowed & (actions >= best - max(margin, _margin(values)))
    return np.where(process.terminal, -1, tied.argmax(axis=1))


def _margin(values: Floats) -> float:
    return _TIE * max(1.0, float(np.abs(values).max(initial=0.0)))


def _improper(message: str, hint: str) -> UsageError:
    return UsageError(
        f"with a discount of 1 every task has to end, but {message}", code="process_improper", hint=hint
    )
