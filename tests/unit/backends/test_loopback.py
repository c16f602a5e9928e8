"""Tests for the loopback server over real HTTP, with a stand-in for the backend."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from httpx_sse import aconnect_sse
from toolsim.backends.loopback import FLOW, Loopback
from toolsim.backends.scripted.backend import ScriptedBackend
from toolsim.backends.text_backend import TextBackend
from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import (
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
from toolsim.wire.apis import RESPONSES


class Played(TextBackend):
    """A backend that plays back the given events. ``stopped`` is set when the generator of an answer is closed."""

    def __init__(self, *events: BackendEvent | BadRequest) -> None:
        self.events = events
        self.stopped = asyncio.Event()
        self.ended = False

    async def stop(self) -> None:
        self.ended = True

    async def models(self) -> list[str] | ApiError:
        return ApiError("none", status=503, retry_after=4) if not self.events else ["m"]

    async def answer(self, request: ClientRequest) -> AsyncGenerator[BackendEvent]:
        try:
            for event in self.events:
                if isinstance(event, BadRequest):
                    raise event
                yield event
                if isinstance(event, TextDelta) and event.text == "STALL":
                    await asyncio.Event().wait()
        finally:
            self.stopped.set()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=10, trust_env=False) as opened:
        yield opened


async def serve(backend: Any) -> tuple[Loopback, str]:
    loopback = Loopback(backend, is_open=True)
    await loopback.start()
    return loopback, f"http://127.0.0.1:{loopback.port}/v1"


WHOLE = (
    Opened(model="m-1"),
    ReasoningDelta("thi"),
    ReasoningDelta("nk"),
    TextDelta("Grüße"),
    TextDelta(" \ud800"),
    Finished("stop"),
    Counted(Usage(3, 5, 8, 1, 2)),
    Closed(),
)


async def test_responses_stream_equals_the_non_streamed_answer(client: httpx.AsyncClient) -> None:
    """The final response object in a Responses API stream equals the non-streamed answer, and the text deltas add up to
    its text.
    """
    loopback, url = await serve(Played(*WHOLE))
    whole = (await client.post(f"{url}/responses", json={"input": "x"})).json()
    async with aconnect_sse(client, "POST", f"{url}/responses", json={"input": "x", "stream": True}) as source:
        assert source.response.headers["content-type"] == "text/event-stream"
        assert source.response.headers["cache-control"] == "no-cache, no-transform"
        events = [json.loads(sse.data) async for sse in source.aiter_sse() if sse.data != "[DONE]"]
    await loopback.stop()
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    texts = [item.get("content") or item.get("summary") for item in final["output"]]
    assert [[part["text"] for part in parts] for parts in texts] == [["think"], ["Grüße \ufffd"]]
    assert final["usage"]["total_tokens"] == 8
    assert final["model"] == "m-1"
    strip = {"id", "created_at", "completed_at", "output"}
    assert {k: v for k, v in final.items() if k not in strip} == {k: v for k, v in whole.items() if k not in strip}
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert deltas == "Grüße \ufffd"


async def test_chat_stream_equals_the_non_streamed_answer(client: httpx.AsyncClient) -> None:
    """The chunks of a streamed chat completion add up to the non-streamed completion."""
    loopback, url = await serve(Played(*WHOLE))
    whole = (await client.post(f"{url}/chat/completions", json={"messages": []})).json()
    body = {"messages": [], "stream": True, "stream_options": {"include_usage": True}}
    async with aconnect_sse(client, "POST", f"{url}/chat/completions", json=body) as source:
        data = [sse.data async for sse in source.aiter_sse()]
    await loopback.stop()
    assert data[-1] == "[DONE]"
    chunks = [json.loads(chunk) for chunk in data[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"] == "Grüße \ufffd"
    assert chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] == 3
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_failure_before_the_answer_is_an_http_error(client: httpx.AsyncClient, stream: bool) -> None:
    """If the backend fails before the answer begins, the client receives an HTTP error. It has the status, the
    Retry-After and the error code of the failure.
    """
    loopback, url = await serve(Played(Failed(ApiError("gone", code="down", status=503, retry_after=7))))
    answer = await client.post(f"{url}/responses", json={"input": "x", "stream": stream})
    await loopback.stop()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.json() == {"error": {"message": "gone", "type": "server_error", "param": None, "code": "down"}}


async def test_failure_during_a_stream_is_an_error_event(client: httpx.AsyncClient) -> None:
    """If the backend fails during a streamed answer, the stream ends with ``response.failed``. If the answer is not
    streamed, the client receives an HTTP error.
    """
    loopback, url = await serve(Played(Opened(), TextDelta("a"), Failed(ApiError("gone", status=502))))
    async with aconnect_sse(client, "POST", f"{url}/responses", json={"input": "x", "stream": True}) as source:
        events = [json.loads(sse.data) async for sse in source.aiter_sse() if sse.data != "[DONE]"]
    whole = await client.post(f"{url}/responses", json={"input": "x"})
    await loopback.stop()
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "gone"
    assert whole.status_code == 502


async def test_client_disconnect_stops_the_generator(client: httpx.AsyncClient) -> None:
    """When the client disconnects, the backend's generator is closed immediately."""
    backend = Played(Opened(), TextDelta("STALL"), Closed())
    loopback, url = await serve(backend)
    async with client.stream("POST", f"{url}/responses", json={"input": "x", "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if "STALL" in line:
                break
        assert not backend.stopped.is_set()
    await asyncio.wait_for(backend.stopped.wait(), 5)
    await loopback.stop()


async def test_stop_ends_running_answers(client: httpx.AsyncClient) -> None:
    """Stopping the server ends answers in progress, closes all sockets and stops the backend."""
    backend = Played(Opened(), TextDelta("STALL"), Closed())
    loopback, url = await serve(backend)
    async with client.stream("POST", f"{url}/responses", json={"input": "x", "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if "STALL" in line:
                break
        await asyncio.wait_for(loopback.stop(), 5)
    assert backend.stopped.is_set()
    assert backend.ended
    await loopback.stop()
    with pytest.raises(httpx.ConnectError):
        await client.get(f"{url}/models")


async def test_each_frame_is_written_in_one_chunk() -> None:
    """Each HTTP chunk contains exactly one event, because some clients lose an event if its final blank line arrives
    separately.
    """
    loopback, _ = await serve(Played(*WHOLE))
    reader, writer = await asyncio.open_connection("127.0.0.1", loopback.port)
    body = b'{"input":"x","stream":true}'
    head = b"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    await reader.readuntil(b"\r\n\r\n")
    chunks = []
    while (size := int(await reader.readline(), 16)) > 0:
        chunks.append(await reader.readexactly(size))
        await reader.readline()
    writer.close()
    await writer.wait_closed()
    await loopback.stop()
    assert chunks
    assert all(chunk.endswith(b"\n\n") and chunk.count(b"\n\n") == 1 for chunk in chunks)


async def test_errors_have_the_format_of_their_api(client: httpx.AsyncClient) -> None:
    """A malformed body or a refused request causes an error in the API's format."""
    loopback, url = await serve(Played(BadRequest("no input", "input")))
    answers = [
        await client.post(f"{url}/responses", content=b"not json"),
        await client.post(f"{url}/responses", content=b"[" * 100_000),
        await client.post(f"{url}/responses", json={"input": 3}),
        await client.post(f"{url}/responses", json={}),
    ]
    await loopback.stop()
    assert [answer.status_code for answer in answers] == [400, 400, 400, 400]
    assert all(set(answer.json()["error"]) == {"message", "type", "param", "code"} for answer in answers)
    assert [answer.json()["error"]["param"] for answer in answers] == [None, None, "input", "input"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/models", 200, None),
        ("HEAD", "/models", 200, None),
        ("POST", "/models", 405, "GET, HEAD"),
        ("GET", "/responses", 405, "POST"),
        ("DELETE", "/chat/completions", 405, "POST"),
        ("POST", "/embeddings", 404, None),
        ("GET", "/embeddings", 404, None),
        ("HEAD", "/", 404, None),
    ],
)
async def test_endpoints_check_the_method(
    client: httpx.AsyncClient, method: str, path: str, status: int, allow: str | None
) -> None:
    """An unsupported method causes a 405 that lists the allowed methods. An unknown path causes a 404."""
    loopback, url = await serve(Played(*WHOLE))
    answer = await client.request(method, url + path)
    await loopback.stop()
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    assert (answer.content == b"") == (method == "HEAD")


async def test_unsupported_api_is_not_available(client: httpx.AsyncClient) -> None:
    """If the backend supports only the Responses API, as Codex does, chat completions requests receive a 404."""
    played = Played(*WHOLE)
    played.apis = (RESPONSES,)
    loopback, url = await serve(played)
    answer = await client.post(f"{url}/chat/completions", json={"messages": []})
    await loopback.stop()
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_not_found"),
        ({"conversation": {"id": "conv_1"}}, "unsupported_parameter"),
        ({"conversation": "conv_1"}, "unsupported_parameter"),
        ({"background": True}, "unsupported_parameter"),
    ],
)
async def test_request_that_needs_a_store_is_a_400(client: httpx.AsyncClient, body: dict[str, Any], code: str) -> None:
    """A request that refers to stored data or requires background mode is refused, because an answer that ignored these
    fields would be incorrect.
    """
    played = Played(*WHOLE)
    loopback, url = await serve(played)
    answer = await client.post(f"{url}/responses", json={"input": "x", **body})
    await loopback.stop()
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (next(iter(body)), code)
    assert not played.stopped.is_set()


async def test_hosted_tools_are_a_400(client: httpx.AsyncClient) -> None:
    """A request with hosted tools, which the backend would have to run, is refused unless the client forbids calls."""
    loopback, url = await serve(Played(*WHOLE))
    asked = {"input": "x", "tools": [{"type": "mcp"}, {"type": "web_search"}]}
    answer = await client.post(f"{url}/responses", json=asked)
    allowed = await client.post(f"{url}/responses", json={**asked, "tool_choice": "none"})
    await loopback.stop()
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"
    for part in ("mcp, web_search", "toolsim_mcp_hosts", "toolsim_tool_allowlist"):
        assert part in answer.json()["error"]["message"]
    assert allowed.status_code == 200


async def test_model_list_has_the_format_of_the_api(client: httpx.AsyncClient) -> None:
    """The client receives the model list in the format of its API. If the backend cannot list its models, the client
    receives the backend's error.
    """
    loopback, url = await serve(Played(*WHOLE))
    listed = (await client.get(f"{url}/models")).json()
    one, none = await client.get(f"{url}/models/m"), await client.get(f"{url}/models/a/b")
    await loopback.stop()
    assert openai.types.Model.model_validate(one.json()).id == "m"
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")
    assert none.json()["error"]["message"] == "The model 'a/b' does not exist: expected one of m."
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["m"]
    loopback, url = await serve(Played())
    failed = await client.get(f"{url}/models")
    await loopback.stop()
    assert (failed.status_code, failed.headers["retry-after"]) == (503, "4")


async def test_scripted_backend_is_served(client: httpx.AsyncClient) -> None:
    """The scripted backend can be used with both OpenAI APIs, and its answers contain text and usage."""
    loopback, url = await serve(ScriptedBackend(0))
    responses = (await client.post(f"{url}/responses", json={"input": "hello"})).json()
    chat = (await client.post(f"{url}/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})).json()
    await loopback.stop()
    assert "scripted" in responses["output"][0]["content"][0]["text"]
    assert "scripted" in chat["choices"][0]["message"]["content"]
    assert responses["usage"]["input_tokens"] == 1


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/models"])
async def test_only_announced_flows_are_answered(client: httpx.AsyncClient, path: str) -> None:
    """A request is refused unless the addon has announced its flow ID. This also protects against clients that guess
    the port, and against DNS rebinding.

    Each flow ID is accepted only once, because flow IDs are visible on pages and in files.
    """
    played = Played(*WHOLE)
    loopback = Loopback(played)
    await loopback.start()
    url = f"http://127.0.0.1:{loopback.port}/v1"
    loopback.expected.add("expected")
    method = "GET" if path == "/models" else "POST"
    rebound = {FLOW: "expected", "Host": f"evil.example:{loopback.port}"}
    for headers in ({}, {FLOW: ""}, {FLOW: "guessed"}, {FLOW: "guessed", "Origin": "http://evil.example"}, rebound):
        answer = await client.request(method, url + path, content=b'{"input":"x"}', headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "forbidden"
    assert not played.stopped.is_set()
    vouched = {FLOW: "expected", "Origin": "http://listed.example"}
    for status in (200, 403):
        answer = await client.request(method, url + path, content=b'{"input":"x","messages":[]}', headers=vouched)
        assert answer.status_code == status
    await loopback.stop()
