"""Tests for the sequential rule: the number of wins that it requires, and how rarely chance alone is sufficient."""

from __future__ import annotations

from functools import cache
from math import comb
from random import Random

import pytest
from toolsim.eval.learn.rule import ALPHA, Comparison, evidence

CHALLENGERS = 8
QUESTIONS = 95


def test_evidence_equals_the_documented_integral() -> None:
    """The evidence equals the integral in the docstring of the ``rule`` module."""
    steps = 20_000
    for wins, losses in ((0, 0), (5, 0), (0, 5), (7, 2), (12, 12)):
        shares = [0.5 + (step + 0.5) / steps / 2 for step in range(steps)]
        added = sum((2 * share) ** wins * (2 - 2 * share) ** losses for share in shares) / steps
        assert evidence(wins, losses) == pytest.approx(added, rel=1e-4)


def test_number_of_wins_needed() -> None:
    """A challenger needs 10 wins if it has no losses, or 14 wins if it has one loss."""
    boundary = Comparison(CHALLENGERS).boundary
    assert evidence(9, 0) < boundary <= evidence(10, 0)
    assert evidence(13, 1) < boundary <= evidence(14, 1)


def test_expected_evidence_of_fair_tosses_is_one() -> None:
    """After any number of fair coin tosses, the expected evidence is 1, as Ville's inequality requires."""
    for tosses in (1, 7, 40):
        values = [comb(tosses, wins) * evidence(wins, tosses - wins) for wins in range(tosses + 1)]
        assert sum(values) / 2**tosses == pytest.approx(1)


@pytest.fixture
def reckoned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache the evidence, because the simulated comparisons have only a few hundred different results."""
    monkeypatch.setattr("toolsim.eval.learn.rule.evidence", cache(evidence))


def compared(chance: Random, better: float, worse: float, questions: int = QUESTIONS) -> str | None:
    """Simulate a comparison and return its verdict. The challenger is correct with probability ``better``, and the
    incumbent with probability ``worse``.
    """
    comparison = Comparison(CHALLENGERS)
    for left in reversed(range(questions)):
        comparison.add(chance.random() < better, chance.random() < worse)
        if (verdict := comparison.verdict(left)) is not None:
            return verdict
    return None


@pytest.mark.usefixtures("reckoned_once")
@pytest.mark.parametrize("right", [0.5, 0.8, 0.95])
def test_noise_rarely_causes_a_preference(right: float) -> None:
    """If all settings fail equally often and at random, the share of sessions that prefer a challenger is below
    ALPHA.
    """
    chance = Random(1)
    courses = 1500
    fooled = sum(any(compared(chance, right, right) == "preferred" for _ in range(CHALLENGERS)) for _ in range(courses))
    assert fooled / courses < ALPHA


@pytest.mark.usefixtures("reckoned_once")
def test_bound_holds_without_early_dropping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on false preferences holds even if hopeless challengers are not dropped early."""
    monkeypatch.setattr("toolsim.eval.learn.rule.PATIENCE", ())
    chance = Random(2)
    courses = 400
    fooled = sum(any(compared(chance, 0.5, 0.5) == "preferred" for _ in range(CHALLENGERS)) for _ in range(courses))
    assert fooled / courses < ALPHA


def test_better_challenger_is_preferred() -> None:
    """A challenger that answers 80% of the questions correctly is almost always preferred to an incumbent that answers
    20% correctly.
    """
    chance = Random(3)
    found = sum(compared(chance, 0.8, 0.2) == "preferred" for _ in range(300))
    assert found / 300 > 0.95


def test_worse_challenger_is_dropped_early() -> None:
    """A challenger that loses every pair is dropped at the first check, after 12 pairs."""
    comparison = Comparison(CHALLENGERS)
    asked = 0
    while comparison.verdict(QUESTIONS - asked) is None:
        comparison.add(False, True)
        asked += 1
    assert (asked, comparison.verdict(QUESTIONS - asked)) == (12, "dropped")


def test_challenger_without_a_chance_is_dropped() -> None:
    """A challenger is dropped if too few questions remain for it to win."""
    comparison = Comparison(CHALLENGERS)
    comparison.add(True, False)
    assert comparison.verdict(9) is None
    assert comparison.verdict(8) == "dropped"
    comparison.add(True, True)
    assert (comparison.pairs, comparison.wins, comparison.losses) == (2, 1, 0)
