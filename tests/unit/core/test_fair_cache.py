"""Tests for a cache in which each owner has a fair share that other owners cannot evict."""

from __future__ import annotations

from random import Random

from toolsim.core.fair_cache import FairCache


def held(shares: FairCache[str], keys: str) -> str:
    return "".join(key for key in keys if shares.get(key.encode()) is not None)


def test_largest_share_is_evicted_first() -> None:
    """If the cache exceeds its maximum size or weight, the owner with the largest share loses its least recently used
    entry.
    """
    shares: FairCache[str] = FairCache(4, 100)
    for key in "ab":
        shares.put(key.encode(), key, "modest")
    for key in "klmno":
        shares.put(key.encode(), key, "greedy")
    assert held(shares, "abklmno") == "abno"
    shares.get(b"n")
    shares.put(b"p", "p", "greedy")
    assert held(shares, "abnop") == "abnp"
    shares.put(b"x", "x", "new", 100)
    assert held(shares, "abnpx") == "bnp"
    shares.put(b"a", "a", "modest", 60)
    shares.put(b"x", "x", "new", 50)
    assert held(shares, "ax") == "x"


def test_key_has_a_single_value() -> None:
    """If a key is set again, its value is replaced, even if another owner sets it."""
    shares: FairCache[str] = FairCache(2, 10)
    shares.put(b"a", "1", "me", 5)
    shares.put(b"a", "2", "you", 6)
    assert (shares.get(b"a"), shares.pop(b"a"), shares.pop(b"a"), shares.get(b"a")) == ("2", "2", None, None)
    shares.put(b"b", "3", "me", 10)
    assert shares.get(b"b") == "3"


def test_totals_stay_consistent() -> None:
    """After any sequence of insertions and removals, the cache's totals agree with its entries."""
    random, shares = Random(1), FairCache[int](20, 200)
    for number in range(3_000):
        key = bytes([random.randrange(40)])
        if random.random() < 0.2:
            shares.pop(key)
        else:
            shares.put(key, number, random.choice("abc"), random.randrange(30))
        weights = {owner: sum(weight for _, weight in each.values()) for owner, each in shares._held.items()}
        assert weights == shares._weights
        assert sum(weights.values()) == shares._weight <= 200
        assert {key for each in shares._held.values() for key in each} == set(shares._owners)
        assert len(shares._owners) <= 20
