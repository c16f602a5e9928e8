"""The garbage collector skips the objects that existed at the start."""

from __future__ import annotations

import gc

from toolsimlib.proxy.mitmproxy12.heap import Heap


def test_what_is_there_is_frozen_until_the_addon_goes() -> None:
    """While the addon is loaded, a full collection only examines new objects."""
    heap = Heap()
    heap.running()
    try:
        assert gc.get_freeze_count() > 1_000
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        heap.done()
    assert gc.get_freeze_count() == 0
