"""Places to cut a text or a stream at, for tests that hold wherever it is cut."""

from __future__ import annotations

import os
from collections.abc import Iterable
from random import Random
from typing import Any

# As few as `make test` can try and still see each kind of place.
_IS_QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"


def places(start: int, stop: int) -> range:
    """Return places from ``start`` up to, but without, ``stop``: every one, or in `make test` each seventh."""
    return range(start, stop, 7 if _IS_QUICK else 1)


def step(size: int) -> int:
    """Return the distance of places where each costs a turn of a real proxy: ``size``, in `make test` three times that.

    ``CUTS=1`` tries every place, which takes minutes.
    """
    return int(os.environ.get("CUTS", "0")) or (3 * size if _IS_QUICK else size)


def some(cases: Iterable[Any], share: int = 4) -> list[Any]:
    """Return all cases, or for `make test` a fixed random sample: one in ``share``."""
    known = list(cases)
    return sorted(Random(share).sample(known, -(-len(known) // share)), key=known.index) if _IS_QUICK else known
