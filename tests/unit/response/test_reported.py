from __future__ import annotations

from support.turns import whole_call
from toolsim.core.events import CallEnded, CallStarted, ClientEvent, Ended, Usage
from toolsim.core.plan import AnswerForm
from toolsim.core.report import Report
from toolsim.response.rewrite import ClientRecord
from toolsim.wire.api import Api
from toolsim.wire.apis import CHAT, RESPONSES


def noted(api: Api, form: AnswerForm, *events: ClientEvent) -> Report:
    report = Report()
    record = ClientRecord(api, form, report)
    for event in events:
        record.take(event)
    return report


def test_call_ids_are_recorded_as_clients_return_them() -> None:
    """The IDs of complete calls are recorded in order, in the form in which clients send them back. Calls to legacy
    functions have no IDs.
    """
    events = [*whole_call(1), CallStarted(2, "x"), CallEnded("incomplete"), *whole_call(3, choice=1)]
    assert noted(CHAT, AnswerForm(), *events).tool_call_ids == ["call_001", "call_003"]
    assert noted(RESPONSES, AnswerForm(), *events).tool_call_ids == ["fc_001", "fc_003"]
    assert noted(CHAT, AnswerForm(legacy_functions=True), *events).tool_call_ids == []


def test_token_counts_are_recorded() -> None:
    """If the backend reports token counts, the count for each kind of token is recorded."""
    assert noted(CHAT, AnswerForm(), Ended({}, Usage(1, 2, 3))).tokens == {
        "input": 1,
        "output": 2,
        "total": 3,
        "cached": 0,
        "reasoning": 0,
    }
    assert noted(CHAT, AnswerForm(), Ended()).tokens == {}
