"""The rule for preferring one setting to another: a sequential sign test.

Two settings answer the same questions. A question that both get right, or both wrong, says nothing about which is
better; of the others the challenger wins W and loses L. If it is not better, each of these is a loss with a probability
of a half or more, regardless of the question. The evidence against that is the result of a bet on "it wins a share of
them, anything from a half to all, each share as likely" with a stake of 1::

    E(W, L) = 2 · ∫ (2s)^W · (2 - 2s)^L ds, s from 1/2 to 1

If the challenger is not better, the bet is unfavorable, and the probability that E *ever* reaches 1/a is at most a
(Ville's inequality). So the result can be checked after each question, and the test stopped for any reason: the time is
over, the backend fails, somebody interrupts. The rule:

1. *Preferred* as soon as E reaches N/ALPHA, where N is the number of challengers that can be asked. So the probability
   that any setting is preferred although none is better than its opponent is at most ALPHA, over all comparisons
   (Bonferroni). With 8 challengers that takes 10 wins without a loss, or 14 with one.
2. *Not worse in any kind of question*: while the same evidence against it, from the questions of one kind alone, is at
   least ``BEHIND``, it is not preferred: two lost and none won, or five and one. This makes the rule stricter.
3. *Dropped* when it could not get there even by winning all remaining questions.
4. *Dropped* early, by ``PATIENCE``, when it has not gained enough: that can miss a small gain but cannot prefer
   anything.
5. A question that one of the two did not answer (an error, a timeout) is not a pair.

Without a preferred challenger the default stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import comb
from typing import Literal

ALPHA = 0.05
"""The probability that anything is preferred by chance."""
PATIENCE = ((12, 1), (24, 3), (48, 6))
"""After so many pairs, the lead that a challenger needs to continue."""
BEHIND = 2.0
"""The evidence that a challenger is worse in one kind of questions."""

Verdict = Literal["preferred", "dropped"]


def evidence(wins: int, losses: int) -> float:
    """Return E: 1 at the start, more the more a challenger wins.

    The integral is that of a beta density, and its share above 1/2 a sum of binomial coefficients.
    """
    pairs = wins + losses
    return sum(comb(pairs + 1, count) for count in range(wins + 1)) / ((pairs + 1) * comb(pairs, wins))


@dataclass(slots=True)
class Comparison:
    """The state of a challenger's comparison. ``challengers``: the maximum number of challengers."""

    challengers: int
    pairs: int = 0
    wins: int = 0
    losses: int = 0
    of_kinds: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Wins (True) and losses by kind of question."""

    @property
    def boundary(self) -> float:
        """The evidence at which the challenger is preferred."""
        return self.challengers / ALPHA

    @property
    def evidence(self) -> float:
        """The evidence so far."""
        return evidence(self.wins, self.losses)

    def add(self, challenger: bool, incumbent: bool, kind: str = "") -> None:
        """Count a question of a kind that both have answered, by whether each was right."""
        self.of_kinds[kind, True] += challenger and not incumbent
        self.of_kinds[kind, False] += incumbent and not challenger
        self.pairs += 1
        self.wins += challenger and not incumbent
        self.losses += incumbent and not challenger

    def verdict(self, left: int) -> Verdict | None:
        """Return the verdict, None while undecided; ``left``: questions that can still become pairs."""
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
