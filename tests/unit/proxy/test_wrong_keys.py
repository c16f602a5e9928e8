"""The limit on attempts with wrong API keys."""

from __future__ import annotations

import pytest
from toolsim.core import rate
from toolsim.proxy.wrong_keys import ATTEMPTS, MAX_KNOWN, MAX_SOURCES, SECONDS_PER_ATTEMPT, WrongKeys


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(rate.time, "monotonic", lambda: now[0])
    return now


def test_source_of_wrong_keys_is_blocked(clock: list[float]) -> None:
    """After too many wrong keys from one source address, only users who have authenticated from that address before are
    accepted. Other addresses are not affected.
    """
    keys = WrongKeys()
    assert keys.accept("a", "alice")
    for _ in range(ATTEMPTS):
        assert not keys.is_limited("a")
        keys.add("a")
    assert keys.is_limited("a")
    assert keys.accept("a", "alice")
    assert not keys.accept("a", "bob")
    assert keys.accept("b", "bob")
    clock[0] = SECONDS_PER_ATTEMPT
    assert not keys.is_limited("a")
    assert keys.accept("a", "bob")


def test_memory_is_bounded() -> None:
    """The number of remembered sources and users is limited, and the most recent ones are kept."""
    keys = WrongKeys()
    for number in range(10_000):
        keys.add(f"source {number}")
        assert keys.accept("a", f"user {number}")
    for number in range(100):
        assert keys.accept("b", f"user {number}")
    assert (len(keys._sources), len(keys._known)) == (MAX_SOURCES, MAX_KNOWN)
    assert "source 9999" in keys._sources
    assert "source 0" not in keys._sources
