from __future__ import annotations

from support.turns import whole_call
from toolsimlib.events import CallEnded, CallStarted, ClientEvent, Ended, Usage
from toolsimlib.plan import AnswerForm
from toolsimlib.report import Report
from toolsimlib.response.reported import BlockLog, ClientRecord
from toolsimlib.wire.dialect import CHAT, RESPONSES, Api


def noted(api: Api, form: AnswerForm, *events: ClientEvent) -> Report:
    report = Report()
    record = ClientRecord(api, form, report)
    for event in events:
        record.take(event)
    return report


def test_calls_are_noted_by_the_ids_that_clients_send_back() -> None:
    """Only complete calls, in order; chat's legacy functions have no ids."""
    events = [*whole_call(1), CallStarted(2, "x"), CallEnded("incomplete"), *whole_call(3, choice=1)]
    assert noted(CHAT, AnswerForm(), *events).tool_call_ids == ["call_001", "call_003"]
    assert noted(RESPONSES, AnswerForm(), *events).tool_call_ids == ["fc_001", "fc_003"]
    assert noted(CHAT, AnswerForm(legacy_functions=True), *events).tool_call_ids == []


def test_tokens_are_the_backends() -> None:
    """By kind, if the backend counts them."""
    assert noted(CHAT, AnswerForm(), Ended({}, Usage(1, 2, 3))).tokens == {
        "input": 1,
        "output": 2,
        "total": 3,
        "cached": 0,
        "reasoning": 0,
    }
    assert noted(CHAT, AnswerForm(), Ended()).tokens == {}


def test_a_block_starts_where_the_one_before_ended() -> None:
    """Each block is reported with its position in its choice's text, and its outcome; text in between counts too."""
    log = BlockLog(report := Report(), 1)
    log.position += 3
    with log.block("<a>") as outcomes:
        report.repairs.append("CODE:f")
        report.warnings.append("ODD")
        outcomes.append("call f")
    with log.block("<b/>") as outcomes:
        outcomes.append("text UNKNOWN_TOOL")
    assert report.blocks == [
        {"choice": 1, "start": 3, "end": 6, "verdicts": ["call f"], "repairs": ["CODE:f"], "warnings": ["ODD"]},
        {"choice": 1, "start": 6, "end": 10, "verdicts": ["text UNKNOWN_TOOL"], "repairs": []},
    ]


def test_nobody_reads_more_than_a_thousand() -> None:
    """Further blocks advance the position, but are not reported."""
    log = BlockLog(report := Report(), 0)
    for _ in range(1001):
        with log.block("x"):
            pass
    assert (len(report.blocks), log.position) == (1000, 1001)
