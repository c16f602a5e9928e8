"""Stored state over HTTP, as the Open Responses suite requires it, checked with the published schemas.

In the suite's July 2026 version, state is kept only over WebSockets (``tests/proxy/test_websocket.py``). Here each case
sends independent requests, as the suite's reconnection case does. The other cases are in
``tests/test_open_responses.py``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from memory.test_references import CALL, TOOLS, both_modes, shown
from support.line import Line, Reply
from support.mitmdump import Mitmdump
from support.open_responses import check_event, check_response
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow


@pytest.fixture
def line(proxy: Mitmdump) -> Iterator[Line]:
    with Line(proxy.url) as line:
        yield line


def final(reply: Reply) -> dict[str, Any]:
    """Return the final response object, streamed or not, after checking it and all events against the schemas."""
    assert reply.status == 200, reply.body
    if not reply.headers["content-type"].startswith("text/event-stream"):
        check_response(response := reply.json())
        return dict(response)
    *events, done = reply.events()
    assert done == "[DONE]"
    for event in events:
        check_event(event)
    return dict(events[-1]["response"])


def ask(line: Line, stream: bool, **request: Any) -> dict[str, Any]:
    response = final(line.post("/v1/responses", {"model": "m", "stream": stream, **request}))
    assert response["status"] == "completed"
    assert response["output"]
    return response


def retrieved(line: Line, id: str) -> dict[str, Any]:
    return final(line.request("GET", f"/v1/responses/{id}"))


@both_modes
def test_previous_response_id(line: Line, backend: TextBackend, stream: bool) -> None:
    """An answer can continue a previous answer, and contains its ID. Both answers can be retrieved unchanged."""
    backend.play([says("OK."), says("Papaya.")])
    first = ask(line, stream, input="The word is papaya.")
    second = ask(line, stream, input="Which word?", previous_response_id=first["id"])
    assert "papaya" in shown(backend)
    assert second["previous_response_id"] == first["id"]
    for response in first, second:
        assert retrieved(line, response["id"]) == response


@both_modes
def test_function_call_round_trip(line: Line, backend: TextBackend, stream: bool) -> None:
    """The output of a forced call can be sent alone with previous_response_id, and the model answers with text."""
    backend.play([says(CALL), says("18 degrees.")])
    choice = {"type": "function", "name": "get_weather"}
    first = ask(line, stream, input="Weather in Bonn?", tools=TOOLS, tool_choice=choice)
    (call,) = first["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "get_weather", "completed")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "18"}
    second = ask(line, stream, input=[output], tools=TOOLS, previous_response_id=first["id"])
    assert [item["type"] for item in second["output"]] == ["message"]


@both_modes
def test_store_false(line: Line, backend: TextBackend, stream: bool) -> None:
    """A request with store: false can continue a stored answer, but its own answer cannot be continued."""
    backend.play([says("One."), says("Two."), says("Three.")])
    first = ask(line, stream, input="Hello")
    second = ask(line, stream, input="Again", previous_response_id=first["id"], store=False)
    assert (first["store"], second["store"]) == (True, False)
    body = {"model": "m", "stream": stream, "input": "And?", "previous_response_id": second["id"]}
    refused = line.post("/v1/responses", body)
    assert (refused.status, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert line.request("GET", f"/v1/responses/{second['id']}").status == 404
    assert ask(line, stream, input="Anew", tools=TOOLS, store=False)["previous_response_id"] is None


@both_modes
def test_failed_continuation_can_be_repeated(line: Line, backend: TextBackend, stream: bool) -> None:
    """If a continuation fails, the previous answer is unchanged and can be continued again."""
    backend.play([says("OK."), says("Half", ending="eof"), says("Ember.")])
    first = ask(line, stream, input="The word is ember.")
    body = {"model": "m", "stream": stream, "input": "Which word?", "previous_response_id": first["id"]}
    failed = line.post("/v1/responses", body)
    assert (failed.status, final(failed)["status"]) == (200, "failed") if stream else failed.status == 502
    again = ask(line, stream, input="Which word?", previous_response_id=first["id"])
    assert "ember" in shown(backend)
    assert again["previous_response_id"] == first["id"]


@both_modes
def test_compaction_starts_a_new_conversation(line: Line, backend: TextBackend, stream: bool) -> None:
    """A new conversation can start with the output of a compaction, and does not refer to a previous answer."""
    backend.play([says("It is on Tuesday; support first."), says("On Tuesday.")])
    items = [{"type": "message", "role": "user", "content": "We launch on Tuesday."}]
    compacted = line.post("/v1/responses/compact", {"model": "m", "input": items}).json()
    check_response(compacted)
    question = {"type": "message", "role": "user", "content": "When do we launch?"}
    answer = ask(line, stream, input=[*compacted["output"], question])
    assert "support first" in shown(backend)
    assert answer["previous_response_id"] is None


@both_modes
def test_background_answers_conform(line: Line, backend: TextBackend, stream: bool) -> None:
    """Background answers are valid objects, with valid events, when they are started, polled or streamed."""
    backend.play([says("Done.")])
    body = {"model": "m", "input": "Hello", "background": True, "stream": stream}
    started = final(line.post("/v1/responses", body))
    assert started["status"] == ("completed" if stream else "queued")
    end = time.monotonic() + 20
    while (polled := retrieved(line, started["id"]))["status"] in ("queued", "in_progress"):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert (polled["status"], polled["background"]) == ("completed", True)
    if stream:
        assert final(line.request("GET", f"/v1/responses/{started['id']}?stream=true")) == polled
