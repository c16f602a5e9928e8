"""A rolling restart of two proxies after HAProxy loses nothing; a kill loses what was under way, and no more."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import cast

import pytest
from soak.restart import restart

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy (Debian: haproxy)"),
]


def test_a_rolling_restart_loses_nothing() -> None:
    """Every turn is answered, to its end; ``make soak`` and ``python -m soak.restart`` do it with more clients."""
    found = restart(clients=10, seconds=3)
    counts = cast("Counter[str]", found["counts"])
    assert set(counts) == {"answered"}
    assert counts["answered"] >= 20
    assert found["logged"] == counts


def test_a_kill_loses_what_was_under_way() -> None:
    """Those turns break off, no other one does, and the logs have all the rest."""
    found = restart(clients=10, seconds=2, kill=True)
    counts, opened = cast("Counter[str]", found["counts"]), cast("list[int]", found["open"])
    lost = sum(counts.values()) - counts["answered"]
    assert 0 < lost <= sum(opened) + 2, counts
    assert cast("Counter[str]", found["logged"])["answered"] == counts["answered"]
