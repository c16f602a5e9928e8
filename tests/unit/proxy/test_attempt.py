"""What an error of the backend's makes of a request that attempted something."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test import tflow
from toolsimlib.plan import Policy
from toolsimlib.proxy.attempt import ReadRequest, note_missed_calls
from toolsimlib.proxy.known import Backend, Root
from toolsimlib.proxy.notes import NOTE
from toolsimlib.report import Report

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
}
AUTO = Policy(engine="auto", mode="auto", constrain="auto", sentinel="auto")


def read(policy: Policy = AUTO) -> ReadRequest:
    backend = Backend(Root("http", "h", 1), engine="llama.cpp")
    return ReadRequest("chat", "/v1/chat/completions", json.dumps(BODY).encode(), policy, None, backend)


def refused(status: int, said: bytes, **headers: str) -> HTTPFlow:
    flow = tflow.tflow()
    flow.response = Response.make(status, said, {name.replace("_", "-"): value for name, value in headers.items()})
    return flow


def sent(flow: HTTPFlow) -> Any:
    return json.loads(flow.request.content or b"")


def test_one_refusal_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """Tools are refused, then the schema: what is sent in the end asks in words, and each was logged once."""
    request = read()
    first = request.rewritten(Report())
    assert first is not None
    assert first.plan.attempts == {"tools"}
    assert first.body == request.body
    flow = refused(500, b"tools param requires --jinja flag")
    flow.metadata[NOTE] = {"options": {}}
    again = request.without_refused(flow, first.plan, again=True)
    assert again is not None
    plan, report = again
    assert report.warnings == ["REFUSED:tools"]
    assert plan.attempts == {"constraint"}
    assert sent(flow)["response_format"]["type"] == "json_schema"
    assert flow.metadata[NOTE]["options"] == {"constrain": "json_schema", "engine": "llama.cpp"}
    flow.response = Response.make(400, b"Unsupported: response_format")
    again = request.without_refused(flow, plan, again=True)
    assert again is not None
    assert again[0].attempts == frozenset()
    assert "response_format" not in sent(flow)
    assert "CLIENT TOOL CATALOG" in flow.request.text
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "--jinja" in caplog.text


def test_a_compressed_refusal_is_read() -> None:
    """The error counts as decoded."""
    request = read()
    first = request.rewritten(Report())
    assert first is not None
    flow = refused(400, gzip.compress(b"m does not support tools"), content_encoding="gzip")
    assert flow.response is not None
    flow.response.raw_content = gzip.compress(b"m does not support tools")
    assert request.without_refused(flow, first.plan, again=True) is not None


@pytest.mark.parametrize(
    ("status", "said"), [(400, b"the context is full"), (200, b"no tools supported"), (500, b"\xff")]
)
def test_other_answers_change_nothing(status: int, said: bytes) -> None:
    """They are the client's, and nothing is remembered."""
    request = read()
    first = request.rewritten(Report())
    assert first is not None
    flow = refused(status, said)
    before = flow.request.content
    assert request.without_refused(flow, first.plan, again=True) is None
    assert (flow.request.content, request.backend.refused) == (before, set())


def test_what_cannot_be_sent_again_is_remembered() -> None:
    """The client gets this error, and the next request goes without."""
    request = read()
    first = request.rewritten(Report())
    assert first is not None
    assert request.without_refused(refused(400, b"no support: does not support tools"), first.plan, again=False) is None
    second = request.rewritten(Report())
    assert second is not None
    assert second.plan.attempts == {"constraint"}


def test_a_missed_call_is_remembered() -> None:
    """A native answer that held a call as text: its model's calls are asked for as text from then on."""
    request = read()
    first = request.rewritten(Report())
    assert first is not None
    block = {"choice": 0, "start": 0, "end": 1, "verdicts": ["text UNKNOWN_TOOL"], "repairs": []}
    note_missed_calls(request.backend, first.plan, Report(blocks=[block]))
    assert request.backend.refused == set()
    note_missed_calls(request.backend, first.plan, Report(blocks=[{**block, "verdicts": ["call f"]}]))
    assert request.backend.refused == {("m", "tools")}
