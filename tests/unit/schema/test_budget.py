from __future__ import annotations

import pytest
from toolsimlib.schema import compile_schema
from toolsimlib.schema.budget import budget


def test_a_check_leaves_no_budget_behind() -> None:
    """The budget belongs to one check: afterwards none is running, whatever became of it."""
    assert compile_schema({"$ref": "#"}).examine(1).settled is False
    with pytest.raises(LookupError):
        budget.get()


def test_a_check_without_time_is_unsettled() -> None:
    """No time, no verdict: the value is not refused."""
    finding = compile_schema({"type": "string"}).examine(1, 0)
    assert (finding.mismatch, finding.settled) == (None, False)
