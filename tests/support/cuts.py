"""Positions for splitting text or a stream, for tests that must hold at any position."""

from __future__ import annotations

import os
from collections.abc import Iterable
from random import Random
from typing import Any

# `make test` tries as few positions as possible while covering each kind of position.
_IS_QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"


def places(start: int, stop: int) -> range:
    """Return the positions from ``start`` to before ``stop``: all, or in `make test` every seventh."""
    return range(start, stop, 7 if _IS_QUICK else 1)


def step(size: int) -> int:
    """Return the distance between positions that each cost a turn of a real proxy: ``size``, tripled in `make test`.

    ``CUTS=1`` tries every position, which takes minutes.
    """
    return int(os.environ.get("CUTS", "0")) or (3 * size if _IS_QUICK else size)


def some(cases: Iterable[Any], share: int = 4) -> list[Any]:
    """Return all cases, or for `make test` a fixed random sample: one in ``share``."""
    known = list(cases)
    return sorted(Random(share).sample(known, -(-len(known) // share)), key=known.index) if _IS_QUICK else known
