"""Limits the number of concurrent background answers, without a queue.

1. A key can use all slots if no other key needs any.
2. If another key has slots, or has requested a slot within the last minute, a key can use at most half of the slots. A
   key that already has more keeps them, but slots that become free are left to the other keys.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from toolsim.core.errors import ApiError

LATELY_SECONDS = 60.0
"""Number of seconds that a key counts as waiting after a request for a slot. Clients retry much sooner after a 429."""
_RETRY_SECONDS = 5


class Slots:
    """The slots for background answers on one proxy. ``taken`` returns the partition of each answer in progress."""

    def __init__(self, taken: Callable[[], Iterable[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._taken = taken
        self._starting: list[str] = []
        self._clock = clock
        # The last two keys that requested a slot, with the times of their requests. For any key, at least one of the
        # two is a different key.
        self._asked: dict[str, float] = {}

    def refusal(self, partition: str, most: int) -> ApiError | None:
        """Return the error for a partition that must not use another slot, or None if it can. ``most`` is the number of
        slots.
        """
        taken = Counter([*self._starting, *self._taken()])
        has_others = self._have_others_asked(partition) or bool(taken.keys() - {partition})
        share = (most + 1) // 2 if has_others else most
        if taken.total() >= most:
            return _too_many(f"at most {most} at a time")
        if taken[partition] >= share:
            return _too_many(f"at most {share} for one key while other keys are waiting")
        return None

    @contextmanager
    def starting(self, partition: str) -> Iterator[None]:
        """Reserve a slot while an answer is being started."""
        self._starting.append(partition)
        try:
            yield
        finally:
            self._starting.remove(partition)

    def _have_others_asked(self, partition: str) -> bool:
        """Record a partition's request for a slot. Return whether another partition has requested a slot recently."""
        now = self._clock()
        self._asked.pop(partition, None)
        lately = any(at > now - LATELY_SECONDS for at in self._asked.values())
        self._asked[partition] = now
        if len(self._asked) > 2:
            del self._asked[next(iter(self._asked))]
        return lately


def _too_many(limit: str) -> ApiError:
    message = f"Too many background answers are in progress: {limit}."
    return ApiError(message, "rate_limit_error", "rate_limit_exceeded", status=429, retry_after=_RETRY_SECONDS)
