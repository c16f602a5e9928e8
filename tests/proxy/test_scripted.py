"""Tests for the scripted model. Each row of the table in the README has the documented result."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from proxy.conftest import WEATHER
from support.line import Line
from support.mitmdump import Mitmdump

QUESTION = "What is the weather in Bonn and in Paris?"


@pytest.fixture(scope="module")
def scripted() -> Iterator[Line]:
    with Mitmdump(toolsim_backend="scripted") as proxy:
        proxy.wait_for("scripted backend answers")
        with Line(proxy.url) as line:
            yield line


def body(question: str, *, strict: bool = False, stream: bool = False) -> dict[str, Any]:
    tool = {**WEATHER, "function": {**WEATHER["function"], "strict": strict}}  # type: ignore[dict-item]
    return {"model": "m", "messages": [{"role": "user", "content": question}], "tools": [tool], "stream": stream}


def cities(reply: Any) -> list[Any]:
    """Return the arguments of all calls in a non-streamed chat completion, such as ``{"city": "Bonn"}``."""
    calls = reply.json()["choices"][0]["message"].get("tool_calls") or []
    return [json.loads(call["function"]["arguments"]) for call in calls]


def test_two_cities_are_two_calls(scripted: Line) -> None:
    """If a question names two cities, the answer contains text and two calls."""
    reply = scripted.post("/v1/chat/completions", body(QUESTION))
    assert cities(reply) == [{"city": "Bonn"}, {"city": "Paris"}]
    assert reply.json()["choices"][0]["message"]["content"].startswith("Let me ask get_weather.")


def test_greeting_is_answered_with_text(scripted: Line) -> None:
    reply = scripted.post("/v1/chat/completions", body("Hello"))
    assert cities(reply) == []
    assert "get_weather" in reply.json()["choices"][0]["message"]["content"]


CALLS = [{"city": "Bonn"}]


@pytest.mark.parametrize(
    ("word", "strict", "status", "calls"),
    [
        ("string", True, 200, CALLS),
        ("string", False, 200, CALLS),
        ("empty", True, 422, None),
        ("empty", False, 200, [{}]),
        ("badly", True, 422, None),
        ("badly", False, 200, [{"city": 0}]),
        ("malformed", True, 422, None),
        ("malformed", False, 200, CALLS),
        ("unknown", True, 422, None),
        ("unknown", False, 200, []),
        ("429", False, 429, None),
        ("cut", False, 502, None),
    ],
)
def test_each_stage_direction(word: str, strict: bool, status: int, calls: Any, scripted: Line) -> None:
    """Each stage direction has the outcome that the table in the README describes."""
    reply = scripted.post("/v1/chat/completions", body(f"What is the weather in Bonn? [{word}]", strict=strict))
    assert reply.status == status, reply.body
    if calls is not None:
        assert cities(reply) == calls


def test_cut_stream_is_an_error(scripted: Line) -> None:
    """The stage direction [cut] causes an error in the stream, which therefore does not look complete."""
    reply = scripted.post("/v1/chat/completions", body("Hello [cut]", stream=True))
    assert b'"error"' in reply.body
    assert b'"finish_reason":"stop"' not in reply.body


def test_answer_is_written_slowly() -> None:
    """By default, the scripted model writes slowly. A short answer takes tenths of a second and has many deltas."""
    with Mitmdump(toolsim_backend="scripted") as proxy, Line(proxy.url) as line:
        proxy.wait_for("scripted backend answers")
        start = time.monotonic()
        reply = line.post("/v1/chat/completions", body("Hello", stream=True))
        assert time.monotonic() - start > 0.3
        assert reply.body.count(b'"content":"') > 10


def test_unknown_previous_response_is_a_400(scripted: Line) -> None:
    """If a request refers to a previous response, it fails with a 400, because the scripted model does not store
    answers.
    """
    asked = {"input": "And there?", "previous_response_id": "resp_1"}
    for tools in ([], [{"type": "function", "name": "f"}]):
        reply = scripted.post("/v1/responses", {**asked, "tools": tools})
        assert (reply.status, reply.json()["error"]["code"]) == (400, "previous_response_not_found")
