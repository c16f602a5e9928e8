from __future__ import annotations

from itertools import count

from support.answers import plan
from support.turns import ADD, ARGS, STRICT, chat, responses, whole_call
from toolsim.core.events import CallDelta, CallEnded, CallStarted, ClientEvent, StructuredDelta, TextDelta
from toolsim.core.plan import Plan, Tool
from toolsim.core.report import Report
from toolsim.response.client_calls import CallOutcome, ClientCalls
from toolsim.response.verdict import JudgedCall

HEADER = '{"name":"add","arguments":'


def client_calls(the_plan: Plan, first: int = 1) -> tuple[ClientCalls, Report]:
    report = Report()
    return ClientCalls(the_plan, report, count(first), choice=0), report


Made = tuple[CallOutcome, list[ClientEvent]]


def make(calls: ClientCalls, arguments: str = ARGS, key: str | None = None) -> Made:
    """Simulate a call. Return its outcome and the events for the client."""
    return calls.make(JudgedCall(ADD, arguments), key), calls.take()


def fragment(calls: ClientCalls, text: str) -> list[ClientEvent]:
    calls.fragment(text)
    return calls.take()


def test_complete_call_is_emitted_in_steps() -> None:
    """A call is emitted as three events: its start, its arguments and its end. Numbering continues from call to
    call.
    """
    calls, report = client_calls(responses(), first=7)
    assert make(calls) == (CallOutcome(made=True), whole_call(7))
    assert make(calls, "") == (CallOutcome(made=True), [CallStarted(8, "add"), CallEnded("completed")])
    assert (calls.made, report.calls, calls.has_broken) == (2, ["add", "add"], False)


def test_call_beyond_the_limit_is_dropped() -> None:
    """A call beyond the limit on calls ends the turn if text after calls would end it. Otherwise, the report lists the
    call as dropped.
    """
    for the_plan, end, dropped in (
        (chat(one_call=True), "more than 1 calls", "OVER_LIMIT"),
        (responses(one_call=True), "", "OVER_LIMIT:add"),
    ):
        calls, report = client_calls(the_plan)
        make(calls)
        assert calls.is_exhausted
        assert make(calls) == (CallOutcome(end=end), [])
        assert (calls.made, report.dropped_calls) == (1, [dropped])


def test_first_call_can_end_the_turn() -> None:
    """With ``stop_after_tools_mode=first``, the first call ends the turn, but only with an API for which text after a
    call would also end the turn.
    """
    policy = {"stop_after_tools_mode": "first"}
    assert make(client_calls(chat(policy=policy))[0])[0].end == "first call"
    assert make(client_calls(responses(policy=policy))[0])[0].end == ""


def test_call_repeated_as_structured_call_is_dropped() -> None:
    """If the backend repeats a call in text as a structured call, the duplicate is dropped with a warning."""
    calls, report = client_calls(responses())
    make(calls)
    assert make(calls, key="") == (CallOutcome(), [])
    assert report.warnings == ["DUPLICATE_CALL:add"]


def test_xml_text_follows_a_call() -> None:
    """In ``obsidian-xml`` mode, a call is followed by its XML text, which is separated from any earlier text."""
    calls, _ = client_calls(chat(policy={"output_mode": "obsidian-xml"}))
    xml = "<use_tool>\n  <name>add</name>\n  <a>1</a>\n</use_tool>"
    first, second = make(calls)[1], make(calls)[1]
    assert first == [*whole_call(1), TextDelta(xml)]
    assert second == [*whole_call(2), TextDelta("\n" + xml)]


def test_call_is_announced_by_its_header() -> None:
    """A call is announced when its header, which contains the tool's name, is complete. The fragments of the arguments
    follow as they arrive. Any text that is still missing follows when the complete call has been judged.
    """
    calls, _ = client_calls(responses())
    assert fragment(calls, HEADER[:-1]) == []
    assert not calls.is_open
    assert fragment(calls, ':{"a"') == [CallStarted(1, "add"), CallDelta('{"a"')]
    assert (calls.is_open, calls.is_arriving, calls.is_arriving_as("")) == (True, False, False)
    assert fragment(calls, ":") == [CallDelta(":")]
    assert make(calls) == (CallOutcome(made=True), [CallDelta("1}"), CallEnded("completed")])
    assert not calls.is_open
    assert not calls.end_block()


def test_announced_call_that_changes_ends_incomplete() -> None:
    """If an announced call turns out to be another call or text, it ends as incomplete, because it cannot be
    retracted.
    """
    calls, _ = client_calls(responses())
    calls.fragment(HEADER + '{"a":1,')
    calls.take()
    assert make(calls) == (CallOutcome(broke=True), [CallEnded("incomplete")])
    assert (calls.made, calls.has_broken) == (0, True)
    assert not calls.end_block()
    calls.fragment(HEADER + '{"a":1,')
    assert calls.end_block()
    assert calls.take()[-1] == CallEnded("incomplete")
    assert not calls.end_block()


def test_unannounced_block_breaks_silently() -> None:
    """If a tagged block turns out to be incomplete before its call is announced, the client receives no part of the
    call. The next block is not affected.
    """
    calls, _ = client_calls(responses())
    calls.fragment(HEADER)
    assert not calls.end_block()
    assert (calls.take(), calls.has_broken) == ([], False)
    assert fragment(calls, HEADER + "{") == [CallStarted(1, "add"), CallDelta("{")]


def test_call_beyond_the_limit_is_not_announced() -> None:
    """A call beyond the limit on calls is not announced or emitted."""
    calls, _ = client_calls(plan("responses", "responses", True, [ADD], one_call=True))
    make(calls)
    assert fragment(calls, HEADER + '{"a"') == []
    assert fragment(calls, ":1}") == []
    assert not calls.is_open


def arriving(calls: ClientCalls, text: str, tool: Tool | None = None, *, key: str = "0") -> list[ClientEvent]:
    calls.arriving(StructuredDelta(key, "add", text, is_first=tool is not None), tool)
    return calls.take()


def test_structured_call_is_announced_and_streamed() -> None:
    """A structured call is announced with its first fragment, and streamed until the complete call has been judged.
    Meanwhile, no fragments of other calls are emitted.
    """
    calls, _ = client_calls(responses())
    assert arriving(calls, '{"a"', ADD) == [CallStarted(1, "add"), CallDelta('{"a"')]
    assert arriving(calls, "{", ADD, key="1") == []
    assert arriving(calls, "x", key="1") == []
    assert fragment(calls, HEADER + '{"a":') == []
    assert arriving(calls, ":") == [CallDelta(":")]
    assert (calls.is_arriving_as("0"), calls.is_arriving_as("1")) == (True, False)
    assert make(calls, key="0") == (CallOutcome(made=True), [CallDelta("1}"), CallEnded("completed")])
    assert not calls.is_arriving


def test_structured_call_that_changes_ends_incomplete() -> None:
    """An announced structured call ends as incomplete if it turns out to be another call, or no call at all."""
    calls, _ = client_calls(responses())
    for end in (lambda: make(calls, "{}", key="0")[0].broke, calls.break_off):
        calls.has_broken = False
        arriving(calls, '{"a"', ADD)
        assert end()
        assert (calls.made, calls.has_broken, calls.is_arriving) == (0, True, False)
    assert calls.take() == [CallEnded("incomplete")]
    assert not calls.break_off()


def test_other_content_waits_for_the_open_call() -> None:
    """Text and other calls wait until the open structured call is complete or broken. The end of a block in the text
    does not end the open call.
    """
    for is_whole in (True, False):
        calls, _ = client_calls(responses())
        arriving(calls, ARGS, ADD)
        calls.emit(TextDelta("Hello"))
        assert make(calls, "{}") == (CallOutcome(made=True), [])
        assert not calls.end_block()
        assert (calls.is_arriving, calls.take()) == (True, [])
        if is_whole:
            calls.make(JudgedCall(ADD, ARGS), "0")
        else:
            calls.break_off()
        status = CallEnded("completed" if is_whole else "incomplete")
        assert calls.take() == [status, TextDelta("Hello"), *whole_call(2, arguments="{}")]
        calls.emit(TextDelta("Bye"))
        assert (calls.take(), calls.take()) == ([TextDelta("Bye")], [])


def test_uncertain_calls_are_not_announced() -> None:
    """A call is not announced if it exceeds the limit on calls or might be a duplicate, if its tool is strict, or if
    its arguments are not an object.
    """
    calls, _ = client_calls(responses(one_call=True))
    make(calls, key="")
    assert arriving(calls, '{"a"', ADD) == []
    calls, _ = client_calls(responses())
    make(calls)
    assert arriving(calls, '{"a"', ADD) == []
    calls, _ = client_calls(responses())
    assert arriving(calls, '{"a"', STRICT) == []
    assert arriving(calls, "null", ADD) == []
    assert not calls.is_arriving
