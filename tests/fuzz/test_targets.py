"""Test that the seeds for fuzzing pass, because a fuzzer whose seeds fail tries no other inputs."""

from __future__ import annotations

import pytest
from fuzz.targets import SEEDS, TARGETS, one


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: TARGETS[seed[0]].__name__)
def test_seeds_pass_their_targets(seed: bytes) -> None:
    """Every seed passes its target, and every target has a seed."""
    one(seed)
    assert {seed[0] for seed in SEEDS} == set(range(len(TARGETS)))
