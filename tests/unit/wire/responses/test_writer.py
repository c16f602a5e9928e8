from __future__ import annotations

import dataclasses
import json
import re
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from support.answers import read
from support.each import each
from toolsim.core.errors import ApiError
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    HostedEnded,
    HostedProgress,
    HostedStarted,
    KeepAlive,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import AnswerForm
from toolsim.wire.responses.writer import ResponsesWriter

ECHO = {
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "metadata": {},
    "temperature": 1.0,
    "top_p": 1.0,
    "instructions": None,
}
FORM = AnswerForm(stream=True, model="text-model", include_usage=True, echo=ECHO)
EVENT = TypeAdapter(ResponseStreamEvent)
DELTAS = (
    "output_text",
    "refusal",
    "function_call_arguments",
    "custom_tool_call_input",
    "reasoning_text",
    "reasoning_summary_text",
)


def write(events: Sequence[ClientEvent], stream: bool = True) -> tuple[list[dict[str, Any]], ResponsesWriter]:
    """Write the given events, and check the format of each frame. Return the events in the frames, and the writer."""
    writer = ResponsesWriter(dataclasses.replace(FORM, stream=stream))
    sent = []
    for event in events:
        for frame in writer.write(event):
            if frame == b"data: [DONE]\n\n":
                continue
            name, data, *end = frame.decode().split("\n")
            sent.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {sent[-1]['type']}"
            assert end == ["", ""]
    return sent, writer


def call(number: int, text: str = '{"a":1}', **fields: Any) -> list[ClientEvent]:
    return [CallStarted(number, "f", **fields), *([CallDelta(text)] if text else []), CallEnded()]


def check(sent: list[dict[str, Any]]) -> None:
    """Check a stream against the rules of the API: sequence numbers, order, IDs, types, and whether the deltas add up
    to the final text.
    """
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert [event["type"] for event in sent[:2]] == ["response.created", "response.in_progress"]
    assert sent[0]["response"]["output"] == []
    assert sent[0]["response"]["usage"] is None
    ids = {event["response"]["id"] for event in sent if "response" in event}
    assert len(ids) == 1
    final = sent[-1]["response"]
    added = [event for event in sent if event["type"] == "response.output_item.added"]
    done = [event for event in sent if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == list(range(len(added)))
    assert [event["item"] for event in done] == final["output"]
    assert [event["item"]["id"] for event in added] == [item["id"] for item in final["output"]]
    assert len({item["id"] for item in final["output"]}) == len(added)
    for event in added:
        item = event["item"]
        if item["type"] in ("message", "function_call", "custom_tool_call", "reasoning"):
            assert item["status"] == "in_progress"
            assert not any(item.get(key) for key in ("arguments", "input", "content"))
    texts: dict[tuple[str, str], str] = {}
    for event in sent:
        kind, _, step = event["type"].removeprefix("response.").rpartition(".")
        if kind in DELTAS and step == "delta":
            assert event["delta"]
            texts[kind, event["item_id"]] = texts.get((kind, event["item_id"]), "") + event["delta"]
        elif kind in DELTAS:
            value = next(event[key] for key in ("text", "refusal", "arguments", "input") if key in event)
            assert texts.pop((kind, event["item_id"]), "") == value
        if event["type"] != "keepalive":
            EVENT.validate_python(event)
    assert texts == {}
    Response.model_validate(final)


WORDS: st.SearchStrategy[list[ClientEvent]] = st.one_of(
    st.text(min_size=1, max_size=5).map(lambda text: [TextDelta(text)]),
    st.text(min_size=1, max_size=3).map(lambda text: [RefusalDelta(text)]),
    st.sampled_from(["summary", "text"]).map(lambda kind: [ReasoningDelta("hm", kind)]),  # type: ignore[arg-type]
    st.sampled_from(["", "{}", '{"a":"é🐢\\n"}']).map(lambda text: call(0, text)),
    st.just(call(0, "*** Begin", kind="custom", namespace="ns")),
    st.just([KeepAlive()]),
    st.just([CallStarted(0, "f"), CallDelta("{"), CallEnded("incomplete")]),
)


@given(st.lists(WORDS, max_size=8), st.sampled_from(["stop", "length", "tool_calls", "content_filter"]), st.booleans())
def test_any_answer_is_a_valid_stream(parts: list[list[ClientEvent]], reason: Any, usage: bool) -> None:
    """Any sequence of events results in a valid stream, whose final object equals the non-streamed answer."""
    events: list[ClientEvent] = [Opened("resp_1", 5)]
    for number, part in enumerate(parts, 1):
        events += [dataclasses.replace(e, number=number) if isinstance(e, CallStarted) else e for e in part]
    events.append(Ended({0: reason}, Usage(1, 2, 3) if usage else None))
    sent, writer = write(events)
    check(sent)
    assert writer.body == sent[-1]["response"]
    _, whole = write(events, stream=False)

    def anonymous(body: dict[str, Any] | None) -> dict[str, Any]:
        assert body is not None
        output = [{**item, "id": None} for item in body["output"]]
        return {**body, "output": output, "completed_at": None}

    assert anonymous(whole.body) == anonymous(writer.body)


def test_keepalive_can_come_first() -> None:
    """If a keep-alive precedes all other events, the response is announced before it, with ``response.created``."""
    sent, _ = write([KeepAlive(), *call(1), Ended({0: "tool_calls"})])
    check(sent)


def test_long_text_takes_little_memory() -> None:
    """The text of an open item uses little more memory than its length, regardless of the number of deltas."""
    _, writer = write([Opened("resp_1")])
    tracemalloc.start()
    try:
        for number in range(50_000):
            writer.write(TextDelta(f"{number:05}"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * 5 * 50_000


def test_ids() -> None:
    """The ``id`` of a call equals its ``call_id``, which contains the call's number. The response keeps the ID that the
    backend gave it.
    """
    _, writer = write([Opened("resp_1"), *call(7), *call(8, kind="custom"), Ended({0: "tool_calls"})])
    assert writer.body is not None
    assert writer.body["id"] == "resp_1"
    assert [(item["id"], item["call_id"]) for item in writer.body["output"]] == [("fc_007",) * 2, ("ctc_008",) * 2]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("declared", "arguments", "named"),
    [
        ((), '{"message":"Count."}', None),
        (("message",), '{"message":"Count.","to":"/root"}', []),
        (("message", "note"), '{"message":"gAAAAAB%s","note":"gAAAAA as words"}' % ("x" * 120), ["message"]),
        (("message",), '{"to":"/root"}', []),
        (("message",), '{"message":7', []),
    ],
)
def test_arguments_that_can_be_encrypted(
    declared: tuple[str, ...], arguments: str, named: list[str] | None, stream: bool
) -> None:
    """If a tool declares that some arguments can be encrypted, each call to it lists the arguments that are encrypted.
    Calls to other tools have no such list.
    """
    started = CallStarted(1, "spawn_agent", namespace="agents", encrypted=declared)
    sent, writer = write([started, CallDelta(arguments), CallEnded(), *call(2), Ended()], stream)
    if stream:
        item, other = (event["item"] for event in sent if event["type"] == "response.output_item.done")
        assert sent[-1]["response"]["output"] == [item, other]
    else:
        assert writer.body is not None
        item, other = writer.body["output"]
    assert (item.get("encrypted_function_args"), item["arguments"]) == (named, arguments)
    assert "encrypted_function_args" not in other


def test_namespace_is_sent() -> None:
    """A call to a tool in a namespace contains the namespace from its first event onward."""
    sent, _ = write([*call(1, namespace="ns"), Ended()])
    items = [event["item"] for event in sent if "item" in event]
    assert [item["namespace"] for item in items] == ["ns", "ns"]


def test_text_after_a_call_is_a_new_item() -> None:
    """Text after a call becomes a new item with a new index."""
    _, writer = write([TextDelta("a"), *call(1), TextDelta("b"), Ended({0: "tool_calls"})])
    assert writer.body is not None
    assert [item["type"] for item in writer.body["output"]] == ["message", "function_call", "message"]


def test_first_message_has_the_usual_events() -> None:
    """The first message has the same events as later messages, although its frames are prepared in advance."""
    sent, _ = write([TextDelta("a"), *call(1), TextDelta("a"), Ended()])
    begins = [at for at, event in enumerate(sent) if event.get("item", {}).get("type") == "message"][::2]
    names = [sent[at]["item"]["id"] for at in begins]
    assert names[0] != names[1]
    first, later = (json.dumps(sent[at : at + 5]).replace(name, "") for at, name in zip(begins, names, strict=True))
    numbers = re.compile(r'"(?:sequence_number|output_index)": \d+')
    assert numbers.sub("", first) == numbers.sub("", later)


def test_refusal_and_text_share_a_message() -> None:
    """Text and refusals are separate parts of the same message, each with its own index."""
    sent, writer = write([TextDelta("a"), RefusalDelta("b"), TextDelta("c"), Ended()])
    check(sent)
    assert writer.body is not None
    assert [part["type"] for part in writer.body["output"][0]["content"]] == ["output_text", "refusal", "output_text"]


def test_incomplete() -> None:
    """An answer that was cut off is marked as incomplete and contains the reason. Its open item is also marked as
    incomplete.
    """
    sent, _ = write([TextDelta("a"), Ended({0: "length"}, None)])
    assert sent[-1]["type"] == "response.incomplete"
    assert sent[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert sent[-1]["response"]["output"][0]["status"] == "incomplete"
    assert sent[-1]["response"]["completed_at"] is None


def test_failed() -> None:
    """A failure closes the open item and ends the response with an ``error`` and a ``response.failed`` event, so that
    every client raises the error.
    """
    error = ApiError("out", "server_error", "rate_limit_exceeded", "p")
    sent, writer = write([TextDelta("a"), Failed(error)])
    check(sent)
    assert [event["type"] for event in sent[-3:]] == ["response.output_item.done", "error", "response.failed"]
    flat = {"type": "error", "code": "rate_limit_exceeded", "message": "out", "param": "p"}
    assert sent[-2] == {**flat, "error": error.body(), "sequence_number": len(sent) - 2}
    assert sent[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "out"}
    assert writer.error == error
    again = ResponsesWriter(FORM)
    frames = [frame for event in (TextDelta("a"), Failed(error)) for frame in again.write(event)]
    assert read("responses", True, frames).error == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("code", "final"),
    [("invalid_tool_call", "invalid_prompt"), ("backend_truncated", "server_error"), (None, "server_error")],
)
def test_final_error_code_shows_whether_to_retry(code: str | None, final: str) -> None:
    """The error code in the final object shows clients whether a retry can help. After an invalid call, a retry is
    pointless.
    """
    sent, _ = write([Failed(ApiError("out", code=code))])
    assert sent[-2]["code"] == code
    assert sent[-1]["response"]["error"]["code"] == final
    check(sent)


def test_items_of_built_in_tools_pass() -> None:
    item = {"id": "mcp_1", "type": "mcp_call", "name": "x", "arguments": "{}", "server_label": "s"}
    sent, writer = write([TextDelta("a"), PassThrough(item), TextDelta("b"), Ended()])
    check(sent)
    assert writer.body is not None
    assert writer.body["output"][1] == item


@pytest.mark.parametrize("stream", [True, False])
def test_hosted_items_are_sent_step_by_step(stream: bool) -> None:
    """Text can be sent between the events of a hosted tool's item. toolsim assigns the sequence numbers and indexes of
    these events.
    """
    begun = {"id": "mcp_1", "type": "mcp_call", "name": "x", "arguments": "", "server_label": "s", "status": "calling"}
    done = {**begun, "arguments": "{}", "output": "y", "status": "completed"}
    other = {**begun, "id": "mcp_2"}
    progress = HostedProgress("a", "response.mcp_call_arguments.done", {"arguments": "{}"})
    events: list[ClientEvent] = [
        TextDelta("a"),
        HostedStarted("a", begun),
        progress,
        TextDelta("b"),
        HostedProgress("a", "response.mcp_call.completed"),
        HostedProgress("z", "response.mcp_call.completed"),
        HostedEnded("a", done),
        HostedEnded("z", done),
        HostedStarted("b", other),
        Ended(),
    ]
    sent, writer = write(events, stream)
    assert writer.body is not None
    assert writer.body["output"][1] == done
    assert writer.body["output"][3] == {**other, "status": "incomplete"}
    if not stream:
        return
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    for event in sent:
        EVENT.validate_python(event)
    about = [event for event in sent if event["type"].startswith("response.mcp_call")]
    assert [(event["item_id"], event["output_index"]) for event in about] == [("mcp_1", 1)] * 2
    assert [event["output_index"] for event in sent if event["type"] == "response.output_item.done"] == [0, 1, 2, 3]


def test_lone_surrogates_are_replaced() -> None:
    """A lone surrogate is replaced with U+FFFD in the stream."""
    sent, writer = write([TextDelta("a\ud83d"), Ended()])
    assert sent[4]["delta"] == "a\ufffd"
    assert writer.body is not None
    assert writer.body["output"][0]["content"][0]["text"] == "a\ud83d"


def test_call_declared_by_type_is_a_single_item() -> None:
    """A call to a tool that is declared by type is sent as a single item, without deltas."""
    writer = ResponsesWriter(AnswerForm(stream=True, model="m"))
    events = [
        CallStarted(7, "shell", "shell"),
        CallDelta('{"commands": '),
        CallDelta('["ls"]}'),
        CallEnded(),
        Ended({0: "tool_calls"}),
    ]
    frames = b"".join(frame for event in events for frame in writer.write(event)).decode()
    kinds = [line.removeprefix("event: ") for line in frames.splitlines() if line.startswith("event: ")]
    item = ["response.output_item.added", "response.output_item.done"]
    assert kinds == ["response.created", "response.in_progress", *item, "response.completed"]
    assert writer.body is not None
    assert writer.body["output"] == [
        {
            "id": "sh_007",
            "type": "shell_call",
            "call_id": "sh_007",
            "status": "completed",
            "action": {"commands": ["ls"], "max_output_length": None, "timeout_ms": None},
            "environment": {"type": "local"},
        }
    ]


CALL = call(1)
TEXT = [TextDelta("a")]


@each("stream", [True, False])
@each(
    ("events", "phases"),
    [
        ([*TEXT, Ended({0: "stop"})], ["final_answer"]),
        ([*TEXT, *CALL, Ended({0: "tool_calls"})], ["commentary"]),
        ([*TEXT, *CALL, *TEXT, Ended({0: "tool_calls"})], ["commentary", "commentary"]),
        ([*TEXT, ReasoningDelta("b", "summary"), *TEXT, Ended({0: "stop"})], ["commentary", "final_answer"]),
        ([*TEXT, Ended({0: "length"})], [None]),
        ([*TEXT, Failed(ApiError("no"))], [None]),
        ([RefusalDelta("no"), Ended({0: "stop"})], ["final_answer"]),
        ([*CALL, Ended({0: "tool_calls"})], []),
    ],
)
def test_message_phase_shows_whether_calls_follow(
    events: list[ClientEvent], phases: list[str | None], stream: bool
) -> None:
    """The ``phase`` of a finished message shows whether calls follow the message. A message that was cut off has no
    phase.
    """
    sent, writer = write(events, stream)
    assert writer.body is not None
    assert [item.get("phase") for item in writer.body["output"] if item["type"] == "message"] == phases
    for name, expected in (("done", phases), ("added", [None] * len(phases))):
        items = [event["item"] for event in sent if event["type"] == f"response.output_item.{name}"]
        if stream:
            assert [item.get("phase") for item in items if item["type"] == "message"] == expected


@pytest.mark.parametrize("stream", [False, True])
def test_queued_answer_keeps_its_id(stream: bool) -> None:
    """A queued answer keeps its ID after the model's answer has arrived, and its sequence numbers continue."""
    writer = ResponsesWriter(dataclasses.replace(FORM, stream=stream))
    response, frames = writer.queue()
    assert (response["status"], response["output"], response["usage"]) == ("queued", [], None)
    for event in KeepAlive(), Opened("other", 5), TextDelta("Hi"), Ended({0: "stop"}):
        frames += writer.write(event)
    sent = [json.loads(line[6:]) for line in b"".join(frames).decode().split("\n") if line.startswith("data: {")]
    kinds = [event["type"] for event in sent]
    begins = ["response.created", "response.queued", "response.in_progress", "keepalive", "response.output_item.added"]
    assert kinds[:5] == (begins if stream else [])
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert writer.body is not None
    assert (writer.body["id"], writer.body["created_at"]) == (response["id"], response["created_at"])
    for event in sent:
        EVENT.validate_python(event) if event["type"] != "keepalive" else None
