"""The exact value of trying a few arms in the best order until one is green; no matrix library, so it replays.

Given the difficulty of a task and the own part of each family, attempts are independent. So the chance that all
arms of a set are red is a sum over points of difficulty of products over families, and the chance that the next
one is green is a difference of two such sums. Sums are exactly rounded (`math.fsum`) in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Grid = Sequence[Sequence[float]]

# Gauss-Hermite points and weights of a standard normal variable (Abramowitz and Stegun, 25.4.46).
DIFFICULTY = (
    (-4.512745863399783, 2.2345844007746563e-05),
    (-3.20542900285647, 0.0027891413212317675),
    (-2.0768479786778302, 0.04991640676521785),
    (-1.0232556637891326, 0.24409750289493931),
    (0.0, 0.40634920634920635),
    (1.0232556637891326, 0.24409750289493931),
    (2.0768479786778302, 0.04991640676521785),
    (3.20542900285647, 0.0027891413212317675),
    (4.512745863399783, 2.2345844007746563e-05),
)
FAMILY = (
    (-2.8569700138728056, 0.011257411327720693),
    (-1.355626179974266, 0.22207592200561263),
    (0.0, 0.5333333333333334),
    (1.355626179974266, 0.22207592200561263),
    (2.8569700138728056, 0.011257411327720693),
)
# The variance share of a family's own part of the difficulty.
FAMILY_SHARE = 0.12
_ROOT2 = math.sqrt(2)


class Stakes(NamedTuple):
    """What is won and lost, in USD: see `RouterBudget`."""

    worth: float
    wrong_price: float
    check_price: float
    false_green: float
    false_red: float


def solve_chances(skill: float, rho: float) -> list[list[float]]:
    """Return P(solved) at each point of difficulty (rows) and of the family's own part (columns)."""
    scale = 1 / (_ROOT2 * math.sqrt(1 - rho - FAMILY_SHARE))
    hard, own = math.sqrt(rho), math.sqrt(FAMILY_SHARE)
    return [
        [0.5 * math.erfc(-(skill + hard * point + own * part) * scale) for part, _ in FAMILY]
        for point, _ in DIFFICULTY
    ]


def value_arms(
    chances: Sequence[Grid],
    prices: Sequence[float],
    families: Sequence[str],
    weights: tuple[Sequence[float], Mapping[str, Grid]],
    stakes: Stakes,
    attempts: int,
) -> tuple[list[float], list[float]]:
    """Return the value of trying each arm first, and each arm's chance to solve now.

    `chances` are those of `solve_chances` per arm, `weights` those of the difficulty and of each family's part
    given the difficulty. At most `attempts` arms are tried, each once; the value of stopping is 0.
    """
    count = len(chances)
    solved_of_green = 1 - stakes.false_green - stakes.false_red
    reds = [[[1 - (stakes.false_green + solved_of_green * p) for p in row] for row in grid] for grid in chances]
    all_red = chances_all_red(reds, families, weights)
    best = [0.0] * (1 << count)
    first: list[float] = []
    solving: list[float] = []
    for chosen in range((1 << count) - 1, -1, -1):
        if chosen.bit_count() >= attempts:
            continue
        reached, most = all_red[chosen], 0.0
        for arm in range(count):
            if chosen >> arm & 1:
                continue
            after = chosen | 1 << arm
            solved = (reached - all_red[after] - stakes.false_green * reached) / solved_of_green
            value = (
                stakes.worth * (1 - stakes.false_red) * solved
                - stakes.wrong_price * stakes.false_green * (reached - solved)
                - (prices[arm] + stakes.check_price) * reached
                + best[after]
            )
            most = max(most, value)
            if not chosen:
                first.append(value)
                solving.append(solved)
        best[chosen] = most
    return first, solving


def chances_all_red(
    reds: Sequence[Grid], families: Sequence[str], weights: tuple[Sequence[float], Mapping[str, Grid]]
) -> list[float]:
    """Return for each set of arms (a bit mask) the chance that all its attempts are red.

    `reds` are the chances to be red per arm, on the grid of `solve_chances`; `weights` as for `value_arms`.
    """
    difficulty, parts = weights
    # Sets of arms so far, each with its chance per point of difficulty; one family after the other joins them.
    sets: dict[int, list[float]] = {0: list(difficulty)}
    for family in dict.fromkeys(families):
        own: dict[int, list[list[float]]] = {0: [list(row) for row in parts[family]]}
        for arm, red in enumerate(reds):
            if families[arm] == family:
                for mask, grid in list(own.items()):
                    own[mask | 1 << arm] = [
                        [a * b for a, b in zip(*rows, strict=True)] for rows in zip(grid, red, strict=True)
                    ]
        sums = {mask: [math.fsum(row) for row in grid] for mask, grid in own.items()}
        sets = {
            before | mask: [a * b for a, b in zip(chances, of_family, strict=True)]
            for before, chances in sets.items()
            for mask, of_family in sums.items()
        }
    return [math.fsum(sets[chosen]) for chosen in range(1 << len(reds))]
