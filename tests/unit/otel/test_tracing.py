"""Tests for the spans of an exchange. The tests call the addon's hooks directly, and OpenTelemetry's in-memory exporter
collects the spans.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons, tflow
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from toolsim.mcp.approvals import Approvals
from toolsim.mcp.outcome import ToolOutcome, failed
from toolsim.mcp.pool import Pool
from toolsim.mcp.servers import Server
from toolsim.otel.content import Content
from toolsim.otel.export import Export
from toolsim.otel.tracing import Tracing
from toolsim.proxy.addon import ToolSim
from toolsim.proxy.attempt import Attempt
from toolsim.rounds.hosted_calls import McpContext
from toolsim.wire.mcp_items import McpCall

CALL = '<tool_call>{"name":"f","arguments":"{\\"place\\":\\"Atlantis\\"}"}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]
ASK = {"model": "m", "messages": [{"role": "user", "content": "a private question"}], "tools": TOOLS}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m-2026",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": CALL}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Stage:
    """toolsim's addon and its tracing addon. ``memory`` contains the spans of all exchanges in a test."""

    def __init__(self, addon: ToolSim) -> None:
        self.memory = InMemorySpanExporter()
        self.export = Export([self.memory], Content(False))
        self.tracing = Tracing(self.export)
        self._addon = addon
        self._addons: list[Any] = [addon, self.tracing]

    def call(self, hook: str, flow: HTTPFlow) -> None:
        for addon in self._addons:
            if (method := getattr(addon, hook, None)) is not None:
                assert method(flow) is None, "it works at once"

    def begin(self, body: object = ASK, path: str = "/v1/chat/completions", **headers: str) -> HTTPFlow:
        flow = tflow.tflow()
        flow.live = True
        flow.client_conn.proxy_mode = ProxyMode.parse("reverse:http://backend")
        flow.request.method, flow.request.path = "POST", path
        flow.request.content = json.dumps(body).encode()
        flow.request.headers.update(headers)
        self.call("requestheaders", flow)
        self.call("request", flow)
        return flow

    def answer(self, flow: HTTPFlow, answer: object = ANSWER, status: int = 200) -> None:
        flow.response = tflow.tresp(status_code=status, content=json.dumps(answer).encode())
        flow.response.headers["content-type"] = "application/json"
        self.call("responseheaders", flow)

    def run(self, body: object = ASK, answer: object = ANSWER, status: int = 200, **headers: str) -> HTTPFlow:
        flow = self.begin(body, **headers)
        if flow.response is None:
            self.answer(flow, answer, status)
        self.call("response", flow)
        return flow

    def spans(self) -> list[ReadableSpan]:
        self.export._provider.force_flush()
        return sorted(self.memory.get_finished_spans(), key=lambda span: span.start_time or 0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    addon = ToolSim(alone=True)
    with taddons.context(addon) as context:
        context.options.add_option("connection_strategy", str, "eager", "")
        # Otherwise, the addon would try to detect the engine of a backend that does not exist.
        context.configure(addon, toolsim_engine="unknown")
        stage = Stage(addon)
        yield stage
        ToolSim.exchanges.forget()
        await stage.tracing.done()
        await addon.done()


def error(span: ReadableSpan) -> tuple[Any, bool]:
    """Return the error type of a span, and whether its status is ``ERROR``."""
    return (span.attributes or {}).get("error.type"), span.status.status_code is StatusCode.ERROR


def test_turn_has_client_and_model_spans(stage: Stage) -> None:
    """A turn has a span for the client's request and, within it, a span for the model. Both spans contain counts but no
    text from the conversation.
    """
    flow = stage.run(traceparent=PARENT, tracestate="rojo=1", authorization="Bearer sk-own-key-of-the-client")
    turn, chat = stage.spans()
    assert (turn.name, turn.kind) == ("POST /v1/chat/completions", SpanKind.SERVER)
    assert (chat.name, chat.kind) == ("chat m", SpanKind.CLIENT)
    assert turn.parent is not None
    assert chat.parent is not None
    assert turn.context is not None
    assert chat.context is not None
    assert f"00-{turn.context.trace_id:032x}-{turn.parent.span_id:016x}-01" == PARENT
    assert chat.parent.span_id == turn.context.span_id
    sent = flow.request.headers
    assert sent["traceparent"] == f"00-{turn.context.trace_id:032x}-{chat.context.span_id:016x}-01"
    assert sent["tracestate"] == "rojo=1"
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "server.address": "address",
        "server.port": 22,
    }
    assert turn.attributes is not None
    assert turn.attributes["http.response.status_code"] == 200
    assert turn.attributes["toolsim.calls"] == ("f",)
    assert (error(turn), error(chat)) == ((None, False), (None, False))
    everything = "".join(span.to_json() for span in (turn, chat))
    assert not [word for word in ("private", "Atlantis", "sk-own", "place") if word in everything]


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ({}, None),
        ({"traceparent": "00-zz-zz-01", "tracestate": "rojo=1"}, None),
        ({"tracestate": "rojo=1"}, None),
        ({"traceparent": PARENT.replace("-01", "-00"), "tracestate": "rojo=1"}, "rojo=1"),
    ],
)
def test_trace_context_is_continued(stage: Stage, headers: dict[str, str], state: str | None) -> None:
    """A valid trace context from the client is continued, while an invalid one is replaced together with its
    ``tracestate``. If the client does not sample its trace, no spans are recorded.
    """
    flow = stage.run(**headers)
    is_sampled = not headers.get("traceparent", "").endswith("-00")
    assert len(stage.spans()) == 2 * is_sampled
    assert flow.request.headers.get("tracestate") == state
    assert int(flow.request.headers["traceparent"][-2:], 16) & 1 == is_sampled
    assert flow.request.headers["traceparent"] != headers.get("traceparent")
    assert (PARENT[3:35] in flow.request.headers["traceparent"]) == (state is not None)


@pytest.mark.parametrize(
    ("status", "of_turn"), [(400, ("400", False)), (429, ("429", False)), (500, ("500", True)), (503, ("503", True))]
)
def test_backend_error_fails_the_model_span(stage: Stage, status: int, of_turn: tuple[str, bool]) -> None:
    """A backend error always marks the model span as failed. The client span is marked as failed only for a server
    error (5xx), as the HTTP conventions require.
    """
    stage.run(answer={"error": {"message": "sk-own-key-of-the-client is wrong"}}, status=status)
    turn, chat = stage.spans()
    assert error(chat) == (str(status), True)
    assert error(turn) == of_turn
    assert "is wrong" not in turn.to_json() + chat.to_json()


def test_refused_request_has_no_model_span(stage: Stage) -> None:
    """A refused request has no model span, because it is not sent to the backend."""
    stage.run({"model": "m", "messages": "none", "tools": TOOLS})
    [turn] = stage.spans()
    assert turn.attributes is not None
    assert turn.attributes["http.response.status_code"] == 400
    assert error(turn)[1] is False


def test_strict_failure_has_an_error_code(stage: Stage) -> None:
    """If a call violates a strict schema, the client span and the model span have the report's error code, although the
    backend answered successfully.
    """
    strict = {"name": "f", "strict": True, "parameters": {"type": "object", "required": ["x"], "properties": {"x": {}}}}
    stage.run(ASK | {"tools": [{"type": "function", "function": strict}]})
    turn, chat = stage.spans()
    assert error(turn) == ("invalid_tool_call", False)
    assert error(chat) == ("invalid_tool_call", True)
    assert chat.attributes is not None
    assert chat.attributes["toolsim.strict_failures"] == ("SCHEMA_MISMATCH:f",)


def test_client_disconnect_ends_the_spans(stage: Stage) -> None:
    flow = stage.begin()
    stage.call("error", flow)
    turn, chat = stage.spans()
    assert error(turn) == error(chat) == ("aborted", True)


def test_closed_connection_ends_its_spans(stage: Stage) -> None:
    """If a connection is closed, the spans of its flow end, although mitmproxy does not call a hook for the flow."""
    flow = stage.begin()
    ToolSim.exchanges.close_of(flow.client_conn)
    assert [error(span) for span in stage.spans()] == [("aborted", True)] * 2
    assert not stage.tracing._open


def test_turn_without_tools_has_spans(stage: Stage) -> None:
    """A request without tools has spans without call counts, because its answer is not parsed."""
    stage.run({"model": "m", "messages": []}, traceparent=PARENT)
    turn, chat = stage.spans()
    assert (turn.name, chat.name) == ("POST /v1/chat/completions", "chat m")
    assert turn.attributes is not None
    assert "toolsim.calls" not in turn.attributes


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/responses?api-key=s3cret", "/v1/responses"),
        ("/s3cret/v1/messages", "/v1/messages"),
        ("/v1/responses/compact", "/v1/responses/compact"),
        ("/openai/deployments/s3cret/chat/completions/", "/v1/chat/completions"),
    ],
)
def test_span_names_only_the_api_path(stage: Stage, path: str, route: str) -> None:
    """The name of a span contains only the part of the path that the API defines, because other parts can contain an
    API key.
    """
    flow = stage.begin({"model": "m", "input": "hi", "messages": []}, path)
    stage.call("error", flow)
    turn, *_ = stage.spans()
    assert turn.name == f"POST {route}"
    assert "s3cret" not in turn.to_json()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses/input_tokens", "/v1/files", "/toolsim/health"])
def test_other_requests_have_no_spans(stage: Stage, path: str) -> None:
    flow = stage.begin({"model": "m", "input": "hi"}, path)
    stage.call("error", flow)
    assert stage.spans() == []


def test_resent_request_has_a_separate_span(stage: Stage) -> None:
    """If a request is resent, each attempt has its own model span. The span of the first attempt contains the backend's
    error.
    """
    flow = stage.begin()
    stage.answer(flow, {"error": {}}, 422)
    exchange = ToolSim.exchanges.of(flow)
    assert exchange is not None
    attempt = exchange.find(Attempt)
    assert attempt is None or attempt.second is None, "the core has nothing to do here"
    first = flow.request.headers["traceparent"]
    flow.response = None
    stage.call("toolsim_resend", flow)
    assert flow.request.headers["traceparent"] != first
    stage.answer(flow)
    stage.call("response", flow)
    _, refused, taken = stage.spans()
    assert (refused.name, taken.name) == ("chat m", "chat m")
    assert (error(refused), error(taken)) == (("422", True), (None, False))


def test_request_that_cannot_be_resent_has_an_error(stage: Stage) -> None:
    """If a failed request turns out to be impossible to resend, its model span still contains the backend's error."""
    flow = stage.begin()
    stage.answer(flow, {"error": {}}, 422)
    flow.response = tflow.tresp(status_code=500)
    stage.call("toolsim_resend", flow)
    stage.call("response", flow)
    _, refused = stage.spans()
    assert error(refused) == ("422", True)


async def hosted(stage: Stage, outcome: ToolOutcome | Exception) -> tuple[trace.Span | None, list[ReadableSpan]]:
    """Run an MCP call. Return the span that was current during the call, and all finished spans."""
    flow = stage.begin()
    exchange = ToolSim.exchanges.of(flow)
    assert exchange is not None
    assert exchange.mcp_context(None) is None
    mcp_context = exchange.mcp_context(McpContext(Pool(), Approvals()))
    assert mcp_context is not None
    assert mcp_context.watch is not None
    seen: list[trace.Span] = []

    async def calling() -> ToolOutcome:
        seen.append(trace.get_current_span())
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    call = McpCall("mcp_1", "files", "read_file", '{"path":"/private"}')
    made = mcp_context.watch(Server("files", ("npx",)), call, calling())
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome)):
            await made
    else:
        assert await made is outcome
    stage.call("error", flow)
    return seen[0], stage.spans()


async def test_mcp_call_has_a_span(stage: Stage) -> None:
    """An MCP call has a span within the client's span. During the call, it is the current span."""
    current, spans = await hosted(stage, ToolOutcome("a private text"))
    [turn] = [span for span in spans if span.kind is SpanKind.SERVER]
    [made] = [span for span in spans if span.kind is SpanKind.INTERNAL]
    assert current is not None
    assert current.get_span_context() == made.context
    assert made.parent is not None
    assert made.parent == turn.context
    assert made.name == "execute_tool read_file"
    assert made.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "read_file",
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.call.id": "mcp_1",
        "mcp.method.name": "tools/call",
        "network.transport": "pipe",
        "toolsim.mcp.server": "files",
    }
    assert error(made) == (None, False)
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(
    ("outcome", "kind"), [(failed("gone"), "SERVER_FAILED"), (RuntimeError("a private text"), "aborted")]
)
async def test_failed_mcp_call_has_an_error(stage: Stage, outcome: Any, kind: str) -> None:
    _, spans = await hosted(stage, outcome)
    [made] = [span for span in spans if span.kind is SpanKind.INTERNAL]
    assert error(made) == (kind, True)
    assert "private" not in made.to_json()


async def test_open_spans_end_with_the_addon(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """When the tracing addon stops, for example because it is reloaded, open spans are ended and exported. The turn
    itself continues.
    """
    flow = stage.begin()
    await stage.tracing.done()
    stage.answer(flow)
    stage.call("response", flow)
    assert "ended span" not in caplog.text
    finished = stage.memory.get_finished_spans()
    assert sorted(span.name for span in finished) == ["POST /v1/chat/completions", "chat m"]
    assert {error(span) for span in finished} == {("proxy_stopped", True)}


def test_flow_from_a_file_has_no_spans(stage: Stage) -> None:
    flow = tflow.tflow()
    flow.live = False
    flow.client_conn.proxy_mode = ProxyMode.parse("reverse:http://backend")
    flow.request.method, flow.request.path = "POST", "/v1/chat/completions"
    stage.call("requestheaders", flow)
    assert not stage.tracing._open
    assert "traceparent" not in flow.request.headers
