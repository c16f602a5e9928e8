"""Tests for hosted tools, which the backend runs. The client receives their events, but not their secrets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from support.line import Line, arrivals
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import FULL_RESPONSE, event_frame

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SERVER = {
    "type": "mcp",
    "server_label": "docs",
    "server_url": "https://docs.example/p4th/mcp",
    "headers": {"X-Own": "s3cret-header"},
    "authorization": "s3cret-token",
    "require_approval": "always",
}
LIST = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []}
CALL = {"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "find", "arguments": ""}
DONE = {**CALL, "arguments": '{"q":1}', "output": "found", "status": "completed"}
ASKED = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "drop", "arguments": "{}"}
BLOCK = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
# Events from the backend: the steps of two items, an approval request, and text with a call. There are gaps between the
# indexes.
EVENTS: list[dict[str, Any]] = [
    {"type": "response.output_item.added", "output_index": 0, "item": LIST},
    {"type": "response.mcp_list_tools.in_progress", "output_index": 0, "item_id": "mcpl_1"},
    {"type": "response.mcp_list_tools.completed", "output_index": 0, "item_id": "mcpl_1"},
    {"type": "response.output_item.done", "output_index": 0, "item": LIST},
    {"type": "response.output_item.added", "output_index": 2, "item": {**CALL, "status": "in_progress"}},
    {"type": "response.mcp_call.in_progress", "output_index": 2, "item_id": "mcp_1"},
    {"type": "response.mcp_call_arguments.delta", "output_index": 2, "item_id": "mcp_1", "delta": '{"q":1}'},
    {"type": "response.mcp_call_arguments.done", "output_index": 2, "item_id": "mcp_1", "arguments": '{"q":1}'},
    {"type": "response.mcp_call.completed", "output_index": 2, "item_id": "mcp_1"},
    {"type": "response.output_item.done", "output_index": 2, "item": DONE},
    {"type": "response.output_item.added", "output_index": 5, "item": ASKED},
    {"type": "response.output_item.done", "output_index": 5, "item": ASKED},
    {"type": "response.output_text.delta", "output_index": 6, "content_index": 0, "delta": BLOCK},
]
PAUSE = 0.05


async def streams(answer: Answer) -> None:
    await answer.head(200, Content_Type="text/event-stream")
    response = {**FULL_RESPONSE, "id": "resp_1", "created_at": 1, "model": "m", "output": []}
    created = {"type": "response.created", "response": {**response, "status": "in_progress"}}
    completed = {"type": "response.completed", "response": {**response, "status": "completed"}}
    for number, event in enumerate([created, *EVENTS, completed]):
        await answer.send(event_frame({**event, "sequence_number": number}))
        await asyncio.sleep(PAUSE)
    await answer.end()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captured")


@pytest.fixture(scope="module")
def proxy(backend: RawBackend, folder: Path) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, toolsim_forward_hosted_tools=True, toolsim_capture=str(folder)) as proxy:
        yield proxy


@pytest.mark.slow
def test_hosted_tool_events_are_streamed(backend: RawBackend, proxy: Mitmdump, line: Line, folder: Path) -> None:
    """The events of hosted tools are streamed one by one and renumbered. The echoed tools, the log and the recordings
    contain no secrets.
    """
    backend.play(streams)
    approval = {"type": "mcp_approval_response", "approval_request_id": "mcpr_0", "approve": True}
    history = [{"role": "user", "content": "hi"}, {**ASKED, "id": "mcpr_0"}, approval]
    body = {"model": "m", "input": history, "tools": [FUNCTION, SERVER], "stream": True}
    received = list(arrivals(line.begin("POST", "/v1/responses", body)))
    sent = json.loads(backend.asked[-1].body)
    assert sent["tools"] == [SERVER]
    assert [item for item in sent["input"] if item["type"] != "message"] == history[1:]

    data = b"".join(chunk for _, chunk in received).decode()
    events = [json.loads(line[6:]) for line in data.split("\n") if line.startswith("data: {")]
    kind = TypeAdapter[Any](ResponseStreamEvent)
    for event in events:
        kind.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    hosted = [event for event in events if "mcp" in event["type"] or "mcp" in str(event.get("item"))]
    assert [event["type"] for event in hosted] == [event["type"] for event in EVENTS[:-1]]
    assert [event["output_index"] for event in hosted] == [0] * 4 + [1] * 6 + [2] * 2
    final = Response.model_validate(events[-1]["response"])
    assert [item.type for item in final.output] == [
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "function_call",
    ]
    first = next(when for when, chunk in received if b"mcpl_1" in chunk)
    last = next(when for when, chunk in received if b"mcpr_1" in chunk)
    assert last - first > 8 * PAUSE

    end = time.monotonic() + 30
    while not (files := list(folder.glob("*.flow"))) and time.monotonic() < end:
        time.sleep(0.05)
    for text in (data, proxy.log(), *(file.read_bytes().decode("latin-1") for file in files)):
        assert "s3cret" not in text
        assert "p4th" not in text
    assert files


async def says_hello(answer: Answer) -> None:
    wants = json.loads(answer.asked.body)
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": "Hello", "annotations": []}]  # type: ignore[assignment]
    response = {**FULL_RESPONSE, "id": "resp_1", "created_at": 1, "model": "m", "output": [item], "status": "completed"}
    if not wants.get("stream"):
        await answer.whole(json.dumps({**response, "object": "response"}).encode())
        return
    await answer.head(200, Content_Type="text/event-stream")
    await answer.send(event_frame({"type": "response.completed", "response": response, "sequence_number": 0}))
    await answer.end()


@pytest.mark.slow
def test_dropped_tool_is_reported(backend: RawBackend) -> None:
    """If a request has only a hosted tool, it is forwarded unchanged.

    If it also has a function, the hosted tool is dropped and reported. If the tool choice requires the dropped tool,
    the request is refused with a hint.
    """
    backend.play(says_hello)
    alone = json.dumps({"model": "m", "input": "hi", "tools": [SERVER], "tool_choice": "required"}).encode()
    both = {"model": "m", "input": "hi", "tools": [FUNCTION, SERVER]}
    for options in ({}, {"toolsim_retry": 1}):
        with Mitmdump(backend.url, **options) as proxy, Line(proxy.url) as line:
            assert line.post("/v1/responses", alone).status == 200
            assert backend.asked[-1].body == alone
            for stream in (False, True):
                reply = line.post("/v1/responses", {**both, "stream": stream})
                assert reply.status == 200
                # The headers of a stream with retries are sent before it is known which tools are dropped.
                assert reply.headers["x-toolsim-dropped-tools"] == ("mcp" if not (stream and options) else None)
            refused = line.post("/v1/responses", {**both, "tool_choice": {"type": "mcp", "server_label": "docs"}})
            assert refused.status == 400
            assert b"toolsim_forward_hosted_tools" in refused.body
            assert "TOOL_DROPPED:mcp" in proxy.log()
    with Mitmdump(backend.url, toolsim_backend="chat") as proxy, Line(proxy.url) as line:
        refused = line.post("/v1/responses", alone)
        assert refused.status == 400
        assert b"toolsim_mcp_hosts" in refused.body
