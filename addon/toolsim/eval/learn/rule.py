"""When a setting counts as better than another one: a sequential sign test.

Two settings answer the same questions. One that both get right, or both wrong, says nothing about which is better; of
the others the challenger wins W and loses L. If it is no better, each of these is a loss with a probability of a half
or more, whatever the question. The evidence against that is what a bet on "it wins a share of them, anything from a
half to all, each share as likely" has made of a stake of 1::

    E(W, L) = 2 · ∫ (2s)^W · (2 - 2s)^L ds, s from 1/2 to 1

If the challenger is no better, the bet is unfavourable, and the probability that E *ever* reaches 1/a is at most a
(Ville's inequality). So we may look after each question, and stop for any reason: the time is over, the backend
breaks, somebody interrupts. The rule:

1. *Preferred* as soon as E reaches N/ALPHA, where N is the number of challengers that may be asked. So the
   probability that any setting is preferred although none is better than the one that it was compared with is at most
   ALPHA, over all comparisons (Bonferroni). With 8 challengers that takes 10 wins without a loss, or 14 with one.
2. *In no kind of questions worse*: while the same evidence against it, of the questions of one kind alone, is
   ``BEHIND``, it is not preferred: two lost and none won, or five and one. This makes the rule stricter.
3. *Dropped* when it cannot get there any more, if it won all questions that are left.
4. *Dropped* early, by ``PATIENCE``, when it has not gained enough: that may miss a small gain and can prefer nothing.
5. A question that one of the two did not answer (an error, a time-out) is no pair.

Whatever is not preferred leaves the default as it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import comb
from typing import Literal

ALPHA = 0.05
"""The probability that anything is preferred by chance."""
PATIENCE = ((12, 1), (24, 3), (48, 6))
"""After so many pairs, how many more wins than losses a challenger must have to be asked further."""
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
    """What came of a challenger's questions so far. ``challengers``: how many there may be in all."""

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
        """Return what is decided, None for nothing yet; ``left``: questions that may still become pairs."""
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
