"""The Codex backend without Codex: requests in, notifications in, events out; and servers that we play."""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toolsimlib.backends.codex import backend as codex
from toolsimlib.backends.codex.backend import CodexBackend, Turn, one_text, read_request, turn_error
from toolsimlib.backends.codex.jsonrpc import Notification
from toolsimlib.errors import BadRequest
from toolsimlib.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)


def text_item(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_a_request_becomes_items_with_roles() -> None:
    """Instructions first; system becomes developer; what is no message is left out."""
    request = read_request(
        {
            "model": "m",
            "instructions": "I",
            "temperature": 0.5,
            "input": [
                {"role": "system", "content": "S"},
                {"type": "reasoning", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "R"}]},
                {"role": "user", "content": [{"type": "input_image", "image_url": "data:x", "detail": "low"}]},
                {"role": "user", "content": ""},
            ],
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        }
    )
    assert list(request.items) == [
        text_item("developer", "I"),
        text_item("developer", "S"),
        text_item("assistant", "R"),
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:x", "detail": "low"}],
        },
    ]
    assert request.thread == {"model": "m"}
    assert request.turn == {"effort": "low", "summary": "auto", "outputSchema": {"type": "object"}}
    assert request.config == {"model_verbosity": "high"}


def test_a_json_object_is_asked_for_in_words() -> None:
    """Codex has no parameter for it."""
    request = read_request({"input": "x", "text": {"format": {"type": "json_object"}}})
    assert "JSON object" in request.items[-1]["content"][0]["text"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": {"id": "conv_1"}}, "conversation"),
        ({"input": "x", "background": True}, "background"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
    ],
)
def test_what_codex_cannot_be_asked_is_a_400(body: dict[str, Any], param: str) -> None:
    """With the exact param."""
    with pytest.raises(BadRequest) as caught:
        read_request(body)
    assert caught.value.error.param == param


def test_a_conversation_as_one_text() -> None:
    """For servers without items: roles in the text, images after it."""
    image = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}
    assert one_text([text_item("developer", "D"), text_item("assistant", "A"), image]) == [
        {"type": "text", "text": "[developer]\nD\n\n[assistant]\nA\n\n[user]\n"},
        {"type": "image", "url": "data:x"},
    ]


def news(method: str, **params: Any) -> Notification:
    return Notification(method, {"threadId": "t", "turnId": "u", **params})


def started(kind: str, name: str = "i") -> Notification:
    return news("item/started", item={"type": kind, "id": name})


def delta(text: str, item: str = "i") -> Notification:
    return news("item/agentMessage/delta", itemId=item, delta=text)


def counted(n: int) -> Notification:
    return news("thread/tokenUsage/updated", tokenUsage={"total": {"inputTokens": n, "outputTokens": n}})


def ended(status: str = "completed", **error: Any) -> Notification:
    return news("turn/completed", turn={"status": status, "error": error or None})


def play(*notes: Notification) -> list[BackendEvent]:
    turn = Turn("m")
    return [event for note in notes for event in turn.feed(note)]


def test_a_turn() -> None:
    """Reasoning, text, usage, end."""
    assert play(
        news("warning", message="phantom"),
        started("userMessage"),
        started("reasoning", "r"),
        news("item/reasoning/summaryPartAdded", summaryIndex=0),
        news("item/reasoning/summaryTextDelta", delta="a"),
        news("item/reasoning/summaryPartAdded", summaryIndex=1),
        news("item/reasoning/textDelta", delta="b"),
        news("item/completed", item={"type": "reasoning", "id": "r"}),
        news("mcpServer/startupStatus/updated", name="unknown", status="failed"),
        started("agentMessage"),
        delta("c"),
        delta("d"),
        news("item/completed", item={"type": "agentMessage", "id": "i", "text": "cd"}),
        counted(3),
        ended(),
        delta("too late"),
    ) == [
        Opened(model="m"),
        ReasoningDelta("a"),
        ReasoningDelta("\n\n"),
        ReasoningDelta("b", "text"),
        TextDelta("c"),
        TextDelta("d"),
        Finished("stop"),
        Counted(Usage(input_tokens=3, output_tokens=3)),
        Closed(),
    ]


def test_text_without_deltas_is_taken_from_the_item() -> None:
    """All of it, or what the deltas left out."""
    whole = news("item/completed", item={"type": "agentMessage", "id": "i", "text": "abc"})
    assert play(whole, ended())[1] == TextDelta("abc")
    assert play(delta("a"), whole, ended())[1:3] == [TextDelta("a"), TextDelta("bc")]


def test_two_messages_are_kept_apart() -> None:
    """A blank line between them."""
    assert play(delta("a"), delta("b", "j"))[1:] == [TextDelta("a"), TextDelta("\n\n"), TextDelta("b")]


def test_a_model_that_is_asked_again_has_answered_already() -> None:
    """After a call that nobody serves; without any text it may try twice more."""
    assert play(delta("a"), counted(1), started("agentMessage", "j"), delta("b", "j"))[-1] == Closed()
    assert play(delta("a"), counted(1), counted(2))[-1] == Closed()
    events = play(counted(1), counted(2), counted(3))
    assert isinstance(events[-1], Failed)
    assert play(counted(1), delta("a"), counted(2), ended())[-1] == Closed()


def test_a_retry_is_silent_until_something_was_said() -> None:
    """Then the same text would come again."""
    retry = news("error", willRetry=True, error={"message": "reconnecting", "codexErrorInfo": None})
    assert play(retry, delta("a"), ended())[-1] == Closed()
    assert isinstance(play(delta("a"), retry)[-1], Failed)


def test_codexs_own_summary_of_the_history_is_a_failure() -> None:
    """The catalogue would be lost in it."""
    [event] = play(started("contextCompaction"))
    assert isinstance(event, Failed)
    assert (event.error.status, event.error.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (ended("interrupted"), (502, "interrupted")),
        (ended("failed"), (502, "server_error")),
        (ended("failed", message="x", codexErrorInfo="usageLimitExceeded"), (429, "insufficient_quota")),
        (news("turn/completed"), (502, "server_error")),
    ],
)
def test_a_turn_that_ends_badly(note: Notification, said: tuple[int, str]) -> None:
    """A failure, never a quiet success."""
    event = play(delta("a"), note)[-1]
    assert isinstance(event, Failed)
    assert (event.error.status, event.error.code) == said


def test_a_length_limit_keeps_the_text() -> None:
    """It is how an answer may end."""
    cut = ended("failed", message="Incomplete response returned, reason: max_output_tokens", codexErrorInfo="other")
    assert play(delta("a"), cut)[-2:] == [Finished("length"), Closed()]


@pytest.mark.parametrize(
    ("info", "status", "code"),
    [
        ("unauthorized", 401, "invalid_api_key"),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, 401, "invalid_api_key"),
        ({"responseStreamConnectionFailed": {"httpStatusCode": None}}, 502, "server_error"),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, 429, "rate_limit_exceeded"),
        ("contextWindowExceeded", 400, "context_length_exceeded"),
        ({"responseStreamConnectionFailed": {"httpStatusCode": 413}}, 400, None),
        ("modelNotFound", 404, "model_not_found"),
        ("serverOverloaded", 503, "server_is_overloaded"),
        ("somethingNew", 502, "server_error"),
        (None, 502, "server_error"),
        ({"odd": 3}, 502, "server_error"),
    ],
)
def test_turn_errors(info: object, status: int, code: str | None) -> None:
    """OpenAI's shape for each kind, 502 for what is not known."""
    error = turn_error({"message": "m", "codexErrorInfo": info})
    assert (error.status, error.code) == (status, code)
    assert (error.retry_after is not None) == (status >= 500)


def test_a_quoted_400_keeps_its_own_words() -> None:
    """The model's server said what was wrong, and where."""
    body = {"error": {"message": "no such effort", "code": "unsupported_value", "param": "reasoning.effort"}}
    error = turn_error({"message": json.dumps(body), "codexErrorInfo": "other"})
    assert (error.message, error.code, error.param, error.status) == (
        "no such effort",
        "unsupported_value",
        "reasoning.effort",
        400,
    )


def test_a_quoted_400_of_chatgpt_keeps_its_words_too() -> None:
    """It has another shape, and is nothing to be tried again."""
    error = turn_error({"message": json.dumps({"detail": "That model is not supported."}), "codexErrorInfo": "other"})
    assert (error.message, error.status, error.retry_after) == ("That model is not supported.", 400, None)


SERVER = """
import json, sys, time
KNOWS_ITEMS, LOGIN, THINKS = json.loads(sys.argv[1])
def say(**message): print(json.dumps(message), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, params, number = message["method"], message.get("params"), message.get("id")
    if method == "initialize": say(id=number, result={"userAgent": "toolsim/0.60.0 (x)"})
    elif method == "account/read":
        say(id=99, method="item/tool/call", params={})
        refused = json.loads(sys.stdin.readline())
        assert refused["id"] == 99 and "error" in refused
        say(id=number, result={"requiresOpenaiAuth": not LOGIN, "account": None})
    elif method == "thread/start": say(id=number, result={"thread": {"id": "t"}, "model": "old"})
    elif method == "turn/start":
        say(id=number, result={"turn": {"id": "u"}})
        time.sleep(THINKS)
        text = json.dumps(params["input"])
        say(method="item/agentMessage/delta", params={"threadId": "t", "itemId": "i", "delta": text})
        say(method="item/agentMessage/delta", params={"threadId": "other", "itemId": "i", "delta": "not ours"})
        say(method="turn/completed", params={"threadId": "t", "turn": {"status": "completed"}})
    elif method == "thread/inject_items" and KNOWS_ITEMS: say(id=number, result={})
    elif number is not None:
        say(id=number, error={"code": -32600, "message": f"Invalid request: unknown variant `{method}`, expected"})
"""


async def ask(
    path: Path, *, knows_items: bool = True, login: bool = True, thinks: float = 0, times: list[float] | None = None
) -> list[BackendEvent]:
    script = path / "server.py"
    script.write_text(SERVER)
    backend = CodexBackend((sys.executable, str(script), json.dumps([knows_items, login, thinks])))
    await backend.start()
    body: Mapping[str, Any] = {"instructions": "I", "input": "hi"}
    try:
        async with asyncio.timeout(20):
            events = []
            async for event in backend.answer(body):
                events.append(event)
                if times is not None:
                    times.append(time.monotonic())
            return events
    finally:
        await backend.stop()


async def test_an_older_server_gets_the_conversation_as_one_text(tmp_path: Path) -> None:
    """It knows no thread/inject_items; its own requests are refused."""
    events = await ask(tmp_path, knows_items=False)
    assert events[0] == Opened(model="old")
    assert isinstance(events[1], TextDelta)
    assert json.loads(events[1].text) == [{"type": "text", "text": "[developer]\nI\n\n[user]\nhi"}]
    assert events[-1] == Closed()


async def test_a_newer_server_gets_items(tmp_path: Path) -> None:
    """And a turn without input of its own."""
    assert TextDelta("[]") in await ask(tmp_path)


async def test_a_model_that_thinks_for_long_does_not_hold_back_the_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is begun without it; what it says then follows."""
    monkeypatch.setattr(codex, "_HEADERS_LIMIT", 0.1)
    times: list[float] = []
    events = await ask(tmp_path, thinks=1.0, times=times)
    assert [type(event) for event in events[:2]] == [Opened, TextDelta]
    assert times[1] - times[0] > 0.5


async def test_without_a_login_there_is_a_503(tmp_path: Path) -> None:
    """It says what to do."""
    [event] = await ask(tmp_path, login=False)
    assert isinstance(event, Failed)
    assert event.error.status == 503
    assert "codex login" in event.error.message
