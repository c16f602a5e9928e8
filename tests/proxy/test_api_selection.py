"""Tests for the detection of the API of a backend that has only one, for each pair of client and backend APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from proxy.conftest import CALL, WEATHER
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.text_backend import TextBackend, says
from support.wire import ApiName

websockets = pytest.importorskip("websockets.sync.client", reason="needs the extra [clients]: run `make setup`")

APIS: tuple[ApiName, ...] = ("responses", "chat", "messages")
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
ORDERS = {"responses": APIS, "chat": ("chat", "responses", "messages"), "messages": ("chat", "responses", "messages")}
FUNCTION: dict[str, Any] = WEATHER["function"]  # type: ignore[assignment]
TOOLS: dict[str, dict[str, Any]] = {
    "chat": WEATHER,
    "responses": {"type": "function", **FUNCTION},
    "messages": {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]},
}


def request(client: str, *, has_tool: bool = True, **fields: Any) -> dict[str, Any]:
    """Return the body of a request in the format of an API."""
    question = [{"role": "user", "content": "What is the weather?"}]
    body: dict[str, Any] = {"model": "any", **fields}
    body |= {"input": question} if client == "responses" else {"messages": question}
    body |= {"max_tokens": 99} if client == "messages" else {}
    return body | ({"tools": [TOOLS[client]]} if has_tool else {})


def call_of(client: str, reply: Any) -> Any:
    """Return the name and arguments of the only call in an answer, streamed or not."""
    body = reply.body.decode()
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        events = [event for event in reply.events() if event != "[DONE]"]
        if client == "responses":
            item = next(event["response"] for event in events if event["type"] == "response.completed")["output"][0]
            return item["name"], json.loads(item["arguments"])
        if client == "messages":
            name = next(e["content_block"]["name"] for e in events if e["type"] == "content_block_start")
            pieces = [e["delta"].get("partial_json", "") for e in events if e["type"] == "content_block_delta"]
            return name, json.loads("".join(pieces))
        calls = [call["function"] for e in events for c in e["choices"] for call in c["delta"].get("tool_calls", ())]
        return calls[0]["name"], json.loads("".join(call.get("arguments", "") for call in calls))
    answer = json.loads(body)
    if client == "responses":
        return answer["output"][0]["name"], json.loads(answer["output"][0]["arguments"])
    if client == "messages":
        return answer["content"][0]["name"], answer["content"][0]["input"]
    function = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    return function["name"], json.loads(function["arguments"])


BONN = ("get_weather", {"city": "Bonn"})


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


@pytest.mark.parametrize("only", APIS)
@pytest.mark.parametrize("client", APIS)
def test_first_request_finds_the_api(backend: TextBackend, client: str, only: ApiName) -> None:
    """With the first request, the proxy detects the backend's API. Later requests do not try other paths, and the API
    is logged only once.
    """
    backend.apis, backend.rejected, backend.counted = [only], [], []
    tried = ORDERS[client][: ORDERS[client].index(only)]
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        backend.play([says(CALL)] * 3)
        # Without a tool, the request would be forwarded byte for byte.
        for stream in (False, True):
            assert call_of(client, line.post(PATHS[client], request(client, stream=stream))) == BONN
        assert backend.rejected == [PATHS[api] for api in tried]
        assert [exchange.path for exchange in backend.exchanges] == [PATHS[only]] * 2
        backend.play([says("Sunny.")] * 2)
        for stream in (False, True):
            answer = line.post(PATHS[client], request(client, has_tool=False, stream=stream))
            assert answer.status == 200
            assert b"Sunny" in answer.body
        assert len(backend.rejected) == len(tried)
        log, metrics = proxy.log(), line.request("GET", "/toolsim/metrics").body.decode()
        assert log.count(": APIs ") == bool(tried)
        if tried:
            missing = ", ".join(f"no {api}" for api in APIS if api in tried)
            assert f"the backend at {backend.url}/v1: APIs {only} ({missing})" in log
        assert f'toolsim_warnings_total{{reason="NO_API"}} {len(tried)}' in metrics


@pytest.mark.parametrize("only", APIS)
@pytest.mark.parametrize("client", APIS)
def test_first_request_without_tools(backend: TextBackend, client: str, only: ApiName) -> None:
    """Even if the backend does not have the client's API, a first request without tools is answered."""
    backend.apis, backend.rejected = [only], []
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        for stream in (True, False):
            backend.play([says("Sunny.")])
            answer = line.post(PATHS[client], request(client, has_tool=False, stream=stream), **{"x-api-key": "k"})
            assert answer.status == 200, answer.body
            assert b"Sunny" in answer.body
            # The key is in the header that the backend's API requires. Headers of earlier attempts have been removed.
            headers = {name.lower(): value for name, value in backend.exchanges[0].headers.items()}
            assert headers.get("x-api-key" if client == "messages" == only else "authorization", "k").endswith("k")
            assert ("anthropic-version" in headers) is (only == "messages")
            if client == only:
                sent = json.dumps(request(client, has_tool=False, stream=stream)).encode()
                assert backend.exchanges[0].raw == sent


@pytest.mark.parametrize("only", APIS)
def test_websocket_request_finds_the_api(backend: TextBackend, only: ApiName) -> None:
    """The proxy also detects the backend's API if the first request arrives over a WebSocket connection."""
    backend.apis, backend.rejected = [only], []
    backend.play([says(CALL)])
    with Mitmdump(backend.url) as proxy:
        url = proxy.url.replace("http", "ws") + "/v1/responses"
        with websockets.connect(url, proxy=None) as connection:
            connection.send(json.dumps({"type": "response.create", **request("responses")}))
            event: dict[str, Any] = {"type": ""}
            while event["type"] != "response.completed":
                event = json.loads(connection.recv(timeout=20))
        assert event["response"]["output"][0]["name"] == "get_weather"


@pytest.mark.parametrize("only", APIS)
@pytest.mark.parametrize("client", ["responses", "messages"])
def test_counts_of_each_pair(backend: TextBackend, client: str, only: ApiName) -> None:
    """If the backend has the client's API, the backend counts the tokens. Otherwise, the counts are estimates."""
    backend.apis, backend.rejected = [only], []
    path = {"responses": "/v1/responses/input_tokens", "messages": "/v1/messages/count_tokens"}[client]
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        backend.count = 4321
        for _ in range(2):
            reply = line.post(path, request(client))
            assert reply.status == 200, reply.body
            assert reply.json()["input_tokens"] > 50
            backend.play([says(CALL)])
            assert call_of(client, line.post(PATHS[client], request(client))) == BONN
        counted = line.post(path, request(client)).json()["input_tokens"]
        assert (counted == 4321) is (only != "chat")
        backend.count = None


@pytest.mark.parametrize("status", [405, 501])
def test_unknown_path_with_405_or_501(backend: TextBackend, status: int) -> None:
    """An API is recognized as missing even if the backend rejects its path with 405 or 501 instead of 404."""
    backend.apis, backend.rejected, backend.no_path = ["chat"], [], status
    backend.play([says(CALL)])
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        assert call_of("responses", line.post(PATHS["responses"], request("responses"))) == BONN
    backend.no_path = 404


def test_backend_that_changes_its_api(backend: TextBackend) -> None:
    """If the backend's only API is replaced with another, the new API is found, even if it was missing in an earlier
    attempt.
    """
    backend.rejected = []
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        for only in ("chat", "responses", "messages", "responses", "chat"):
            backend.apis = [only]  # type: ignore[list-item]
            backend.play([says(CALL)])
            assert call_of("responses", line.post(PATHS["responses"], request("responses"))) == BONN
            assert len(backend.exchanges) == 1


def test_backend_without_any_api(backend: TextBackend) -> None:
    """If the backend has none of the APIs, each request fails with the backend's error. The paths that were tried are
    listed in the log once.
    """
    backend.apis, backend.rejected = [], []
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        for client in ("responses", "chat", "responses"):
            for has_tool in (False, True):
                reply = line.post(PATHS[client], request(client, has_tool=has_tool))
                assert (reply.status, reply.json()) == (404, {"detail": "Not Found"})
        assert line.post(PATHS["messages"], request("messages")).json()["error"]["message"] == "Not Found"
        assert len(backend.rejected) == 7 * 3
        warning = "it has none of the endpoints /chat/completions, /responses, /messages: is the base URL correct?"
        assert proxy.log().count(warning) == 1


def test_configured_api_is_the_only_one_tried(backend: TextBackend) -> None:
    """If the operator has set the backend's API, toolsim does not try another one, and the client receives the
    backend's error.
    """
    backend.apis, backend.rejected = ["chat"], []
    with Mitmdump(backend.url, toolsim_backend="responses") as proxy, Line(proxy.url) as line:
        assert line.post(PATHS["responses"], request("responses")).json() == {"detail": "Not Found"}
    assert backend.rejected == [PATHS["responses"]]


@pytest.mark.parametrize("stream", [False, True])
def test_inexpressible_request_is_refused(backend: TextBackend, stream: bool) -> None:
    """If the backend's API has no equivalent for a request, such as one with ``previous_response_id``, toolsim refuses
    it. The connection stays open.
    """
    backend.apis, backend.rejected = ["chat"], []
    backend.play([says(CALL)])
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        body = request("responses", stream=stream, has_tool=False, previous_response_id="resp_1")
        reply = line.post(PATHS["responses"], body)
        assert (reply.status, reply.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert call_of("responses", line.post(PATHS["responses"], request("responses"))) == BONN


ABOUT_THE_REQUEST = (
    {"error": {"message": "Not here.", "code": "model_not_found"}},
    {"error": {"message": 'model "any" not found, try pulling it first'}},
    {"detail": "The model `any` does not exist."},
    {"type": "error", "error": {"type": "not_found_error", "message": "model: any"}},
    {"error": {"message": "Item with id 'rs_1' not found.", "param": "input"}},
)


@pytest.mark.parametrize("error", ABOUT_THE_REQUEST)
@pytest.mark.parametrize("has_tool", [True, False])
def test_request_404_reaches_the_client(error: dict[str, Any], has_tool: bool) -> None:
    """If the cause of a 404 is the request and not its path, the client receives the 404 unchanged, and no other path
    is tried.
    """

    async def refuse(answer: Answer) -> None:
        await answer.whole(json.dumps(error).encode(), 404, Content_Type="application/json")

    with RawBackend() as raw, Mitmdump(raw.url) as proxy, Line(proxy.url) as line:
        raw.play(refuse)
        reply = line.post(PATHS["responses"], request("responses", has_tool=has_tool))
        assert (reply.status, reply.json()) == (404, error)
        assert [asked.path for asked in raw.asked] == [PATHS["responses"]]


def test_dying_backend_is_not_retried() -> None:
    """If the backend breaks off its answer, the request is not sent again, because the backend might already have
    processed it.
    """

    async def die(answer: Answer) -> None:
        await answer.head(404, 100, Content_Type="application/json")
        await answer.send(b'{"detail":')
        answer.hang_up()

    async def break_off(answer: Answer) -> None:
        answer.hang_up()

    for behaviour in (die, break_off):
        with RawBackend() as raw, Mitmdump(raw.url) as proxy, Line(proxy.url) as line:
            raw.play(behaviour)
            for stream in (False, True):
                assert line.post(PATHS["responses"], request("responses", stream=stream)).status == 502
            assert [asked.path for asked in raw.asked] == [PATHS["responses"]] * 2


def test_rounds_and_parallel_requests(backend: TextBackend) -> None:
    """The backend's API is also detected if the first answer takes several rounds, or if several first requests arrive
    at the same time.
    """
    backend.apis, backend.rejected = ["chat"], []
    broken = '<tool_call>{"name":"get_weather","arguments":{oops</tool_call>'
    with Mitmdump(backend.url, toolsim_retry=1) as proxy, Line(proxy.url) as line:
        backend.play([says(broken), says(CALL)])
        assert call_of("responses", line.post(PATHS["responses"], request("responses", stream=True))) == BONN
        assert backend.rejected == [PATHS["responses"]]
    with Mitmdump(backend.url) as proxy:
        backend.play([says(CALL)] * 4)
        lines = [Line(proxy.url) for _ in range(4)]
        for line in lines:
            line.send("POST", PATHS["responses"], request("responses"))
        for line in lines:
            response = line._connection.getresponse()
            assert response.status == 200
            assert b"get_weather" in response.read()
            line.close()
        assert proxy.log().count(": APIs chat") == 1


ERRORS: dict[str, bytes] = {
    "messages": b'{"type":"error","error":{"type":"overloaded_error","message":"Too much."}}',
    "fastapi": b'{"detail":[{"loc":["body"],"msg":"Too much."}]}',
    "text": b"Too much.",
}


@pytest.mark.parametrize("client", APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_format_of_the_clients_api(client: str, stream: bool) -> None:
    """A backend's error in any format is converted to the error format of the client's API."""
    other = "messages" if client == "chat" else "chat"
    with RawBackend() as raw, Mitmdump(raw.url, toolsim_backend=other) as proxy, Line(proxy.url) as line:
        for content in ERRORS.values():

            async def refuse(answer: Answer, content: bytes = content) -> None:
                await answer.whole(content, 503, Retry_After="3")

            raw.play(refuse)
            reply = line.post(PATHS[client], request(client, stream=stream))
            assert (reply.status, reply.headers["Retry-After"]) == (503, "3")
            body = reply.json()
            assert ("type" in body) is (client == "messages")
            assert body["error"]["message"].endswith("Too much.")
            assert client == "messages" or body["error"].keys() == {"message", "type", "param", "code"}


def test_body_that_is_not_json_is_the_clients_error(backend: TextBackend) -> None:
    """If the body of a request is not JSON, the client receives a 400. toolsim does not search for the backend's API
    with an invalid request.
    """
    backend.apis, backend.rejected = ["chat"], []
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        reply = line.request("POST", PATHS["messages"], b"{oops", content_type="application/json")
        assert (reply.status, reply.json()["type"]) == (400, "error")
        assert reply.json()["error"]["type"] == "invalid_request_error"
    assert backend.rejected == []
