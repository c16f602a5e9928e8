"""Fuzz targets: no input may make a parser raise an exception, and no result may depend on how the input is split.

The first two bytes of an input select the target and the size of the chunks; the remaining bytes are the data to parse.
To allow hundreds of runs per second, an input contains only the data that its target parses. For example, model text
has no JSON around it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from jsonschema import Draft202012Validator
from support.library import streamed
from support.malformed import FORMS, TOOLS
from toolsim.core.errors import BadRequest
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Closed,
    Ended,
    Failed,
    StructuredCall,
    TextDelta,
)
from toolsim.core.plan import AnswerForm, Plan, Tool
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.parsing import parse
from toolsim.request.rewrite import rewrite_request
from toolsim.response.answer import Answer
from toolsim.response.call_forms import FOREIGN
from toolsim.response.judge import Judge
from toolsim.response.rewrite import ResponseRewriter
from toolsim.response.structured import StructuredCalls
from toolsim.response.value_types import VALUE_TYPE
from toolsim.response.verdict import JudgedCall
from toolsim.wire.frame_template import RepeatDecoder, Repeats
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.sse import SSEDecoder

_CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
_TOOLS = (Tool("f", "f", parameters=_CITY), Tool("g", "g", parameters=_CITY, strict=True))
_POLICIES = (Policy(), Policy(untagged="off"), Policy(use_tool=False, repair="off"), Policy(max_tool_bytes=64))
# The text, the calls and the end of an answer. If splitting changes one of them, that is a bug.
type _Outcome = tuple[str, list[str], str]


def sse(data: bytes, step: int) -> None:
    """Check that splitting does not change the events, and that repeated frames expand to the original documents."""
    whole, cut, repeats = SSEDecoder(), SSEDecoder(), RepeatDecoder()
    events = whole.feed(data) + whole.feed(b"") if data else []
    pieces = [event for piece in _pieces(data, step) for event in cut.feed(piece)]
    assert pieces + (cut.feed(b"") if data else []) == events, "the cut made a difference"
    assert list(_documents(repeats, data)) == [_document(event.data) for event in events], "a repeat says another thing"


def _pieces[Text: (str, bytes)](text: Text, step: int) -> Iterator[Text]:
    return (text[at : at + step] for at in range(0, len(text), step))


def _documents(decoder: RepeatDecoder, data: bytes) -> Iterator[str | None]:
    for item in (item for part in (data, b"") if data for item in decoder.feed(part)):
        if isinstance(item, Repeats):
            yield from (dump(item.template.with_text(text).document) for text in item.texts)
        else:
            yield _document(item.data)


def _document(text: str) -> str | None:
    document = parse_object(text.encode())
    return dump(document) if document is not None else None


def _turn(data: bytes, step: int, backend: ApiName, kind: str) -> _Outcome:
    plan = Plan("chat", backend, AnswerForm(True, "m"), tools=_TOOLS, any_strict=True)
    turn = ResponseRewriter(plan, Report(), content_type=kind)
    events = [event for part in _pieces(data, step) for events in turn.events(part) for event in events]
    return _outcome(events + [event for last in turn.events(b"") for event in last])


def _outcome(events: list[ClientEvent]) -> _Outcome:
    """Check that an answer ends exactly once; return its text, calls and end."""
    assert isinstance(events[-1], Ended | Failed), "an answer without an end"
    text, calls = "", list[str]()
    for event in events[:-1]:
        match event:
            case TextDelta():
                text += event.text
            case CallStarted():
                calls.append(event.name)
            case CallDelta():
                calls[-1] += event.text
            case CallEnded():
                calls[-1] += event.status
            case Ended() | Failed():
                raise AssertionError("an answer with two ends")
    return text, calls, repr(events[-1])


def chat_stream(data: bytes, step: int) -> None:
    """Check that a chat stream of arbitrary bytes ends exactly once, and that splitting does not change the result."""
    kind = "text/event-stream"
    assert _turn(data, step, "chat", kind) == _turn(data, len(data) + 1, "chat", kind), "the cut made a difference"


def responses_stream(data: bytes, step: int) -> None:
    """Check that a Responses stream of arbitrary bytes ends exactly once, and that splitting does not change the
    result.
    """
    kind = "text/event-stream"
    cut, whole = (_turn(data, size, "responses", kind) for size in (step, len(data) + 1))
    assert cut == whole, "the cut made a difference"


def whole_answer(data: bytes, step: int) -> None:
    """Check that a non-streamed answer of arbitrary bytes ends exactly once."""
    _turn(data, len(data) + 1, "chat" if step % 2 else "responses", "application/json")


def words(data: bytes, step: int) -> None:
    """Check that splitting a model's text does not change the result, and that text without a call is unchanged."""
    text = data.decode("utf-8", "replace")
    policy = _POLICIES[step % len(_POLICIES)]
    whole = _answer(policy, text, len(text) + 1)
    assert _answer(policy, text, step) == whole, "the cut made a difference"
    assert whole[1] or whole[0] == text, "words were lost"


def strict_words(data: bytes, step: int) -> None:
    """Run the checks of ``words`` with a strict tool, so that an invalid call can be an error."""
    text = data.decode("utf-8", "replace")
    whole = _answer(Policy(), text, len(text) + 1, _TOOLS)
    assert _answer(Policy(), text, step, _TOOLS) == whole, "the cut made a difference"
    assert whole[1] or whole[0] == text or "Failed" in whole[2], "words were lost"


def marked_call(data: bytes, step: int) -> None:
    """Check a documented call in which random text replaces a part: splitting must not change the result.

    The first four bytes select the call form, the number of calls, and the part that is replaced.
    """
    if len(data) < 4:
        return
    form = FORMS[data[0] % len(FORMS)]
    call = form.two if data[1] % 2 else form.text
    start = data[2] % len(call)
    text = call[:start] + data[4:].decode("utf-8", "replace") + call[start + data[3] % 16 :]
    whole = parse(text, TOOLS)
    assert streamed([text[at : at + step] for at in range(0, len(text), step)], TOOLS) == whole, "a cut mattered"
    assert whole.calls or whole.prose == text, "words were lost"


def native_call(data: bytes, step: int) -> None:
    """Check that repairing a structured call makes it valid, and does not change values that the client already has.

    A NUL byte separates the call's name from its arguments.
    """
    name, _, arguments = data.decode("utf-8", "replace").partition("\0")
    judge = Judge(Plan("chat", "chat", AnswerForm(True, "m"), tools=_TOOLS, any_strict=True), Report())
    for verdict in StructuredCalls(judge).verdicts(StructuredCall(name, arguments), is_announced=step % 2 == 0):
        if isinstance(verdict, JudgedCall) and verdict.repairs:
            assert Draft202012Validator(_CITY).is_valid(json.loads(verdict.arguments)), "a repair that does not fit"
        if isinstance(verdict, JudgedCall) and verdict.tool.strict:
            assert VALUE_TYPE not in verdict.repairs, "a strict tool's value was changed"
        if isinstance(verdict, JudgedCall) and step % 2 == 0:
            assert VALUE_TYPE not in verdict.repairs, "what the client has was changed"


def _answer(policy: Policy, text: str, step: int, tools: tuple[Tool, ...] = _TOOLS[:1]) -> _Outcome:
    is_strict = any(tool.strict for tool in tools)
    plan = Plan("chat", "chat", AnswerForm(True, "m"), tools=tools, policy=policy, any_strict=is_strict)
    answer = Answer(plan, Report())
    events = [event for piece in _pieces(text, step) for event in answer.feed(TextDelta(piece))]
    return _outcome([*events, *answer.feed(Closed())])


def a_request(data: bytes, step: int) -> None:
    """Check that a request of arbitrary bytes is rewritten, passed through, or rejected with BadRequest."""
    api_name: ApiName = "chat" if step % 2 else "responses"
    policy = Policy(backend="chat" if step % 4 < 2 else "auto")
    with contextlib.suppress(BadRequest):
        rewrite_request(api_name, "/v1/x", data, policy, output_mode=None, report=Report())


TARGETS: tuple[Callable[[bytes, int], None], ...] = (
    sse,
    chat_stream,
    responses_stream,
    whole_answer,
    words,
    a_request,
    strict_words,
    marked_call,
    native_call,
)
_DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
_RESPONSES_CALL = b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}'
# The second byte is the chunk size minus one; an odd chunk size selects the chat API.
SEEDS = (
    b"\0\5" + _DELTA % b"Hi" + _DELTA % b"you" + b"data: [DONE]\n\n",
    b"\1\7" + _DELTA % b'<tool_call>{\\"name\\":\\"f\\",\\"arguments\\":{}}</tool_call>' + b"data: [DONE]\n\n",
    b'\2\7data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"Hi"}\n\n'
    b'data: {"type":"response.completed","response":{"id":"r","output":[%s],"status":"completed"}}\n\n'
    % _RESPONSES_CALL,
    b'\3\2{"choices":[{"index":0,"message":{"content":"Hi","tool_calls":[{"id":"a","type":"function","function":'
    b'{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"}]}',
    b'\4\3Hello <tool_call>{"name":"f","arguments":{"city":"Bonn"}}</tool_call>'
    b'<use_tool><name>f</name><city>B</city></use_tool>\n```json\n{"name":"f","arguments":{}}\n```',
    b'\5\0{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
    b'{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"pattern":"^a"}}}}}]}',
    b"\6\3Look:\n<tool_call>this is not json</tool_call>\n<tool_call></tool_call>",
    b"\7\2\2\1\5\7</parameter>\n</parameter>",
    b'\10\0f<|channel|>commentary\0{"city":"Bonn","days":"3"}',
    b'\10\0functionsf1\0{"city</arg_key>":"Bonn"}{"city":"Bonn"}',
    b'\5\1{"model":"m","input":[%s,{"type":"function_call_output","call_id":"c","output":"x"}],'
    b'"tools":[{"type":"function","name":"f"}]}' % _RESPONSES_CALL,
)


def one(data: bytes) -> None:
    """Run the target that the input selects."""
    if len(data) >= 2:
        TARGETS[data[0] % len(TARGETS)](data[2:], data[1] % 64 + 1)


WORDS = (
    *("data: ", "event: ", "\n\n", "[DONE]", "<think>", "</think>", "```json\n", "```", "<tool_call>", "</tool_call>"),
    *("<use_tool>", "</use_tool>", "<name>f</name>", "<city>", "</city>", '{"name":"f","arguments":', "f(city=", "[f("),
    *('"choices":[{"index":0,"delta":', '"tool_calls":[', '"finish_reason":"stop"', '"content":"', "\\u", "\\ud83d"),
    *("response.output_item.done", '"output_index":', '"call_id":', "response.output_text.delta", "response.completed"),
    *FOREIGN,
    *FOREIGN.values(),
    *sorted({marker for form in FORMS for marker in (*form.opening, *form.closing)}),
    *("<|channel|>commentary", "functions", '"days":"', '"[1]"', "</arg_key>", '<|"|>', "this is not json"),
)
"""Tokens that the fuzzer would otherwise have to guess character by character."""
