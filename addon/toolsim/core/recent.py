"""A bounded dict of what was set last."""

from __future__ import annotations

from collections import OrderedDict


class RecentDict[K, V](OrderedDict[K, V]):
    """Holds at most ``max_count`` values: setting one forgets the one that was set longest ago."""

    def __init__(self, max_count: int) -> None:
        super().__init__()
        self._max_count = max_count

    def __setitem__(self, key: K, value: V) -> None:
        """Set a value, as the latest one, whether the key is new or not."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_count:
            self.popitem(last=False)
