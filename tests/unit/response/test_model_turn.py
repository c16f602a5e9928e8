from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, tool
from support.wire import ANSWERS, ChatAnswer, ResponsesAnswer, backend_answer, usage
from toolsim.core.errors import ApiError
from toolsim.core.events import CallStarted, ClientEvent, Ended, Failed, Opened, TextDelta
from toolsim.core.plan import Plan
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.rewrite import ResponseRewriter
from toolsim.wire import frame_template
from toolsim.wire.frame_template import RepeatDecoder
from toolsim.wire.sse import SSEDecoder

CALL = '<tool_call>{"name":"f","arguments":"{}"}</tool_call>'


def feed(turn: ResponseRewriter, data: bytes) -> list[ClientEvent]:
    return [event for step in turn.events(data) for event in step]


def read(api_name: ApiName, stream: bool, cut: int) -> list[ClientEvent]:
    """Return the events for a backend's answer that arrives in chunks of ``cut`` bytes."""
    kind, body = backend_answer(api_name, stream, ["Hello ", CALL])
    turn = ResponseRewriter(plan("responses", api_name, True, [tool("f")]), Report(), content_type=kind)
    emitted = [event for at in range(0, len(body), cut) for event in feed(turn, body[at : at + cut])]
    emitted += feed(turn, b"")
    assert turn.is_done
    assert feed(turn, b"") == []
    return emitted


@pytest.mark.parametrize("api_name", ["responses", "chat"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_turn_is_the_same_however_delivered(api_name: ApiName, stream: bool) -> None:
    """With each API, streamed or not, an answer yields the same events whether it arrives in one chunk or byte by
    byte.
    """
    emitted = [event for event in read(api_name, stream, 10**6) if not isinstance(event, Opened)]
    assert emitted == [event for event in read(api_name, stream, 1) if not isinstance(event, Opened)]
    assert [type(event) for event in emitted][:2] == [TextDelta, CallStarted]
    assert isinstance(emitted[-1], Ended)


def test_several_turns_can_share_a_client() -> None:
    """Successive turns share no state, so the same input yields the same events a second time."""
    assert read("chat", True, 7) == read("chat", True, 7)


def test_invalid_body_fails_the_turn() -> None:
    """If the backend's body is not a JSON object, the turn fails. Another failure of the same turn is ignored."""
    turn = ResponseRewriter(plan("chat", "chat", False), Report(), content_type="application/json")
    feed(turn, b"<html>")
    (failed,) = feed(turn, b"")
    assert isinstance(failed, Failed)
    assert failed.error.code == "backend_bad_answer"
    assert turn.fail(ApiError("late")) == []


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n\n", b"\xef\xbb\xbf\n"])
@pytest.mark.parametrize("api_name", ["responses", "chat"])
def test_event_stream_declared_as_json_is_parsed(api_name: ApiName, before: bytes) -> None:
    """An event stream that is declared as JSON is still parsed as an event stream, even if it begins with a byte order
    mark and empty lines.
    """
    _, body = backend_answer(api_name, True, ["Hello ", CALL])
    turn = ResponseRewriter(plan("chat", api_name, False, [tool("f")]), Report(), content_type="application/json")
    feed(turn, before + body)
    emitted = feed(turn, b"")
    assert [type(event) for event in emitted if not isinstance(event, Opened)][:2] == [TextDelta, CallStarted]
    assert isinstance(emitted[-1], Ended)


def test_unknown_events_reach_the_report() -> None:
    """Each unknown event type is reported once. The number of reported types is limited."""
    report = Report()
    turn = ResponseRewriter(plan("responses", "responses", True), report, content_type="text/event-stream")
    for number in [*range(20), 1]:
        feed(turn, b'data: {"type":"x.%d"}\n\n' % number)
    assert report.warnings[:2] == ["UNKNOWN_EVENT:x.0", "UNKNOWN_EVENT:x.1"]
    assert len(report.warnings) == len(set(report.warnings))


def test_large_event_is_a_separate_step() -> None:
    """A large event that only repeats earlier content is processed in a separate step, so that other tasks can run in
    between.
    """
    answer = ResponsesAnswer(counts=usage("responses", 3, 4))
    data = b"".join([*answer.begin(), *answer.add_text("word " * 20_000), *answer.end()])
    turn = ResponseRewriter(plan("responses", "responses", True), Report(), content_type="text/event-stream")
    steps = list(turn.events(data))
    behind = list(itertools.takewhile(lambda step: not any(isinstance(e, TextDelta) for e in step), steps[::-1]))
    # The text is repeated in the ``done`` events of the text, the part and the item.
    assert sum(not step for step in behind) >= 3


# ─ Joint processing of frames that arrive together, compared with parsing each frame separately ─

WORDS = ("Hel", "lo ", "a < b", "<", "tool_", "<tool_call>", "</tool_call>", CALL, CALL[:30], CALL[30:], "\n", "\n\n  ")
WORDS += (
    "f(",
    'f(a="b")',
    "```json\n",
    "```",
    '{"name":',
    '"f"',
    "{",
    "}",
    "[",
    '"',
    "\\",
    '\\"',
    " ",
    "\u00a0",
    "🐢",
    "é",
)
WORDS += (
    "<think>",
    "</think>",
    "call f now\nfor x",
    "\nThen",
    "<use_tool>",
    "<name>f</name></use_tool>",
    "~~~\n",
    "\t\x01",
)
LONG = (
    "<tool_call>" + json.dumps({"name": "f", "arguments": json.dumps({"text": 'say("a < b")\n' * 9})}) + "</tool_call>"
)
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"stream_arguments": "incremental"},
    {"untagged": "off", "stop_after_tools": "on"},
    {"suppress_tail_after_tools": True, "output_mode": "obsidian-xml"},
    {"max_tool_bytes": 40, "tool_block_dedup": True},
)
Run = tuple[str, list[str]]  # A run is "say" or "think", followed by its deltas.

runs_of_deltas: st.SearchStrategy[list[Run]] = st.lists(
    st.tuples(
        st.sampled_from(("say", "say", "say", "think")),
        st.one_of(
            st.lists(st.sampled_from(WORDS), min_size=1, max_size=12),
            st.tuples(
                st.sampled_from((LONG, LONG + LONG, "Well, " * 20 + LONG, "Then a\nline. " * 9)), st.integers(1, 9)
            ).map(lambda text: [text[0][at : at + text[1]] for at in range(0, len(text[0]), text[1])]),
        ),
    ),
    max_size=5,
)


def backend_frames(backend: ApiName, runs: list[Run], choices: int) -> list[bytes]:
    """Return the frames of a backend's answer. The answer begins with similar frames, so that the decoder learns to
    recognize repeated frames.
    """
    answer = ANSWERS[backend](counts=usage(backend, 3, 4))
    frames = [*answer.begin()]
    for way, texts in [("say", ["So "] * 6), *runs]:
        for number, text in enumerate(texts):
            if choices > 1 and isinstance(answer, ChatAnswer):
                frames.append(answer.chunk({"content": text}, index=number % choices))
            else:
                frames += answer.add_text(text) if way == "say" else answer.add_reasoning(text)
        if way == "think" and isinstance(answer, ResponsesAnswer):
            frames += answer.begin_message()
    return [frame + b"\n\n" for frame in b"".join([*frames, *answer.end()]).split(b"\n\n") if frame]


TEXT_KEYS = ("delta", "content", "reasoning_content", "arguments", "text", "thinking", "partial_json")


def place_of(document: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Find the text fragment in a client's frame. Return the object that contains it and its key, or None if there is
    no fragment.
    """
    found = document if isinstance(document.get("delta"), str) else document.get("delta")
    for choice in document.get("choices") or ():
        found = choice["delta"]
        for call in found.get("tool_calls") or ():
            found = call["function"] if len(call) == 2 else found
    keys = [key for key in TEXT_KEYS if found and found.get(key)]
    return (found, keys[0]) if found and len(keys) == 1 else None


def collapsed(body: bytes) -> list[object]:
    """Return a client's frames, without sequence numbers and with the fragments of consecutive frames joined."""
    frames: list[object] = []
    pieces: list[str] = []
    for frame in body.split(b"\n\n"):
        head, _, data = frame.partition(b"data: ")
        if not data.startswith(b"{"):
            frames.append(frame)
            continue
        document = json.loads(data)
        document.pop("sequence_number", None)
        place = place_of(document)
        if place is None:
            frames.append((head, document))
            continue
        text, place[0][place[1]] = place[0][place[1]], ""
        if frames and frames[-1] == (head, document, pieces):
            pieces.append(text)
        else:
            pieces = [text]
            frames.append((head, document, pieces))
    return [(*frame[:2], "".join(frame[2])) if isinstance(frame, tuple) and frame[2:] else frame for frame in frames]


def client_answer(the_plan: Plan, chunks: Sequence[bytes], slowly: bool) -> tuple[list[object], dict[str, Any]]:
    """Return the frames that the client receives, and the exchange's report.

    If ``slowly`` is true, every frame is parsed in full.
    """
    report = Report()
    with (
        mock.patch("secrets.token_hex", lambda size: "0" * 2 * size),
        mock.patch("time.time", return_value=1.0),
        mock.patch.object(frame_template, "RepeatDecoder", SSEDecoder if slowly else RepeatDecoder),
    ):
        rewriter = ResponseRewriter(the_plan, report, content_type="text/event-stream")
        written = [data for chunk in (*chunks, b"") for data in rewriter.feed(chunk)]
    found = report.as_dict()
    # The failures are sorted, because their order depends on how the bytes are split: lost calls are counted when they
    # are read, and other calls when they are judged.
    found["parse_failures"] = sorted(found["parse_failures"])
    if report.tool_cutoff:
        del found["parse_failures"]  # Text that arrives with the end of the turn can cause more failures.
    return collapsed(b"".join(written)), found


@given(
    runs_of_deltas,
    st.sampled_from(POLICIES),
    st.sampled_from([(client, backend) for client in ANSWERS for backend in ANSWERS]),
    st.lists(st.integers(1, 2000), max_size=30),
    st.integers(1, 2),
    st.booleans(),
)
def test_joint_and_separate_parsing_are_equal(
    runs: list[Run],
    policy: dict[str, Any],
    apis: tuple[ApiName, ApiName],
    cuts: list[int],
    choices: int,
    stream: bool,
) -> None:
    """Frames that arrive together are parsed together. The answer and the report are the same as if each frame were
    parsed separately, wherever the bytes are split.
    """
    client, backend = apis
    the_plan = plan(client, backend, stream, [tool("f"), tool("write")], policy=policy, choices=choices)
    frames = backend_frames(backend, runs, choices)
    expected = client_answer(the_plan, frames, slowly=True)
    body = b"".join(frames)
    edges = [0, *(at for at in itertools.accumulate(cuts) if at < len(body)), len(body)]
    assert client_answer(the_plan, [body[a:b] for a, b in itertools.pairwise(edges)], slowly=False) == expected
    for together in (1, 8):
        writes = [b"".join(frames[at : at + together]) for at in range(0, len(frames), together)]
        assert client_answer(the_plan, writes, slowly=False) == expected


@pytest.mark.parametrize(("api", "arguments"), [("chat", "incremental"), ("responses", "buffered")])
def test_joint_parsing_is_equal_at_every_split(api: ApiName, arguments: str) -> None:
    """An answer with reasoning, prose and calls remains the same if its bytes are split in two at any offset, or arrive
    one by one.
    """
    runs: list[Run] = [("think", ["Let ", "me ", "see "]), ("say", [LONG[at : at + 7] for at in range(0, 35, 7)])]
    runs += [("say", ["Hm.\n", "a < b"] * 2), ("say", [CALL, "\n"])]
    the_plan = plan(api, api, True, [tool("f")], policy={"stream_arguments": arguments})
    frames = backend_frames(api, runs, 1)
    expected, body = client_answer(the_plan, frames, slowly=True), b"".join(frames)
    for cut in range(1, len(body), 23):
        assert client_answer(the_plan, [body[:cut], body[cut:]], slowly=False) == expected
    assert client_answer(the_plan, [bytes([byte]) for byte in body], slowly=False) == expected


@pytest.mark.parametrize("api", ANSWERS)
def test_texts_of_one_write_are_joined(api: ApiName) -> None:
    """Text deltas that arrive together are joined, so that the client receives the same text in fewer events."""
    pieces = [f"{number} " for number in range(40)]
    kind, body = backend_answer(api, True, pieces)
    one_by_one = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]
    texts = []
    for writes in (one_by_one, [body]):
        turn = ResponseRewriter(plan(api, api, True, [tool("f")]), Report(), content_type=kind)
        steps = [step for data in [*writes, b""] for step in turn.events(data)]
        texts.append([event.text for step in steps for event in step if isinstance(event, TextDelta)])
    assert texts[0] == pieces
    assert "".join(texts[1]) == "".join(pieces)
    assert len(texts[1]) < 12
