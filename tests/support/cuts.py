"""Places to cut a text or a stream at, for tests that hold wherever it is cut."""

from __future__ import annotations

import os

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
