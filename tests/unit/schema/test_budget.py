from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from toolsimlib.schema import compile_schema
from toolsimlib.schema.budget import CHECK_SECONDS, budget


def test_a_check_leaves_no_budget_behind() -> None:
    """The budget belongs to one check: afterwards none is running, whatever became of it."""
    assert compile_schema({"$ref": "#"}).examine(1).settled is False
    with pytest.raises(LookupError):
        budget.get()


def test_a_check_without_time_is_unsettled() -> None:
    """No time, no verdict: the value is not refused."""
    finding = compile_schema({"type": "string"}).examine(1, 0)
    assert (finding.mismatch, finding.settled) == (None, False)


@pytest.mark.slow
def test_a_busy_machine_does_not_spend_the_budget() -> None:
    """Time in which others run is not the check's own: a violation is found, however late."""

    class Late(list[object]):
        def __iter__(self) -> Iterator[object]:
            time.sleep(CHECK_SECONDS + 0.1)
            return super().__iter__()

    finding = compile_schema({"items": {"type": "string"}, "minItems": 1}).examine(Late([1]))
    assert finding.settled
    assert finding.mismatch is not None
