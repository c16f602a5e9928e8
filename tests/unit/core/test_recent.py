"""Tests for a dict that keeps a limited number of the most recently set keys."""

from __future__ import annotations

from toolsim.core.recent import RecentDict


def test_setting_a_key_makes_it_the_latest() -> None:
    """Setting a key again makes it the most recent key. Reading a key does not."""
    recent: RecentDict[str, int] = RecentDict(3)
    for number, key in enumerate("abca"):
        recent[key] = number
    assert recent["b"] == 1
    recent["d"] = 4
    assert [*recent.items()] == [("c", 2), ("a", 3), ("d", 4)]
    recent["e"] = 5
    assert recent.pop("a") == 3
    recent["f"] = 6
    assert [*recent] == ["d", "e", "f"]
