from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from support.answers import plan, tool
from toolsimlib.errors import ApiError
from toolsimlib.events import (
    BackendEvent,
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Closed,
    Counted,
    Ended,
    Failed,
    Finished,
    KeepAlive,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsimlib.plan import Plan
from toolsimlib.report import Report
from toolsimlib.response.turn import Answer

ADD = tool("add", a="number")
STRICT = tool("add", True, a="number")
ARGS = '{"a":1}'
CALL = f'<tool_call>{{"name":"add","arguments":{ARGS}}}</tool_call>'


def whole_call(number: int, name: str = "add", arguments: str = ARGS, choice: int = 0) -> list[ClientEvent]:
    return [
        CallStarted(number, name, choice=choice),
        CallDelta(arguments, choice),
        CallEnded("completed", choice),
    ]


def tell(the_plan: Plan, events: Sequence[BackendEvent]) -> tuple[list[ClientEvent], Report, Answer]:
    report = Report()
    answer = Answer(the_plan, report)
    return [out for event in events for out in answer.feed(event)], report, answer


def chat(**fields: Any) -> Plan:
    return plan("chat", "chat", True, [ADD], **fields)


def responses(**fields: Any) -> Plan:
    return plan("responses", "responses", True, [ADD], **fields)


def test_numbers_go_on_from_the_history() -> None:
    """A call's number continues after the highest of the conversation, so that no id repeats in it."""
    told, report, _ = tell(responses(first_number=8), [TextDelta(CALL * 2), Finished("stop"), Closed()])
    assert told == [*whole_call(8), *whole_call(9), Ended({0: "tool_calls"})]
    assert report.calls == ["add", "add"]
    assert report.finish == "tool_calls"


def test_each_choice_has_its_own_parser() -> None:
    """A call in one choice and text in the other, interleaved piece by piece, do not disturb each other."""
    events = [TextDelta(CALL[:20], 0), TextDelta("<tool_", 1), TextDelta(CALL[20:], 0), TextDelta("call is text", 1)]
    told, _, _ = tell(chat(choices=2), [*events, Finished("stop", 0), Finished("length", 1), Closed()])
    assert [event for event in told if not isinstance(event, TextDelta)] == [
        *whole_call(1),
        Ended({0: "tool_calls", 1: "length"}),
    ]
    assert "".join(event.text for event in told if isinstance(event, TextDelta)) == "<tool_call is text"


def test_one_choice_that_stops_does_not_stop_the_other() -> None:
    """The backend is cut only when every choice that was asked for has ended early."""
    told, _, answer = tell(chat(choices=2), [TextDelta(f"{CALL} tail", 0)])
    assert not answer.cut
    assert told == whole_call(1)
    assert answer.feed(TextDelta(f"{CALL} tail", 1)) == [
        *whole_call(2, choice=1),
        Ended({0: "tool_calls", 1: "tool_calls"}),
    ]
    assert answer.cut


def test_a_backend_that_ends_by_itself_is_not_cut() -> None:
    """White space after the calls is no other text; and usage is told if the backend gave it."""
    usage = Usage(1, 2, 3)
    told, report, answer = tell(chat(), [TextDelta(f"{CALL}\n\n"), Finished("stop"), Counted(usage), Closed()])
    assert told[-1] == Ended({0: "tool_calls"}, usage)
    assert not answer.cut
    assert report.tool_cutoff is None


def test_a_refusal_after_a_call_ends_the_turn_too() -> None:
    """A refusal is words to the client: with stop-after-tools it is the end, as text is."""
    told, report, answer = tell(chat(), [TextDelta(CALL), RefusalDelta("no")])
    assert told[-1] == Ended({0: "tool_calls"})
    assert answer.cut
    assert report.tool_cutoff
    assert tell(responses(), [TextDelta(CALL), RefusalDelta("no")])[0][-1] == RefusalDelta("no")


def test_reasoning_between_calls_ends_nothing() -> None:
    """Models that think between their calls go on calling; so do built-in tools that run between them."""
    for other in (ReasoningDelta("hm"), PassThrough({"type": "mcp_call"})):
        told, _, answer = tell(chat(), [TextDelta(CALL), other, TextDelta(CALL), Finished("stop"), Closed()])
        assert told == [*whole_call(1), other, *whole_call(2), Ended({0: "tool_calls"})]
        assert not answer.cut


def test_a_cap_is_no_end_by_itself() -> None:
    """With one call allowed, a backend that ends after it is not cut, and its counts arrive."""
    events = [TextDelta(CALL), Finished("stop"), Counted(Usage(1, 2, 3)), Closed()]
    told, report, answer = tell(chat(one_call=True), events)
    assert told == [*whole_call(1), Ended({0: "tool_calls"}, Usage(1, 2, 3))]
    assert not answer.cut
    assert report.tool_cutoff is None


def test_a_call_beyond_the_cap_ends_the_turn_where_it_begins() -> None:
    """The backend is stopped at the opening tag of a call that may not be made, not when it is whole."""
    told, _, answer = tell(chat(one_call=True), [TextDelta(CALL), TextDelta("\n<tool_"), TextDelta("call>")])
    assert told == [*whole_call(1), Ended({0: "tool_calls"})]
    assert answer.cut
    _, _, goes_on = tell(responses(one_call=True), [TextDelta(CALL), TextDelta("<tool_call>")])
    assert not goes_on.cut


def test_structured_calls_join_the_turn() -> None:
    """Calls that the backend emits as such get our ids, in the order of appearance among the others."""
    told, _, _ = tell(responses(), [TextDelta(CALL), StructuredCall("add", ARGS), Finished("stop"), Closed()])
    assert told == [*whole_call(1), *whole_call(2), Ended({0: "tool_calls"})]


def test_surrogates_that_the_backend_split() -> None:
    """A character split over two deltas arrives as one, alone and inside of a block; a lone half is not lost."""
    told, _, _ = tell(responses(), [TextDelta("a\ud83d"), TextDelta("\udc22b\ud83d"), Closed()])
    assert [event.text for event in told if isinstance(event, TextDelta)] == ["a", "🐢b", "\ud83d"]


def test_text_behind_the_finish_is_passed_over() -> None:
    """A choice that has ended takes nothing more."""
    told, _, _ = tell(chat(), [TextDelta("a"), Finished("stop"), TextDelta("b"), StructuredCall("add", ARGS), Closed()])
    assert told == [TextDelta("a"), Ended({0: "stop"})]


def test_a_failure_says_what_was_held_back_and_nothing_more() -> None:
    """The tail comes before the failure; after it the answer is over."""
    error = ApiError("gone", code="x")
    told, report, answer = tell(responses(), [TextDelta("a <tool_call>{"), Failed(error), TextDelta("b"), Closed()])
    assert "".join(event.text for event in told[:-1] if isinstance(event, TextDelta)) == "a <tool_call>{"
    assert told[-1] == Failed(error)
    assert answer.done
    assert not answer.cut
    assert report.error == "x"


def test_a_strict_failure_cuts_the_backend() -> None:
    """After a violation nothing that the backend says can mend the answer, so it is stopped."""
    the_plan = plan("responses", "responses", True, [STRICT])
    told, report, answer = tell(the_plan, [Opened(), TextDelta("a "), TextDelta(CALL.replace("1", '"x"')), Closed()])
    assert isinstance(told[-1], Failed)
    assert told[-1].error.status == 422
    assert answer.cut
    assert len(report.strict_failures) == 1


def test_legacy_functions_make_one_call() -> None:
    """The legacy shape has place for one call."""
    told, _, answer = tell(chat(legacy_functions=True), [TextDelta(CALL * 2)])
    assert told == [*whole_call(1), Ended({0: "tool_calls"})]
    assert answer.cut


def test_keepalive_while_buffering() -> None:
    """There is something to keep alive exactly while a block is open."""
    answer = Answer(responses(), Report())
    assert answer.keep_alive() == []
    answer.feed(TextDelta(CALL[:-1]))
    assert answer.keep_alive() == [KeepAlive()]
    answer.feed(TextDelta(CALL[-1]))
    assert answer.keep_alive() == []


def test_keepalive_while_nothing_is_said() -> None:
    """White space that is held back, and a tail that is dropped, are silence to the client too."""
    answer = Answer(responses(policy={"suppress_tail_after_tools": True}), Report())
    answer.feed(TextDelta("\n\n"))
    assert answer.keep_alive() == [KeepAlive()]
    answer.feed(TextDelta("a"))
    assert answer.keep_alive() == []
    answer.feed(TextDelta(CALL + " tail"))
    assert answer.keep_alive() == [KeepAlive()]


def test_endless_white_space_is_text() -> None:
    """A model that is stuck in line ends: held back up to a bound, then said; after a call it ends the turn."""
    told, _, _ = tell(responses(), [TextDelta("\n" * 30_000)] * 3)
    assert "".join(event.text for event in told if isinstance(event, TextDelta)) == "\n" * 90_000
    told, _, answer = tell(chat(), [TextDelta(CALL), *[TextDelta("\n" * 30_000)] * 3])
    assert told == [*whole_call(1), Ended({0: "tool_calls"})]
    assert answer.cut


def test_without_tools_markup_is_text() -> None:
    """With nothing on offer the sentinel is off: its text stays text, byte for byte."""
    told, _, _ = tell(dataclasses.replace(responses(), tools=()), [TextDelta(CALL[:9]), TextDelta(CALL[9:]), Closed()])
    assert told == [TextDelta(CALL[:9]), TextDelta(CALL[9:]), Ended({0: "stop"})]


INCREMENTAL = {"stream_arguments": "incremental"}


def test_arguments_stream_as_they_arrive() -> None:
    """Incremental: the call is announced once its header is clean, fragments follow, and together are verbatim."""
    the_plan = responses(policy=INCREMENTAL)
    told, _, _ = tell(the_plan, [TextDelta(char) for char in CALL])
    assert told[0] == CallStarted(1, "add")
    assert told[-1] == CallEnded("completed")
    fragments = [event.text for event in told if isinstance(event, CallDelta)]
    assert "".join(fragments) == ARGS
    assert len(fragments) > 3


def test_a_strict_tool_is_never_announced_early() -> None:
    """The judge must have passed a strict tool's call before the client hears of it."""
    the_plan = plan("responses", "responses", True, [STRICT], policy=INCREMENTAL)
    answer = Answer(the_plan, Report())
    assert [out for char in CALL[:-1] for out in answer.feed(TextDelta(char))] == []
    assert answer.feed(TextDelta(CALL[-1])) == whole_call(1)


def test_a_late_break_ends_the_item_incomplete() -> None:
    """A call that breaks after it was announced ends incomplete, and so does the answer; its raw text is kept."""
    text = '<tool_call>{"name":"add","arguments":{"a":1, ~~~ </tool_call> ok'
    told, _, _ = tell(responses(policy=INCREMENTAL), [*(TextDelta(char) for char in text), Closed()])
    assert told[0] == CallStarted(1, "add")
    assert CallEnded("incomplete") in told
    assert told[-1] == Ended({0: "length"})
    assert "".join(event.text for event in told if isinstance(event, TextDelta)) == text


def test_repr_names_the_state() -> None:
    """What a person sees in a debugger is the state of the module's diagram."""
    answer = Answer(responses(), Report())
    seen = []
    for text in ("a", CALL, "b"):
        answer.feed(TextDelta(text))
        seen.append(repr(answer._turns[0]).split("(")[1].split(",")[0])
    answer.feed(Closed())
    seen.append(repr(answer._turns[0]).split("(")[1].split(",")[0])
    assert seen == ["speaking", "calling", "speaking", "over"]


def test_blocks_are_reported_with_their_place_and_fate() -> None:
    """Each block is told of with its place in its choice's text, however that was cut, and what became of it."""
    comma = CALL.replace("1}", "1,}")
    unknown = CALL.replace("add", "gone")
    text = f"a{CALL}é{comma}{unknown}{CALL}"
    the_plan = responses()
    the_plan = dataclasses.replace(the_plan, policy=dataclasses.replace(the_plan.policy, tool_block_max=2))
    for size in (1, 5, len(text)):
        events = [TextDelta(text[at : at + size]) for at in range(0, len(text), size)]
        _, report, _ = tell(the_plan, [*events, Finished("stop"), Closed()])
        assert [text[block["start"] : block["end"]] for block in report.blocks] == [CALL, comma, unknown, CALL]
        assert [block["verdicts"] for block in report.blocks] == [
            ["call add"],
            ["call add"],
            ["text UNKNOWN_TOOL"],
            ["passed over add"],
        ]
        assert [block["repairs"] for block in report.blocks] == [[], ["TRAILING_COMMA:add"], [], []]


def test_blocks_of_each_choice_are_told_apart() -> None:
    """Places count within a choice; a violation is told as the failure that it is."""
    _, report, _ = tell(chat(choices=2), [TextDelta(CALL, 1), TextDelta(f"ab{CALL}", 0), Finished("stop", 0)])
    assert [(block["choice"], block["start"]) for block in report.blocks] == [(1, 0), (0, 2)]
    _, report, _ = tell(plan("chat", "chat", True, [STRICT]), [TextDelta(CALL.replace("1}", '"x"}'))])
    assert [block["verdicts"] for block in report.blocks] == [["failure SCHEMA_MISMATCH"]]


def test_the_report_stays_small() -> None:
    """Thousands of blocks are no reading for a person, nor for memory."""
    _, report, _ = tell(responses(), [TextDelta(CALL * 1100), Finished("stop"), Closed()])
    assert len(report.blocks) == 1000
    assert len(report.calls) == 1100
