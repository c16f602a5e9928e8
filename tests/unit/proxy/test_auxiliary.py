"""Token counts and summaries, which clients receive instead of an answer from the model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test import tflow
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.auxiliary import AuxiliaryRequest
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.jobs import AnswerResult, run
from toolsim.proxy.options.settings import Limits
from toolsim.wire.responses.operations import Action


def asked(action: Action, backend: Any = "auto", **body: Any) -> tuple[Exchange, AuxiliaryRequest, HTTPFlow]:
    """Return the exchange, the auxiliary request, and the flow with the rewritten request."""
    flow = tflow.tflow()
    flow.request.path = f"/v1/responses/{action}"
    flow.request.raw_content = json.dumps({"model": "m", "input": "Hello", **body}).encode()
    exchange = Exchange(Report(), client_id="c", cors={}, limits=Limits())
    other = AuxiliaryRequest(action)
    exchange.attach(other)
    job = exchange.request_job(flow, "responses", Policy(backend=backend))
    assert job is not None
    exchange.take_request(flow, run(job))
    return exchange, other, flow


def response_of(flow: HTTPFlow) -> dict[str, Any]:
    assert flow.response is not None
    answer: dict[str, Any] = json.loads(flow.response.content or b"")
    return answer


def test_chat_backend_receives_no_count_request() -> None:
    """A chat backend has no endpoint for token counts, so toolsim returns an estimate without contacting the
    backend.
    """
    exchange, other, flow = asked("input_tokens", "chat")
    assert response_of(flow)["estimated"] is True
    other.on_body(exchange, flow)
    assert response_of(flow)["estimated"] is True


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"input_tokens":7}', {"input_tokens": 7}),
        (404, b"nothing here", {"object": "response.input_tokens", "input_tokens": 6, "estimated": True}),
        (429, b'{"error":{"message":"slow"}}', {"error": {"message": "slow"}}),
    ],
)
def test_backend_count_is_returned(status: int, body: bytes, expected: dict[str, Any]) -> None:
    """The client receives the backend's count or error. If the backend has no endpoint for token counts, the client
    receives an estimate.
    """
    exchange, other, flow = asked("input_tokens")
    assert flow.response is None
    assert flow.request.path == "/v1/responses/input_tokens"
    flow.response = Response.make(status, body)
    flow.response.stream = True
    exchange.begin(flow)
    assert flow.response.stream is False
    other.on_body(exchange, flow)
    assert response_of(flow) == expected
    assert ("responses" not in exchange.backend.uncounted) is (status != 404)


@pytest.mark.parametrize(
    ("api", "backend", "engine"),
    [("messages", "messages", "unknown"), ("messages", "auto", "vllm"), ("responses", "chat", "llama.cpp")],
)
def test_messages_server_counts_all_text(api: Any, backend: Any, engine: Any) -> None:
    """A server that has the Messages API's ``count_tokens`` counts all text that a turn would contain, regardless of
    the client's API.
    """
    flow = tflow.tflow()
    flow.request.path = "/v1/messages/count_tokens?beta=true" if api == "messages" else "/v1/responses/input_tokens"
    tool = {
        "name": "get_weather",
        "input_schema": {"type": "object"},
        "parameters": {"type": "object"},
        "type": "function",
    }
    asked = {"messages": [{"role": "user", "content": "Hello"}]} if api == "messages" else {"input": "Hello"}
    flow.request.raw_content = json.dumps({"model": "m", "max_tokens": 9, "tools": [tool], **asked}).encode()
    exchange = Exchange(Report(), client_id="c", cors={}, limits=Limits())
    other = AuxiliaryRequest("input_tokens")
    exchange.attach(other)
    job = exchange.request_job(
        flow, api, Policy(backend=backend, engine=engine, mode="auto" if engine != "unknown" else "inject")
    )
    assert job is not None
    exchange.take_request(flow, run(job))
    assert flow.response is None
    assert flow.request.path.partition("?")[0] == "/v1/messages/count_tokens"
    sent = json.loads(flow.request.raw_content or b"")
    assert sent.keys() == {"model", "messages", "system"}
    assert "get_weather" in sent["system"]
    flow.response = Response.make(200, b'{"input_tokens":7}')
    other.on_body(exchange, flow)
    shape = {} if api == "messages" else {"object": "response.input_tokens"}
    assert response_of(flow) == {**shape, "input_tokens": 7}


def test_compaction_replaces_the_answer() -> None:
    """In response to a compaction request, a compaction replaces the model's answer. Errors, and answers to ordinary
    turns, are not replaced.
    """
    exchange, other, _ = asked("compact", "chat")
    item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "toolsim:eA=="}
    body = json.dumps({"status": "completed", "output": [item]}).encode()
    done = other.on_body_done(exchange, AnswerResult(Report(), body=body))
    assert [item["type"] for item in json.loads(done.body)["output"]] == ["message", "compaction"]
    bad = AnswerResult(Report(), status=502, body=b"{}")
    assert other.on_body_done(exchange, bad) is bad
    assert other.on_body_done(exchange, AnswerResult(Report(), body=b"{}")).error is not None
    exchange, other, _ = asked("input_tokens", "chat")
    assert other.on_body_done(exchange, done) is done
