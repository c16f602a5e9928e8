"""Places to cut a text or a stream at, for tests that hold wherever it is cut."""

from __future__ import annotations

import os

# As few as `make test` can try and still see each kind of place; `make test-all` tries every one.
_STEP = 7 if os.environ.get("HYPOTHESIS_PROFILE") == "quick" else 1


def places(start: int, stop: int) -> range:
    """Return places from ``start`` up to, but without, ``stop``: every one, or in `make test` each seventh."""
    return range(start, stop, _STEP)
