from __future__ import annotations

from toolsimlib.plan import Policy
from toolsimlib.proxy.options.edge import EDGE_OPTIONS
from toolsimlib.proxy.options.table import OPTIONS


def test_they_decide_nothing_about_answers() -> None:
    """They are in the one table, and none is a field of the policy except the report in a stream."""
    assert set(EDGE_OPTIONS) <= set(OPTIONS)
    assert {option.name for option in EDGE_OPTIONS} & set(Policy.__dataclass_fields__) == {"sse_telemetry"}
