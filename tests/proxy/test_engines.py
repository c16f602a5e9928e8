"""Tests for the detection of the backend's engine, and for backends that reject a feature."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import chat_stream, chat_whole

CALL = '{"name": "get_weather", "arguments": {"city": "Bonn"}}'
NO_JINJA = json.dumps({"error": {"code": 500, "message": "tools param requires --jinja flag"}}).encode()
# What happens to the connection after the backend has rejected a request. In the case "hang up late", the next request
# might already have been sent.
ENDS = ("kept", "close", "hang up", "hang up late")


@pytest.fixture
def backend() -> Iterator[RawBackend]:
    with RawBackend() as backend:
        yield backend


async def _sends(answer: Answer, text: str) -> None:
    if json.loads(answer.asked.body).get("stream"):
        await answer.head(Content_Type="text/event-stream")
        await answer.send(chat_stream(text))
        await answer.end()
    else:
        await answer.whole(chat_whole(text), Content_Type="application/json")


def refuses(field: str, error: bytes, text: str, end: str = "kept") -> Any:
    """Return a backend that answers with ``error`` if the request contains ``field``, and otherwise with ``text``."""

    async def behave(answer: Answer) -> None:
        if field not in json.loads(answer.asked.body):
            await _sends(answer, text)
            return
        headers = {"Connection": "close"} if end == "close" else {}
        await answer.whole(error, 500, Content_Type="application/json", **headers)
        if end == "hang up late":
            await asyncio.sleep(0.1)
        if end != "kept":
            answer.hang_up()

    return behave


def called(reply: Any, *, stream: bool) -> str:
    """Return the arguments of the only call in an answer."""
    assert reply.status == 200
    if not stream:
        return str(reply.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    deltas = [call for event in reply.events()[:-1] for call in event["choices"][0]["delta"].get("tool_calls", ())]
    return "".join(delta["function"].get("arguments", "") for delta in deltas)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("stream", [False, True])
def test_rejected_tools_become_text(backend: RawBackend, ask: Any, stream: bool, end: str) -> None:
    """If the backend rejects tools, the request is sent again with the tools described as text, and the client receives
    the call.

    In later requests, the tools are described as text from the start.
    """
    backend.play(refuses("tools", NO_JINJA, f"<tool_call>{CALL}</tool_call>", end))
    with Mitmdump(backend.url, toolsim_mode="auto") as proxy, Line(proxy.url) as line:
        for _ in range(3):
            reply = line.post("/v1/chat/completions", ask(stream=stream))
            assert json.loads(called(reply, stream=stream)) == {"city": "Bonn"}
        assert ["tools" in json.loads(asked.body) for asked in backend.asked] == [True, False, False, False]
        assert proxy.log().count("does not accept tools for m") == 1
        assert "REFUSED:tools" in proxy.log()


@pytest.mark.parametrize("stream", [False, True])
def test_rejected_files_become_text(backend: RawBackend, ask: Any, stream: bool) -> None:
    """If the backend rejects files, each file in this request and later requests is replaced with a line of text. The
    log mentions this once.
    """

    async def behave(answer: Answer) -> None:
        if b'"type":"file"' in answer.asked.body:
            await answer.whole(b'{"error": {"message": "unsupported content[].type"}}', 500)
        else:
            await _sends(answer, f"<tool_call>{CALL}</tool_call>")

    backend.play(behave)
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}}
    content = [{"type": "text", "text": "Read it."}, file]
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        for _ in range(3):
            reply = line.post(
                "/v1/chat/completions", ask(stream=stream, messages=[{"role": "user", "content": content}])
            )
            assert json.loads(called(reply, stream=stream)) == {"city": "Bonn"}
        assert [b"QUJD" in got.body for got in backend.asked] == [True, False, False, False]
        assert all(b"[document a.pdf, 3 B, not shown]" in got.body for got in backend.asked[1:])
        assert proxy.log().count("does not accept files for m") == 1


def test_rejected_schema_becomes_text(backend: RawBackend, ask: Any) -> None:
    """toolsim enforces a required call with a JSON schema. If the engine rejects the schema, the request is sent again
    without it, and the call is read from the text.
    """

    async def version(answer: Answer) -> None:
        await answer.whole(b'{"version": "0.11.0"}', Content_Type="application/json")

    error = b'{"error": {"message": "response_format is not available with this model"}}'
    backend.play(version, "/version")
    backend.play(refuses("response_format", error, f"<tool_call>{CALL}</tool_call>"), "/v1")
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        reply = line.post("/v1/chat/completions", ask(tool_choice="required"))
        assert json.loads(called(reply, stream=False)) == {"city": "Bonn"}
        assert "is vllm" in proxy.log()
        assert "cannot enforce calls for m" in proxy.log()


def test_json_of_an_enforced_form_is_the_call(backend: RawBackend, ask: Any) -> None:
    """If the engine enforces the JSON schema for a required call, the JSON in the answer becomes the call."""

    async def version(answer: Answer) -> None:
        await answer.whole(b'{"version": "0.12.6"}', Content_Type="application/json")

    backend.play(version, "/api/version")
    backend.play(lambda answer: _sends(answer, CALL), "/v1")
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        for stream in (False, True):
            reply = line.post("/v1/chat/completions", ask(stream=stream, tool_choice="required", model="qwen3:4b"))
            assert json.loads(called(reply, stream=stream)) == {"city": "Bonn"}
        body = json.loads(backend.asked[-1].body)
        assert body["response_format"]["type"] == "json_schema"
        assert "<call_tool>" in json.dumps(body["messages"])
        assert "<tool_call>" not in json.dumps(body["messages"])
        tool = {"name": "get_weather", "input_schema": ask()["tools"][0]["function"]["parameters"]}
        asked = {"model": "qwen3:4b", "max_tokens": 9, "messages": ask()["messages"], "tools": [tool]}
        message = line.post("/v1/messages", {**asked, "tool_choice": {"type": "any"}}).json()
        assert message["content"][0]["input"] == {"city": "Bonn"}
        assert json.loads(backend.asked[-1].body)["response_format"] == body["response_format"]


@pytest.mark.parametrize("stream", [False, True])
def test_unrelated_error_passes(backend: RawBackend, ask: Any, stream: bool) -> None:
    """An error that does not concern tools reaches the client unchanged. The next request contains the tools again."""
    error = b'{"error":{"message":"The context is full.","type":"too_long"}}'

    async def full(answer: Answer) -> None:
        await answer.whole(error, 400, Content_Type="application/json", X_Own="1")

    backend.play(full)
    with Mitmdump(backend.url, toolsim_mode="auto") as proxy, Line(proxy.url) as line:
        for _ in range(2):
            reply = line.post("/v1/chat/completions", ask(stream=stream))
            assert (reply.status, reply.body, reply.headers["x-own"]) == (400, error, "1")
        assert all("tools" in json.loads(asked.body) for asked in backend.asked)


def test_backend_dies_before_repeated_request(backend: RawBackend, ask: Any) -> None:
    """If the backend dies while the request is sent again, the client receives an error, and its connection stays
    open.
    """

    async def dies(answer: Answer) -> None:
        if "tools" in json.loads(answer.asked.body):
            await answer.whole(NO_JINJA, 500)
        else:
            answer.hang_up()

    backend.play(dies)
    with Mitmdump(backend.url, toolsim_mode="auto") as proxy, Line(proxy.url) as line:
        for _ in range(2):
            reply = line.post("/v1/chat/completions", ask())
            assert (reply.status, reply.json()["error"]["code"]) == (502, "backend_unavailable")
