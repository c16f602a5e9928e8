"""Tests for the traces that the proxy sends to a simulated collector: the tree of spans, how spans end, and the absence
of private data.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.line import Line
from support.mcp_servers import OFFICIAL, over_http
from support.mitmdump import MITMDUMP, ROOT, Mitmdump
from support.otlp_receiver import OtlpReceiver, Received, tree
from support.ports import free_port
from support.text_backend import TextBackend, refuses, says

pytestmark = pytest.mark.slow

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "rojo=1"}
KEY = "sk-own-key-of-the-client-0123456789"
DAYS = {
    "type": "object",
    "properties": {"days": {"type": "integer"}},
    "required": ["days"],
    "additionalProperties": False,
}
GOOD = '<tool_call>{"name":"forecast","arguments":{"days":3}}</tool_call>'
# These numbers and words are too long to occur in a random ID by chance.
BAD = GOOD.replace("3", '"thirty-three"')
ADD = '<tool_call>{"name":"calc__add","arguments":{"a":1234567890123,"b":1}}</tool_call>'
HEADER = '<tool_call>{"name":"web__header","arguments":{"name":"traceparent"}}</tool_call>'
QUESTION = "Is it raining in Atlantis?"


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend(chunk_size=5) as backend:
        yield backend


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    with over_http() as url:
        yield url


@pytest.fixture(scope="module", params=["chat", "responses"])
def proxy(
    request: pytest.FixtureRequest,
    backend: TextBackend,
    collector: OtlpReceiver,
    remote: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mitmdump]:
    never = {"require_approval": "never", "timeout": 15}
    servers = {"calc": OFFICIAL | never, "web": {"url": remote} | never}
    config = tmp_path_factory.mktemp("mcp") / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    with Mitmdump(
        backend.url,
        toolsim_backend=request.param,
        toolsim_retry=2,
        toolsim_mcp_config=str(config),
        environment=collector.environment,
    ) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def check_for_secrets(collector: OtlpReceiver) -> Iterator[None]:
    """After each test, check that its spans contain no text from the conversation and no keys."""
    collector.forget()
    yield
    everything = b"".join(collector.bodies)
    said = (b"Atlantis", b"sk-own", b"1234567890123", b"thirty-three", b"1234567890124")
    assert not [word for word in said if word in everything]


def ask(api: str, *, stream: bool, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request with one strict tool."""
    tool: dict[str, Any] = {"name": "forecast", "strict": True, "parameters": DAYS}
    asked = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": QUESTION}]}
    match api:
        case "chat":
            counted = {"stream_options": {"include_usage": True}} if stream else {}
            tools = [{"type": "function", "function": tool}]
            return "/v1/chat/completions", asked | counted | {"tools": tools} | more
        case "messages":
            shaped = {"name": "forecast", "strict": True, "input_schema": DAYS}
            return "/v1/messages", asked | {"max_tokens": 99, "tools": [shaped]} | more
        case _:
            del asked["messages"]
            return "/v1/responses", asked | {"input": QUESTION, "tools": [{"type": "function", **tool}]} | more


def names(spans: list[Received]) -> list[str]:
    return [span.name for span in spans]


def check(spans: list[Received], parent: str) -> None:
    """Check that the spans form a single trace in which the client span is the parent of all other spans."""
    assert {span.trace for span in spans} == {TRACE}
    assert [span.parent for span in spans] == [parent] + [spans[0].id] * (len(spans) - 1)
    assert all(span.began <= span.ended for span in spans)
    assert {span.resource["service.name"] for span in spans} == {"toolsim"}
    assert {span.kind for span in spans if span.name.startswith("chat")} <= {"CLIENT"}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_span_tree_of_a_retry_and_mcp_calls(
    api: str, stream: bool, proxy: Mitmdump, backend: TextBackend, collector: OtlpReceiver
) -> None:
    """A turn with a retry and MCP calls has the same tree of spans with each API. The backend and the MCP servers
    receive the trace context.
    """
    backend.play([says(BAD), says(ADD + HEADER), says(GOOD)])
    path, body = ask(api, stream=stream)
    with Line(proxy.url) as line:
        reply = line.post(path, body, authorization=f"Bearer {KEY}", **TRACED)
    assert reply.status == 200, reply.body
    assert b"forecast" in reply.body
    spans = collector.spans(6)
    check(spans, CALLER)
    turn, first, second, *calls, third = spans
    assert turn.name == f"POST {path}"
    assert names([first, second, third]) == ["chat m"] * 3
    assert sorted(names(calls)) == ["execute_tool add", "execute_tool header"]
    assert [span.attributes["toolsim.round"] for span in (first, second, third)] == [1, 2, 3]
    assert first.attributes["toolsim.retries"] == ["SCHEMA_MISMATCH:forecast"]
    assert "toolsim.retries" not in second.attributes
    assert (turn.attributes["toolsim.rounds"], turn.attributes["toolsim.calls"]) == (3, ["forecast"])
    assert not any(span.is_error for span in spans)
    counted = [span.attributes.get("gen_ai.usage.output_tokens", 0) for span in (second, third)]
    assert counted == [1, 1]
    # Each request contains the trace context of its own span.
    heard = [exchange.headers["traceparent"] for exchange in backend.exchanges]
    assert heard == [f"00-{TRACE}-{span.id}-01" for span in (first, second, third)]
    assert {exchange.headers["tracestate"] for exchange in backend.exchanges} == {"rojo=1"}
    [to_server] = [call for call in calls if call.name == "execute_tool header"]
    assert f"00-{TRACE}-{to_server.id}-01" in str(backend.exchanges[-1].transcript)


def test_page_shows_the_real_span_tree(proxy: Mitmdump, backend: TextBackend, collector: OtlpReceiver) -> None:
    """The documentation shows the actual tree of spans, except for numbers. The table on the page contains only
    attributes that exist.
    """
    backend.play([says(BAD), says(ADD + HEADER), says(GOOD)])
    with Line(proxy.url) as line:
        line.post(*ask("responses", stream=True), **TRACED)
    spans = collector.spans(6)
    page = (ROOT / "addon" / "docs" / "inspect.md").read_text()
    [shown] = re.findall(r"<!-- trace -->\n```\n(.*?)\n```", page, re.DOTALL)
    assert re.sub(r" *\d+", " N", shown) == re.sub(r" *\d+", " N", tree(spans))
    rows = re.findall(r"^\| `(?:POST|chat|execute_tool) [^|]+\|[^|]+\|([^|]+)\|$", page, re.MULTILINE)
    for row, of_row in zip(rows, (spans[:1], spans[1:3], spans[3:5]), strict=True):
        named = [f"gen_ai{name}" if name[0] == "." else name for name in re.findall(r"`([a-z_.]+)`", row)]
        found = {key for span in of_row for key in span.attributes}
        assert set(named) <= found
        assert {key for key in found - set(named) if key.startswith("gen_ai")} <= {
            "gen_ai.operation.name",
            *(key for key in found if key.startswith("gen_ai.usage")),
        }


@pytest.mark.parametrize("stream", [True, False])
def test_undeclared_call_and_replacement_are_two_spans(
    stream: bool, backend: TextBackend, collector: OtlpReceiver
) -> None:
    """An undeclared call and the text that replaces it are two consecutive spans with separate token counts."""
    backend.play([says('{"name": "greet", "arguments": {}}'), says("Hello", "!", pause=0.2)])
    with Mitmdump(backend.url, environment=collector.environment) as proxy, Line(proxy.url) as line:
        path, body = ask("chat", stream=stream)
        assert b"greet" not in line.post(path, body, **TRACED).body
        turn, first, second = spans = collector.spans(3)
    check(spans, CALLER)
    assert [first.attributes.get("toolsim.round"), second.attributes["toolsim.round"]] == [None, 2]
    assert turn.attributes["toolsim.rounds"] == 2
    counted = [span.attributes["gen_ai.usage.output_tokens"] for span in (first, second)]
    assert counted == [4, 1]
    assert not any(span.is_error for span in spans)
    assert [exchange.headers["traceparent"][36:52] for exchange in backend.exchanges] == [first.id, second.id]


@pytest.mark.parametrize("stream", [True, False])
def test_request_without_a_trace_starts_one(stream: bool, backend: TextBackend, collector: OtlpReceiver) -> None:
    """A request without a trace context starts a new trace, even if it has no tools and is therefore forwarded
    unread.
    """
    backend.play([says("No.")])
    with Mitmdump(backend.url, environment=collector.environment) as proxy, Line(proxy.url) as line:
        path, body = ask("chat", stream=stream)
        del body["tools"]
        assert line.post(path, body).status == 200
    assert "toolsim-" in backend.exchanges[0].headers["via"]
    turn, chat = collector.spans(2)
    assert (turn.parent, chat.parent) == ("", turn.id)
    assert (turn.trace == chat.trace, len(turn.trace)) == (True, 32)


def test_dying_backend_marks_both_spans(proxy: Mitmdump, backend: TextBackend, collector: OtlpReceiver) -> None:
    """If the backend dies in the middle of a stream, the client span and the model span are marked as errors, although
    the HTTP status is 200.
    """
    backend.play([says("It ", "is ", ending="eof")])
    path, body = ask("chat", stream=True)
    with Line(proxy.url) as line:
        line.post(path, body, **TRACED)
    turn, chat = collector.spans(2)
    assert (turn.attributes["http.response.status_code"], turn.is_error, chat.is_error) == (200, True, True)
    assert turn.attributes["error.type"] == chat.attributes["error.type"] == "backend_truncated"


def test_backend_429_is_an_error_of_its_span(proxy: Mitmdump, backend: TextBackend, collector: OtlpReceiver) -> None:
    """If the backend returns status 429, the model span is marked as failed. Following the HTTP conventions, the client
    span is not.
    """
    backend.play([refuses(429, f"Slow down, {KEY}.")])
    path, body = ask("responses", stream=False)
    with Line(proxy.url) as line:
        assert line.post(path, body, **TRACED).status == 429
    turn, chat = collector.spans(2)
    assert (turn.attributes["error.type"], turn.is_error) == ("429", False)
    assert (chat.attributes["error.type"], chat.is_error) == ("429", True)


def test_disconnect_ends_both_spans(proxy: Mitmdump, backend: TextBackend, collector: OtlpReceiver) -> None:
    """If the client disconnects, the client span and the model span end with the error "aborted"."""
    backend.play([says("Well, ", *["and "] * 500, pause=0.02)])
    path, body = ask("responses", stream=True)
    with Line(proxy.url) as line:
        line.begin("POST", path, body, **TRACED).read1(10)
    spans = collector.spans(2)
    check(spans, CALLER)
    assert [(span.attributes["error.type"], span.is_error) for span in spans] == [("aborted", True)] * 2


def test_websocket_requests_are_turns(proxy: Mitmdump, backend: TextBackend, collector: OtlpReceiver) -> None:
    """Each request on a WebSocket connection is a turn with its own spans, in the trace of the upgrade request. The
    connection has no span.
    """
    client = pytest.importorskip("websockets.sync.client", reason="needs the extra [clients]: run `make setup`")
    backend.play([says(GOOD), says("It rains.")])
    _, body = ask("responses", stream=True)
    with client.connect(f"ws{proxy.url[4:]}/v1/responses", additional_headers=TRACED) as connection:
        for _ in range(2):
            connection.send(json.dumps({"type": "response.create", "store": False, **body}))
            while json.loads(connection.recv(timeout=20))["type"] != "response.completed":
                pass
    spans = collector.spans(4)
    assert names(spans) == ["POST /v1/responses", "chat m"] * 2
    check(spans[:2], CALLER)
    check(spans[2:], CALLER)
    assert spans[0].attributes["network.protocol.name"] == "websocket"


def test_repeated_request_has_two_spans(backend: TextBackend, collector: OtlpReceiver) -> None:
    """If the backend rejects tools, the request is sent twice. Each attempt has a model span, whose parent is the
    client span.
    """
    refusal = refuses(400, "This model does not support tools")
    backend.play(lambda exchange: refusal if "tools" in exchange.body else says(GOOD))
    with (
        Mitmdump(backend.url, toolsim_backend="chat", toolsim_mode="auto", environment=collector.environment) as proxy,
        Line(proxy.url) as line,
    ):
        path, body = ask("chat", stream=False)
        tool = dict(body["tools"][0]["function"])
        del tool["strict"]
        reply = line.post(path, body | {"tools": [{"type": "function", "function": tool}]}, **TRACED)
        assert reply.json()["choices"][0]["message"]["tool_calls"]
        spans = collector.spans(len(backend.exchanges) + 1)
    assert len(backend.exchanges) == 2, "the backend was not sent tools"
    check(spans, CALLER)
    _, refused, taken = spans
    assert (refused.attributes["error.type"], refused.is_error, taken.is_error) == ("400", True, False)
    heard = [exchange.headers["traceparent"] for exchange in backend.exchanges]
    assert heard == [f"00-{TRACE}-{span.id}-01" for span in (refused, taken)]


def test_background_answer_has_a_span(backend: TextBackend, collector: OtlpReceiver) -> None:
    """The model span of a background answer belongs to the trace of the request that started the answer, even if the
    answer ends later.
    """
    backend.play([says("It ", "rains.", pause=0.2)])
    path, body = ask("responses", stream=False, background=True)
    with (
        Mitmdump(backend.url, toolsim_store="memory", environment=collector.environment) as proxy,
        Line(proxy.url) as line,
    ):
        assert line.post(path, body, **TRACED).json()["status"] == "queued"
        spans = collector.spans(2)
    check(spans, CALLER)
    turn, chat = spans
    assert names(spans) == ["POST /v1/responses", "chat m"]
    assert turn.ended < chat.ended
    assert not turn.is_error
    assert not chat.is_error


@pytest.mark.parametrize("drain", [0, 5])
def test_spans_are_sent_at_the_end(drain: int, backend: TextBackend, collector: OtlpReceiver) -> None:
    """After SIGTERM, all pending spans are sent. Spans that are still open end when the drain ends or, without a drain,
    when the proxy exits.
    """
    backend.play([says("Well, ", *["and "] * 10, pause=0.05), says("No.")])
    later = collector.environment | {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    with (
        Mitmdump(backend.url, toolsim_drain_timeout=drain, environment=later) as proxy,
        Line(proxy.url) as line,
    ):
        path, body = ask("responses", stream=True)
        line.begin("POST", path, body).read1(10)
        assert collector.bodies == []
        proxy.signal(signal.SIGTERM)
        assert proxy.ended() == 0
    turn, chat = collector.spans(2)
    assert turn.is_error == chat.is_error == (not drain)
    if not drain:
        assert turn.attributes["error.type"] == "proxy_stopped"


@pytest.mark.parametrize("way", ["nobody listens", "errors"])
def test_failing_collector_does_not_affect_turns(way: str, backend: TextBackend, collector: OtlpReceiver) -> None:
    """If the trace collector fails, turns are still answered, the log has one line about it, and the proxy still exits
    promptly.
    """
    collector.status = 500
    url = collector.url if way == "errors" else f"http://127.0.0.1:{free_port()}"
    environment = collector.environment | {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    try:
        with Mitmdump(backend.url, environment=environment) as proxy, Line(proxy.url) as line:
            backend.play([says(GOOD)] * 4)
            for _ in range(2):
                assert line.post(*ask("responses", stream=True)).status == 200
            proxy.wait_for("cannot export traces")
            for _ in range(2):
                assert line.post(*ask("responses", stream=True)).status == 200
    finally:
        collector.status = 200
    told = [line for line in proxy.log().splitlines() if "export" in line or "opentelemetry" in line]
    assert len(told) == 1, told


def test_content_is_recorded_only_if_enabled(backend: TextBackend) -> None:
    """If ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` is set, spans contain the prompt and the answer, but no
    API keys.
    """
    with OtlpReceiver() as receiver:
        environment = receiver.environment | {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}
        with Mitmdump(backend.url, environment=environment) as proxy, Line(proxy.url) as line:
            backend.play([says(f"The key is {KEY}. {GOOD}")])
            path, body = ask("responses", stream=True)
            line.post(path, body, authorization=f"Bearer {KEY}")
            turn, chat = receiver.spans(2)
        asked = json.loads(chat.attributes["gen_ai.input.messages"])
        [said] = json.loads(chat.attributes["gen_ai.output.messages"])
        assert QUESTION in str(asked)
        assert "CLIENT TOOL CATALOG" in str(asked)
        assert GOOD in said["parts"][0]["content"]
        assert KEY.encode() not in b"".join(receiver.bodies)
        assert not [name for name in turn.attributes if "message" in name]


@pytest.mark.ci
@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_opentelemetry_is_not_imported_unless_enabled(environment: dict[str, str], tmp_path: Path) -> None:
    """The proxy imports OpenTelemetry only if traces are enabled."""
    script = tmp_path / "shows.py"
    script.write_text(
        "import sys\n"
        "class Shows:\n"
        "    def running(self):\n"
        "        print('loaded:', sorted(name for name in sys.modules if 'otel' in name or 'telemetry' in name))\n"
        "addons = [Shows()]\n"
    )
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"} | environment if environment else {}
    with Mitmdump(
        toolsim_backend="scripted", arguments=["-s", str(script)], command=MITMDUMP, environment=asked
    ) as proxy:
        found = proxy.wait_for(r"loaded: (\[.*\])")[1]
    assert json.loads(found.replace("'", '"')) == ["toolsim.otel", "toolsim.otel.start"]


def test_console_exporter_can_be_used() -> None:
    """Any installed span exporter can be used, for example the console exporter of the OpenTelemetry SDK."""
    with (
        Mitmdump(toolsim_backend="scripted", environment={"OTEL_TRACES_EXPORTER": "console"}) as proxy,
        Line(proxy.url) as line,
    ):
        line.post("/v1/responses", {"model": "m", "input": "hi"})
    assert '"name": "POST /v1/responses"' in proxy.log()
