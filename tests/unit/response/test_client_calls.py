from __future__ import annotations

from itertools import count

import pytest
from support.answers import plan
from support.turns import ADD, ARGS, STRICT, chat, responses, whole_call
from toolsimlib.events import CallDelta, CallEnded, CallStarted, ClientEvent, Deltas, StructuredDelta, TextDelta
from toolsimlib.plan import Plan, Tool
from toolsimlib.report import Report
from toolsimlib.response.client_calls import ClientCalls, Outcome
from toolsimlib.response.verdict import Call

HEADER = '{"name":"add","arguments":'


def client_calls(the_plan: Plan, first: int = 1) -> tuple[ClientCalls, Report]:
    report = Report()
    return ClientCalls(the_plan, report, count(first), choice=0), report


Told = tuple[Outcome, list[ClientEvent]]


def make(calls: ClientCalls, arguments: str = ARGS, *, key: str | None = None, behind_text: bool = False) -> Told:
    """Return what became of a call, and what the client is told."""
    return calls.make(Call(ADD, arguments), key=key, behind_text=behind_text), calls.take()


def fragment(calls: ClientCalls, text: str) -> list[ClientEvent]:
    calls.fragment(text)
    return calls.take()


def test_a_call_is_told_whole() -> None:
    """Announced, its arguments, its end; the numbers go on over all calls."""
    calls, report = client_calls(responses(), first=7)
    assert make(calls) == (Outcome(made=True), whole_call(7))
    assert make(calls, "") == (Outcome(made=True), [CallStarted(8, "add"), CallEnded("completed")])
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
        assert make(calls) == (Outcome(end=end), [])
        assert (calls.made, report.dropped_calls) == (1, [dropped])


def test_the_first_call_may_be_the_end() -> None:
    """Where the operator wants it, and only where text behind a call is an end too."""
    policy = {"stop_after_tools_mode": "first"}
    assert make(client_calls(chat(policy=policy))[0])[0].end == "first call"
    assert make(client_calls(responses(policy=policy))[0])[0].end == ""


def test_a_call_that_came_as_text_is_not_made_twice() -> None:
    """The backend sent it once more as a call: nothing is told, and the report warns."""
    calls, report = client_calls(responses())
    make(calls)
    assert make(calls, key="") == (Outcome(), [])
    assert report.warnings == ["DUPLICATE_CALL:add"]


@pytest.mark.parametrize("behind_text", [False, True])
def test_its_text_follows_a_call(behind_text: bool) -> None:
    """In obsidian-xml, apart from whatever stands before it."""
    calls, _ = client_calls(chat(policy={"output_mode": "obsidian-xml"}))
    xml = "<use_tool>\n<name>add</name>\n<a>1</a>\n</use_tool>"
    first, second = make(calls, behind_text=behind_text)[1], make(calls)[1]
    assert first == [*whole_call(1), TextDelta("\n" + xml if behind_text else xml)]
    assert second == [*whole_call(2), TextDelta("\n" + xml)]


def test_a_call_is_announced_by_its_header() -> None:
    """Then its arguments as they arrive, and with the verdict what is left of them."""
    calls, _ = client_calls(responses())
    assert fragment(calls, HEADER[:-1]) == []
    assert not calls.is_open
    assert fragment(calls, ':{"a"') == [CallStarted(1, "add"), CallDelta('{"a"')]
    assert (calls.is_open, calls.is_arriving, calls.is_arriving_as("")) == (True, False, False)
    assert fragment(calls, ":") == [CallDelta(":")]
    assert make(calls) == (Outcome(made=True), [CallDelta("1}"), CallEnded("completed")])
    assert not calls.is_open
    assert not calls.end_block()


def test_what_goes_on_otherwise_ends_incomplete() -> None:
    """What was announced cannot be taken back: neither for another call, nor for text."""
    calls, _ = client_calls(responses())
    calls.fragment(HEADER + '{"a":1,')
    calls.take()
    assert make(calls) == (Outcome(broke=True), [CallEnded("incomplete")])
    assert (calls.made, calls.broken) == (0, True)
    assert not calls.end_block()
    calls.fragment(HEADER + '{"a":1,')
    assert calls.end_block()
    assert calls.take()[-1] == CallEnded("incomplete")
    assert not calls.end_block()


def test_a_block_that_was_not_announced_breaks_unheard() -> None:
    """Its client knows nothing of it, and the next block is read from its beginning."""
    calls, _ = client_calls(responses())
    calls.fragment(HEADER)
    assert not calls.end_block()
    assert (calls.take(), calls.broken) == ([], False)
    assert fragment(calls, HEADER + "{") == [CallStarted(1, "add"), CallDelta("{")]


def test_a_call_too_many_is_not_announced() -> None:
    """Nor is anything told of what follows in its block."""
    calls, _ = client_calls(plan("responses", "responses", True, [ADD], one_call=True))
    make(calls)
    assert fragment(calls, HEADER + '{"a"') == []
    assert fragment(calls, ":1}") == []
    assert not calls.is_open


def arriving(calls: ClientCalls, text: str, tool: Tool | None = None, *, key: str = "0") -> list[ClientEvent]:
    calls.arriving(StructuredDelta(key, "add", text, is_first=tool is not None), tool)
    return calls.take()


def test_a_call_is_announced_while_it_arrives() -> None:
    """By its first piece; other calls' pieces are not told meanwhile, and the verdict brings what is left."""
    calls, _ = client_calls(responses())
    assert arriving(calls, '{"a"', ADD) == [CallStarted(1, "add"), CallDelta('{"a"')]
    assert arriving(calls, "{", ADD, key="1") == []
    assert arriving(calls, "x", key="1") == []
    assert fragment(calls, HEADER + '{"a":') == []
    assert arriving(calls, ":") == [CallDelta(":")]
    assert (calls.is_arriving_as("0"), calls.is_arriving_as("1")) == (True, False)
    assert make(calls, key="0") == (Outcome(made=True), [CallDelta("1}"), CallEnded("completed")])
    assert not calls.is_arriving


def test_pieces_that_came_together_are_told_together() -> None:
    """As pieces of the call that is open, in its choice; those of another call, or behind its end, are nothing."""
    calls = ClientCalls(responses(), Report(), count(1), choice=3)
    arriving(calls, '{"a"', ADD)
    mine, other = (StructuredDelta(key, "add", "x", is_first=False, choice=3) for key in "01")
    assert calls.pieces(mine, [":", "1"]) == [Deltas(CallDelta("", 3), [":", "1"])]
    assert calls.pieces(other, ["1"]) == []
    assert calls.pieces(mine, ["}", "}"]) == [Deltas(CallDelta("", 3), ["}"])]
    assert calls.pieces(mine, ["}"]) == []
    calls.break_off()
    assert calls.pieces(mine, ["1"]) == []


def test_a_call_that_arrives_otherwise_ends_incomplete() -> None:
    """If it is another one in the end, or none."""
    calls, _ = client_calls(responses())
    for end in (lambda: make(calls, "{}", key="0")[0].broke, calls.break_off):
        calls.broken = False
        arriving(calls, '{"a"', ADD)
        assert end()
        assert (calls.made, calls.broken, calls.is_arriving) == (0, True, False)
    assert calls.take() == [CallEnded("incomplete")]
    assert not calls.break_off()


def test_all_else_is_told_behind_the_open_call() -> None:
    """Text, and another call, whether the open one becomes whole or breaks; its own block alone ends one in a block."""
    for is_whole in (True, False):
        calls, _ = client_calls(responses())
        arriving(calls, ARGS, ADD)
        calls.emit(TextDelta("Hello"))
        assert make(calls, "{}") == (Outcome(made=True), [])
        assert not calls.end_block()
        assert (calls.is_arriving, calls.holds_back) == (True, True)
        if is_whole:
            calls.make(Call(ADD, ARGS), key="0", behind_text=False)
        else:
            calls.break_off()
        status = CallEnded("completed" if is_whole else "incomplete")
        assert calls.take() == [status, TextDelta("Hello"), *whole_call(2, arguments="{}")]
        calls.emit(TextDelta("Bye"))
        assert (calls.take(), calls.holds_back) == ([TextDelta("Bye")], False)


def test_what_may_come_to_nothing_is_not_announced() -> None:
    """A call too many, one that may repeat a call in text, a strict tool's, and arguments that are no object."""
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
