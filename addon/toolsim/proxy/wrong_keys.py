"""Limits the number of wrong keys from each source.

If a source (see ``refusals``) has sent too many wrong keys, it is limited: only users whose keys it has sent before are
accepted from there. So keys cannot be guessed, and a program with a wrong key does not lock out users who share its
address.
"""

from __future__ import annotations

from toolsim.core.rate import TokenBucket
from toolsim.core.recent import RecentDict

ATTEMPTS, SECONDS_PER_ATTEMPT = 10, 6
"""The number of wrong keys that a source can send in a burst, and the seconds until it can send one more."""
MAX_SOURCES = 1_000
"""Maximum number of remembered sources. The sources that sent wrong keys most recently are kept."""
MAX_KNOWN = 10_000
"""Maximum number of remembered pairs of source and user. The most recently accepted pairs are kept."""


class WrongKeys:
    """The sources that have sent wrong keys, and the users who were accepted from each source."""

    def __init__(self) -> None:
        self._sources: RecentDict[str, TokenBucket] = RecentDict(MAX_SOURCES)
        self._known: RecentDict[tuple[str, str], None] = RecentDict(MAX_KNOWN)

    def add(self, source: str) -> None:
        """Count a wrong key from a source."""
        bucket = self._sources.get(source) or TokenBucket(1 / SECONDS_PER_ATTEMPT, ATTEMPTS)
        self._sources[source] = bucket
        bucket.take()

    def is_limited(self, source: str) -> bool:
        """Return whether a source has sent too many wrong keys."""
        bucket = self._sources.get(source)
        return bucket is not None and bucket.wait() > 0

    def accept(self, source: str, user: str) -> bool:
        """Return whether to accept a user whose key a source has sent. An accepted user is remembered."""
        pair = source, user
        if pair not in self._known and self.is_limited(source):
            return False
        self._known[pair] = None
        return True
