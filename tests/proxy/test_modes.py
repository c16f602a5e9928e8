"""Tests for proxies with a built-in backend, with ``toolsim_upstream`` for clients whose base URL is fixed, and without
a backend.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from proxy.conftest import CALL, WEATHER
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from support.wire import chat_whole


@pytest.fixture(scope="module")
def scripted() -> Iterator[Mitmdump]:
    with Mitmdump(toolsim_backend="scripted") as proxy:
        proxy.wait_for("scripted backend answers")
        yield proxy


async def answers(answer: Answer) -> None:
    await answer.whole(chat_whole(CALL), Content_Type="application/json")


QUESTION = "What is the weather in Bonn?"
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "parameters": WEATHER["function"]["parameters"]}  # type: ignore[index]

# -- a built-in backend --


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_scripted_backend_over_both_apis(host: str, stream: bool, scripted: Mitmdump, ask: Any) -> None:
    """With a single option, the scripted backend answers requests of both OpenAI APIs, with and without tools."""
    with Line(f"http://{host}:{scripted.port}") as line:
        response = line.post("/v1/responses", {"input": QUESTION, "tools": [RESPONSES_TOOL], "stream": stream})
        assert b'"function_call"' in response.body
        question = [{"role": "user", "content": QUESTION}]
        assert b'"get_weather"' in line.post("/v1/chat/completions", ask(stream=stream, messages=question)).body
        assert b"scripted" in line.post("/v1/responses", {"input": "hi", "stream": stream}).body
        assert b"scripted" in line.post("/v1/chat/completions", {"messages": [], "stream": stream}).body
        assert line.request("GET", "/v1/models").json()["data"]


@pytest.mark.parametrize("path", ["/other", "/v1/embeddings", "/favicon.ico"])
def test_other_path_of_the_listener_is_a_404(path: str, scripted: Mitmdump) -> None:
    """A request to the listener fails with a 404 in OpenAI's error format if its path does not belong to an API."""
    with Line(scripted.url) as line:
        for method in ("GET", "POST"):
            reply = line.request(method, path, {} if method == "POST" else None)
            assert (reply.status, reply.json()["error"]["code"]) == (404, "not_found")


def test_error_without_a_backend_names_options(ask: Any) -> None:
    """Without a backend, a regular proxy returns an error that names the option to be set."""
    with Mitmdump() as proxy, Line(proxy.url) as line:
        reply = line.post("/v1/chat/completions", ask())
        assert reply.status == 404
        assert "toolsim_backend" in reply.json()["error"]["message"]


# -- toolsim_upstream --

# The path in ``toolsim_upstream``, the path that the client requests, and the resulting path at the backend.
JOINS = [
    ("", "/v1/chat/completions", "/v1/chat/completions"),
    ("/", "/v1/chat/completions?a=1", "/v1/chat/completions?a=1"),
    ("/v1", "/v1/chat/completions", "/v1/chat/completions"),
    ("/openai/v1/", "/v1/chat/completions?a=1", "/openai/v1/chat/completions?a=1"),
    ("/v1", "/api/v3/chat/completions", "/v1/chat/completions"),
]


@pytest.mark.parametrize(("base", "asked", "expected"), JOINS)
def test_upstream_path_replaces_the_clients(
    base: str, asked: str, expected: str, backend: RawBackend, ask: Any
) -> None:
    """The upstream's path replaces the part of the client's path before the endpoint (``/chat/completions``).

    If the upstream has no path, the client's path is kept.
    """
    backend.play(answers)
    with Mitmdump(toolsim_upstream=backend.url + base) as proxy, Line(proxy.url) as line:
        assert line.post(asked, ask()).json()["choices"][0]["message"]["tool_calls"]
        assert backend.asked[-1].path == expected
        assert backend.asked[-1].header("host") == f"127.0.0.1:{backend.port}"


@pytest.fixture(scope="module")
def intercepting(backend: RawBackend) -> Iterator[Mitmdump]:
    with Mitmdump(toolsim_upstream=f"{backend.url}/v1") as proxy:
        yield proxy


def through(proxy: Mitmdump) -> httpx.Client:
    return httpx.Client(proxy=proxy.url, verify=ssl.create_default_context(cafile=str(proxy.authority)))


def test_nonexistent_host(intercepting: Mitmdump, backend: RawBackend, ask: Any) -> None:
    """Even if the client's base URL contains a nonexistent https host, its requests are answered, with or without
    streaming.
    """
    base = "https://api.nowhere.invalid"
    with through(intercepting) as client:
        backend.play(answers)
        whole = client.post(f"{base}/v1/chat/completions", json=ask())
        assert whole.json()["choices"][0]["message"]["tool_calls"]
        backend.play(stream_of("Hi ", CALL))
        for _ in range(2):
            assert '"get_weather"' in client.post(f"{base}/v1/chat/completions", json=ask(stream=True)).text
        backend.play(answers)
        assert client.get(f"{base}/v1/models", headers={"authorization": "Bearer x"}).status_code == 200
        assert backend.asked[-1].path == "/v1/models"


def test_openai_client_with_nonexistent_host(intercepting: Mitmdump, backend: RawBackend) -> None:
    """The OpenAI SDK can complete a tool loop of two turns even if its base URL contains a nonexistent host."""
    import openai

    backend.play(answers)
    with (
        through(intercepting) as http_client,
        openai.OpenAI(
            base_url="https://api.nowhere.invalid/v1", api_key="x", http_client=http_client, max_retries=0
        ) as client,
    ):
        tools: Any = [WEATHER]
        messages: list[Any] = [{"role": "user", "content": "Bonn?"}]
        message = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
        assert message.tool_calls
        backend.play(stream_of("It rains."))
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}]
        chunks = client.chat.completions.create(model="m", messages=messages, tools=tools, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It rains."
    assert "[function_call_output" in json.dumps(json.loads(backend.asked[-1].body))


def test_other_hosts_are_reached(intercepting: Mitmdump, backend: RawBackend) -> None:
    """Requests that do not belong to an API are forwarded to their own host, even if their path resembles that of an
    API.
    """
    backend.play(answers)
    with RawBackend() as site, through(intercepting) as client:

        async def page(answer: Answer) -> None:
            await answer.whole(b"a page")

        site.play(page)
        assert client.get(f"{site.url}/about").text == "a page"
        assert client.get(f"{site.url}/models").text == "a page"
        assert client.post(f"{site.url}/form", content=b"x").text == "a page"
    assert backend.asked == []


def test_upstream_down(ask: Any) -> None:
    """If the upstream is down, the client receives a 502 in the format of its API through the intercepted TLS
    connection.
    """
    with Mitmdump(toolsim_upstream="http://127.0.0.1:9") as proxy, through(proxy) as client:
        for _ in range(2):
            reply = client.post("https://api.nowhere.invalid/v1/chat/completions", json=ask())
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "backend_unavailable")
