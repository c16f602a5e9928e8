"""Tests for structured calls that are sent to the client while they arrive (incremental calls). The answer must be the
same as for calls that are sent only when complete (buffered calls).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.answers import plan, read, rewrite, tool
from support.each import each
from support.emitted import BODIES, WHOLE, Emitted, Step, Thought
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    ReasoningDelta,
    TextDelta,
)
from toolsim.core.plan import Plan, Tool
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.rewrite import ResponseRewriter
from toolsim.response.value_types import VALUE_TYPE
from toolsim.wire import frame_template

TOOLS = [
    tool("add", a="number"),
    tool("note", a="string"),
    tool("exact", True, a="number"),
    Tool("shell__run", "run", namespace="shell"),
    Tool("patch", "patch", kind="custom"),
]
TAGGED = '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
API_NAMES: tuple[ApiName, ...] = ("chat", "responses")


@dataclass
class Received:
    """An answer as the client receives it: text, reasoning, calls with their status, and the finish reason."""

    text: str = ""
    thought: str = ""
    calls: list[list[str]] = field(default_factory=list)
    pieces: int = 0
    end: str = ""
    is_corrected: bool = False  # Whether toolsim corrected the types of any arguments.

    def take(self, event: ClientEvent) -> None:
        match event:
            case TextDelta(text):
                assert not self.calls or self.calls[-1][2], "text within a call"
                self.text += text
            case ReasoningDelta(text):
                assert not self.calls or self.calls[-1][2], "a thought within a call"
                self.thought += text
            case CallStarted(name=name):
                assert not self.calls or self.calls[-1][2], "a call within a call"
                self.calls.append([name, "", ""])
            case CallDelta(text):
                self.calls[-1][1] += text
                self.pieces += 1
            case CallEnded(status, repairs=repairs):
                self.calls[-1][2] = status
                self.is_corrected |= VALUE_TYPE in repairs
            case Ended(reasons):
                assert not self.calls or self.calls[-1][2], "an answer that ends within a call"
                self.end = reasons[0]
            case Failed(error):
                self.end = str(error.code)

    @property
    def whole(self) -> tuple[str, str, list[list[str]], str]:
        """The complete answer in a form that can be compared. The calls are sorted, because a call in text is counted
        before it is emitted. Whitespace around arguments is removed, because a call can arrive both as text and as a
        structured call.
        """
        calls = sorted([name, arguments.strip(), status] for name, arguments, status in self.calls)
        return self.text, self.thought, calls, self.end


def client_events(the_plan: Plan, *pieces: bytes) -> Iterator[ClientEvent]:
    """Yield the events that the client receives if the backend's answer arrives in the given chunks."""
    turn = ResponseRewriter(the_plan, Report(), content_type="text/event-stream")
    for piece in (*pieces, b""):
        for step in turn.events(piece):
            yield from step


def receive(the_plan: Plan, body: bytes, cut: int = 0) -> Received:
    seen, size = Received(), cut or len(body)
    for event in client_events(the_plan, *(body[at : at + size] for at in range(0, len(body), size))):
        seen.take(event)
    return seen


ARGUMENTS = (
    *('{"a":1}', '{"a": "b\\"}{ \\\\é🐢"}', '{"a":{"b":[1,{"c":"}"}]}}', "{}", '{"x":2}', '{"a":1} '),
    *("", "null", ' {"a":1}', '"{\\"a\\":1}"', "[1]"),  # Arguments whose validity is known only at their end.
    *(
        '{"a":1,}',
        '{"a":',
        '{"a":1}}',
        '{"a" 1}',
        "{'a':1}",
        '{"a":1}{"a":2}',
        '{"a":1}{"a":1}',
    ),  # Arguments that are repaired or rejected.
)
CALLS = st.builds(
    Emitted,
    st.sampled_from(["add", "note", "exact", "patch", "unknown"]),
    st.sampled_from(ARGUMENTS)
    | st.dictionaries(st.text(max_size=2), st.integers() | st.text(max_size=3)).map(json.dumps),
    st.integers(1, 9),
) | st.just(Emitted("run", '{"a":1}', 2, "shell"))
HALVES = TAGGED[:41], TAGGED[41:]
BEGUN = '{"name": "add", '
TEXTS = st.sampled_from(["Hello ", " ", "\n", "a < b", TAGGED, *HALVES, "<tool_", BEGUN, Thought("hm")])
PLANS: tuple[dict[str, Any], ...] = (
    {},
    {"retries_allowed": frozenset({"SCHEMA_MISMATCH", "MALFORMED_JSON"})},
    {"policy": {"stop_after_tools": "on"}},
    {"policy": {"suppress_tail_after_tools": True}},
    {"policy": {"output_mode": "obsidian-xml"}},
    {"policy": {"repair": "off"}},
)
# Plans that limit the number of calls. If calls arrive concurrently, the call that was announced first is kept.
LIMITED: tuple[dict[str, Any], ...] = (
    {"one_call": True},
    {"policy": {"stop_after_tools": "on", "stop_after_tools_mode": "first"}},
    {"policy": {"tool_block_max": 2, "tool_block_dedup": True}},
)
TOO_LARGE = {"policy": {"max_tool_bytes": 12}}


def both(fields: dict[str, Any], client: ApiName, backend: ApiName, tools: Sequence[Tool] = TOOLS) -> list[Plan]:
    return [
        plan(client, backend, True, tools, **fields | {"policy": fields.get("policy", {}) | {"stream_arguments": how}})
        for how in ("buffered", "incremental")
    ]


@given(
    st.lists(CALLS | TEXTS, min_size=1, max_size=4, unique=True),
    st.sampled_from([*PLANS, *LIMITED, TOO_LARGE]),
    st.sampled_from(API_NAMES),
    st.sampled_from(API_NAMES),
    st.sampled_from(["tool_calls", "length"]),
    st.booleans(),
    st.integers(1, 200),
)
@example(
    [Emitted("add", '{"a":1}'), "Hello ", Emitted("note", '{"a":"b"}')], {}, "chat", "chat", "tool_calls", False, 7
)
@example(
    [Emitted("add", '{"a":1}'), Emitted("note", '{"a":"b"}')],
    {"one_call": True},
    "chat",
    "responses",
    "length",
    True,
    9,
)
@example([Emitted("add", "[1]"), HALVES[0]], PLANS[1], "chat", "chat", "tool_calls", False, 9)
@example([Emitted("note", '{"a":"b"}'), TAGGED, "Hello "], PLANS[2], "chat", "chat", "tool_calls", False, 9)
@example([Emitted("add", '{"a":"1"}'), Emitted("add", '{"a":"2"}')], {}, "chat", "chat", "tool_calls", False, 9)
def test_incremental_and_buffered_answers_are_equal(
    steps: list[Step], fields: dict[str, Any], client: ApiName, backend: ApiName, finish: str, mixed: bool, cut: int
) -> None:
    """Incremental calls result in the same answer as buffered calls, unless an announced call ends as incomplete."""
    tagged = [place for place, step in enumerate(steps) if step in (TAGGED, *HALVES)]
    emitted_first = any(isinstance(step, Emitted) for step in steps[: max(tagged, default=0)])
    # If a streamed block follows text that could become an untagged call, the text is emitted immediately.
    assume(HALVES[0] not in steps or not (emitted_first or fields in LIMITED or BEGUN in steps))
    # A structured call is counted when it is announced or, if it was not announced, when it is complete. If the number
    # of calls is limited, a call in text that is complete earlier takes precedence.
    assume(not emitted_first or fields not in LIMITED or (backend == "responses" and not mixed))
    buffered, incremental = both(fields, client, backend)
    body = BODIES[backend](steps, finish, interleaved=mixed)
    expected, seen = receive(buffered, body), receive(incremental, body)
    assert receive(incremental, body, cut).whole == seen.whole
    if seen.whole == expected.whole or seen.end == expected.end == "invalid_tool_call":
        return
    if expected.is_corrected:  # The types of arguments that the client has already received cannot be corrected.
        assert [call[0] for call in seen.calls] == [call[0] for call in expected.calls]
        return
    # The answers can also differ in announced calls that turned out not to be calls. The client receives them with the
    # status "incomplete".
    broken = [call for call in seen.calls if call[2] == "incomplete"]
    assert broken
    assert seen.end in ("length", "invalid_tool_call")
    emitted = [(step.name, step.arguments) for step in steps if isinstance(step, Emitted)]
    written = "".join(step for step in steps if isinstance(step, str))
    for name, begun, _ in broken:
        is_emitted = any(name == other and text.startswith(begun) for other, text in emitted)
        assert is_emitted or f'{{"name":"{name}","arguments":{begun}' in written


@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("backend", API_NAMES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_typical_calls_have_equal_answers(client: ApiName, backend: ApiName, interleaved: bool) -> None:
    """For every tested plan, typical calls yield the same answer with incremental and with buffered arguments."""
    calls: list[Emitted] = [
        Emitted("add", '{"a":1}', 1),
        Emitted("note", '{"a": "b\\"}é🐢"}', 4),
        Emitted("exact", '{"a":2}'),
    ]
    calls += [Emitted("run", '{"a":{"b":[]}}', 2, "shell"), Emitted("unknown", '{"a":1}'), Emitted("add", '{"a":"x"}')]
    lists: list[list[Step]] = [[TAGGED, calls[0], calls[1]]]
    mixed: list[list[Step]] = [[HALVES[0], call, Thought("hm"), HALVES[1], calls[0]] for call in calls[2:4]]
    for first, call in enumerate(calls):
        lists += [
            [Thought("hm"), call, Thought("hm")],
            ["Hello ", *calls[first : first + 3]],
            [call, "Bye", calls[first - 1]],
        ]
    for fields in (*PLANS, *LIMITED):
        for steps in lists if fields in LIMITED else [*lists, *mixed]:
            buffered, incremental = both(fields, client, backend)
            body = BODIES[backend](steps, "tool_calls", interleaved=interleaved)
            assert receive(incremental, body).whole == receive(buffered, body).whole, (fields, steps)


WORDS, SUM, NOTE = "Hello é🐢 ", Emitted("add", '{"a":1}'), Emitted("note", '{"a": "b\\"}{é🐢"}', 4)


@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("backend", API_NAMES)
def test_streamed_answer_equals_the_non_streamed_answer(client: ApiName, backend: ApiName) -> None:
    """A real client receives the same answer from an incremental stream and from a single JSON document."""
    shell = Emitted("run", '{"a":{"b":[]}}', 2, "shell")
    for steps in ([SUM], [WORDS, NOTE, SUM], [Thought("hm"), shell], [HALVES[0] + HALVES[1], NOTE], [WORDS, *HALVES]):
        for finish in ("tool_calls", "length"):
            _, streamed = both({}, client, backend)
            body = BODIES[backend](steps, finish)
            seen = read(client, True, rewrite(streamed, "text/event-stream", body)[1])
            whole = plan(client, backend, False, TOOLS)
            expected = read(client, False, rewrite(whole, "application/json", WHOLE[backend](steps, finish))[1])
            seen.ids, seen.usage = sorted(seen.ids), expected.usage
            assert seen == expected, (steps, finish)


@pytest.mark.parametrize("backend", API_NAMES)
def test_splits_at_any_byte_yield_the_same_events(backend: ApiName) -> None:
    """The client receives the same events if the bytes are split in two at any offset, and if they arrive one
    by one.
    """
    _, incremental = both({}, "responses", backend)
    body = BODIES[backend]([Emitted("note", '{"a":"é🐢"}')], "tool_calls")
    expected = list(client_events(incremental, body))
    assert sum(isinstance(event, CallDelta) for event in expected) == 4
    for at in range(1, len(body)):
        assert list(client_events(incremental, body[:at], body[at:])) == expected, at
    assert list(client_events(incremental, *(body[at : at + 1] for at in range(len(body))))) == expected


@pytest.mark.parametrize("backend", API_NAMES)
@pytest.mark.parametrize("how", ["buffered", "incremental"])
def test_repeated_frames_yield_the_same_answer(backend: ApiName, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For repeated frames, only the changed bytes are decoded. The answer is the same as if each frame were parsed in
    full.
    """
    the_plan = plan("responses", backend, True, TOOLS, policy={"stream_arguments": how})
    long = Emitted("note", json.dumps({"a": 'wörds "🐢" ' * 20}, ensure_ascii=False), 3)
    body = BODIES[backend]([long, SUM, Emitted("note", long.arguments[:-5], 3)], "length")
    # Simulate a backend that never reports that a call is done.
    frames = [frame for frame in body.split(b"\n\n") if b"output_item.done" not in frame and b"[DONE]" not in frame]
    bodies = [
        body,
        b"\n\n".join(frames[:-1]) + b"\n\n",
        b"\n\n".join([*frames, b""]).replace(b'"output": [', b'"o": ['),
    ]
    for stream in bodies:
        ways = [[stream], stream.split(b"\n\n"), [stream[at : at + 300] for at in range(0, len(stream), 300)]]
        ways[1] = [piece + b"\n\n" for piece in ways[1]]
        seen = [joined(client_events(the_plan, *pieces)) for pieces in ways]
        with monkeypatch.context() as patch:
            patch.setattr(frame_template, "learned", lambda frame: None)
            assert seen == [joined(client_events(the_plan, *ways[0]))] * 3


def joined(events: Iterable[ClientEvent]) -> list[ClientEvent]:
    """Return the events with adjacent texts joined, because text that arrives together can be split across several
    events.
    """
    found: list[ClientEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, CallDelta | TextDelta) and type(last) is type(event):
            found[-1] = replace(last, text=last.text + event.text)
        else:
            found.append(event)
    return found


@each("client", API_NAMES)
@each("place", [{"index": 0, "id": ""}, {"index": 0}, {}])
@each("named", ["every fragment", "the first fragment", "a fragment before them"])
@each("before", range(3, 6))
def test_calls_of_one_tool_without_ids_stay_separate(
    client: ApiName, place: dict[str, Any], named: str, before: int
) -> None:
    """Two calls to the same tool without IDs remain separate and complete, even if their frames are recognized as
    repeated frames and not parsed in full.
    """
    calls = [json.dumps({"a": f"{name} and what belongs to it"}) for name in ("one", "other")]
    for size in (2, 99):
        functions: list[dict[str, str]] = []
        for text in calls:
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            if named == "a fragment before them":
                pieces.insert(0, "")
            for number, piece in enumerate(pieces):
                has_name = number == 0 or named == "every fragment"
                functions.append({"name": "note", "arguments": piece} if has_name else {"arguments": piece})
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}] * before
        deltas += [{"tool_calls": [{**place, "function": function}]} for function in functions]
        choices = [{"index": 0, "delta": delta} for delta in deltas] + [{"index": 0, "finish_reason": "tool_calls"}]
        body = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices).encode()
        for the_plan in both({}, client, "chat"):
            for cut in (0, 50):
                seen = receive(the_plan, body, cut)
                assert seen.calls == [["note", call, "completed"] for call in calls]
                assert seen.end == "tool_calls"


@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("backend", API_NAMES)
def test_call_is_streamed_as_it_arrives(client: ApiName, backend: ApiName) -> None:
    """The client receives an incremental call in many small fragments, as the backend sends them, before the call is
    complete.
    """
    buffered, incremental = both({}, client, backend)
    body = BODIES[backend]([Emitted("note", json.dumps({"a": "words " * 20}), 4)], "tool_calls", interleaved=False)
    assert receive(buffered, body).pieces == 1
    assert receive(incremental, body, cut=40).pieces > 30
    begun = receive(incremental, body[: len(body) // 2])
    assert (begun.calls[0][0], begun.calls[0][2], begun.end) == ("note", "incomplete", "backend_truncated")
    assert len(begun.calls[0][1]) > 20


@pytest.mark.parametrize("client", API_NAMES)
@pytest.mark.parametrize("backend", API_NAMES)
@pytest.mark.parametrize("finish", ["tool_calls", "length"])
def test_openai_package_reads_the_same_answer(client: ApiName, backend: ApiName, finish: str) -> None:
    """The openai package reads the same answer from incremental and buffered calls, whether the calls are complete or
    broken.
    """
    plans = both({}, client, backend)
    for last in ('{"a":"b"}', '{"a":"b'):
        steps = ["Hello ", Emitted("add", '{"a":1}', 2), Emitted("note", last, 3)]
        body = BODIES[backend](steps, finish, interleaved=False)
        seen = [read(client, True, rewrite(a_plan, "text/event-stream", body)[1]) for a_plan in plans]
        if last.endswith("}") or backend == "chat":  # From a chat backend, only the first call is incremental.
            assert seen[0] == seen[1]
        else:
            call = [item for item in seen[1].items if item[0] == "call"][-1]
            assert call[1] == "note"
            assert last.startswith(call[2])
            # A chat answer cannot contain text after a call.
            assert seen[1].items[-1][1].endswith(last) or client == "chat"
            assert seen[1].finish in ("length", "incomplete")


@pytest.mark.parametrize("backend", API_NAMES)
@pytest.mark.parametrize("last", ['{"a":"b"}', '{"a":"b'])
def test_events_conform_to_the_specification(backend: ApiName, last: str) -> None:
    """The events of complete and broken calls conform to the schemas that Open Responses publishes."""
    from support.open_responses import check_event

    _, incremental = both({}, "responses", backend)
    body = BODIES[backend]([Emitted("note", last, 3)], "length", interleaved=False)
    frames = b"".join(rewrite(incremental, "text/event-stream", body)[1]).split(b"\n\n")
    events = [json.loads(frame.partition(b"data: ")[2]) for frame in frames if b"data: {" in frame]
    items = [event for event in events if "response" not in event]
    assert len(items) > 4
    for event in items:
        check_event(event)
    assert items[-1]["item"]["status"] == ("completed" if last.endswith("}") else "incomplete")


@pytest.mark.parametrize("backend", API_NAMES)
@pytest.mark.parametrize(
    "step", [Emitted("add", '{"a":1,}'), '<tool_call>{"name":"add","arguments":{"a":"1"}}</tool_call>']
)
def test_non_streamed_answer_is_repaired(backend: ApiName, step: Step) -> None:
    """A call in a non-streamed answer is repaired even if incremental arguments are enabled, because the client
    receives the call only when it is complete.
    """
    the_plan = plan("responses", backend, False, TOOLS, policy={"stream_arguments": "incremental"})
    rewriter, chunks = rewrite(the_plan, "text/event-stream", BODIES[backend]([step], "tool_calls"), 40)
    seen = read("responses", False, chunks, rewriter.status)
    assert [[name, json.loads(arguments)] for _, name, arguments in seen.items] == [["add", {"a": 1}]]
    assert seen.finish == "completed"
