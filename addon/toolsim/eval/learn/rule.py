"""Decides whether one setting is preferred to another, with a sequential sign test.

Two settings answer the same questions. A question that both answer correctly, or both incorrectly, does not show which
setting is better. The challenger wins W of the remaining questions and loses L. If the challenger is not better, it
loses each of these questions with a probability of at least one half. The evidence E that it is better is the payoff of
a bet of 1 that it wins a share s of these questions, averaged over all s between 1/2 and 1::

    E(W, L) = 2 · ∫ (2s)^W · (2 - 2s)^L ds, s from 1/2 to 1

If the challenger is not better, the bet is unfavorable, and the probability that E *ever* reaches 1/a is at most a
(Ville's inequality). The result can therefore be checked after each question, and the test can be stopped for any
reason: the time limit, a failing backend, an interruption. The rule:

1. *Preferred.* A challenger is preferred as soon as E reaches N/ALPHA, where N is the number of possible challengers.
   If no setting is better than its opponent, the probability that any is preferred is thus at most ALPHA, over all
   comparisons (Bonferroni). With 8 challengers, this requires 10 wins without a loss, or 14 wins with one loss.
2. *Not worse in any kind of question.* A challenger is not preferred while it is behind in any kind of question. It is
   behind if E(L, W) for the kind is at least ``BEHIND``, as after two losses without a win, or five with one win.
3. *Dropped.* A challenger is dropped if it could not be preferred even if it won all remaining questions.
4. *Dropped early.* A challenger is dropped if its lead is smaller than ``PATIENCE`` requires. This can miss a small
   gain, but cannot cause a wrong preference.
5. *No pair.* A question that one setting did not answer (an error, a timeout) does not count.

If no challenger is preferred, the default is kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import comb
from typing import Literal

ALPHA = 0.05
"""The maximum probability that any setting is preferred by chance."""
PATIENCE = ((12, 1), (24, 3), (48, 6))
"""Pairs of a number of questions, and the lead (wins minus losses) that a challenger then needs to continue."""
BEHIND = 2.0
"""A challenger counts as worse in a kind of question if the evidence against it is at least this value."""

Verdict = Literal["preferred", "dropped"]


def evidence(wins: int, losses: int) -> float:
    """Return the evidence E that a challenger is better. It is 1 at first, and increases with each win."""
    # The integrand is proportional to a beta density, so its integral from 1/2 to 1 is a sum of binomial coefficients.
    pairs = wins + losses
    return sum(comb(pairs + 1, count) for count in range(wins + 1)) / ((pairs + 1) * comb(pairs, wins))


@dataclass(slots=True)
class Comparison:
    """The state of one comparison. ``challengers`` is the total number of possible challengers (N in rule 1)."""

    challengers: int
    pairs: int = 0
    wins: int = 0
    losses: int = 0
    of_kinds: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """The numbers of wins (True) and losses (False), by kind of question."""

    @property
    def boundary(self) -> float:
        """The evidence that a challenger needs to be preferred."""
        return self.challengers / ALPHA

    @property
    def evidence(self) -> float:
        """The evidence for the challenger so far."""
        return evidence(self.wins, self.losses)

    def add(self, challenger: bool, incumbent: bool, kind: str = "") -> None:
        """Record a question that both settings answered, and whether each answer was correct."""
        self.of_kinds[kind, True] += challenger and not incumbent
        self.of_kinds[kind, False] += incumbent and not challenger
        self.pairs += 1
        self.wins += challenger and not incumbent
        self.losses += incumbent and not challenger

    def verdict(self, left: int) -> Verdict | None:
        """Return the verdict, or None to continue. ``left`` is the number of questions that could still be won."""
        if self.evidence >= self.boundary and not self._is_behind():
            return "preferred"
        if evidence(self.wins + left, self.losses) < self.boundary:
            return "dropped"
        for pairs, ahead in PATIENCE:
            if self.pairs == pairs and self.wins - self.losses < ahead:
                return "dropped"
        return None

    def _is_behind(self) -> bool:
        kinds = {kind for kind, _ in self.of_kinds}
        return any(evidence(self.of_kinds[kind, False], self.of_kinds[kind, True]) >= BEHIND for kind in kinds)
