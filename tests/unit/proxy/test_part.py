from __future__ import annotations

from mitmproxy.test import tflow
from toolsimlib.proxy.notes import NOTE
from toolsimlib.proxy.part import PARTS, Part, part_of
from toolsimlib.report import Report


def test_a_round_is_known_by_its_flow_alone() -> None:
    """During a round by its id; a client cannot mark its own flow as a round, nor can a note in a live flow."""
    flow = tflow.tflow()
    assert part_of(flow) is None
    report = Report(round=2, part_of="x")
    PARTS[flow.id] = part = Part(frozenset({"NO_CALL"}), "<tool", frozenset({"a__b"}), report, is_aside=True)
    try:
        assert part_of(flow) is part
    finally:
        del PARTS[flow.id]
    flow.metadata[NOTE] = {"round": part.note()}
    flow.live = True
    assert part_of(flow) is None
    flow.live = False
    found = part_of(flow)
    assert found is not None
    assert found == part
