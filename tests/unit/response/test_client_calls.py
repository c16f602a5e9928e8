from __future__ import annotations

from itertools import count

import pytest
from support.answers import plan
from support.turns import ADD, ARGS, STRICT, chat, responses, whole_call
from toolsimlib.events import CallDelta, CallEnded, CallStarted, StructuredDelta, TextDelta
from toolsimlib.plan import Plan
from toolsimlib.report import Report
from toolsimlib.response.client_calls import ClientCalls, Outcome
from toolsimlib.response.verdict import Call

HEADER = '{"name":"add","arguments":'


def client_calls(the_plan: Plan, first: int = 1) -> tuple[ClientCalls, Report]:
    report = Report()
    return ClientCalls(the_plan, report, count(first), choice=0), report


def make(calls: ClientCalls, arguments: str = ARGS, *, structured: bool = False, behind_text: bool = False) -> Outcome:
    return calls.make(Call(ADD, arguments), structured=structured, behind_text=behind_text)


def test_a_call_is_told_whole() -> None:
    """Announced, its arguments, its end; the numbers go on over all calls."""
    calls, report = client_calls(responses(), first=7)
    assert make(calls) == Outcome(whole_call(7), made=True)
    assert make(calls, "") == Outcome([CallStarted(8, "add"), CallEnded("completed")], made=True)
    assert (calls.made, report.calls, calls.broken) == (2, ["add", "add"], False)


def test_a_call_too_many_is_dropped() -> None:
    """It ends the turn where other text behind a call would; the report names it where the turn goes on."""
    for the_plan, end, dropped in (
        (chat(one_call=True), "more than 1 calls", "OVER_LIMIT"),
        (responses(one_call=True), "", "OVER_LIMIT:add"),
    ):
        calls, report = client_calls(the_plan)
        make(calls)
        assert calls.is_spent
        assert make(calls) == Outcome(end=end)
        assert (calls.made, report.dropped_calls) == (1, [dropped])


def test_the_first_call_may_be_the_end() -> None:
    """Where the operator wants it, and only where text behind a call is an end too."""
    policy = {"stop_after_tools_mode": "first"}
    assert make(client_calls(chat(policy=policy))[0]).end == "first call"
    assert make(client_calls(responses(policy=policy))[0]).end == ""


def test_a_call_that_came_as_text_is_not_made_twice() -> None:
    """The backend sent it once more as a call: nothing is told, and the report warns."""
    calls, report = client_calls(responses())
    make(calls)
    assert make(calls, structured=True) == Outcome()
    assert report.warnings == ["DUPLICATE_CALL:add"]


@pytest.mark.parametrize("behind_text", [False, True])
def test_its_text_follows_a_call(behind_text: bool) -> None:
    """In obsidian-xml, apart from whatever stands before it."""
    calls, _ = client_calls(chat(policy={"output_mode": "obsidian-xml"}))
    xml = "<use_tool>\n<name>add</name>\n<a>1</a>\n</use_tool>"
    first, second = make(calls, behind_text=behind_text), make(calls)
    assert first.events[-1] == TextDelta("\n" + xml if behind_text else xml)
    assert second.events[-1] == TextDelta("\n" + xml)


def test_a_call_is_announced_by_its_header() -> None:
    """Then its arguments as they arrive, and with the verdict what is left of them."""
    calls, _ = client_calls(responses())
    assert calls.fragment(HEADER[:-1]) == []
    assert not calls.is_announced
    assert calls.fragment(':{"a"') == [CallStarted(1, "add"), CallDelta('{"a"')]
    assert calls.is_announced
    assert calls.fragment(":") == [CallDelta(":")]
    assert make(calls) == Outcome([CallDelta("1}"), CallEnded("completed")], made=True)
    assert not calls.is_announced


def test_what_goes_on_otherwise_ends_incomplete() -> None:
    """What was announced cannot be taken back: neither for another call, nor for text."""
    calls, _ = client_calls(responses())
    calls.fragment(HEADER + '{"a":1,')
    assert make(calls) == Outcome([CallEnded("incomplete")])
    assert (calls.made, calls.broken) == (0, True)
    calls.fragment(HEADER + '{"a":1,')
    assert calls.break_off() == [CallEnded("incomplete")]
    assert calls.break_off() == []


def test_a_block_that_was_not_announced_breaks_unheard() -> None:
    """Its client knows nothing of it."""
    calls, _ = client_calls(responses())
    calls.fragment(HEADER)
    assert calls.break_off() == []
    assert not calls.broken


def test_a_call_too_many_is_not_announced() -> None:
    """Nor is anything told of what follows in its block."""
    calls, _ = client_calls(plan("responses", "responses", True, [ADD], one_call=True))
    make(calls)
    assert calls.fragment(HEADER + '{"a"') == []
    assert calls.fragment(":1}") == []
    assert not calls.is_announced


def arriving(text: str, *, key: str = "0", is_first: bool = False) -> StructuredDelta:
    return StructuredDelta(key, "add", text, is_first)


def test_a_call_is_announced_while_it_arrives() -> None:
    """By its first piece; other calls' pieces are not told meanwhile, and the verdict brings what is left."""
    calls, _ = client_calls(responses())
    assert calls.arrives(arriving('{"a"', is_first=True), ADD) == [CallStarted(1, "add"), CallDelta('{"a"')]
    assert calls.arrives(arriving("{", key="1", is_first=True), ADD) == []
    assert calls.arriving(arriving("x", key="1")) == []
    assert calls.fragment(HEADER + '{"a":') == []
    assert calls.arriving(arriving(":")) == [CallDelta(":")]
    assert (calls.is_arriving_as("0"), calls.is_arriving_as("1")) == (True, False)
    told = calls.make(Call(ADD, ARGS), structured=True, key="0", behind_text=False)
    assert told == Outcome([CallDelta("1}"), CallEnded("completed")], made=True)
    assert not calls.is_arriving


def test_a_call_that_arrives_otherwise_ends_incomplete() -> None:
    """If it is another one in the end, or none."""
    calls, _ = client_calls(responses())
    for end in (
        lambda: calls.make(Call(ADD, "{}"), structured=True, key="0", behind_text=False).events,
        calls.break_off_arriving,
    ):
        calls.broken = False
        calls.arrives(arriving('{"a"', is_first=True), ADD)
        assert list(end()) == [CallEnded("incomplete")]
        assert (calls.made, calls.broken, calls.is_arriving) == (0, True, False)
    assert calls.break_off_arriving() == []


def test_what_may_come_to_nothing_is_not_announced() -> None:
    """A call too many, one that may repeat a call in text, a strict tool's, and arguments that are no object."""
    first = arriving('{"a"', is_first=True)
    calls, _ = client_calls(responses(one_call=True))
    make(calls, structured=True)
    assert calls.arrives(first, ADD) == []
    calls, _ = client_calls(responses())
    make(calls)
    assert calls.arrives(first, ADD) == []
    calls, _ = client_calls(responses())
    assert calls.arrives(first, STRICT) == []
    assert calls.arrives(arriving("null", is_first=True), ADD) == []
    assert not calls.is_arriving
