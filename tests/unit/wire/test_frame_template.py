"""Fast decoding of repeated frames, which must have the same result as full parsing for any stream and any split."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseTextDeltaEvent
from support.each import each
from support.wire import ANSWERS, ApiName, ChatAnswer, backend_answer, chat_frame
from toolsim.core.events import BackendEvent, ReasoningDelta, StructuredDelta, TextDelta
from toolsim.wire.api import Reader
from toolsim.wire.apis import APIS
from toolsim.wire.frame_template import RepeatDecoder, RepeatReader, learned
from toolsim.wire.sse import ServerSentEvent, SSEDecoder

TEXTS = ("Hel", "lo ", 'a "quote"\n', "Grüße", "🐢🏔️", "\\", "\t\x01", "</tool_call>", "x" * 40, "\u2028", "1")
APIS_NAMES: tuple[ApiName, ...] = ("chat", "responses", "messages")


def reader_of(api: ApiName) -> Reader:
    reader = APIS[api].reader()
    reader.streams_ahead = True
    return reader


def joined(events: Iterable[BackendEvent]) -> list[BackendEvent]:
    """Return the events, with adjacent events joined if they differ only in their text."""
    out = list[BackendEvent]()
    for event in events:
        last = out[-1] if out else None
        match last, event:
            case (
                (TextDelta(), TextDelta())
                | (ReasoningDelta(), ReasoningDelta())
                | (
                    StructuredDelta(),
                    StructuredDelta(is_first=False, is_named=False),
                )
            ) if replace(event, text="", **first(last)) == replace(last, text=""):
                out[-1] = replace(last, text=last.text + event.text)
            case _:
                out.append(event)
    return out


def first(event: BackendEvent | None) -> dict[str, Any]:
    return {"is_first": event.is_first} if isinstance(event, StructuredDelta) else {}


def slowly(api: ApiName, chunks: Iterable[bytes]) -> list[BackendEvent]:
    decoder, reader = SSEDecoder(), reader_of(api)
    return joined(event for data in chunks for sse in decoder.feed(data) for event in reader.event(sse))


def quickly(api: ApiName, chunks: Iterable[bytes]) -> tuple[list[BackendEvent], int]:
    """Return the events of fast decoding, and the number of frames that were recognized as repeated frames."""
    stream, decoder, reader = RepeatReader(reader_of(api)), RepeatDecoder(), reader_of(api)
    events, expected = list[BackendEvent](), list[BackendEvent]()
    repeats = 0
    for data in chunks:
        events += [event for some in stream.feed(data) for event in some]
        for item in decoder.feed(data):
            if isinstance(item, ServerSentEvent):
                expected += reader.event(item)
                continue
            repeats += len(item.texts)
            for text in item.texts:
                sse = item.template.with_text(text)
                before = copy.deepcopy(sse.document)
                expected += copy.deepcopy(reader.event(sse))
                assert sse.document == before
    assert joined(events) == joined(expected)
    return joined(events), repeats


def test_most_frames_are_repeats() -> None:
    """Almost all frames of a typical stream are recognized as repeated frames. Only a few frames at the beginning and
    at the end are parsed in full.
    """
    for api in APIS_NAMES:
        _, body = backend_answer(api, True, TEXTS * 20)
        events, repeats = quickly(api, [body, b""])
        assert events == slowly(api, [body, b""])
        assert repeats > 0.8 * 20 * len(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_splits_make_no_difference(api: ApiName) -> None:
    """A stream that is split in two at any byte yields the same events as the unsplit stream."""
    _, body = backend_answer(api, True, TEXTS)
    expected = slowly(api, [body, b""])
    for cut in range(1, len(body)):
        stream = RepeatReader(reader_of(api))
        pieces = (body[:cut], body[cut:], b"")
        assert joined(event for data in pieces for some in stream.feed(data) for event in some) == expected


@pytest.mark.parametrize("api", APIS_NAMES)
def test_byte_by_byte_yields_the_same_events(api: ApiName) -> None:
    """A stream that arrives byte by byte or frame by frame yields the same events as in a single chunk."""
    _, body = backend_answer(api, True, TEXTS * 3)
    expected = slowly(api, [body, b""])
    assert quickly(api, [bytes([byte]) for byte in body])[0] == expected
    frames = [frame + b"\n\n" for frame in body.split(b"\n\n")[:-1]]
    assert quickly(api, frames)[0] == expected


def test_other_kinds_of_frames_repeat() -> None:
    """Repeated frames with reasoning, calls or several choices are also recognized, separately for each kind of
    frame.
    """
    answer = ChatAnswer()
    frames = [frame for text in TEXTS * 4 for frame in answer.add_reasoning(text)]
    frames += [chat_frame(text, index=index) for text in TEXTS * 20 for index in (0, 1)]
    frames += [
        *answer.begin_call("f"),
        *(frame for text in TEXTS * 9 for frame in answer.add_arguments(text)),
        *answer.end(),
    ]
    events, repeats = quickly("chat", [b"".join(frames)])
    assert events == slowly("chat", [b"".join(frames)])
    assert repeats > 0.85 * len(frames)


@pytest.mark.parametrize("api", APIS_NAMES)
def test_texts_of_one_write_are_one_event(api: ApiName) -> None:
    """Repeated frames that arrive together are combined into one event. Each frame that arrives separately becomes a
    separate event.
    """
    answer, words = ANSWERS[api](), ["so ", "it ", "is\n"] * 30
    frames = [frame for word in words for frame in answer.add_reasoning(word)]
    frames += [*answer.begin_message(), *(frame for word in words for frame in answer.add_text(word))]
    frames += [*answer.begin_call("f"), *answer.add_arguments('{"a": "')]
    frames += [frame for _ in words for frame in answer.add_arguments("b")]
    frames += [*answer.add_arguments('"}'), *answer.end_call(), *answer.end()]
    for chunks, least, most in (([b"".join(frames)], 10, 50), (frames, 270, 300)):
        stream = RepeatReader(reader_of(api))
        events = [event for data in chunks for some in stream.feed(data) for event in some]
        assert joined(events) == slowly(api, chunks)
        assert least < len(events) < most


HIDDEN = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}],"usage":null,"obfuscation":"aX3"}\n\n'
# A Pydantic model writes its fields in the order in which its class declares them. vLLM uses this class of the OpenAI
# SDK.
VLLM = (
    b"event: response.output_text.delta\ndata: %s\n\n"
    % ResponseTextDeltaEvent(
        type="response.output_text.delta",
        sequence_number=8,
        item_id="m",
        output_index=0,
        content_index=0,
        delta="%s",
        logprobs=[],
    )
    .model_dump_json()
    .encode()
)
# These frames are nearly identical, but have different envelopes, different notations, or an error.
ENVELOPES = (
    b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}],"created":17}\n\n',
    b'data: {"created":17,"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n',
    b'data: {"created":0018,"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n',
    b'data: {"created":1e3,"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"a","content":"%s"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"role":"content","content": "%s"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"reasoning":"%s"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":"stop"}]}\n\n',
    b'event: error\ndata: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\r\n\r\n',
    b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"%s"}}]}\n\n',
    b'event: response.output_text.delta\ndata: {"sequence_number":7,"output_index":0,"delta":"%s"}\n\n',
    b'data: {"type":"response.output_text.delta","sequence_number": 8,"item_id":"m","delta":"%s"}\n\n',
    b'data: {"type":"response.reasoning_text.delta","output_index":1,"delta":"%s"}\n\n',
    b'data: {"type":"response.function_call_arguments.delta","output_index":2,"delta":"%s"}\n\n',
    HIDDEN,
    HIDDEN.replace(b"aX3", b""),
    HIDDEN.replace(b"obfuscation", b"p"),
    HIDDEN.replace(b"aX3", b'a"'),
    b'data: {"type":"response.output_text.delta","sequence_number":8,"delta":"%s","obfuscation":"7"}\n\n',
    VLLM,
    b": %s\n\n",
    b"\n",
    b"data: [DONE]\n\n",
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%s"}}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":null,"tool_calls":[{"index":1,"function":{"arguments":"%s"}}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"%s"}}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"a","tool_calls":[{"index":0,"function":{"arguments":"%s"}}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"function":{}},{"function":{"arguments":"%s"}}]}}]}\n\n',
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}\n\n',
    b'data: {"type":"content_block_delta","index":1,"delta":{"type":"thinking_delta","thinking":"%s"}}\n\n',
    b'data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","name":"f","input":{}}}\n\n',
    b'data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"%s"}}\n\n',
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s","thinking":"b"}}\n\n',
    b'data: {"type":"content_block_stop","index":2}\n\n',
)
INSIDES = (b"a", b"", b"Hel", "é".encode(), b"\xff", b"\\n", b"\\u00e9", b"\\ud83d", b"\\udc22", b'\\"', b"\\", b"\\x")
INSIDES += (b'"', b"\x01", b"</tool_call>", b'a"},"x":{"y":"b', b"\xed\xa0\xbd", "\u2028".encode())


@given(
    st.lists(st.tuples(st.sampled_from(ENVELOPES), st.integers(1, 9), st.lists(st.sampled_from(INSIDES), min_size=9))),
    st.lists(st.integers(1, 200)),
)
def test_any_frames_at_any_split(runs: list[tuple[bytes, int, list[bytes]]], cuts: list[int]) -> None:
    """Sequences of equal, similar or broken frames yield the same events as with full parsing, wherever they are
    split.
    """
    body = b"".join(
        (envelope % inside if b"%" in envelope else envelope)
        for envelope, count, insides in runs
        for inside in insides[:count]
    )
    chunks, at = [], 0
    for cut in cuts:
        chunks.append(body[at : at + cut])
        at += cut
    chunks = [chunk for chunk in (*chunks, body[at:]) if chunk]
    for api in APIS_NAMES:
        assert quickly(api, chunks)[0] == slowly(api, chunks)


@each("envelope", ENVELOPES)
@each("inside", INSIDES)
def test_repeated_frame_has_the_parsed_document(envelope: bytes, inside: bytes) -> None:
    """The fast decoder's document for a repeated frame equals the result of ``json.loads``."""
    template = learned(envelope.replace(b"%s", b"Hel"))
    frame = envelope.replace(b"%s", inside)
    texts = template and template.texts(frame)
    if not template or not texts:
        return
    (text,) = texts
    assert template.with_text(text).document == json.loads(frame.partition(b"data: ")[2])


def test_frames_that_arrive_together_are_decoded_together() -> None:
    """Frames that arrive together are decoded in one step only if all of them are repeated frames and there are no
    other bytes between them.
    """
    for envelope in (ENVELOPES[0], ENVELOPES[1], ENVELOPES[13], HIDDEN, VLLM):
        template = learned(envelope.replace(b"%s", b"Hel"))
        assert template is not None
        frames = [envelope.replace(b"%s", inside) for inside in (b"lo", b"\\n", "é".encode(), b'\\"}', b"\\u0000")]
        whole = b"".join(frames)
        assert template.texts(whole) == ["lo", "\n", "é", '"}', "\0"]
        for place in range(len(whole)):
            for wrong in (whole[:place], whole[:place] + whole[place + 1 :], whole[:place] + b"\0" + whole[place:]):
                if (texts := template.texts(wrong)) is not None:
                    documents = [still(json.loads(sse.data)) for sse in SSEDecoder().feed(wrong)]
                    assert [copy.deepcopy(still(template.with_text(text).document)) for text in texts] == documents


def still(document: dict[str, Any] | None) -> dict[str, Any]:
    """Return a document without the fields whose values can differ between repeated frames."""
    assert document is not None
    return {key: value for key, value in document.items() if key not in ("sequence_number", "obfuscation")}


@pytest.mark.parametrize("envelope", [ENVELOPES[13], VLLM], ids=["before the text", "behind it"])
def test_sequence_numbers_can_change(envelope: bytes) -> None:
    """A frame with another sequence number is still recognized as a repeated frame, provided that the number is an
    unsigned JSON integer.
    """
    template = learned(envelope.replace(b"%s", b"Hel"))
    assert template is not None
    frame = envelope.replace(b"%s", b"lo")
    assert frame.count(b"8,") == 1
    assert template.texts(frame.replace(b"8,", b"90001,")) == ["lo"]
    assert template.texts(frame + frame.replace(b"8,", b"9,")) == ["lo", "lo"]
    for number in (b"08,", b"8.5,", b"8e1,", b'"8",', b"-8,", b",", b"8,9,", b"8 ,", b"a,"):
        assert template.texts(frame.replace(b"8,", number)) is None
        assert template.texts(frame + frame.replace(b"8,", number)) is None


def test_alternating_kinds_are_recognized() -> None:
    """Repeated frames of two kinds that alternate are recognized, whether they arrive separately or together."""
    decoder = RepeatDecoder()
    kinds = [envelope.replace(b"%s", b"a") for envelope in (ENVELOPES[0], ENVELOPES[7])]
    for frame in kinds * 10:
        list(decoder.feed(frame))
    for data in (*kinds, b"".join(kinds * 2), kinds[0] * 3):
        assert not any(isinstance(item, ServerSentEvent) for item in decoder.feed(data))


@pytest.mark.parametrize("key", [b"obfuscation", b"p"])
def test_obfuscation_can_change(key: bytes) -> None:
    """The random letters with which OpenAI hides the length of a text delta can differ between repeated frames."""
    envelope = HIDDEN.replace(b"obfuscation", key)
    template = learned(envelope.replace(b"%s", b"Hel"))
    assert template is not None
    for word in (b"", b"aZ9", b"a" * 20):
        assert template.texts(envelope.replace(b"%s", b"lo").replace(b"aX3", word) * 2) == ["lo", "lo"]
    for word in (b'a","b":"', b"a,", b"\\n", "é".encode()):
        assert template.texts(envelope.replace(b"%s", b"lo").replace(b"aX3", word)) is None
    deeper = envelope.replace(b'"content"', b'"role":{"%b":"aX3"},"content"' % key).replace(
        b',"%b":"aX3"}\n' % key, b"}\n"
    )
    other = learned(deeper.replace(b"%s", b"Hel"))
    assert other is not None
    assert other.texts(deeper.replace(b"%s", b"lo").replace(b"aX3", b"aX4")) is None


def test_frame_with_a_time_is_relearned() -> None:
    """If each frame contains the current time, as with llama.cpp and Ollama, only a few frames per second are parsed in
    full.
    """
    frames = [ENVELOPES[1].replace(b"17", b"%d" % (at // 50)).replace(b"%s", b"a") for at in range(2000)]
    events, repeats = quickly("chat", frames)
    assert events == slowly("chat", frames)
    assert repeats > 0.85 * len(frames)


def test_dissimilar_frames_are_all_parsed() -> None:
    """If no two frames of a stream are similar, all of them are parsed in full."""
    frames = [ChatAnswer(id=str(number)).add_text("a")[0] for number in range(300)]
    events, repeats = quickly("chat", frames)
    assert events == slowly("chat", frames)
    assert repeats == 0
