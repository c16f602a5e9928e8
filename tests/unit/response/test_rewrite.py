from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import Seen, completion, deltas, plan, read, rewrite, tool
from support.each import each
from support.effort import some
from support.emitted import BODIES, WHOLE, Emitted, Step, Thought
from support.wire import backend_answer, event_frame
from toolsim.core.errors import ApiError
from toolsim.core.plan import Plan, Tool
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.rewrite import ResponseRewriter
from toolsim.response.segments import Block
from toolsim.response.sentinel import Sentinel

TABLE = json.loads((Path(__file__).parents[2] / "cases" / "answers.json").read_text())
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in TABLE["cases"]}
API_NAMES: tuple[ApiName, ...] = get_args(ApiName)
WEATHER = tool("get_weather", city="string")
CALL = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Paris\\"}"}</tool_call>'

# Error types that a Messages client receives in place of OpenAI's error codes.
ERRORS = {"invalid_tool_call": "invalid_request_error", "rate_limit_exceeded": "rate_limit_error"}

# Two pairs with the Messages API are enough: one in which the client uses this API, and one in which the backend does.
# The Messages reader follows the same rules as the chat reader, and there is only one Messages writer.
PAIRS = [
    (client, backend)
    for client in API_NAMES
    for backend in API_NAMES
    if "messages" not in (client, backend) or (client, backend) in (("messages", "chat"), ("responses", "messages"))
]

each_pair = each(("client", "backend"), PAIRS)
each_client = each("client", API_NAMES)
each_backend = each("backend", API_NAMES)
each_stream = each("stream", [True, False], ids=["stream", "whole"])


def error_for(client: ApiName, code: str) -> str:
    return ERRORS.get(code, "api_error") if client == "messages" else code


def end_of(backend: ApiName, body: bytes) -> int:
    """Return the offset at which the final events of a stream from ``backend_answer`` begin."""
    marks = {"chat": b'"stop"', "responses": b"event: response.completed", "messages": b"event: message_delta"}
    return body.index(marks[backend])


def case_plan(case: dict[str, Any], client: ApiName, backend: ApiName, stream: bool, **policy: Any) -> Plan:
    strict = case.get("strict", [])
    tools = [tool(name, name in strict, **fields) for name, fields in TABLE["tools"].items()]
    policy |= case.get("policy", {})
    return plan(client, backend, stream, tools, policy=policy, **case.get("plan", {}))


def expected(case: dict[str, Any], client: ApiName) -> Seen:
    if "error" in case:
        return Seen(error=error_for(client, case["error"]))
    items = case["chat"] if client != "responses" and "chat" in case else case["items"]
    calls = [item for item in items if item[0] == "call"]
    finish = "tool_calls" if calls else "length" if case.get("status") else "stop"
    if client == "responses":
        finish = case.get("status", "completed")
    elif client == "messages":
        finish = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}[finish]
    first = case.get("plan", {}).get("first_number", 1)
    prefix = {"chat": "call", "responses": "fc", "messages": "toolu"}[client]
    ids = [f"{prefix}_{number:03}" for number in range(first, first + len(calls))]
    return Seen(items, finish, ids)


# Arguments can be incremental only in streams. The pairs of the chat API with the Responses API are tested only with
# buffered streams, because the other pairs test the readers and writers of both APIs in every mode.
WAYS = {"stream": (True, "buffered"), "incremental": (True, "incremental"), "whole": (False, "buffered")}
CELLS = [
    pytest.param(client, backend, *WAYS[way], id=f"{way}-{client}-{backend}")
    for way in WAYS
    for client, backend in PAIRS
    if way == "stream" or {client, backend} != {"chat", "responses"}
]


CROSSED = [pytest.param(name, *cell.values, id=f"{name}-{cell.id}") for name in CASES for cell in CELLS]


@each(("name", "client", "backend", "stream", "arguments"), some(CROSSED))
def test_case(name: str, client: ApiName, backend: ApiName, stream: bool, arguments: str) -> None:
    """Each case yields the same answer with all APIs, streamed or not, and wherever the bytes are split."""
    case = CASES[name]
    if arguments == "incremental" and stream and "late" in case:
        pytest.skip(f"the call was announced too early: {case['late']}")
    if client == "messages" and "output_mode" in case.get("policy", {}):
        pytest.skip("this API's calls have one form")
    the_plan = case_plan(case, client, backend, stream, stream_arguments=arguments)
    text = case["text"]
    for backend_streams, size, cut in ((False, 0, 0), (True, 0, 0), (True, 1, 0), (True, 3, 7)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)] if size else [text] if text else []
        answer = backend_answer(backend, backend_streams, pieces, case.get("finish", "stop"))
        rewriter, chunks = rewrite(the_plan, *answer, cut)
        seen = read(client, stream, chunks, rewriter.status)
        if "says" in case:
            assert case["says"] in seen.items[0][1]
            assert len(seen.items) == 1
            continue
        cut_early = case.get("cut") or (client != "responses" and case.get("chat_cut"))
        if "error" not in case:
            assert rewriter.is_cut == bool(cut_early)
            # The answer does not wait for usage that the backend sends after the end of the turn.
            assert seen.usage in (None, 7) if cut_early else seen.usage == 7
        wanted = expected(case, client)
        if case.get("compare") == "json" or (client == "messages" and not stream):
            for answer_seen in (seen, wanted):
                answer_seen.items = [
                    [*item[:-1], json.loads(item[-1])] if item[0] == "call" else item for item in answer_seen.items
                ]
        assert dataclasses.replace(seen, usage=None) == wanted


JUDGE = json.loads((Path(__file__).parents[2] / "cases" / "judge.json").read_text())


def judged(case: dict[str, Any]) -> str | None:
    """Return the text for a case in the judge's table, or None if the sentinel does not find exactly the expected block
    in the text.
    """
    text = f"<tool_call>{case['body']}{case.get('closing', '</tool_call>')}"
    sentinel = Sentinel()
    pieces = sentinel.feed(text) + sentinel.finish()
    return text if [piece.body for piece in pieces if isinstance(piece, Block)] == [case["body"]] else None


@each("case", [case for case in JUDGE["cases"] if judged(case)], ids=lambda case: case["case"])
@each_stream
def test_judge_table_end_to_end(case: dict[str, Any], stream: bool) -> None:
    """For each cell of the judge's table, the client receives the expected calls, text or error."""
    text = judged(case)
    assert text is not None
    strict = case.get("strict", [])
    tools = [
        Tool(
            declared["name"],
            declared["name"],
            kind=declared.get("kind", "function"),
            parameters=declared.get("parameters"),
            strict=declared["name"] in strict,
        )
        for declared in JUDGE["tools"]
    ]
    policy = {"repair": case.get("repair", "safe")}
    the_plan = plan("responses", "chat", stream, tools, policy=policy, masked_tools=frozenset(JUDGE["masked"]))
    if any("violation" in expected for expected in case["expect"]):
        wanted: Any = "invalid_tool_call"
    else:
        wanted = []
        for expected in case["expect"]:
            if "call" in expected:
                wanted.append(["call", expected["call"], expected["arguments"]])
            elif wanted and wanted[-1][0] == "text":
                wanted[-1][1] += expected.get("raw", text)
            else:
                wanted.append(["text", expected.get("raw", text)])
    for size in (1, len(text)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        rewriter, chunks = rewrite(the_plan, *backend_answer("chat", stream, pieces))
        seen = read("responses", stream, chunks, rewriter.status)
        assert (seen.error or seen.items) == wanted


def test_most_judge_cases_are_readable() -> None:
    """The sentinel finds the tagged blocks in at least 80% of the cases in the judge's table."""
    assert sum(judged(case) is not None for case in JUDGE["cases"]) > 0.8 * len(JUDGE["cases"])


@each_pair
def test_non_streamed_failures_are_http_errors(client: ApiName, backend: ApiName) -> None:
    """In a non-streamed answer, a violation of a strict tool's schema is an error with status 422, and a backend
    failure is an error with status 502. Both contain a complete error object.
    """
    case = CASES["strict failure"]
    rewriter, chunks = rewrite(case_plan(case, client, backend, False), *backend_answer(backend, True, [case["text"]]))
    assert rewriter.status == 422
    keys = {"type", "message"} if client == "messages" else {"message", "type", "param", "code"}
    assert read(client, False, chunks, 422).error == error_for(client, "invalid_tool_call")
    for body in (b'{"error":{"message":"out","code":"c"}}', b"<html>", b"[]", b""):
        rewriter, chunks = rewrite(plan(client, backend, False, [WEATHER]), "application/json", body)
        assert rewriter.status == 502
        assert set(json.loads(chunks[0])["error"]) == keys


@each_pair
@each("text", ["Half an ans", f"Look {CALL[:40]}", ""], ids=["text", "in a block", "nothing"])
def test_stream_without_terminator_fails(client: ApiName, backend: ApiName, text: str) -> None:
    """If the backend's stream ends without its terminator, the answer ends with an error. Text that was held back is
    emitted before the error.
    """
    kind, body = backend_answer(backend, True, [text] if text else [])
    end = end_of(backend, body)
    _, chunks = rewrite(plan(client, backend, True, [WEATHER]), kind, body[:end])
    assert read(client, True, chunks).error == error_for(client, "backend_truncated")
    assert b"response.completed" not in b"".join(chunks)
    assert b'"finish_reason":"' not in b"".join(chunks)
    assert deltas(chunks) == text


@each_backend
@each("rest", ["", "\n", " half an ans", CALL[:40]], ids=["nothing", "a gap", "text", "in a block"])
def test_chat_stream_broken_after_a_call_keeps_the_call(backend: ApiName, rest: str) -> None:
    """If a stream breaks off after a call, a chat client receives the call and a normal end, because any later text
    would have been dropped.
    """
    kind, body = backend_answer(backend, True, [CALL, rest] if rest else [CALL])
    end = end_of(backend, body)
    _, chunks = rewrite(plan("chat", backend, True, [WEATHER]), kind, body[:end])
    seen = read("chat", True, chunks)
    assert (seen.error, seen.finish, len(seen.ids)) == (None, "tool_calls", 1)
    assert b"".join(chunks).endswith(b"data: [DONE]\n\n")


@each_backend
def test_responses_stream_broken_after_a_call_fails(backend: ApiName) -> None:
    """If a stream breaks off after a call, a Responses client receives an error, because more output could have
    followed the call.
    """
    kind, body = backend_answer(backend, True, [CALL])
    end = end_of(backend, body)
    _, chunks = rewrite(plan("responses", backend, True, [WEATHER]), kind, body[:end])
    assert read("responses", True, chunks).error == "backend_truncated"


def test_messages_client_survives_a_break_at_any_byte() -> None:
    """Regardless of the byte at which the backend breaks off, a Messages client receives either a complete answer or
    exactly one error at the end.
    """
    kind, body = backend_answer("chat", True, ["Hm. ", *(CALL[at : at + 9] for at in range(0, len(CALL), 9))])
    for end in range(len(body) + 1):
        rewriter = ResponseRewriter(plan("messages", "chat", True, [WEATHER]), Report(), content_type=kind)
        frames = b"".join(rewriter.feed(body[:end]) + rewriter.feed(b"")).decode()
        kinds = [line.removeprefix("event: ") for line in frames.splitlines() if line.startswith("event: ")]
        assert kinds[-1] in ("message_stop", "error")
        assert kinds.count("message_stop") + kinds.count("error") == 1
        if kinds[-1] == "message_stop":
            assert kinds.count("content_block_start") == kinds.count("content_block_stop")


def test_chat_without_done_is_complete_if_finished() -> None:
    """A chat stream without ``[DONE]`` is complete if it has a finish reason. Many servers omit ``[DONE]``."""
    kind, body = backend_answer("chat", True, [CALL])
    _, chunks = rewrite(plan("chat", "chat", True, [WEATHER]), kind, body.replace(b"data: [DONE]\n\n", b""))
    assert read("chat", True, chunks).finish == "tool_calls"


@each_pair
@each_stream
@each("kind", ["text/plain", "application/json", ""])
def test_mislabeled_event_stream_is_read(client: ApiName, backend: ApiName, stream: bool, kind: str) -> None:
    """An event stream with the wrong content type is still parsed as an event stream."""
    _, body = backend_answer(backend, True, ["Hm.", CALL])
    _, chunks = rewrite(plan(client, backend, stream, [WEATHER]), kind, body, cut=9)
    assert read(client, stream, chunks).items == [["text", "Hm."], ["call", "get_weather", '{"city":"Paris"}']]


@each_pair
def test_backend_error_during_a_stream_is_last(client: ApiName, backend: ApiName) -> None:
    """If the backend reports an error in the middle of a stream, the client receives the error with its original code
    as the last event.
    """
    kind, body = backend_answer(backend, True, ["Half an ans"])
    error = {"message": "Too much.", "type": "tokens", "code": "rate_limit_exceeded"}
    if backend == "chat":
        body = body[: body[: body.index(b'"stop"')].rindex(b"data:")]
        body += b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n"
    elif backend == "messages":
        body = body[: body.index(b"event: content_block_stop")]
        body += b"event: error\ndata: " + json.dumps({"type": "error", "error": error}).encode() + b"\n\n"
    else:
        body = body[: body.index(b"event: response.output_text.done")]
        body += b"event: error\ndata: " + json.dumps(error | {"type": "error"}).encode() + b"\n\n"
    _, chunks = rewrite(plan(client, backend, True, [WEATHER]), kind, body)
    assert read(client, True, chunks).error == error_for(client, "rate_limit_exceeded")
    assert b"Half an ans" in b"".join(chunks)


def test_responses_stream_error_is_sent_in_all_forms() -> None:
    """A violation of a strict tool's schema is sent as one error event with the error in both flat and nested form,
    followed by ``response.failed``.
    """
    case = CASES["strict failure"]
    _, chunks = rewrite(
        case_plan(case, "responses", "responses", True), *backend_answer("responses", True, [case["text"]])
    )
    frames = b"".join(chunks).decode().strip().split("\n\n")
    error, failed = (json.loads(frame.split("data: ")[1]) for frame in frames[-3:-1])
    assert error["type"] == "error"
    assert error["code"] == error["error"]["code"] == "invalid_tool_call"
    assert error["message"] == error["error"]["message"]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "invalid_prompt"
    assert frames[-1] == "data: [DONE]"


@each_pair
def test_keepalives_do_not_change_the_answer(client: ApiName, backend: ApiName) -> None:
    """Keep-alives can be sent at any time, from before the first event until the end of the stream. They do not change
    the answer.
    """
    kind, body = backend_answer(backend, True, ["Hm.", CALL[:30], CALL[30:]])
    rewriter = ResponseRewriter(plan(client, backend, True, [WEATHER]), Report(), content_type=kind)
    chunks = rewriter.keepalive()
    assert chunks
    for frame in body.split(b"\n\n"):
        chunks += rewriter.feed(frame + b"\n\n")
        signs = rewriter.keepalive()
        assert bool(signs) is not rewriter.is_done
        chunks += signs
    assert read(client, True, chunks).items == [["text", "Hm."], ["call", "get_weather", '{"city":"Paris"}']]


@each_client
def test_external_failure_ends_the_answer(client: ApiName) -> None:
    """An answer ends if there is a failure outside the backend's stream, such as a timeout. Any later failures and
    bytes are ignored.
    """
    rewriter = ResponseRewriter(plan(client, "chat", True, [WEATHER]), Report(), content_type="text/event-stream")
    chunks = rewriter.fail(ApiError("No data for 300 s.", code="backend_timeout", status=504))
    assert rewriter.is_done
    assert rewriter.fail(ApiError("again")) == rewriter.feed(b"x") == []
    assert read(client, True, chunks).error == error_for(client, "backend_timeout")


TEXT = st.lists(
    st.sampled_from([CALL, "<tool_call>", "</tool_call>", '{"name":"get_weather",',
    "<use_tool><name>get_weather</name>",
                     "</use_tool>", "<think>", " ", "\n", '"', "{", "}", "\\", "é🐢", "x"]) | st.text(max_size=4),
    max_size=12,
).map("".join).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))  # fmt: skip


@given(
    TEXT, st.sampled_from(API_NAMES), st.sampled_from(API_NAMES), st.integers(1, 9), st.integers(1, 40), st.booleans()
)
def test_streamed_answer_equals_the_non_streamed(
    text: str, client: ApiName, backend: ApiName, size: int, cut: int, strict: bool
) -> None:
    """For any text, the streamed answer equals the non-streamed answer, wherever the text and the bytes are split."""
    tools = [tool("get_weather", strict, city="string")]
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    whole, body = rewrite(plan(client, backend, False, tools), *backend_answer(backend, False, [text]))
    _, chunks = rewrite(plan(client, backend, True, tools), *backend_answer(backend, True, pieces), cut)
    streamed, at_once = read(client, True, chunks), read(client, False, body, whole.status)
    streamed.usage = at_once.usage = None
    assert streamed == at_once
    if client == "responses" and not strict and "tool_call" not in text and "use_tool" not in text:
        assert "".join(item[1] for item in streamed.items) == text


@given(
    st.binary(max_size=300),
    st.sampled_from(API_NAMES),
    st.sampled_from(API_NAMES),
    st.booleans(),
    st.sampled_from(["text/event-stream", "application/json"]),
)
def test_any_bytes_end_the_answer(data: bytes, client: ApiName, backend: ApiName, stream: bool, kind: str) -> None:
    """For any bytes from the backend, the answer ends, and the client receives output."""
    rewriter, chunks = rewrite(plan(client, backend, stream, [WEATHER]), kind, data, 5)
    assert rewriter.is_done
    assert b"".join(chunks)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "x", "function"]),
    lambda values: (
        st.lists(values, max_size=2) | st.dictionaries(st.sampled_from(["text", "name"]), values, max_size=2)
    ),
    max_leaves=4,
)
KINDS = [
    "response.created", "response.output_text.delta", "response.output_text.done", "response.refusal.delta",
    "response.refusal.done", "response.reasoning_summary_text.delta", "response.reasoning_text.delta",
    "response.output_item.added", "response.output_item.done", "response.function_call_arguments.delta",
    "response.function_call_arguments.done", "response.completed", "response.incomplete", "response.failed", "error",
    "message", "function_call", "custom_tool_call", "reasoning", "mcp_call", "function_call_output", "refusal",
]  # fmt: skip
KEYS = [
    "id", "choices", "delta", "content", "index", "finish_reason", "item", "output", "response", "usage", "text",
    "error", "status", "tool_calls", "function", "custom", "function_call", "name", "arguments", "input", "namespace",
    "output_index", "content_index", "summary_index", "summary", "message", "created", "created_at", "model",
    "incomplete_details", "input_tokens", "prompt_tokens", "refusal", "reasoning_content", "code", "item_id",
]  # fmt: skip
# These objects have fields of correct types with arbitrary values, nested as in the APIs.
OBJECTS = st.recursive(
    JSON_VALUES,
    lambda values: (
        st.lists(values, max_size=2)
        | st.builds(
            lambda kind, fields: {**fields, "type": kind},
            st.sampled_from(KINDS),
            st.dictionaries(st.sampled_from(KEYS), values, max_size=6),
        )
    ),
    max_leaves=15,
)


@given(st.lists(OBJECTS, max_size=5), st.sampled_from(API_NAMES), st.sampled_from(API_NAMES), st.booleans())
def test_any_json_is_processed(values: list[Any], client: ApiName, backend: ApiName, stream: bool) -> None:
    """Processing backend events with arbitrary fields raises no exception."""
    body = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    assert rewrite(plan(client, backend, stream, [WEATHER]), "text/event-stream", body)[0].is_done
    for value in values:
        assert rewrite(plan(client, backend, stream, [WEATHER]), "application/json", json.dumps(value).encode())[
            0
        ].is_done


LONG = json.dumps(
    {"city": "".join(f'line {n}: "é🐢🏔️" \\ </tool_call> <tool_call>{{"name":\n' for n in range(2300))},
    ensure_ascii=False,
)
LONG_CALL = f"<tool_call>{json.dumps({'name': 'get_weather', 'arguments': LONG}, ensure_ascii=False)}</tool_call>"


@each_pair
def test_long_arguments_are_verbatim(client: ApiName, backend: ApiName) -> None:
    """Arguments of 100 KB that are full of emoji, quotes and tags arrive verbatim, as do shorter arguments that are
    sent byte by byte.
    """
    assert len(LONG.encode()) > 100_000
    pieces = [LONG_CALL[i : i + 1000] for i in range(0, len(LONG_CALL), 1000)]
    _, chunks = rewrite(plan(client, backend, True, [WEATHER]), *backend_answer(backend, True, pieces), cut=997)
    assert read(client, True, chunks).items == [["call", "get_weather", LONG]]
    arguments = LONG[:600] + '"}'
    call = f"<tool_call>{json.dumps({'name': 'get_weather', 'arguments': arguments}, ensure_ascii=False)}</tool_call>"
    _, chunks = rewrite(plan(client, backend, True, [WEATHER]), *backend_answer(backend, True, list(call)), cut=1)
    assert read(client, True, chunks).items == [["call", "get_weather", arguments]]


@each_pair
def test_splits_make_no_difference(client: ApiName, backend: ApiName) -> None:
    """A stream that arrives in two chunks has the same result wherever it is split."""
    text = f'Hé 🐢 <tool_call>{{"name":"get_weather","arguments":{json.dumps(LONG[:60] + chr(34) + "}")}}}</tool_call>'
    kind, body = backend_answer(backend, True, [text[i : i + 9] for i in range(0, len(text), 9)])
    the_plan = plan(client, backend, True, [WEATHER])
    for cut in range(1, len(body), 7 if client == backend else 29):
        rewriter = ResponseRewriter(the_plan, Report(), content_type=kind)
        chunks = rewriter.feed(body[:cut]) + rewriter.feed(body[cut:]) + rewriter.feed(b"")
        assert deltas(chunks) == "Hé 🐢 " + LONG[:60] + '"}' or client != "responses"
        assert json.dumps(LONG[:60] + '"}', ensure_ascii=False).encode() in b"".join(chunks)


@each("stream", [True, False])
def test_choices_can_be_interleaved(stream: bool) -> None:
    """A real client receives a call in one choice and text in another, even if their chunks alternate."""
    texts = [CALL, "Just <tool_call> words."]
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    if stream:
        chunks = [
            {
                **head,
                "choices": [{"index": index, "delta": {"content": texts[index][i : i + 5]}, "finish_reason": None}],
            }
            for i in range(0, max(map(len, texts)), 5)
            for index in (1, 0)
        ]
        chunks += [{**head, "choices": [{"index": i, "delta": {}, "finish_reason": "stop"}]} for i in (0, 1)]
        body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    else:
        choices = [{"index": i, "message": {"content": text}, "finish_reason": "stop"} for i, text in enumerate(texts)]
        body = json.dumps({**head, "choices": choices}).encode()
    kind = "text/event-stream" if stream else "application/json"
    _, frames = rewrite(plan("chat", "chat", stream, [WEATHER], choices=2), kind, body)
    one, two = completion(stream, frames).choices
    assert (one.finish_reason, one.message.content or None) == ("tool_calls", None)
    assert one.message.tool_calls[0].function.arguments == '{"city":"Paris"}'
    assert (two.finish_reason, two.message.content, two.message.tool_calls) == ("stop", texts[1], None)


@each(
    ("client", "legacy", "ids"),
    [("chat", False, ["call_007", "call_008"]), ("responses", False, ["fc_007", "fc_008"]), ("chat", True, [])],
)
@each_stream
def test_call_ids_are_reported_in_order(client: Any, legacy: bool, ids: list[str], stream: bool) -> None:
    """The report lists the IDs of calls in the order in which the client received them. A legacy function call has no
    ID.
    """
    the_plan = plan(client, "chat", stream, [WEATHER], first_number=7, legacy_functions=legacy)
    report = Report()
    kind, body = backend_answer("chat", True, [CALL, "\n", CALL.replace("Paris", "Rome")], "stop")
    rewriter = ResponseRewriter(the_plan, report, content_type=kind)
    rewriter.feed(body)
    rewriter.feed(b"")
    assert report.tool_call_ids == ids
    if not legacy:
        assert report.tokens["total"] == 7


BARE = '{"name":"get_weather","arguments":{"city":"Paris"}}'
PARIS = ["call", "get_weather", '{"city":"Paris"}']


@each(
    ("steps", "items"),
    [
        (["Let me look.", "Done now."], [["text", "Let me look.\n\nDone now."]]),
        (["One.", "Two.", "Three."], [["text", "One.\n\nTwo.\n\nThree."]]),
        (["One.", "", "Two."], [["text", "One.\n\nTwo."]]),
        (["", "Two."], [["text", "Two."]]),
        (["a <", "b"], [["text", "a <\n\nb"]]),
        (["Hi", BARE], [["text", "Hi"], PARIS]),
        (["Hi", f"```json\n{BARE}\n```"], [["text", "Hi"], PARIS]),
        (["Hi", CALL], [["text", "Hi"], PARIS]),
        ([BARE, CALL], [PARIS, PARIS]),
        ([CALL[:20], CALL[20:]], [PARIS]),  # In this test, chunks also end within the arguments of the call.
        ([CALL[:-20], CALL[-20:]], [PARIS]),
        (["Hi" + CALL[:20], "Bye"], [["text", "Hi" + CALL[:20] + "Bye"]]),
        (["Hi", Emitted("get_weather", PARIS[2])], [["text", "Hi"], PARIS]),
    ],
)
@each_client
@each_stream
def test_texts_of_two_messages_are_separated(
    steps: list[Step], items: list[list[str]], client: ApiName, stream: bool
) -> None:
    """A blank line separates the texts of two messages, unless a call is between them."""
    the_plan = plan(client, "responses", stream, [WEATHER])
    for kind, bodies, cuts in (("text/event-stream", BODIES, (0, 1)), ("application/json", WHOLE, (0,))):
        for cut in cuts:
            seen = read(client, stream, rewrite(the_plan, kind, bodies["responses"](steps, "stop"), cut)[1])
            assert seen.items == items, kind


@each("between", [Thought("hm"), Emitted("get_weather", PARIS[2]), CALL])
@each_stream
def test_messages_around_other_items_are_separated(between: Step, stream: bool) -> None:
    """If there are other items between two texts, the texts remain separate items in the Responses API. In a chat
    message, an empty line separates them.
    """
    for kind, bodies in (("text/event-stream", BODIES), ("application/json", WHOLE)):
        body = bodies["responses"](["One.", between, "Two."], "stop")
        listed, joined = (
            [item for item in read(client, stream, rewrite(the_plan, kind, body)[1]).items if item[0] == "text"]
            for client in ("responses", "chat")
            for the_plan in [plan(client, "responses", stream, [WEATHER], policy={"stop_after_tools": "off"})]
        )
        assert listed == [["text", "One."], ["text", "Two."]]
        assert joined == [["text", "One.\n\nTwo."]]


@each_client
def test_call_in_a_message_after_another_item(client: ApiName) -> None:
    """A call at the beginning of a message is recognized even if another item precedes the message. In this case, the
    client receives no empty line between the messages.
    """
    body = WHOLE["responses"](["Hi", Thought("hm"), BARE], "stop")
    seen = read(client, False, rewrite(plan(client, "responses", False, [WEATHER]), "application/json", body)[1])
    assert seen.items == [["text", "Hi"], PARIS]


@each("with_items", [True, False])
@each("size", [1, 300, 10**6])
def test_messages_recognized_by_bytes_stay_separate(with_items: bool, size: int) -> None:
    """Two messages remain separate even if their frames are recognized as repeated frames and only the indexes of their
    deltas differ.
    """
    frames = []
    for at in range(3):
        item = {"type": "message", "content": []}
        added = {"type": "response.output_item.added", "output_index": at, "item": item}
        delta = {"type": "response.output_text.delta", "output_index": at, "content_index": 0, "delta": "word "}
        frames += [added] * with_items + [delta] * 30
    frames += [{"type": "response.completed", "response": {"output": []}}]
    body = b"".join(map(event_frame, frames))
    seen = read("chat", True, rewrite(plan("chat", "responses", True, [WEATHER]), "text/event-stream", body, size)[1])
    assert seen.items == [["text", "\n\n".join(["word " * 30] * 3)]]


@each_stream
def test_messages_without_tools_are_separated(stream: bool) -> None:
    """The texts of two messages are separated even in an answer without tools, although toolsim does not search it for
    calls.
    """
    body = WHOLE["responses"](["One.", "Two."], "stop")
    seen = read("chat", stream, rewrite(plan("chat", "responses", stream), "application/json", body)[1])
    assert seen.items == [["text", "One.\n\nTwo."]]


def test_obsidian_xml_after_two_messages() -> None:
    """In ``obsidian-xml`` mode, the XML text of a call directly follows the preceding text, even if that text is in a
    separate message.
    """
    policy = {"output_mode": "obsidian-xml"}
    for steps in (["Hi", CALL], ["Hi" + CALL]):
        body = WHOLE["responses"](steps, "stop")
        rewritten = rewrite(plan("chat", "responses", False, [WEATHER], policy=policy), "application/json", body)[1]
        words, _ = read("chat", False, rewritten).items
        assert words[1].startswith("Hi<use_tool>")


@each("size", [0, 1, 13])
def test_unknown_event_is_passed_on(size: int) -> None:
    """A Responses client receives an unknown event at its position and with a new sequence number. A chat client does
    not receive it.
    """
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": text} for text in ("One", " two")]
    news = {"type": "response.news.delta", "sequence_number": 90, "output_index": 0, "thing": {"a": 1}}
    end = {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}}
    body = b"".join(event_frame(event) for event in (deltas[0], news, deltas[1], end))
    for client, there in (("responses", True), ("chat", False)):
        rewriter, chunks = rewrite(plan(client, "responses", True, [WEATHER]), "text/event-stream", body, size)
        frames = [
            json.loads(frame[6:]) for frame in b"".join(chunks).decode().split("\n") if frame.startswith("data: {")
        ]
        found = [frame for frame in frames if frame.get("type") == news["type"]]
        assert found == ([{"type": news["type"], "thing": {"a": 1}, "sequence_number": ANY}] if there else [])
        if there:
            assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
            assert frames[-1]["response"]["output"][0]["content"][0]["text"] == "One two"
            assert len(frames[-1]["response"]["output"]) == 1
        assert rewriter._report.warnings == ["UNKNOWN_EVENT:response.news.delta"]


@each("size", [1, 300, 10**6])
@each_client
def test_finish_reason_in_every_chunk(client: ApiName, size: int) -> None:
    """If every chunk has a finish reason, the answer does not end before the last chunk."""
    words = {"index": 0, "delta": {"content": "word "}, "finish_reason": "stop"}
    body = b"".join(f"data: {json.dumps({'choices': [words]})}\n\n".encode() for _ in range(30))
    seen = read(client, True, rewrite(plan(client, "chat", True, [WEATHER]), "text/event-stream", body, size)[1])
    assert seen.items == [["text", "word " * 30]]
    assert seen.error is None
