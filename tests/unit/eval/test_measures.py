"""Tests that compare the statistics with published values and with their definitions."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.eval.measures import mcnemar, percentile, wilson


@pytest.mark.parametrize(
    ("ok", "runs", "low", "high"),
    # Values from Newcombe 1998, table I, method 3, which is the score interval without continuity correction.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_published_intervals(ok: int, runs: int, low: float, high: float) -> None:
    """Wilson's intervals equal published intervals to four decimal places."""
    assert wilson(ok, runs) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(st.integers(1, 10_000).flatmap(lambda runs: st.tuples(st.integers(0, runs), st.just(runs))))
def test_wilson_interval_contains_the_rate(pair: tuple[int, int]) -> None:
    """The Wilson interval contains the rate and is between 0 and 1. If correct and incorrect runs are swapped, the
    interval is mirrored.
    """
    ok, runs = pair
    low, high = wilson(ok, runs)
    assert 0 <= low <= ok / runs <= high <= 1
    assert wilson(runs - ok, runs) == (pytest.approx(1 - high), pytest.approx(1 - low))


def test_no_runs_yield_the_full_interval() -> None:
    """If there are no runs, Wilson's interval extends from 0 to 1."""
    assert wilson(0, 0) == (0.0, 1.0)


def test_percentiles_are_measured_values() -> None:
    """Percentiles are computed by the nearest-rank method. The expected values are from a textbook example."""
    values = [15, 20, 35, 40, 50]
    assert [percentile(values, percent) for percent in (5, 30, 40, 50, 95, 100)] == [15, 20, 20, 35, 50, 50]
    assert percentile([], 50) == 0


@pytest.mark.parametrize(("a", "b"), [(0, 0), (3, 3), (1, 0), (5, 1), (2, 9), (0, 12)])
def test_mcnemar_matches_enumerated_coin_tosses(a: int, b: int) -> None:
    """McNemar's p-value is the share of all outcomes of a + b coin tosses that are at least as uneven as a and b."""
    falls = [sum(coins) for coins in product((0, 1), repeat=a + b)]
    uneven = sum(abs(2 * heads - (a + b)) >= abs(a - b) for heads in falls)
    assert mcnemar(a, b) == pytest.approx(uneven / len(falls))
    assert mcnemar(a, b) == mcnemar(b, a)


def test_mcnemar_of_many_pairs_does_not_overflow() -> None:
    assert mcnemar(2600, 2400) == pytest.approx(0.00489, abs=1e-4)
    assert 0 <= mcnemar(5000, 0) < 1e-300
