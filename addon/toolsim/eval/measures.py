"""Computes the statistics of a report directly from their definitions: rate intervals, percentiles, a paired test."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution, for a two-sided 95% interval."""


def wilson(ok: int, runs: int) -> tuple[float, float]:
    """Return Wilson's 95% score interval for a rate, as fractions, or (0, 1) if there are no runs.

    Unlike the normal approximation, it is valid for few runs, and at 0 and 100%. Wilson 1927; Brown et al. 2001.
    """
    if not runs:
        return 0.0, 1.0
    rate, square = ok / runs, Z95 * Z95
    middle = (rate + square / (2 * runs)) / (1 + square / runs)
    half = Z95 / (1 + square / runs) * math.sqrt(rate * (1 - rate) / runs + square / (4 * runs * runs))
    # At 0 and 100%, floating-point arithmetic would slightly miss the exact bound.
    low = 0.0 if ok == 0 else max(0.0, middle - half)
    high = 1.0 if ok == runs else min(1.0, middle + half)
    return low, high


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile, which is one of the values, or 0 if there are no values."""
    if not values:
        return 0.0
    rank = max(math.ceil(percent / 100 * len(values)), 1)
    return sorted(values)[rank - 1]


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    ``only_a`` and ``only_b`` are the numbers of pairs in which only A, or only B, is correct. If A and B were equally
    good, each of these pairs would be a fair coin toss. p is the probability that such tosses are at least as uneven.
    """
    pairs, fewer = only_a + only_b, min(only_a, only_b)
    if only_a == only_b:
        return 1.0
    tail = ways = 1  # Each binomial coefficient is derived from the previous one, because computing thousands is slow.
    for count in range(fewer):
        ways = ways * (pairs - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << pairs))
