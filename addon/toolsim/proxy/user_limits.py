"""The limits for the users in a key file: concurrent turns, and turns per minute.

A turn is a client's request to a model, regardless of the number of rounds. The turn of a background answer lasts until
the answer has ended. Token counts and model lists are not turns.
"""

from __future__ import annotations

import math

from toolsim.core.rate import TokenBucket
from toolsim.core.recent import RecentDict
from toolsim.proxy.access import Refusal
from toolsim.proxy.options.api_keys import User

_MAX_USERS = 10_000
_SECONDS = 60


class UserTurn:
    """A user's turn, which counts toward the user's limits until it ends.

    The turn ends when its exchange calls ``leave`` or, if ``take_longer`` was called, when ``end`` is called.
    """

    def __init__(self, turns: _Turns) -> None:
        self._turns: _Turns | None = turns
        self._takes_longer = False
        turns.running += 1

    def take_longer(self) -> None:
        """Keep counting the turn after its exchange has ended."""
        self._takes_longer = True

    def end(self) -> None:
        """End the turn, so that it no longer counts toward the limits."""
        if self._turns is not None:
            self._turns.running -= 1
            self._turns = None

    def leave(self) -> None:
        """End the turn because its exchange has ended, unless ``take_longer`` was called."""
        if not self._takes_longer:
            self.end()


class _Turns:
    """The turns of one user. ``running`` counts turns in progress, and ``starts`` limits new turns."""

    __slots__ = ("per_minute", "running", "starts")

    def __init__(self, per_minute: int) -> None:
        self.running = 0
        self.per_minute = per_minute
        self.starts = TokenBucket(per_minute / _SECONDS, per_minute)


class UserLimits:
    """Counts the turns of all users who have limits."""

    def __init__(self) -> None:
        self._turns: RecentDict[str, _Turns] = RecentDict(_MAX_USERS)

    def begin(self, user: User) -> UserTurn | Refusal | None:
        """Start a user's turn and return it, or return a refusal if the user would exceed a limit.

        Return None for a user without limits.
        """
        if not (user.concurrent or user.per_minute):
            return None
        turns = self._turns[user.name] = self._turns.get(user.name) or _Turns(user.per_minute)
        if turns.per_minute != user.per_minute:
            # The operator has changed the limit in the key file.
            turns.per_minute, turns.starts = user.per_minute, _Turns(user.per_minute).starts
        if user.concurrent and turns.running >= user.concurrent:
            return _refusal(f"{user.concurrent} at the same time", 1)
        if user.per_minute and not turns.starts.take():
            return _refusal(f"{user.per_minute} per minute", math.ceil(turns.starts.wait()))
        return UserTurn(turns)


def _refusal(most: str, seconds: int) -> Refusal:
    message = f"Too many turns with this key: expected at most {most}."
    return Refusal(
        message, "rate_limit_error", "rate_limit_exceeded", status=429, retry_after=max(seconds, 1), reason="user_limit"
    )
