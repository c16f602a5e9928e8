import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.core.events import StructuredCall, Usage
from toolsim.pages.read_answer import TextBlock, read_answer


def sse(*events: object, done: bool = True) -> bytes:
    frames = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*frames, "data: [DONE]\n\n" if done else ""]).encode()


def chunk(finish=None, choice=0, **delta):
    return {"model": "m", "choices": [{"index": choice, "delta": delta, "finish_reason": finish}]}


CALLS = [{"index": 0, "id": "call_001", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
ITEM = {"type": "function_call", "call_id": "fc_001", "name": "f", "arguments": '{"a":1}', "namespace": "ns"}
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "hello"}]}


@pytest.mark.parametrize(
    "data",
    [
        sse(chunk(content="hel"), chunk(content="lo"), chunk(tool_calls=CALLS), chunk("tool_calls")),
        json.dumps({"model": "m", "choices": [{"message": {"content": "hello", "tool_calls": CALLS}}]}).encode(),
        sse(
            {"type": "response.created", "response": {"model": "m"}},
            {"type": "response.output_text.delta", "delta": "hello"},
            {"type": "response.output_item.done", "output_index": 1, "item": ITEM},
            {"type": "response.completed", "response": {"model": "m"}},
        ),
        json.dumps({"object": "response", "model": "m", "status": "completed", "output": [MESSAGE, ITEM]}).encode(),
    ],
    ids=["chat stream", "chat", "responses stream", "responses"],
)
def test_all_forms_are_read_alike(data):
    """The same text and call are read from a streamed or non-streamed answer in either API. The call ID is
    unchanged.
    """
    answer = read_answer(data)
    assert answer.known
    assert answer.whole
    assert answer.error is None
    assert answer.model == "m"
    [text, call] = answer.pieces[0]
    assert text == TextBlock("text", "hello")
    assert isinstance(call, StructuredCall)
    assert (call.name, call.arguments) == ("f", '{"a":1}')
    assert call.call_id in ("call_001", "fc_001")
    assert answer.calls == [call]
    assert bool(answer.events) == data.startswith(b"data:")


def test_choices_reasoning_and_usage():
    """Choices are read separately, and reasoning is kept apart from text. The two halves of a split surrogate pair are
    joined.
    """
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    answer = read_answer(
        sse(
            chunk(reasoning_content="hm"),
            chunk(content="\ud83d"),
            chunk(choice=1, content="b"),
            chunk(content="\ude00"),
            chunk("length"),
            chunk("stop", choice=1),
            usage,
        )
    )
    assert answer.pieces == {0: [TextBlock("reasoning", "hm"), TextBlock("text", "😀")], 1: [TextBlock("text", "b")]}
    assert answer.text(0) == "😀"
    assert answer.reasons == {0: "length", 1: "stop"}
    assert answer.usage == Usage(3, 4, 7)


@pytest.mark.parametrize("thought", [False, True])
def test_messages_are_separated(thought):
    """Two messages in an answer are separated by a blank line, unless there is reasoning between them."""
    words = [{"type": "message", "content": [{"type": "output_text", "text": text}]} for text in ("One.", "Two.")]
    between = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}] if thought else []
    body = {"object": "response", "status": "completed", "output": [words[0], *between, words[1]]}
    apart = [TextBlock("text", "One."), TextBlock("reasoning", "Hm."), TextBlock("text", "Two.")]
    answer = read_answer(json.dumps(body).encode())
    assert answer.pieces[0] == (apart if thought else [TextBlock("text", "One.\n\nTwo.")])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"error":{"message":"no"}}', "no"),
        (sse(chunk(content="a"), {"error": {"message": "no"}}), "no"),
        (sse({"type": "response.created"}, {"type": "error", "message": "no"}), "no"),
    ],
)
def test_error_message_is_found(data, message):
    """The error message is found in an error object, in a chat stream and in a Responses API stream."""
    answer = read_answer(data)
    assert answer.error is not None
    assert answer.error.message == message


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"<html>", b"{", b"data: 1\n\n", b": hello\n\n", b"\xff\xfe:"])
def test_other_bytes_are_not_an_answer(data):
    """Bytes that are not an answer in a supported format are marked as unknown."""
    assert not read_answer(data).known


def test_cut_stream_is_incomplete():
    """If a stream was cut off, its text is read up to the cut, and the answer is marked as incomplete."""
    answer = read_answer(sse(chunk(content="a"), done=False) + b'data: {"choi')
    assert answer.text(0) == "a"
    assert not answer.whole


@given(st.binary(max_size=200) | st.builds(lambda parts: b"data: " + b"\n\ndata: ".join(parts), st.lists(st.binary())))
def test_any_bytes_are_read_without_an_exception(data):
    read_answer(data)
