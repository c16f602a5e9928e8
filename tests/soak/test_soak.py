"""A soak test of a few seconds, in which no text may be lost, duplicated or sent to another client."""

from __future__ import annotations

import pytest
from soak.run import Soak


@pytest.mark.slow
@pytest.mark.extended
def test_short_soak() -> None:
    """With concurrent streams, failing backends and disconnecting clients, each answer is correct."""
    outcome = Soak(seconds=12, streams=20, seed=1).run()
    assert outcome.wrong == []
    assert outcome.counted == outcome.total > 100
    assert {"whole", "died", "left"} <= outcome.done.keys()
    assert outcome.growth < 60
