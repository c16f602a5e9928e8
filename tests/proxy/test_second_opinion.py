"""Tests for second opinions: the prompts for the model, the client's answer, and the recordings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import read_flows_from_paths
from support.answers import Seen, read
from support.line import Line, arrivals
from support.mitmdump import Mitmdump
from support.text_backend import Exchange, Rule, TextBackend, Turn, refuses, says
from support.wire import ApiName

BONN = '<tool_call>{"name":"get_weather","arguments":{"city":"Bonn"}}</tool_call>'
ALARM = '<tool_call>{"name":"set_alarm","arguments":{"hour":7}}</tool_call>'
GET_WEATHER = ["call", "get_weather", '{"city":"Bonn"}']
SET_ALARM = ["call", "set_alarm", '{"hour":7}']
WORDS = "Forty-two."
TOOLS: list[dict[str, Any]] = [
    {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {}}},
    },
    {"name": "set_alarm", "description": "Wakes you.", "parameters": {"type": "object", "properties": {"hour": {}}}},
]
APIS: dict[str, ApiName] = {"chat/completions": "chat", "responses": "responses", "messages": "messages"}


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend(chunk_size=5) as backend:
        yield backend


@pytest.fixture(scope="module")
def proxy(backend: TextBackend) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, toolsim_second_opinion="on", toolsim_stream_arguments="incremental") as proxy:
        yield proxy


def body(api: str, *, stream: bool, **more: Any) -> dict[str, Any]:
    question = "What is the meaning of life?"
    if api == "responses":
        asked: dict[str, Any] = {"input": question, "tools": [{"type": "function", **tool} for tool in TOOLS]}
    elif api == "messages":
        tools = [{"input_schema": tool["parameters"], **tool} for tool in TOOLS]
        asked = {"messages": [{"role": "user", "content": question}], "tools": tools, "max_tokens": 99}
    else:
        tools = [{"type": "function", "function": tool} for tool in TOOLS]
        asked = {"messages": [{"role": "user", "content": question}], "tools": tools}
        asked |= {"stream_options": {"include_usage": True}} if stream else {}
    return {"model": "m", "stream": stream, "top_k": 3, **asked, **more}


def is_question(exchange: Exchange) -> bool:
    return "A function: " in str(exchange.transcript)


def model(calls: Turn, words: Turn | None = None, **answers: Turn) -> Rule:
    """Return a model that makes the given calls if its prompt contains tools. ``answers`` contains its second opinion
    on each tool.
    """
    words = words or says(WORDS)

    def play(exchange: Exchange) -> Turn:
        if is_question(exchange):
            return next(answers[name] for name in answers if f"A function: {name}(" in str(exchange.transcript))
        return calls if "CLIENT TOOL CATALOG" in str(exchange.transcript) else words

    return play


def in_both_modes(rule: Rule, api: str, line: Line, backend: TextBackend) -> Iterator[tuple[Seen, Sequence[Exchange]]]:
    """Send a non-streamed request and then a streamed one. For each, yield the answer and the requests that the backend
    received.
    """
    for stream in (False, True):
        backend.play(rule, chunk_size=5)
        reply = line.post(f"/v1/{api}", body(api, stream=stream))
        assert reply.status == 200, reply.body
        yield read(APIS[api], stream, [reply.body]), backend.exchanges


def word_count(exchanges: Iterable[Exchange]) -> int:
    """Return the number of words in the prompts. The backend counts each word as one token."""
    return sum(len(text.split()) for exchange in exchanges for _, text in exchange.transcript)


WAYS: dict[str, tuple[Rule, list[list[str]], int]] = {
    "yes": (model(says("Well. ", BONN), get_weather=says("Yes")), [["text", "Well. "], GET_WEATHER], 2),
    "no": (model(says(BONN), get_weather=says("No.")), [["text", WORDS]], 4),
    "no, behind words": (
        model(says("Well. ", BONN), get_weather=says("No.")),
        [["text", f"Well. \n\n{WORDS}"]],
        4,
    ),
    "neither": (model(says(BONN), get_weather=says("I cannot say.")), [GET_WEATHER], 2),
    "cut": (model(says(BONN), get_weather=says("No", ending="eof")), [GET_WEATHER], 2),
    "failing": (model(says(BONN), get_weather=refuses(500, "Gone.")), [GET_WEATHER], 2),
    "one of two": (
        model(says(BONN, ALARM), get_weather=says("no"), set_alarm=says("yes")),
        [SET_ALARM],
        4,
    ),
    "the other": (
        model(says(BONN, ALARM), get_weather=says("yes"), set_alarm=says("no")),
        [GET_WEATHER],
        4,
    ),
    "none of two": (
        model(says(BONN, ALARM), get_weather=says("no"), set_alarm=says("no")),
        [["text", WORDS]],
        6,
    ),
    "no words": (model(says(BONN), refuses(500, "Gone."), get_weather=says("no")), [GET_WEATHER], 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("way", WAYS)
def test_two_clear_no_answers_refuse_a_call(way: str, api: str, line: Line, backend: TextBackend) -> None:
    """A call is refused only after two clear "no" answers to requests for a second opinion. If no other call remains,
    the client receives text instead.
    """
    rule, items, rounds = WAYS[way]
    both = []
    for seen, exchanges in in_both_modes(rule, api, line, backend):
        both.append(seen)
        assert len(exchanges) == rounds
        assert seen.usage is not None
        assert seen.usage >= word_count(exchange for exchange in exchanges if exchange.whole)
    assert both[0].items == both[1].items == items
    assert both[0].ids == both[1].ids
    assert both[0].usage == both[1].usage


@pytest.mark.slow
@pytest.mark.parametrize("api", ["chat/completions", "responses"])
def test_questions_are_short_requests(api: str, line: Line, backend: TextBackend) -> None:
    """Each request for a second opinion is short and has temperature 0. After two "no" answers, the conversation is
    sent without tools.
    """
    backend.play(WAYS["no"][0])
    limits = {"max_tokens": 500} if api != "responses" else {"max_output_tokens": 500}
    line.post(f"/v1/{api}", body(api, stream=True, temperature=0.8, **limits))
    first, *questions, last = (exchange.body for exchange in backend.exchanges)
    for question in questions:
        assert [question[name] for name in ("model", "top_k", "temperature")] == ["m", 3, 0]
        assert question[next(iter(limits))] == 16
        assert not question.keys() & {"stream", "tools", "stream_options"}
    about_tool, about_call = (str(exchange.transcript) for exchange in backend.exchanges[1:3])
    assert "What is the meaning of life?" in about_tool
    assert 'A call: get_weather(city="Bonn")' in about_call
    assert [text for _, text in backend.exchanges[3].transcript] == ["What is the meaning of life?"]
    assert [first[name] for name in ("temperature", "stream")] == [0.8, True]
    assert [last[name] for name in ("temperature", "stream")] == [0.8, True]


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_unneeded_opinion_is_not_requested(api: str, line: Line, backend: TextBackend) -> None:
    """No second opinion is requested on a required call, or on a call that follows a tool output."""
    backend.play(model(says(BONN), get_weather=says("no")))
    history: Any = {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "set_alarm", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ]
    }
    if api == "responses":
        history = {
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "function_call", "call_id": "c1", "name": "set_alarm", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "done"},
            ]
        }
    if api == "messages":
        use = {"type": "tool_use", "id": "c1", "name": "set_alarm", "input": {}}
        history = {
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "done"}]},
            ]
        }
    required: Any = {"type": "any"} if api == "messages" else "required"
    for more in ({"tool_choice": required}, history):
        reply = line.post(f"/v1/{api}", body(api, stream=False, **more))
        assert read(APIS[api], False, [reply.body]).items == [GET_WEATHER]
    assert len(backend.exchanges) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_stops_the_question(stream: bool, proxy: Mitmdump, backend: TextBackend) -> None:
    """If the client disconnects, the request for a second opinion is aborted, and no further request is sent."""
    backend.play(model(says(BONN), get_weather=says("No", ending="hang")))
    with Line(proxy.url) as line:
        line.send("POST", "/v1/responses", body("responses", stream=stream))
        backend.wait_for(2)
    assert backend.exchanges[1].over.wait(10)
    assert not backend.exchanges[1].whole
    time.sleep(0.3)
    assert len(backend.exchanges) == 2


@pytest.mark.slow
def test_text_is_sent_while_its_call_waits(line: Line, backend: TextBackend) -> None:
    """Text before a call is sent immediately. The call is sent after the second opinion."""
    backend.play(model(says("Well. ", BONN), get_weather=says("", "yes", pause=0.5)))
    response = line.begin("POST", "/v1/responses", body("responses", stream=True))
    received = list(arrivals(response))
    text = next(when for when, data in received if b"output_text.delta" in data)
    call = next(when for when, data in received if b"function_call" in data)
    assert call - text > 0.8


@pytest.mark.slow
def test_refused_call_is_reported(backend: TextBackend, tmp_path: Path) -> None:
    """The log, the flow comments and the metrics name the refused call. Each round has a flow, which can be replayed
    with the same result.
    """
    folder = tmp_path / "captured"
    arguments = ["-w", str(tmp_path / "flows")]
    with Mitmdump(backend.url, toolsim_second_opinion="on", toolsim_capture=str(folder), arguments=arguments) as proxy:
        backend.play(WAYS["no"][0], chunk_size=5)
        with Line(proxy.url) as line:
            line.post("/v1/chat/completions", body("chat/completions", stream=True))
            proxy.wait_for(r'"rounds": 4')
            metrics = line.request("GET", "/toolsim/metrics").body.decode()
        log = proxy.log()
    assert re.search(r'dropped_calls_total\{[^}]*reason="SECOND_OPINION"[^}]*\} 1', metrics), metrics
    assert '"retries": ["SECOND_OPINION:get_weather"]' in log
    read_flows = [flow for flow in read_flows_from_paths([tmp_path / "flows"]) if isinstance(flow, HTTPFlow)]
    flows = [flow for flow in read_flows if "toolsim" in flow.metadata]
    whole = next(flow for flow in flows if "rounds" in flow.metadata["toolsim"])
    rounds = sorted((flow for flow in flows if flow is not whole), key=lambda flow: flow.metadata["toolsim"]["round"])
    assert whole.comment.startswith("no call · 1 dropped call: SECOND_OPINION:get_weather · 4 rounds"), whole.comment
    assert [flow.metadata["toolsim"]["part_of"] for flow in rounds] == [whole.id] * 4
    assert b"A function: get_weather(city): The weather." in (rounds[1].request.content or b"")
    # The two requests for second opinions do not belong to the conversation, and do not start a new one.
    assert ["#1 turn 1" in flow.comment for flow in rounds] == [True, False, False, True]
    assert whole.response is not None
    assert WORDS.encode() in b"".join(re.findall(rb'"content":"([^"]*)"', whole.response.content or b""))
    replay = [sys.executable, "-m", "toolsim.recordings.replay", str(folder)]
    replayed = subprocess.run(replay, capture_output=True, text=True, check=False)
    assert replayed.stdout.endswith("4 recorded exchanges, none differ\n"), replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_background_answer_over_a_chat_backend(backend: TextBackend) -> None:
    """If a call is refused in a background answer from a chat completions backend, text replaces the call."""
    backend.play(WAYS["no, behind words"][0])
    options = {"toolsim_second_opinion": "on", "toolsim_store": "memory", "toolsim_backend": "chat"}
    with Mitmdump(backend.url, **options) as proxy, Line(proxy.url) as line:
        queued = line.post("/v1/responses", body("responses", stream=False, background=True)).json()
        for _ in range(100):
            answer = line.request("GET", f"/v1/responses/{queued['id']}").json()
            if answer["status"] not in ("queued", "in_progress"):
                break
            time.sleep(0.1)
        assert json.dumps(answer["output"]).count(WORDS) == 1
        assert [item["type"] for item in answer["output"]] == ["message"]
        assert len(backend.exchanges) == 4
