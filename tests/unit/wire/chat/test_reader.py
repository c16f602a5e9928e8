from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
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
    StructuredCallStarted,
    StructuredDelta,
    TextDelta,
    Usage,
)
from toolsim.wire.chat import reader
from toolsim.wire.chat.reader import ChatReader
from toolsim.wire.json_fields import loaded
from toolsim.wire.sse import ServerSentEvent


def stream(*chunks: dict[str, Any] | str) -> list[BackendEvent]:
    reader = ChatReader()
    emitted = []
    for chunk in chunks:
        data = chunk if isinstance(chunk, str) else json.dumps(chunk)
        emitted += reader.event(ServerSentEvent("", data))
    return [event for event in emitted + reader.end() if not isinstance(event, Opened | StructuredCallStarted)]


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def test_text_and_finish() -> None:
    """Text, usage, finish reason and ``[DONE]`` become events. The order is fixed: for example, the usage precedes the
    finish reason.
    """
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}
    emitted = stream(
        chunk(role="assistant", content=""),
        chunk(content="Hi"),
        chunk("length"),
        {"choices": [], "usage": usage},
        "[DONE]",
    )
    assert emitted == [TextDelta("Hi"), Counted(Usage(3, 4, 7, 1)), Finished("length"), Closed()]


def test_answer_is_opened_once() -> None:
    """The first chunk opens the answer and supplies its metadata. Later chunks do not open the answer again."""
    reader = ChatReader()
    first = json.dumps({"created": 5, "model": "m", "system_fingerprint": "fp", "choices": []})
    assert reader.event(ServerSentEvent("", first)) == [Opened(None, 5, "m", "fp")]
    assert reader.event(ServerSentEvent("", first)) == []


def test_stream_without_done_needs_a_finish_reason() -> None:
    """If a stream ends without ``[DONE]``, the answer counts as complete only if every choice has a finish reason."""
    assert stream(chunk("stop"))[-1] == Closed()
    assert stream(chunk("stop"), chunk(content="x", index=1))[-1] == TextDelta("x", 1)
    assert stream() == []


def test_second_finish_is_ignored() -> None:
    """A second finish reason is ignored, because some servers repeat it in the chunk with the usage."""
    assert stream(chunk("stop"), chunk("stop"), "[DONE]") == [Finished("stop"), Closed()]


def test_structured_calls_in_fragments() -> None:
    """Calls that arrive in fragments, including legacy calls, are emitted in order before the finish reason, each as
    one complete call.
    """
    one = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a"'}}
    two = {"index": 1, "custom": {"name": "p", "input": "x"}}
    more = {"index": 0, "function": {"arguments": ":1}"}}
    emitted = stream(chunk(tool_calls=[one]), chunk(tool_calls=[two]), chunk(tool_calls=[more]), chunk("tool_calls"))
    assert emitted == [StructuredCall("f", '{"a":1}'), StructuredCall("p", "x", "custom"), Finished("stop"), Closed()]
    legacy = stream(chunk(function_call={"name": "f"}), chunk(function_call={"arguments": "{}"}), "[DONE]")
    assert legacy == [StructuredCall("f", "{}"), Closed()]


def test_reasoning_refusal_and_parts() -> None:
    """The reader accepts refusals, content in the form of a list of parts, and reasoning under either field name."""
    assert stream(chunk(reasoning_content="a")) == [ReasoningDelta("a", "text")]
    assert stream(chunk(reasoning="a")) == [ReasoningDelta("a", "text")]
    assert stream(chunk(refusal="no")) == [RefusalDelta("no")]
    assert stream(chunk(content=[{"type": "text", "text": "a"}, {"text": "b"}, 5])) == [TextDelta("a"), TextDelta("b")]


@pytest.mark.parametrize("thinking", ["a", [{"type": "text", "text": "a"}], [{"text": ""}, 5, {"text": "a"}]])
def test_thinking_parts_become_reasoning(thinking: object) -> None:
    """The thinking parts that Mistral's models send within the content become reasoning."""
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": "b"}]
    assert stream(chunk(content=parts)) == [ReasoningDelta("a", "text"), TextDelta("b")]
    for nothing in ([], {}, 5, [{"thinking": "x"}]):
        assert stream(chunk(content=[{"type": "thinking", "thinking": nothing}])) == []


def test_non_streamed_completion() -> None:
    """A non-streamed completion is converted to the same events as a stream. Every choice counts as finished, even
    without a finish reason.
    """
    body = {
        "choices": [
            {"message": {"content": "a"}},
            {"index": 1, "message": {"content": "b"}, "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    expected = [
        Counted(Usage(1, 1, 2)),
        TextDelta("a"),
        TextDelta("b", 1),
        Finished("stop"),
        Finished("length", 1),
        Closed(),
    ]
    assert ChatReader().whole(body)[1:] == expected


@each("body", [{"error": {"message": "out", "code": 429}}, {"error": "out"}])
def test_errors_end_the_answer(body: dict[str, Any]) -> None:
    """An error ends the answer, streamed or not. A numeric error code is converted to text."""
    for emitted in (stream(chunk(content="a"), body, chunk(content="b"), "[DONE]")[1:], ChatReader().whole(body)):
        (failed,) = emitted
        assert isinstance(failed, Failed)
        assert failed.error.message == "out"
        assert failed.error.code in (None, "429")


@pytest.mark.parametrize("body", [{"object": "error", "message": "out", "code": 500}, {"detail": "out"}])
def test_bare_error_in_a_stream(body: dict[str, Any]) -> None:
    """In a stream, an error object in place of a chunk is a failure, even if ``[DONE]`` follows. Older versions of vLLM
    send such errors.
    """
    text, failed = stream(chunk(content="a"), body, "[DONE]")
    assert text == TextDelta("a")
    assert isinstance(failed, Failed)
    assert failed.error.message == "out"


def test_invalid_chunk_fails_the_answer() -> None:
    """A chunk that is not JSON makes the answer fail, unless the chunk was truncated by the end of the stream."""
    assert isinstance(stream("{oops")[0], Failed)
    assert ChatReader().event(ServerSentEvent("", "{oops", whole=False)) == []
    assert isinstance(ChatReader().event(ServerSentEvent("error", '{"message":"out"}'))[0], Failed)
    assert stream("[]", '{"choices":5}', '{"choices":[{"delta":5}]}') == []


def call(name: str, arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


@pytest.mark.parametrize("place", [{"index": 0}, {}], ids=["all at index 0", "without an index"])
def test_calls_that_share_an_index(place: dict[str, Any]) -> None:
    """Calls with the same index are distinguished by their IDs, since some backends use index 0 for every call."""
    one, two = call("f", '{"a":1}', id="x", **place), call("f", '{"a":2}', id="y", **place)
    more = {**place, "id": "y", "function": {"arguments": " "}}
    emitted = stream(chunk(tool_calls=[one]), chunk(tool_calls=[two]), chunk("tool_calls", tool_calls=[more]))
    assert emitted == [StructuredCall("f", '{"a":1}'), StructuredCall("f", '{"a":2} '), Finished("stop"), Closed()]


@pytest.mark.parametrize("place", [{"index": 0}, {"index": 0, "id": ""}, {}], ids=["index 0", "empty id", "neither"])
@pytest.mark.parametrize("names", [("f", "g"), ("f", "f")], ids=["another name", "the same name"])
def test_calls_that_share_an_index_without_ids(names: tuple[str, str], place: dict[str, Any]) -> None:
    """Two calls with the same index and without IDs are kept separate, even if they call the same tool."""
    one, two = (call(name, f'{{"a":{number}}}', **place) for number, name in enumerate(names, 1))
    calls = [StructuredCall(name, f'{{"a":{number}}}') for number, name in enumerate(names, 1)]
    assert stream(chunk(tool_calls=[one]), chunk(tool_calls=[two]), "[DONE]") == [*calls, Closed()]
    # Without an index, the reader would use the position in the list, which differs between the two calls.
    places = {"index": 0, **place}
    both = chunk(tool_calls=[{**one, **places}, {**two, **places}])
    assert stream(both, "[DONE]") == [*calls, Closed()]


@each(
    ("pieces", "calls"),
    [
        (['{"a"', ":1}", '{"b"', ":2}"], ['{"a":1}', '{"b":2}']),
        (['{"a":1}', "", '{"b":2}', "\n"], ['{"a":1}', '{"b":2}\n']),
        (['{"a":1}', " ", "{", '"a":1}'], ['{"a":1} ', '{"a":1}']),
        (['{"a"', '{"a":1', '{"a":1}', '{"b"', '{"b":2}'], ['{"a":1}', '{"b":2}']),
        (["{}", '{"a":1}', '{"b":2}'], ['{"a":1}', '{"b":2}']),
        (['{"a"', '{"a":1', '{"a":1}'], ['{"a":1}']),
        (['{"a":1}', '{"a":1}'], ['{"a":1}']),
        (['{"a":1}', '{"a": 1}'], ['{"a": 1}']),
        (['{"a":1}', '{"a":1}\n'], ['{"a":1}\n']),
        (['{"a":"}', "{", '"}'], ['{"a":"}{"}']),
        (['{"a":[', "{}", ",", '{"b":2}', "]}"], ['{"a":[{},{"b":2}]}']),
        (["{}", "{}"], ["{}"]),
    ],
)
def test_repeated_name_with_a_new_object_begins_a_call(pieces: list[str], calls: list[str]) -> None:
    """Some backends repeat the tool's name in every fragment. In this case, a new call begins if a complete arguments
    object is followed by another object.
    """
    chunks = [chunk(tool_calls=[call("f", piece, index=0)]) for piece in pieces]
    emitted = stream(*chunks, "[DONE]")
    assert [call.arguments for call in emitted if isinstance(call, StructuredCall)] == calls
    assert [
        call.arguments for call in streamed_ahead(*chunks, chunk("stop")) if isinstance(call, StructuredCall)
    ] == calls


def test_arguments_are_parsed_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find out whether a fragment begins a new call, the arguments received so far are parsed. In total, at most ten
    times the length of the arguments is parsed.
    """
    parsed: list[str] = []
    monkeypatch.setattr(reader, "loaded", lambda text: (parsed.append(text), loaded(text))[1])
    pieces = ['{"a":"', *["}", "{"] * 2_000, '"}']
    chunks = [chunk(tool_calls=[call("f", piece, index=0)]) for piece in pieces]
    assert stream(*chunks, "[DONE]") == [StructuredCall("f", "".join(pieces)), Closed()]
    assert sum(map(len, parsed)) < 10 * len("".join(pieces))


def test_call_fragments_with_different_indexes() -> None:
    """A fragment without a name and without an ID continues the latest call if no call has started at its index."""
    chunks = [chunk(tool_calls=[call(name, '{"a"', index=0, id=f"c{name}")]) for name in "fg"]
    tails = [chunk(tool_calls=[{"index": 1, "function": {"arguments": piece}}]) for piece in (":", "2}")]
    rest = chunk(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}])
    calls = [StructuredCall("f", '{"a":1}', call_id="cf"), StructuredCall("g", '{"a":2}', call_id="cg"), Closed()]
    assert stream(chunks[0], rest, chunks[1], *tails, "[DONE]") == calls


def test_repeated_name_without_arguments() -> None:
    """A fragment that repeats the tool's name without arguments starts a new call only if arguments follow."""
    first, name = chunk(tool_calls=[call("f", '{"a":1}', index=0)]), chunk(tool_calls=[call("f", "", index=0)])
    rest = [chunk(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in ('{"a"', ":2}")]
    assert stream(first, name, *rest, "[DONE]")[:-1] == [StructuredCall("f", '{"a":1}'), StructuredCall("f", '{"a":2}')]
    assert stream(first, name, "[DONE]")[:-1] == [StructuredCall("f", '{"a":1}')]


def test_object_without_a_name_replaces_the_arguments() -> None:
    """If the arguments in a chunk without a name, or with the same call ID, are a complete object, they replace the
    arguments received so far. The input of a custom tool is always appended.
    """
    bare = [{"index": 0, "function": {"arguments": '{"a":2}'}}, call("f", '{"a":2}', index=0, id="x")]
    for again in bare:
        emitted = stream(chunk(tool_calls=[call("f", '{"a":1}', index=0, id="x")]), chunk(tool_calls=[again]), "[DONE]")
        assert emitted == [StructuredCall("f", '{"a":2}'), Closed()]
    custom = [{"index": 0, "custom": {"name": "p", "input": text}} for text in ('{"a":1}', '{"b":2}')]
    emitted = stream(*(chunk(tool_calls=[piece]) for piece in custom), "[DONE]")
    assert emitted == [StructuredCall("p", '{"a":1}{"b":2}', "custom"), Closed()]


@pytest.mark.parametrize("reason", [None, "", 5])
def test_non_streamed_calls_without_a_finish_reason(reason: object) -> None:
    """Calls in a non-streamed answer are emitted even if the finish reason is missing or invalid."""
    message = {"content": "Hi\ud83d", "tool_calls": [call("f", "{}")]}
    emitted = ChatReader().whole({"choices": [{"message": message, "finish_reason": reason}]})
    assert emitted[1:] == [
        TextDelta("Hi"),
        StructuredCallStarted(),
        TextDelta("\ufffd"),
        StructuredCall("f", "{}"),
        Finished("stop"),
        Closed(),
    ]


def test_empty_events_and_space_around_the_terminator() -> None:
    """Empty events are ignored, and whitespace around ``[DONE]`` is accepted. Neither is treated as invalid JSON."""
    assert stream("", " ", chunk("stop"), "", " [DONE] ", "{oops") == [Finished("stop"), Closed()]


def test_arguments_sent_as_an_object() -> None:
    """If a backend sends arguments as an object, they are encoded as JSON text."""
    assert stream(chunk("stop", tool_calls=[call("f", {"a": 1})]))[0] == StructuredCall("f", '{"a":1}')


def test_truncated_call_is_incomplete() -> None:
    """If the answer was cut off, the last call is marked as incomplete."""
    calls = [call("f", '{"a":1}', index=0), call("f", '{"a":2', index=1)]
    emitted = stream(chunk("length", tool_calls=calls))
    assert emitted[:2] == [StructuredCall("f", '{"a":1}'), StructuredCall("f", '{"a":2', whole=False)]


@pytest.mark.parametrize("reason", ["length", "model_length", "insufficient_system_resource", "abort"])
def test_finish_reasons_for_truncation(reason: str) -> None:
    """Every finish reason that indicates a truncated answer is mapped to ``length``."""
    assert stream(chunk(reason)) == [Finished("length"), Closed()]


def test_finish_reason_error_fails_the_answer() -> None:
    """If the finish reason is "error", the answer fails with the backend's error, streamed or not."""
    choice = {"finish_reason": "error", "error": {"code": 502, "message": "upstream died"}}
    for emitted in (stream({"choices": [choice]}, "[DONE]"), ChatReader().whole({"choices": [choice]})[1:]):
        (failed,) = emitted
        assert isinstance(failed, Failed)
        assert failed.error.message == "upstream died"
    assert isinstance(stream(chunk("error"))[0], Failed)


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"detail": "loading"}, {"output": []}])
def test_body_without_a_completion_is_a_failure(body: dict[str, Any]) -> None:
    """A body with status 200 that contains no answer is treated as a failure, rather than as an empty answer."""
    assert [type(event) for event in ChatReader().whole(body)] == [Failed]


def test_first_chunk_without_a_time() -> None:
    """Azure's first chunk contains only filter results and has the time 0, so its time is ignored."""
    first = {"choices": [], "created": 0, "id": "", "model": "", "prompt_filter_results": []}
    assert ChatReader().event(ServerSentEvent("", json.dumps(first))) == [Opened()]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
OLD = {"name": "f", "arguments": '{"a": 1}'}


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        ({"tool_calls": CALL}, [("f", '{"a":1}')]),
        ({"tool_calls": [{"id": "c", "type": "function", "name": "f", "arguments": '{"a":1}'}]}, [("f", '{"a":1}')]),
        ({"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]}, [("f", "x")]),
        ({"tool_calls": [CALL], "function_call": OLD}, [("f", '{"a":1}')]),
        ({"tool_calls": [CALL], "function_call": {**OLD, "name": "g"}}, [("f", '{"a":1}'), ("g", '{"a": 1}')]),
        ({"function_call": OLD}, [("f", '{"a": 1}')]),
    ],
)
def test_unusual_forms_of_calls(message: dict[str, Any], calls: list[tuple[str, str]]) -> None:
    """Calls in unusual structures are emitted exactly once. For example, a single object can replace the list of calls,
    or two fields can contain the same call.
    """
    whole = ChatReader().whole({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    streamed = stream({"choices": [{"delta": message}]}, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    for emitted in (whole, streamed):
        found = [(call.name, call.arguments) for call in emitted if isinstance(call, StructuredCall)]
        assert found == calls


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        (['{"a"', '{"a":1', '{"a":1}'], '{"a":1}'),
        (['{"a"', ":1}"], '{"a":1}'),
        (['{"a":1}', '{"a":1}'], '{"a":1}'),
        (['{"a"', ":"], '{"a":'),
        (['{"a":1}', ""], '{"a":1}'),
        (["{}", '{"a"', ":1}"], '{"a":1}'),
        (["{}", '{"a"', ":"], '{}{"a":'),
        (['{"b":1}', '{"a"', ":1}"], '{"b":1}{"a":1}'),
    ],
)
def test_cumulative_arguments(pieces: list[str], arguments: str) -> None:
    """If each fragment of the arguments repeats all earlier fragments, only the last one is used."""
    deltas = [
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": piece}}]} for piece in pieces
    ]
    emitted = stream(*({"choices": [{"delta": delta}]} for delta in deltas), "[DONE]")
    assert [call.arguments for call in emitted if isinstance(call, StructuredCall)] == [arguments]


def test_surrogate_halves_are_joined() -> None:
    """If a surrogate pair is split across two deltas, its halves are joined. A lone half at the end becomes U+FFFD."""
    chunks = ({"choices": [{"delta": {"content": text}}]} for text in ("a\ud83d", "\ude00b", "\ud83d"))
    emitted = stream(*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert [event.text for event in emitted if isinstance(event, TextDelta)] == ["a", "😀b", "\ufffd"]


def test_content_after_an_early_finish_reason_is_kept() -> None:
    """Content that follows a finish reason is kept. The answer is closed only by a second finish reason or
    ``[DONE]``.
    """
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    thought, text = ReasoningDelta("hm", "text"), TextDelta("Hi")
    early = [chunk("length", reasoning="hm"), chunk("stop", content="Hi")]
    assert stream(*early) == [thought, text, Finished("stop"), Closed()]
    late = [chunk("stop", content="Hi"), chunk(tool_calls=[call])]
    assert stream(*late, "[DONE]") == [text, StructuredCall("f", "{}", call_id="c"), Closed()]
    assert stream(*late) == [text]
    assert stream(*late, chunk("stop"), "[DONE]")[-2:] == [Finished("stop"), Closed()]


def streamed_ahead(*chunks: dict[str, Any]) -> list[BackendEvent]:
    reader = ChatReader()
    reader.streams_ahead = True
    emitted = [event for part in chunks for event in reader.event(ServerSentEvent("", json.dumps(part)))]
    return [event for event in emitted + reader.end() if not isinstance(event, Opened | StructuredCallStarted)]


def fragment(index: int, arguments: str, **function: str) -> dict[str, Any]:
    return chunk(tool_calls=[{"index": index, "function": {"arguments": arguments, **function}}])


def test_first_call_is_streamed_in_pieces() -> None:
    """If incremental calls are enabled, the first call is emitted in fragments until another call starts. The final
    event of the first call has the same key as its fragments.
    """
    emitted = streamed_ahead(
        fragment(0, "", name="f"), fragment(0, '{"a"'), fragment(0, ":"), fragment(1, "{", name="g"), fragment(0, "1}"),
        fragment(1, "}"), chunk("tool_calls"),
    )  # fmt: skip
    assert emitted[:2] == [StructuredDelta("0", "f", '{"a"', True), StructuredDelta("0", "f", ":", False)]
    assert emitted[2:] == [StructuredCall("f", '{"a":1}'), StructuredCall("g", "{}"), Finished("stop"), Closed()]
    assert [call.key for call in emitted if isinstance(call, StructuredCall)] == ["0", ""]


def test_other_calls_are_not_streamed_in_pieces() -> None:
    """Even if incremental calls are enabled, later calls, calls without a name, and custom calls are emitted only when
    complete. By default, this applies to all calls.
    """
    assert streamed_ahead(fragment(1, "{", name="g")) == []
    assert streamed_ahead(fragment(0, "{"), fragment(0, '"a"', name="f")) == []
    assert streamed_ahead(chunk(tool_calls=[{"index": 0, "custom": {"name": "f", "input": "{"}}])) == []
    assert stream(fragment(0, "{", name="f")) == []


@pytest.mark.parametrize("more", [{}, {"id": "c"}])
@pytest.mark.parametrize("ahead", [False, True])
def test_name_in_two_fragments_is_joined(more: dict[str, str], ahead: bool) -> None:
    """If a tool's name is split across two fragments, the fragments are joined, provided that the joined name belongs
    to an offered tool and the parts do not. Otherwise, the fragments are treated as two calls.
    """

    def read(*offered: str) -> list[BackendEvent]:
        reader = ChatReader()
        reader.offered, reader.streams_ahead = offered, ahead
        fragments = [{"id": "c", "function": {"name": "get_"}}, {**more, "function": {"name": "weather"}}]
        fragments += [{"function": {"arguments": '{"a":'}}, {"function": {"arguments": "1}"}}]
        chunks = [json.dumps(chunk(tool_calls=[{"index": 0, **each}])) for each in fragments]
        return [event for data in (*chunks, "[DONE]") for event in reader.event(ServerSentEvent("", data))]

    def calls(events: list[BackendEvent]) -> list[tuple[str, str]]:
        return [(event.name, event.arguments) for event in events if isinstance(event, StructuredCall)]

    joined = read("get_weather")
    assert calls(joined) == [("get_weather", '{"a":1}')]
    assert {event.name for event in joined if isinstance(event, StructuredDelta)} == (
        {"get_weather"} if ahead else set()
    )
    apart = [("get_", '{"a":1}')] if more else [("get_", ""), ("weather", '{"a":1}')]
    for offered in ((), ("get_weather", "weather"), ("get_weather", "get_")):
        assert calls(read(*offered)) == apart


def test_call_is_announced_at_its_first_fragment() -> None:
    """A call is announced only once, as soon as its first fragment arrives. Otherwise, text that follows the fragment
    could end the turn.
    """
    first = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}
    more = {"index": 0, "function": {"arguments": "}"}}
    second = {"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}
    for ahead in (False, True):
        reader = ChatReader()
        reader.streams_ahead = ahead
        read = [
            [event for event in reader.event(ServerSentEvent("", json.dumps(part))) if event == StructuredCallStarted()]
            for part in (chunk(tool_calls=[first]), chunk(content="x"), chunk(tool_calls=[more, second]))
        ]
        assert [len(started) for started in read] == [1, 0, 1]
