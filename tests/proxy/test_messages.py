"""Tests for the Messages API: keys, errors, other hosts, retries, and Messages API backends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from proxy.conftest import CALL, WEATHER
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.recording import context
from support.text_backend import TextBackend, refuses, says
from support.wire import MessagesAnswer, chat_frame, chat_whole, event_frame, usage
from toolsim.recordings.replay import replay_file

TOOL = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}  # type: ignore[index]
BONN = {"type": "tool_use", "name": "get_weather", "input": {"city": "Bonn"}}


def asked(**fields: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": "What is the weather?"}]
    return {"model": "m", "max_tokens": 99, "messages": question, "tools": [TOOL], **fields}


def blocks(body: bytes) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "id"} for block in json.loads(body)["content"]]


@pytest.fixture
def text_backend() -> Iterator[TextBackend]:
    with TextBackend([says(CALL)]) as backend:
        yield backend


def test_key_in_the_messages_header(text_backend: TextBackend) -> None:
    """The operator's key is accepted in the header that the Messages API uses, and is not passed on."""
    with Mitmdump(text_backend.url, toolsim_api_key="k") as proxy, Line(proxy.url) as line:
        refused = line.post("/v1/messages", asked(), **{"x-api-key": "wrong"})
        assert (refused.status, refused.json()["type"]) == (401, "error")
        assert refused.json()["error"]["type"] == "authentication_error"
        assert blocks(line.post("/v1/messages", asked(), **{"x-api-key": "k"}).body) == [BONN]
    headers = {name.lower() for name in text_backend.exchanges[0].headers}
    assert not headers & {"x-api-key", "authorization"}


def test_retries_and_their_errors(text_backend: TextBackend) -> None:
    """If a call is malformed, the model tries again. The client receives a single answer, or an error in the format of
    the Messages API.
    """
    with Mitmdump(text_backend.url, toolsim_retry=1) as proxy, Line(proxy.url) as line:
        for stream in (False, True):
            text_backend.play([says('<tool_call>{"name":"get_weather","arguments":{oops</tool_call>'), says(CALL)])
            body = line.post("/v1/messages", asked(stream=stream), **{"x-api-key": "k"}).body
            assert len(text_backend.exchanges) == 2
            for exchange in text_backend.exchanges:
                headers = {name.lower(): value for name, value in exchange.headers.items()}
                assert headers["authorization"] == "Bearer k"
                assert "x-api-key" not in headers
            if stream:
                assert body.count(b"event: message_start") == body.count(b"event: message_stop") == 1
                assert b'"name":"get_weather"' in body
            else:
                assert blocks(body) == [BONN]
        text_backend.play([refuses(500, "Gone.")] * 2)
        failed = line.post("/v1/messages", asked())
        assert failed.status >= 500
        assert failed.json()["error"]["type"] == "api_error"


def test_other_hosts_pass_unchanged() -> None:
    """Without a backend, the proxy forwards a Messages API request unchanged to the host in its URL."""

    async def answers(answer: Answer) -> None:
        await answer.whole(b'{"mine": true}', Content_Type="application/json")

    with RawBackend() as backend, Mitmdump() as proxy, Line(proxy.url) as line:
        backend.play(answers)
        sent = asked()
        response = line.post(f"{backend.url}/v1/messages?beta=true", sent)
        assert response.json() == {"mine": True}
        assert json.loads(backend.asked[0].body) == sent


def test_backend_receives_key_in_its_header() -> None:
    """The backend receives the key in the header that its own API uses. This includes requests for the model list."""

    async def answers(answer: Answer) -> None:
        await answer.whole(b'{"object":"list","data":[{"id":"m1"}]}', Content_Type="application/json")

    own = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    with RawBackend() as backend, Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        backend.play(answers)
        listed = line.request("GET", "/v1/models?limit=1000", **own).json()
        assert (listed["data"][0]["type"], listed["has_more"]) == ("model", False)
        assert backend.asked[-1].header("authorization") == "Bearer k"
        assert backend.asked[-1].header("x-api-key") is None
    options = {"toolsim_upstream_key": "theirs", "toolsim_backend": "messages"}
    with RawBackend() as backend, Mitmdump(backend.url, **options) as proxy, Line(proxy.url) as line:
        backend.play(answers)
        line.request("GET", "/v1/models", authorization="Bearer mine")
        line.post("/v1/messages", asked(tools=[]), **own)
        line.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi."}]})
        for sent in backend.asked:
            assert (sent.header("x-api-key"), sent.header("anthropic-version")) == ("theirs", "2023-06-01")


@pytest.mark.parametrize("options", [{"mode": "auto"}, {"mode": "native", "tool_allowlist": ["!get_time"]}])
def test_masked_tools_are_not_sent(options: dict[str, Any]) -> None:
    """A Messages API backend does not receive tools that the operator has denied. A call to an allowed tool is still
    recognized if the model writes it as text.
    """

    async def answers(answer: Answer) -> None:
        made = MessagesAnswer(counts=usage("messages", 3, 4))
        made.add_text(CALL)
        await answer.whole(json.dumps(made.whole()).encode(), Content_Type="application/json")

    settings = {f"toolsim_{name}": value for name, value in options.items()}
    sent = asked(tools=[TOOL, {**TOOL, "name": "get_time"}], system="Be kind.", top_k=3)
    with RawBackend() as backend, Mitmdump(backend.url, toolsim_backend="messages", **settings) as proxy:
        backend.play(answers)
        with Line(proxy.url) as line:
            assert blocks(line.post("/v1/messages", sent).body) == [BONN]
        got = json.loads(backend.asked[0].body)
        assert '"dropped"' not in proxy.log()
    assert got == ({**sent, "tools": [TOOL]} if "tool_allowlist" in options else sent)


@pytest.mark.parametrize("options", [{"mode": "auto"}, {"mode": "native", "tool_allowlist": ["!get_time"]}, {}])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_signed_reasoning_passes_unchanged(stream: bool, options: dict[str, Any]) -> None:
    """Reasoning with a signature reaches the client unchanged. In the next request, it reaches the backend unchanged,
    as Anthropic requires.
    """
    signed = [
        {"type": "thinking", "thinking": "Bonn, \u00fcber all.", "signature": "EqQB+/8="},
        {"type": "thinking", "thinking": "", "signature": "EmwK="},
        {"type": "redacted_thinking", "data": "EvAF/+=="},
    ]
    content = [*signed, {"type": "text", "text": "I look."}, {**BONN, "id": "toolu_x"}]
    head = {**MessagesAnswer(counts=usage("messages", 3, 4)).whole("tool_use"), "content": content}

    async def answers(answer: Answer) -> None:
        if not stream:
            await answer.whole(json.dumps(head).encode(), Content_Type="application/json")
            return
        await answer.head(Content_Type="text/event-stream")
        await answer.send(b"".join(event_frame(frame) for frame in as_stream(head)))
        await answer.end()

    settings = {f"toolsim_{name}": value for name, value in options.items()}
    tools = [TOOL, {**TOOL, "name": "get_time"}]
    with RawBackend() as backend, Mitmdump(backend.url, toolsim_backend="messages", **settings) as proxy:
        backend.play(answers)
        with Line(proxy.url) as line:
            got = line.post("/v1/messages", asked(stream=stream)).body
            shown = joined(got) if stream else json.loads(got)["content"]
            assert [{key: block[key] for key in block if key != "id"} for block in shown] == [*content[:-1], BONN]
            turn = [{"role": "assistant", "content": shown}, {"role": "user", "content": "Go on."}]
            further = json.dumps(asked(messages=[*asked()["messages"], *turn], tools=tools), indent=1).encode()
            line.request("POST", "/v1/messages", further, content_type="application/json")
    sent = [request.body for request in backend.asked if request.body][-1]
    if options == {"mode": "auto"}:
        assert sent == further
    elif options:
        assert json.loads(sent)["messages"] == json.loads(further)["messages"]


def as_stream(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Convert a complete message to the events that Anthropic's server would send."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        empty = {
            key: type(value)() if key not in ("type", "id", "name", "data") else value for key, value in block.items()
        }
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for key, kind in (("thinking", "thinking"), ("signature", "signature"), ("text", "text")):
            if block.get(key):
                yield {
                    "type": "content_block_delta",
                    "index": index,
                    "delta": {"type": f"{kind}_delta", key: block[key]},
                }
        if "input" in block:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, "usage": {"output_tokens": 4}}
    yield {"type": "message_stop"}


def joined(stream: bytes) -> list[dict[str, Any]]:
    """Return the content blocks of a streamed message as Anthropic's SDK reads them."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=stream, headers={"content-type": "text/event-stream"})

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = Anthropic(api_key="k", base_url="http://x", http_client=http)
        with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as read:
            return [block.to_dict() for block in read.get_final_message().content]


@pytest.mark.parametrize("client", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_messages_backend_serves_every_api(client: str, stream: bool, ask: Any) -> None:
    """With ``toolsim_backend=messages``, the backend receives Messages API requests, regardless of the client's API."""

    async def answers(answer: Answer) -> None:
        made = MessagesAnswer(counts=usage("messages", 3, 4))
        frames = [*made.begin(), *made.add_text(CALL), *made.end()]
        if stream:
            await answer.head(Content_Type="text/event-stream")
            for frame in frames:
                await answer.send(frame)
            await answer.end()
        else:
            await answer.whole(json.dumps(made.whole()).encode(), Content_Type="application/json")

    with RawBackend() as backend, Mitmdump(backend.url, toolsim_backend="messages") as proxy, Line(proxy.url) as line:
        backend.play(answers)
        is_messages = client == "/v1/messages"
        sent = asked(stream=stream, system="Be kind.", top_k=3) if is_messages else ask(stream=stream)
        body = line.post(client, sent).body
        assert b'"name":"get_weather"' in body.replace(b'": "', b'":"')
        got = json.loads(backend.asked[0].body)
    assert backend.asked[0].path == "/v1/messages"
    assert "tools" not in got
    assert [message["role"] for message in got["messages"]] == ["user"]
    assert "get_weather" in got["system"]
    assert got["max_tokens"] > 0
    if is_messages:
        assert got["top_k"] == 3


def test_messages_turn_ends_early_and_is_recorded(tmp_path: Path) -> None:
    """If a Messages API turn is ended early, its headers, log entry and metrics are correct. Its recording contains no
    secrets and can be replayed with the same result.
    """
    call = CALL.replace("Bonn", "sk-proj-PLANTEDopenai0123456789")

    async def talks_on(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        await answer.send(chat_frame("Let me look. "))
        await answer.send(chat_frame(call))
        for _ in range(200):
            await answer.send(chat_frame(" and the weather is fine"))
            await asyncio.sleep(0.05)
        await answer.end()

    options = {"toolsim_stop_after_tools": "on", "toolsim_capture": str(tmp_path), "toolsim_backend": "chat"}
    with RawBackend() as backend, Mitmdump(backend.url, **options) as proxy, Line(proxy.url) as line:
        backend.play(talks_on)
        search = {"type": "web_search_20250305", "name": "web_search"}
        beta = {"anthropic-beta": "never-heard-of-2030-01-01", "x-api-key": "planted-key-1234"}
        extras = {"top_k": 3, "context_management": {"edits": []}}
        reply = line.post("/v1/messages?beta=true", asked(stream=True, tools=[TOOL, search], **extras), **beta)
        assert backend.asked[0].gone.wait(5)
        assert not {"anthropic-beta", "x-api-key"} & {name.lower() for name, _ in backend.asked[0].headers}
        page = line.request("GET", "/toolsim/metrics").body.decode()
    assert reply.body.rstrip().endswith(b'{"type":"message_stop"}')
    assert b"the weather is fine" not in reply.body
    assert reply.headers["x-toolsim-dropped-tools"] == "web_search_20250305"
    assert re.search(r'client="messages".*\} 1\b', page), page
    (noted,) = [line for line in proxy.log().splitlines() if '"client":"messages"' in line.replace(" ", "")]
    dropped = json.loads(noted)["dropped"]
    assert {"top_k", "context_management", "anthropic-beta:never-heard-of-2030-01-01"} <= set(dropped)
    (file,) = tmp_path.glob("*.flow")
    assert b"PLANTED" not in file.read_bytes()
    assert b"planted-key" not in file.read_bytes()
    with context():
        replayed = replay_file(file)
    assert replayed.same, str(replayed)


def test_anthropics_web_search_is_refused(text_backend: TextBackend) -> None:
    """If the backend has a different API, Anthropic's hosted web search is refused with an error that names the type of
    the tool.
    """
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    with Mitmdump(text_backend.url) as proxy, Line(proxy.url) as line:
        refused = line.post("/v1/messages", asked(tools=[search]))
    assert refused.status == 400
    assert "web_search_20250305" in refused.json()["error"]["message"]


def test_backend_error_has_the_clients_format(text_backend: TextBackend) -> None:
    """An error from the backend is converted to the client's format.

    If the prompt is too long, the message begins with the words that Claude Code expects.
    """
    with RawBackend() as backend, Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        error = {"error": {"message": "the request exceeds the available context size", "code": 400}}

        async def answers(answer: Answer) -> None:
            await answer.whole(json.dumps(error).encode(), 400, Content_Type="application/json")

        backend.play(answers)
        for stream in (True, False):
            refused = line.post("/v1/messages", asked(stream=stream))
            assert refused.status == 400
            assert refused.json()["error"]["message"].startswith("prompt is too long: the request exceeds")


def test_request_without_tools_is_translated(text_backend: TextBackend) -> None:
    """A request without tools is converted to the backend's API, and the answer is converted back, with or without
    streaming.
    """

    async def answers(answer: Answer) -> None:
        await answer.whole(chat_whole("Hello."), Content_Type="application/json")

    with RawBackend() as backend, Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        backend.play(answers)
        assert blocks(line.post("/v1/messages", asked(tools=[])).body) == [{"type": "text", "text": "Hello."}]
        assert backend.asked[0].path == "/v1/chat/completions"
        streamed = line.post("/v1/messages", asked(stream=True))
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert b'"text":"Hello."' in streamed.body
        assert b"event: message_stop" in streamed.body
