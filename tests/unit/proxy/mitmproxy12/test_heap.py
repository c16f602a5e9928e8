"""The garbage collector skips the objects that existed at the start."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
from toolsim.proxy.mitmproxy12 import heap


def test_what_is_there_is_frozen_until_the_addon_goes() -> None:
    """While the addon is loaded, a full collection only examines new objects."""
    addon = heap.Heap()
    addon.running()
    try:
        assert gc.get_freeze_count() > 1_000
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        addon.done()
    assert gc.get_freeze_count() == 0


def test_what_comes_later_is_frozen_by_the_first_long_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are imported when they are needed; what comes after a few collections stays subject to them."""
    monkeypatch.setattr(heap, "_LONG_SECONDS", 0)
    gc.disable()
    addon = heap.Heap()
    addon.running()
    try:
        counts, kept = [gc.get_freeze_count()], []
        for _ in range(5):
            kept.append([[] for _ in range(1_000)])
            gc.collect()
            counts.append(gc.get_freeze_count())
        more = [after - before >= 1_000 for before, after in pairwise(counts)]
        assert more == [True, True, True, False, False]
    finally:
        addon.done()
        gc.enable()
