from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, read, rewrite, tool
from support.each import each
from support.emitted import BODIES, WHOLE, Emitted, Step, Thought
from toolsim.core.errors import ApiError
from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.answer import Answer
from toolsim.response.calls_in_reasoning import IN_REASONING, CallsInReasoning
from toolsim.response.sentinel import Sentinel

API_NAMES: tuple[ApiName, ...] = ("chat", "responses")
WEATHER = tool("get_weather", city="string")
JSON = '{"name":"get_weather","arguments":{"city":"Paris"}}'
CALL = f"<tool_call>{JSON}</tool_call>"
QWEN = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'
)


def taken(reasoning: Sequence[str], *behind: BackendEvent) -> tuple[str, str]:
    """Feed reasoning deltas, and then other events. Return the remaining reasoning, and the text that was extracted
    from the reasoning.
    """
    calls = CallsInReasoning(Sentinel(foreign=True))
    emitted: list[BackendEvent] = []
    for event in (*map(ReasoningDelta, reasoning), *behind):
        emitted += [event] if calls.is_over else calls.take(event)
    assert [event for event in emitted if not isinstance(event, (ReasoningDelta, TextDelta))] == [
        event for event in behind if not isinstance(event, TextDelta)
    ]
    kinds = ReasoningDelta, TextDelta
    left, text = ("".join(event.text for event in emitted if isinstance(event, kind)) for kind in kinds)
    assert calls.has_found == (bool(text) and text in "".join(reasoning))
    return left, text


@each("call", [CALL, QWEN, KIMI, f"{CALL}\n{CALL}\n ", f"<tool_call>{JSON}"])
@each("reasoning", ["", "I need the weather.\n", f"Not {CALL} as it is, but "])
def test_calls_at_the_end_are_text(reasoning: str, call: str) -> None:
    """Calls at the end of the reasoning are moved to the answer's text, wherever the reasoning is split."""
    for cut in range(len(reasoning + call)):
        pieces = (reasoning + call)[:cut], (reasoning + call)[cut:]
        for behind in ([Finished("stop"), Closed()], [Closed()], [Opened(), Counted(Usage(1, 2, 3)), Closed()]):
            assert taken(pieces, *behind) == (reasoning, call)


@pytest.mark.parametrize(
    "behind",
    [
        [Finished("length"), Closed()],
        [Finished("content_filter"), Closed()],
        [Failed(ApiError("Broken.", code="x"))],
        [StructuredCall("get_weather", "{}"), Finished("stop")],
        [RefusalDelta("No."), Finished("stop")],
    ],
)
def test_calls_stay_reasoning_next_to_other_content(behind: list[BackendEvent]) -> None:
    """Calls in the reasoning are not moved to the text if the answer has other content or might be incomplete."""
    assert taken([f"Hm. {CALL}\n"], *behind) == (f"Hm. {CALL}\n", "")


def test_calls_stay_reasoning_before_text() -> None:
    """A call at the end of the reasoning remains reasoning if the answer's text follows. Whitespace does not count as
    text, and is emitted before the call.
    """
    assert taken([CALL], TextDelta("Hi"), Closed()) == (CALL, "Hi")
    calls = CallsInReasoning(Sentinel())
    events = [ReasoningDelta(CALL), TextDelta("\n"), Closed()]
    emitted = [new for event in events for new in calls.take(event)]
    assert emitted == [TextDelta("\n"), TextDelta(CALL), Closed()]


@given(st.lists(st.sampled_from([CALL, QWEN, "<tool_call>", " ", "\n", "so", "<", "</think>", "<think>"]), max_size=6))
def test_reasoning_and_text_equal_the_input(pieces: list[str]) -> None:
    """The reasoning and the extracted text together equal the input, wherever the input is split."""
    left, text = taken(pieces, Closed())
    assert left + text == "".join(pieces)
    assert taken(list("".join(pieces)), Closed()) == (left, text)


def test_other_reasoning_is_passed_on_immediately() -> None:
    """Reasoning is sent to the client immediately unless it could be part of a call. Once a tagged block has started,
    it is held back.
    """
    calls = CallsInReasoning(Sentinel())
    assert calls.take(ReasoningDelta("I ", "text")) == [ReasoningDelta("I ", "text")]
    assert calls.take(ReasoningDelta("<tool_call>{")) == []
    assert calls.take(ReasoningDelta('"name": "f"')) == []


@each("backend", API_NAMES)
@each("client", API_NAMES)
@each("stream", [True, False])
@each("call", [CALL, QWEN, KIMI])
def test_client_receives_the_call(call: str, stream: bool, client: ApiName, backend: ApiName) -> None:
    """If the reasoning contains a call, the client receives the call, and the reasoning without the call's markup,
    whether the answer is streamed or not.
    """
    the_plan = plan(client, backend, stream, [WEATHER])
    steps: list[Step] = [Thought("I need the weather.\n"), Thought(call)]
    for kind, bodies, cuts in (("text/event-stream", BODIES, (0, 1, 40)), ("application/json", WHOLE, (0,))):
        for cut in cuts:
            chunks = rewrite(the_plan, kind, bodies[backend](steps, "stop"), cut)[1]
            (seen,) = read(client, stream, chunks).items
            assert [seen[0], seen[1], seen[2].replace(" ", "")] == ["call", "get_weather", '{"city":"Paris"}']
            assert b"I need the weather." in b"".join(chunks)
            assert b"tool_call" not in b"".join(chunks).replace(b"tool_calls", b"")


def items_of(steps: Sequence[Step], **fields: Any) -> list[list[Any]]:
    the_plan = plan("chat", "chat", True, **{"tools": [WEATHER], **fields})
    return read("chat", True, rewrite(the_plan, "text/event-stream", BODIES["chat"](steps, "stop"))[1]).items


def test_unknown_call_becomes_text_or_stays_reasoning() -> None:
    """A call to an unknown tool in the reasoning becomes part of the answer's text. It remains reasoning if the answer
    has other content or if the request has no tools.
    """
    unknown = CALL.replace("get_weather", "get_time")
    for steps, text in (
        ([Thought(f"Hm. {unknown}")], [["text", unknown]]),
        ([Thought(CALL), "Hi"], [["text", "Hi"]]),
        ([Thought(CALL), Emitted("get_weather", '{"city":"Rome"}')], [["call", "get_weather", '{"city":"Rome"}']]),
    ):
        body = BODIES["chat"](steps, "stop")
        assert (
            read("chat", True, rewrite(plan("chat", "chat", True, [WEATHER]), "text/event-stream", body)[1]).items
            == text
        )
    assert items_of([Thought(CALL)], choices=2) == items_of([Thought(CALL)], tools=[]) == []


def test_call_in_reasoning_causes_a_warning() -> None:
    """A call in the reasoning causes a warning. If the backend's answer breaks off within a tagged block, the block is
    sent to the client as it is.
    """
    report = Report()
    answer = Answer(plan("chat", "chat", True, [WEATHER]), report)
    assert answer.feed(ReasoningDelta("<tool_call>")) == []
    answer.feed(ReasoningDelta(CALL.removeprefix("<tool_call>")))
    answer.feed(Closed())
    assert report.warnings == [IN_REASONING]
    answer = Answer(plan("chat", "chat", True, [WEATHER]), Report())
    answer.feed(ReasoningDelta("<tool_call>"))
    assert answer.end_of_input()[0] == ReasoningDelta("<tool_call>")
