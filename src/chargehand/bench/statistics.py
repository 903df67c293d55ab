"""Statistics of benchmarks: intervals, pass@k, paired comparisons, sample sizes. Pure functions, no numpy.

The unit of every comparison is the problem: samples of one problem are not independent of each other.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

from msgspec import Struct

_NORMAL = NormalDist()
_SEARCHED, _LARGEST = 2_000, 100_000
_MOST_SUMS, _FLIPS = 2_000_000, 20_000


class Interval(Struct, frozen=True, kw_only=True):
    """A confidence interval."""

    low: float
    high: float


def wilson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion (Wilson 1927); 0 to 1 without trials."""
    if trials == 0:
        return Interval(low=0.0, high=1.0)
    z = _NORMAL.inv_cdf((1 + level) / 2)
    rate, scale = successes / trials, 1 + z * z / trials
    middle = (rate + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return Interval(
        low=0.0 if successes == 0 else max(0.0, middle - half),
        high=1.0 if successes == trials else min(1.0, middle + half),
    )


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for one problem: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021).

    Raises `ValueError` unless `k` is between 1 and the number of samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k = {k} of {samples} samples")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test for two counts of discordant pairs."""
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    tail = sum(math.comb(discordant, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**discordant))


def sign_flip_exact(differences: Sequence[int]) -> float:
    """Return the two-sided p-value that paired differences are symmetric around 0, over all flips of their signs.

    With differences of -1, 0 and 1 it equals `mcnemar_exact`. The time grows with the sum of the differences times
    their number: see `flips_can_be_counted`.
    """
    sizes = [abs(each) for each in differences if each]
    counts: Counter[int] = Counter({0: 1})
    for size in sizes:
        flipped: Counter[int] = Counter()
        for total, ways in counts.items():
            flipped[total + size] += ways
            flipped[total - size] += ways
        counts = flipped
    seen = abs(sum(differences))
    return float(sum(ways for total, ways in counts.items() if abs(total) >= seen) / 2 ** len(sizes))


def flips_can_be_counted(differences: Sequence[int]) -> bool:
    """Return whether `sign_flip_exact` of these differences takes at most about a second."""
    sizes = [abs(each) for each in differences if each]
    return len(sizes) * sum(sizes) <= _MOST_SUMS


def sign_flip_sampled(differences: Sequence[int], *, seed: int) -> float:
    """Return the p-value of `sign_flip_exact`, estimated by 20,000 random flips (Phipson and Smyth 2010)."""
    source, sizes = random.Random(seed), [abs(each) for each in differences if each]
    whole, seen, reached = sum(sizes), abs(sum(differences)), 0
    for _ in range(_FLIPS):
        bits = source.getrandbits(len(sizes))
        # Half of the sum keeps its sign; the other half is taken off twice.
        kept = sum(size for number, size in enumerate(sizes) if bits >> number & 1)
        reached += abs(2 * kept - whole) >= seen
    return (1 + reached) / (1 + _FLIPS)


def paired_bootstrap(
    differences: Sequence[float], *, seed: int, level: float = 0.95, resamples: int = 2_000
) -> Interval:
    """Return the percentile interval of the mean of paired differences, resampling problems (Efron 1979)."""
    if not differences:
        return Interval(low=0.0, high=0.0)
    source = random.Random(seed)
    count = len(differences)
    means = sorted(sum(source.choices(differences, k=count)) / count for _ in range(resamples))
    cut = (1 - level) / 2
    return Interval(low=means[int(cut * resamples)], high=means[min(resamples - 1, int((1 - cut) * resamples))])


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for several comparisons by Holm's step-down method (Holm 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, most = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        most = max(most, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = most
    return tuple(adjusted)


def comparison_power(problems: int, difference: float, discordance: float, *, alpha: float = 0.05) -> float:
    """Return the power of McNemar's exact test with one sample per problem and arm.

    `difference` is that of the two rates, `discordance` the share of problems that only one arm solves. Raises
    `ValueError` if the difference exceeds the discordance.
    """
    if not abs(difference) <= discordance <= 1:
        raise ValueError(f"a difference of {difference} with a discordance of {discordance}")
    if discordance == 0:
        return 0.0
    share = (1 + abs(difference) / discordance) / 2
    spread = 8 * math.sqrt(problems * discordance * (1 - discordance)) + 8
    lowest = max(0, int(problems * discordance - spread))
    highest = min(problems, int(problems * discordance + spread))
    return sum(
        _binomial(pairs, problems, discordance) * _rejection(pairs, share, alpha)
        for pairs in range(lowest, highest + 1)
    )


def needed_problems(
    difference: float, discordance: float, *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Return how many problems a comparison needs to see a difference with that power; `None` above 100,000.

    Up to 2,000 problems the normal approximation (Connor 1987) is the first guess for a search with the exact
    power, which is not quite monotonic: for the next 20 numbers of problems the power suffices too.
    """
    if difference == 0:
        return None
    size = max(abs(difference), 1e-9)
    a, b = _NORMAL.inv_cdf(1 - alpha / 2), _NORMAL.inv_cdf(power)
    guess = (a * math.sqrt(discordance) + b * math.sqrt(max(0.0, discordance - size * size))) ** 2 / size**2
    if guess > _SEARCHED:
        return math.ceil(guess) if guess <= _LARGEST else None
    low, high = max(1, int(guess * 0.8)), max(8, int(guess * 1.5) + 8)
    while comparison_power(high, difference, discordance, alpha=alpha) < power:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        if comparison_power(middle, difference, discordance, alpha=alpha) < power:
            low = middle + 1
        else:
            high = middle
    while short := [
        each
        for each in range(low, low + 21, 4)
        if comparison_power(each, difference, discordance, alpha=alpha) < power
    ]:
        low = short[-1] + 1
    return low


def pareto_front(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Return the indexes of the points (cost, rate) that no other point beats in one and equals in the other."""

    def is_beaten(index: int) -> bool:
        cost, rate = points[index]
        return any(
            other <= cost and reached >= rate and (other, -reached) != (cost, -rate) for other, reached in points
        )

    return tuple(index for index in range(len(points)) if not is_beaten(index))


def _binomial(count: int, trials: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return float(count == trials * chance)
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return math.exp(ways + count * math.log(chance) + (trials - count) * math.log1p(-chance))


def _rejection(pairs: int, share: float, alpha: float) -> float:
    """Return the chance that the exact test of so many discordant pairs rejects, if one arm wins that share."""
    if share == 1:
        return float(2 * 0.5**pairs <= alpha)
    # The test certainly rejects the counts below: their chance is less than 1e-15 if no arm is better.
    first = max(0, int(pairs / 2 - 4 * math.sqrt(pairs)) - 1)
    lowest = max(0, int(pairs * (1 - share) - 4 * math.sqrt(pairs)) - 1)
    rejected = sum(_binomial(count, pairs, 1 - share) for count in range(lowest, first))
    even, rare, often = (_binomial(first, pairs, chance) for chance in (0.5, 1 - share, share))
    odds, tail = share / (1 - share), 0.0
    for count in range(first, pairs // 2 + 1):
        tail += even
        if 2 * tail > alpha:
            break
        rejected += rare + often
        step = (pairs - count) / (count + 1)
        even, rare, often = even * step, rare * step / odds, often * step * odds
    return rejected
