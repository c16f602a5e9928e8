"""What a backend's error changes in a request with attempted features."""

from __future__ import annotations

import gzip
import json

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test import tflow
from toolsimlib.plan import Policy
from toolsimlib.proxy.attempt import Attempt, known_of, note_missed_calls
from toolsimlib.proxy.jobs import RequestJob, run
from toolsimlib.proxy.known import Backend, Root
from toolsimlib.proxy.notes import policy_as_dict
from toolsimlib.report import Report
from toolsimlib.request.rewrite import Rewritten

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
}
AUTO = Policy(engine="auto", mode="auto", constrain="auto", sentinel="auto")


def read(policy: Policy = AUTO, backend: Backend | None = None) -> Attempt:
    backend = backend or Backend(Root("http", "h", 1), engine="llama.cpp")
    body = json.dumps(BODY).encode()
    known = known_of(backend, policy)
    path = "/v1/chat/completions"
    job = RequestJob("chat", path, "", body, 10_000, known.policy, None, Report(), known.refused)
    return Attempt(job, policy, backend)


def made(job: RequestJob | None) -> Rewritten:
    assert job is not None
    rewritten = run(job).rewritten
    assert rewritten is not None
    return rewritten


def refused(status: int, content: bytes, **headers: str) -> HTTPFlow:
    flow = tflow.tflow()
    flow.response = Response.make(status, content, {name.replace("_", "-"): value for name, value in headers.items()})
    return flow


def test_one_refusal_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """Tools are refused, then the schema: the last request asks in words, and each refusal was logged once."""
    request = read()
    first = made(request.job)
    assert first.plan.attempts == {"tools"}
    assert first.body == request.job.data
    again = request.without_refused(refused(500, b"tools param requires --jinja flag"), first.plan, again=True)
    second = made(again)
    assert again is not None
    assert again.report.warnings == ["REFUSED:tools"]
    assert second.plan.attempts == {"constraint"}
    assert json.loads(second.body)["response_format"]["type"] == "json_schema"
    assert policy_as_dict(second.plan.policy) == {"constrain": "json_schema", "engine": "llama.cpp"}
    third = made(request.without_refused(refused(400, b"Unsupported: response_format"), second.plan, again=True))
    assert third.plan.attempts == frozenset()
    assert "response_format" not in json.loads(third.body)
    assert b"CLIENT TOOL CATALOG" in third.body
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "--jinja" in caplog.text


def test_a_compressed_refusal_is_read() -> None:
    """The error is decoded before it is read."""
    request = read()
    first = made(request.job)
    flow = refused(400, b"", content_encoding="gzip")
    assert flow.response is not None
    flow.response.raw_content = gzip.compress(b"m does not support tools")
    assert request.without_refused(flow, first.plan, again=True) is not None


@pytest.mark.parametrize(
    ("status", "content"), [(400, b"the context is full"), (200, b"no tools supported"), (500, b"\xff")]
)
def test_other_answers_change_nothing(status: int, content: bytes) -> None:
    """The client gets them, and nothing is remembered."""
    request = read()
    first = made(request.job)
    assert request.without_refused(refused(status, content), first.plan, again=True) is None
    assert request.backend.refused == set()


def test_what_cannot_be_sent_again_is_remembered() -> None:
    """The client gets this error, and the next request leaves the feature out."""
    request = read()
    first = made(request.job)
    assert request.without_refused(refused(400, b"no support: does not support tools"), first.plan, again=False) is None
    assert made(read(backend=request.backend).job).plan.attempts == {"constraint"}


def test_a_missed_call_is_remembered() -> None:
    """A native answer contained a call as text: from then on that model's calls are requested as text."""
    request = read()
    first = made(request.job)
    block = {"choice": 0, "start": 0, "end": 1, "verdicts": ["text UNKNOWN_TOOL"], "repairs": []}
    note_missed_calls(request.backend, first.plan, Report(blocks=[block]))
    assert request.backend.refused == set()
    note_missed_calls(request.backend, first.plan, Report(blocks=[{**block, "verdicts": ["call f"]}]))
    assert request.backend.refused == {("m", "tools")}
