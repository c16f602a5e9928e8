"""Controls how much effort tests spend: `make test` and `make test-ci` try fewer positions and cases than
`make test-all`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

# `make test` tries only as many positions as are needed to cover each kind of position.
_IS_QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"


def places(start: int, stop: int) -> range:
    """Return the positions from ``start`` up to, but not including, ``stop``; in `make test`, only every seventh."""
    return range(start, stop, 7 if _IS_QUICK else 1)


def step(size: int) -> int:
    """Return the distance between tested positions if each position costs a turn of a real proxy.

    The distance is ``size``, or three times ``size`` in `make test`. ``CUTS=1`` tries every position, which takes
    minutes.
    """
    return int(os.environ.get("CUTS", "0")) or (3 * size if _IS_QUICK else size)


def some(cases: Iterable[Any], share: int = 4) -> list[Any]:
    """Return all cases or, in `make test`, a fixed random sample of one in ``share`` cases."""
    known = list(cases)
    if not _IS_QUICK:
        return known
    return [known[number] for number in sorted(Random(share).sample(range(len(known)), -(-len(known) // share)))]


def parameters(cases: Iterable[Any], is_extended: Callable[[Any], bool]) -> list[Any]:
    """Return the parameters of a test. Extended cases, which take many seconds, are omitted in `make test`."""
    return [pytest.param(case, marks=[pytest.mark.extended] * is_extended(case)) for case in cases]
