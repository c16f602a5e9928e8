"""Shortens the pauses in which Python's garbage collector stops all streams.

Objects created during startup are exempt from garbage collection, since they live until the process exits.

A full collection stops the process while it visits every object. With mitmproxy and this addon in memory there are a
hundred thousand objects, so every stream pauses for 40 ms or more. The collector skips frozen objects. Many modules are
imported only on first use, so objects are frozen again after each of the first few long collections. Later collections
freeze nothing, because freezing flows would keep their contents in memory forever.

A full collection also visits the garbage since the previous full collection. With Python's default threshold, this is
the garbage of hundreds of requests, which takes up to 0.2 s. With a lower threshold, full collections are more frequent
but shorter, and take the same time in total.
"""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from typing import Any

_LONG_SECONDS = 0.01
_FULL_THRESHOLD = 4
"""Number of collections of the middle generation before a full collection. Python's default is 10."""
_MOST = 3
"""Objects are frozen again after each of the first ``_MOST`` long collections, but not after later ones."""


class GcFreeze:
    """An addon that freezes existing objects once mitmproxy is running, and makes full collections more frequent.

    It restores the original state when toolsim is unloaded.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._left = _MOST
        self._thresholds = gc.get_threshold()

    def running(self) -> None:
        """Collect garbage, and freeze the remaining objects."""
        gc.collect()
        gc.freeze()
        # Python delays a full collection until the number of new objects reaches a quarter of the objects that the
        # previous full collection left. This second collection leaves few objects, because it skips frozen ones.
        gc.collect()
        gc.callbacks.append(self._collecting)
        gc.set_threshold(*self._thresholds[:2], _FULL_THRESHOLD)

    def done(self) -> None:
        """Unfreeze all objects, so that the objects of an unloaded script can be collected."""
        with suppress(ValueError):  # The callback is missing if mitmproxy did not start.
            gc.callbacks.remove(self._collecting)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _collecting(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < 2 or not self._left:
            return
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > _LONG_SECONDS:
            self._left -= 1
            gc.freeze()
