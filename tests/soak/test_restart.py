"""Tests for restarts of two proxies behind HAProxy: a rolling restart loses no turns, a kill only unfinished turns."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import cast

import pytest
from soak.restart import restart

pytestmark = [
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy (Debian: haproxy)"),
]


def test_rolling_restart_loses_no_turn() -> None:
    """During a rolling restart, each turn is answered completely."""
    found = restart(clients=10, seconds=3)
    counts = cast("Counter[str]", found["counts"])
    assert set(counts) == {"answered"}
    assert counts["answered"] >= 20
    assert found["logged"] == counts


def test_kill_loses_only_turns_in_progress() -> None:
    """A kill interrupts only the turns in progress, and the logs contain all other turns."""
    found = restart(clients=10, seconds=2, kill=True)
    counts, opened = cast("Counter[str]", found["counts"]), cast("list[int]", found["open"])
    lost = sum(counts.values()) - counts["answered"]
    assert 0 < lost <= sum(opened) + 2, counts
    assert cast("Counter[str]", found["logged"])["answered"] == counts["answered"]
