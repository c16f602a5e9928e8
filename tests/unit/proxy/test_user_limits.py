"""Limits per user: concurrent turns and turns per minute."""

from __future__ import annotations

import pytest
from toolsim.core import rate
from toolsim.proxy.access import Refusal
from toolsim.proxy.options.api_keys import User
from toolsim.proxy.user_limits import UserLimits, UserTurn


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(rate.time, "monotonic", lambda: now[0])
    return now


def user(name: str = "alice", **limits: int) -> User:
    return User(name, b"", name, **limits)


def started(limits: UserLimits, who: User) -> UserTurn:
    turn = limits.begin(who)
    assert isinstance(turn, UserTurn)
    return turn


def refused(limits: UserLimits, who: User) -> tuple[str, int | None]:
    error = limits.begin(who)
    assert isinstance(error, Refusal)
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    return error.message, error.retry_after


def test_without_limits() -> None:
    assert UserLimits().begin(user()) is None


def test_concurrent_turns() -> None:
    """A turn counts as concurrent until both its exchange and any background answer have ended."""
    limits, alice = UserLimits(), user(concurrent=2)
    first, second = started(limits, alice), started(limits, alice)
    assert refused(limits, alice) == ("Too many turns with this key: expected at most 2 at the same time.", 1)
    assert started(limits, user("bob", concurrent=1))
    first.leave()
    first.leave()
    third = started(limits, alice)
    refused(limits, alice)
    # A background answer continues after its exchange has ended.
    second.take_longer()
    second.leave()
    refused(limits, alice)
    second.end()
    second.end()
    third.leave()
    assert started(limits, alice)
    assert started(limits, alice)
    refused(limits, alice)


def test_turns_per_minute(clock: list[float]) -> None:
    """The number of turns per minute is limited. Refused turns do not count toward the limit."""
    limits, alice = UserLimits(), user(per_minute=3)
    for _ in range(3):
        started(limits, alice).leave()
    for _ in range(2):
        assert refused(limits, alice) == ("Too many turns with this key: expected at most 3 per minute.", 20)
    clock[0] = 15.5
    assert refused(limits, alice)[1] == 5
    clock[0] = 20
    assert started(limits, alice)
    both = user("bob", concurrent=1, per_minute=2)
    turn = started(limits, both)
    for _ in range(5):
        assert "at the same time" in refused(limits, both)[0]
    turn.leave()
    started(limits, both).leave()
    assert "per minute" in refused(limits, both)[0]


def test_changed_file_applies(clock: list[float]) -> None:
    limits = UserLimits()
    first = started(limits, user(concurrent=1, per_minute=1))
    refused(limits, user(concurrent=1, per_minute=5))
    assert started(limits, user(concurrent=2, per_minute=5))
    first.leave()
    assert started(limits, user(concurrent=2, per_minute=5))
