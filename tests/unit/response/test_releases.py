"""Tests that toolsim emits text no later than recorded in the table of releases."""

from __future__ import annotations

import pytest
from support.each import each
from support.releases import SIZES, Case, cases, curve, recorded, releases, steps

CASES = list(cases())
TABLE = recorded()


@each("case", CASES, ids=[case.name for case in CASES])
def test_text_is_released_as_early_as_recorded(case: Case) -> None:
    """After each delta, the parser has released at least as many characters and calls as the table of
    releases records.
    """
    for size, released in zip(SIZES, TABLE[case.name], strict=True):
        now, before = curve(releases(case, size), case, size), curve(released, case, size)
        assert now[-1] == before[-1], "other text or calls: if that is right, run make releases"
        late = [
            at * size for at, (new, old) in enumerate(zip(now, before, strict=True), 1) if new < old or new[1] < old[1]
        ]
        assert not late, f"released later, from character {late[0]} on: {case.text[late[0] - 20 : late[0]]!r}"


def test_table_is_complete() -> None:
    """The table of releases has exactly one row for each text under test."""
    assert list(TABLE) == [case.name for case in CASES], "run make releases"


@pytest.mark.parametrize("size", SIZES)
def test_runs_expand_to_released_amounts(size: int) -> None:
    """The run-length encoding in the table of releases expands to the amounts released after each delta."""
    for case in (CASES[0], CASES[-1], *CASES[20:60]):
        total = (0, 0)
        points = curve(releases(case, size), case, size)
        for (_, emitted, calls), point in zip(steps(case, size), points, strict=True):
            total = (total[0] + emitted, total[1] + calls)
            assert point == total
