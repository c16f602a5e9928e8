"""Rate limits as token buckets."""

from __future__ import annotations

import time


class TokenBucket:
    """An allowance that refills over time. It holds at most ``burst`` units, and regains ``per_second`` units each
    second.
    """

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = self._left = float(burst)
        self._at = time.monotonic()

    def take(self, units: float = 1.0) -> bool:
        """Take the units if enough are available, and return whether they were taken."""
        self._refill()
        if self._left < units:
            return False
        self._left -= units
        return True

    def wait(self, units: float = 1.0) -> float:
        """Return the number of seconds until ``units`` are available."""
        self._refill()
        return max(units - self._left, 0.0) / self._per_second

    @property
    def is_full(self) -> bool:
        """Whether the bucket is full. A full bucket need not be stored, because a new bucket is equivalent."""
        self._refill()
        return self._left >= self._burst

    def _refill(self) -> None:
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
