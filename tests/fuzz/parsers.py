"""Whatever bytes come, no parser raises, and none cares how they were cut.

Guided by the branches that an input takes (libFuzzer, by atheris), where hypothesis only guesses. The first two bytes
of an input choose what it is held against, the rest is what a peer sends.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from json import dumps
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["toolsimlib"]):
    from toolsimlib.errors import BadRequest
    from toolsimlib.events import Ended, Failed
    from toolsimlib.plan import AnswerForm, Dialect, Plan, Policy, Tool
    from toolsimlib.report import Report
    from toolsimlib.request.rewrite import rewrite_request
    from toolsimlib.response.model_turn import ModelTurn
    from toolsimlib.response.rewrite import ResponseRewriter
    from toolsimlib.wire.json_codec import dump, parse_object
    from toolsimlib.wire.repeats import RepeatDecoder
    from toolsimlib.wire.sse import SSEDecoder

_CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
_TOOLS = (Tool("f", "f", parameters=_CITY), Tool("g", "g", parameters=_CITY, strict=True))
_CALL = "<tool_call>"


def sse(data: bytes, step: int) -> None:
    """Whole or in pieces, the same events; and a repeat says what its bytes say."""
    whole, cut, repeats = SSEDecoder(), SSEDecoder(), RepeatDecoder()
    events = whole.feed(data) + whole.feed(b"") if data else []
    pieces = [event for at in range(0, len(data), step) for event in cut.feed(data[at : at + step])]
    assert pieces + (cut.feed(b"") if data else []) == events, "the cut made a difference"
    read = (event for part in (data, b"") if data for event in repeats.feed(part))
    documents = [dump(event.document) if event.document is not None else _document(event.data) for event in read]
    assert documents == [_document(event.data) for event in events], "a repeat says something else"


def _document(text: str) -> str | None:
    document = parse_object(text.encode())
    return dump(document) if document is not None else None


def _turn(data: bytes, step: int, backend: Dialect, kind: str) -> None:
    plan = Plan("chat", backend, AnswerForm(True, "m"), tools=_TOOLS, any_strict=True)
    turn = ModelTurn(plan, Report(), content_type=kind)
    events = [event for at in range(0, len(data), step) for each in turn.steps(data[at : at + step]) for event in each]
    events += [event for each in turn.steps(b"") for event in each]
    assert isinstance(events[-1], Ended | Failed), "an answer without an end"
    assert sum(isinstance(event, Ended | Failed) for event in events) == 1


def chat_stream(data: bytes, step: int) -> None:
    """A chat stream of any bytes ends exactly once."""
    _turn(data, step, "chat", "text/event-stream")


def responses_stream(data: bytes, step: int) -> None:
    """So does one of the Responses API."""
    _turn(data, step, "responses", "text/event-stream")


def whole_answer(data: bytes, step: int) -> None:
    """And a whole answer."""
    _turn(data, step, "chat" if step % 2 else "responses", "application/json")


def words(data: bytes, step: int) -> None:
    """What a model writes comes out the same, however it arrives."""
    text = data.decode("utf-8", "replace").replace("\r", "")
    said = []
    for size in (step, len(text) + 1):
        plan = Plan("chat", "chat", AnswerForm(True, "m"), tools=_TOOLS[:1])
        rewriter, out = ResponseRewriter(plan, Report(), content_type="text/event-stream"), b""
        for at in range(0, len(text), size):
            out += b"".join(rewriter.feed(_frame(text[at : at + size])))
        out += b"".join(rewriter.feed(b"data: [DONE]\n\n"))
        said.append(_told(out))
    assert said[0] == said[1], "the cut made a difference"


def _frame(text: str) -> bytes:
    return f"data: {dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n".encode()


def _told(stream: bytes) -> tuple[str, list[str]]:
    text, calls = "", []
    for line in stream.split(b"\n"):
        document = parse_object(line[6:]) if line.startswith(b"data: {") else None
        for choice in (document or {}).get("choices", ()):
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                function = call["function"]
                calls.append(str(function.get("name") or "") + str(function.get("arguments") or ""))
    return text, calls


def a_request(data: bytes, step: int) -> None:
    """A request of any bytes is rewritten, passed or refused."""
    dialect: Dialect = "chat" if step % 2 else "responses"
    policy = Policy(backend="chat" if step % 4 < 2 else "auto")
    with contextlib.suppress(BadRequest):
        rewrite_request(dialect, "/v1/x", data, policy, output_mode=None, report=Report())


TARGETS: tuple[Callable[[bytes, int], None], ...] = (
    sse,
    chat_stream,
    responses_stream,
    whole_answer,
    words,
    a_request,
)
_DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
_RESPONSES_CALL = b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}'
SEEDS = (
    b"\0\5" + _DELTA % b"Hi" + _DELTA % b"you" + b"data: [DONE]\n\n",
    b"\1\7" + _DELTA % b'<tool_call>{\\"name\\":\\"f\\",\\"arguments\\":{}}</tool_call>' + b"data: [DONE]\n\n",
    b'\2\7data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"Hi"}\n\n'
    b'data: {"type":"response.completed","response":{"id":"r","output":[%s],"status":"completed"}}\n\n'
    % _RESPONSES_CALL,
    b'\3\1{"choices":[{"index":0,"message":{"content":"Hi","tool_calls":[{"id":"a","type":"function","function":'
    b'{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"}]}',
    b'\4\3Hello <tool_call>{"name":"f","arguments":{"city":"Bonn"}}</tool_call>'
    b'<use_tool><name>f</name><city>B</city></use_tool>\n```json\n{"name":"f","arguments":{}}\n```',
    b'\5\1{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
    b'{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"pattern":"^a"}}}}}]}',
    b'\5\2{"model":"m","input":[%s,{"type":"function_call_output","call_id":"c","output":"x"}],'
    b'"tools":[{"type":"function","name":"f"}]}' % _RESPONSES_CALL,
)


def one(data: bytes) -> None:
    """Hold one input against the target that it chooses."""
    if len(data) >= 2:
        TARGETS[data[0] % len(TARGETS)](data[2:], data[1] % 64 + 1)


def main() -> None:
    """Fuzz for as many seconds as the first argument says, from the seeds; what is found is written here."""
    corpus = Path(tempfile.mkdtemp(prefix="toolsim-fuzz-"))
    for number, seed in enumerate(SEEDS):
        (corpus / str(number)).write_bytes(seed)
    atheris.Setup([sys.argv[0], f"-max_total_time={sys.argv[1]}", "-max_len=4096", "-timeout=20", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
