"""A bounded dict that retains the most recently set values."""

from __future__ import annotations

from collections import OrderedDict


class RecentDict[K, V](OrderedDict[K, V]):
    """A dict of at most ``max_count`` values. Setting a value beyond the limit removes the value that was set longest
    ago.
    """

    def __init__(self, max_count: int) -> None:
        super().__init__()
        self._max_count = max_count

    def __setitem__(self, key: K, value: V) -> None:
        """Set a value, and mark it as the most recent even if the key already exists."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_count:
            self.popitem(last=False)
