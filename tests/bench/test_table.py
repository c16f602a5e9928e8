"""Tests for a row's verdict: times are scaled by the speed of the machine, but ratios are not."""

import pytest
from bench.machine import pace
from bench.table import Row


@pytest.mark.parametrize(
    ("value", "unit", "goal", "pace", "verdict"),
    [
        (2.0, "ms", 2.0, 1.0, "ok"),
        (2.1, "ms", 2.0, 1.0, "MISSED"),
        (2.1, "ms more", 2.0, 1.1, "scaled"),
        (2.3, "µs/delta", 2.0, 1.1, "MISSED"),
        (1.9, "ms", 2.0, 0.5, "ok"),
        (2.1, "× bare", 2.0, 3.0, "MISSED"),
        (2.1, "KB/req", 2.0, 3.0, "MISSED"),
        (2.1, "ms", None, 3.0, ""),
    ],
)
def test_verdict_on_other_machines(value: float, unit: str, goal: float | None, pace: float, verdict: str) -> None:
    """On a faster machine, goals are not stricter. On a slower machine, a missed goal is excused if it is a time, but
    not if it is a ratio or a size.
    """
    row = Row("group", "row", value, unit, goal, pace=pace)
    assert row.verdict == verdict
    assert verdict in row.line()


def test_measured_pace_is_plausible() -> None:
    """The measured pace is between 0.01 and 100, because no machine in use is 100 times slower or faster than the one
    that the goals assume.
    """
    assert 0.01 < pace() < 100
