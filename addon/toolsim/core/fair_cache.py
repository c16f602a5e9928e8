"""A bounded cache that several owners share. An owner with many values cannot evict the values of owners with few
values.

When the cache is full, it evicts the least recently used values of the owner that has the largest share.
"""

from __future__ import annotations

from collections import OrderedDict


class FairCache[V]:
    """A cache of values by key, shared by several owners.

    ``max_count`` and ``max_weight`` limit the number and total weight of all values.
    """

    def __init__(self, max_count: int, max_weight: int) -> None:
        self._max_count = max_count
        self._max_weight = max_weight
        # Each owner's values and weights by key, least recently used first.
        self._held: dict[str, OrderedDict[bytes, tuple[V, int]]] = {}
        self._weights: dict[str, int] = {}
        self._owners: dict[bytes, str] = {}
        self._weight = 0

    def put(self, key: bytes, value: V, owner: str, weight: int = 1) -> None:
        """Store a value, replacing the key's earlier value, if any."""
        self.pop(key)
        self._held.setdefault(owner, OrderedDict())[key] = value, weight
        self._weights[owner] = self._weights.get(owner, 0) + weight
        self._owners[key] = owner
        self._weight += weight
        while len(self._owners) > self._max_count:
            self._evict(max(self._held, key=lambda owner: len(self._held[owner])))
        while self._weight > self._max_weight:
            self._evict(max(self._weights, key=self._weights.__getitem__))

    def get(self, key: bytes) -> V | None:
        """Return a key's value and mark it as recently used, or return None if the key has no value."""
        owner = self._owners.get(key)
        if owner is None:
            return None
        held = self._held[owner]
        held.move_to_end(key)
        return held[key][0]

    def pop(self, key: bytes) -> V | None:
        """Remove and return a key's value, or return None if the key has no value."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return None
        value, weight = self._held[owner].pop(key)
        self._weight -= weight
        self._weights[owner] -= weight
        if not self._held[owner]:
            del self._held[owner], self._weights[owner]
        return value

    def _evict(self, owner: str) -> None:
        self.pop(next(iter(self._held[owner])))
