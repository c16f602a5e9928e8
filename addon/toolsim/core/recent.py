"""A bounded dict of the values set most recently."""

from __future__ import annotations

from collections import OrderedDict


class RecentDict[K, V](OrderedDict[K, V]):
    """Contains at most ``max_count`` values: setting another one removes the value that was set longest ago."""

    def __init__(self, max_count: int) -> None:
        super().__init__()
        self._max_count = max_count

    def __setitem__(self, key: K, value: V) -> None:
        """Set a value and make it the latest, whether or not the key is new."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_count:
            self.popitem(last=False)
