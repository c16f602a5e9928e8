"""Requests that try a feature and, if the backend rejects it, are resent without it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from mitmproxy.http import Response
from mitmproxy.test import tflow
from toolsim.core.plan import Plan
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.attempt import Attempt
from toolsim.proxy.backend_registry import Backend, Root
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.jobs import run
from toolsim.proxy.metadata import policy_as_dict
from toolsim.proxy.options.settings import Limits

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
}
AUTO = Policy(engine="auto", mode="auto", constrain="auto", sentinel="auto")


class Asked:
    """A rewritten request that was sent to the backend, together with its exchange."""

    def __init__(self, backend: Backend | None = None) -> None:
        self.backend = backend or Backend(Root("http", "h", 1), engine="llama.cpp")
        self.exchange = Exchange(Report(), client_id="c", cors={}, limits=Limits(), backend=self.backend)
        self.flow = tflow.tflow()
        self.flow.request.path, self.flow.request.raw_content = "/v1/chat/completions", json.dumps(BODY).encode()
        job = self.exchange.request_job(self.flow, "chat", AUTO)
        assert job is not None
        self.attempt = Attempt(job, self.flow.request.headers.fields)
        self.exchange.take_request(self.flow, run(job))
        self.exchange.attach(self.attempt)

    @property
    def plan(self) -> Plan:
        assert self.exchange.plan is not None
        return self.exchange.plan

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.flow.request.raw_content or b"")
        return found

    def gets(self, status: int, content: bytes, *, can_resend: bool = True, **headers: str) -> bool:
        """Simulate the backend's answer. Return whether the request was resent because of that answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.flow.response = Response.make(status, b"", named)
        self.flow.response.raw_content = content
        if not self.attempt.is_refused(self.exchange, self.flow, can_resend=can_resend):
            return False
        assert self.attempt.second is not None
        self.attempt.take_resent(self.exchange, self.flow, run(self.attempt.second))
        assert self.attempt.second is None
        return True


def test_consecutive_refusals_are_handled(caplog: pytest.LogCaptureFixture) -> None:
    """If the backend rejects first the tools and then the schema, the last request contains neither. Each rejection is
    logged once.
    """
    asked = Asked()
    assert asked.plan.attempts == {"tools"}
    assert asked.flow.request.raw_content == json.dumps(BODY).encode()
    assert asked.gets(500, b"tools param requires --jinja flag")
    assert asked.exchange.report.warnings == ["REFUSED:tools"]
    assert asked.plan.attempts == {"constraint"}
    assert asked.body["response_format"]["type"] == "json_schema"
    assert policy_as_dict(asked.plan.policy) == {"constrain": "json_schema", "engine": "llama.cpp"}
    assert asked.gets(400, b"Unsupported: response_format")
    assert asked.plan.attempts == frozenset()
    assert "response_format" not in asked.body
    assert "CLIENT TOOL CATALOG" in json.dumps(asked.body)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "--jinja" in caplog.text
    assert not asked.gets(400, b"Unsupported: response_format")


def test_resent_round_keeps_its_number() -> None:
    """A resent round keeps its round number and the ID of the client's flow, because metrics and recordings use
    them.
    """
    asked = Asked()
    asked.exchange.report.round, asked.exchange.report.part_of = 2, "flow"
    assert asked.gets(400, b"m does not support tools")
    assert (asked.exchange.report.round, asked.exchange.report.part_of) == (2, "flow")


def test_error_is_examined_before_the_client_receives_it() -> None:
    """If a request tries a feature, an error from the backend is not sent to the client until toolsim has examined its
    body.
    """
    asked = Asked()
    asked.backend.refuses("m", "constraint")
    assert asked.plan.attempts == {"tools"}
    asked.flow.response = Response.make(500)
    asked.flow.response.raw_content = None
    asked.exchange.begin(asked.flow)
    assert asked.flow.response.stream is False
    asked.gets(400, b"m does not support tools")
    asked.flow.response = Response.make(500)
    asked.flow.response.raw_content = None
    asked.exchange.begin(asked.flow)
    # The request uses no other feature that a retry could omit, so the error is passed on to the client unchanged.
    assert asked.exchange.answer_job(asked.flow) is None
    assert asked.flow.response.raw_content is None


def test_compressed_refusal_is_examined() -> None:
    """A compressed error response is decoded before it is examined."""
    assert Asked().gets(400, gzip.compress(b"m does not support tools"), content_encoding="gzip")


@pytest.mark.parametrize(
    ("status", "content"), [(400, b"the context is full"), (200, b"no tools supported"), (500, b"\xff")]
)
def test_other_answers_change_nothing(status: int, content: bytes) -> None:
    """If the backend's answer does not reject a feature, it is sent to the client, and no rejection is remembered."""
    asked = Asked()
    assert not asked.gets(status, content)
    assert asked.backend.refused == set()


def test_refusal_of_an_unrepeatable_request_is_remembered() -> None:
    """If the backend rejects a feature and the request cannot be resent, the client receives the error. The next
    request does not use the feature.
    """
    asked = Asked()
    assert not asked.gets(400, b"no support: does not support tools", can_resend=False)
    assert Asked(asked.backend).plan.attempts == {"constraint"}


def test_missed_call_is_remembered() -> None:
    """If an answer to a request with native tools contains a call as text, later requests to that model describe the
    tools in the prompt.
    """
    for verdict, refused in (("text UNKNOWN_TOOL", set()), ("call f", {("m", "tools")})):
        asked = Asked()
        block = {"choice": 0, "start": 0, "end": 1, "verdicts": [verdict], "repairs": []}
        asked.exchange.report.blocks.append(block)
        asked.exchange.close(asked.flow, 200)
        assert asked.backend.refused == refused
