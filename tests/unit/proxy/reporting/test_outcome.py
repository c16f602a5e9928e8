"""The end of an exchange: its metrics and the data kept in its flow."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow
from toolsim.core.plan import AnswerForm, Plan
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.jobs import RequestJob, run
from toolsim.proxy.metadata import REPORT
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.reporting import outcome
from toolsim.proxy.reporting.open_calls import OpenCalls, OpenTurn
from toolsim.proxy.reporting.outcome import OutcomeReporter, Reports


def reported(plan: Plan | None, reports: Reports) -> Exchange:
    exchange = Exchange(Report(client="chat", backend="chat"), client_id="c", cors={}, limits=Limits())
    exchange.attach(OutcomeReporter(reports))
    exchange.plan = plan
    return exchange


def closed(*, planned: bool, status: int | None, comment: str = "") -> tuple[HTTPFlow, str]:
    """Close an exchange. Return its flow and the metrics in text format."""
    reports = Reports()
    exchange = reported(Plan("chat", "chat", AnswerForm()) if planned else None, reports)
    flow = tflow.tflow(resp=True)
    flow.comment = comment
    exchange.close(flow, status)
    return flow, reports.metrics.text(0)


def test_turn_is_reported_or_counted_as_aborted() -> None:
    """The flow of a completed turn receives a report and a comment. An interrupted turn is counted as aborted."""
    flow, metrics = closed(planned=True, status=200)
    assert flow.metadata[REPORT]["status"] == 200
    assert flow.comment
    assert 'toolsim_exchanges_total{client="chat",backend="chat",stream="false",outcome="ok"} 1' in metrics
    _, metrics = closed(planned=True, status=None)
    assert 'stream="false",outcome="aborted"} 1' in metrics


def test_dropped_tool_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A dropped tool is logged only once per owner and tool type, because clients send the same tools with each
    request.
    """
    caplog.set_level("INFO")
    reports = Reports()
    marks: list[str] = []
    dropped = "TOOL_DROPPED:web_search"
    for owner, warnings in (
        ("a", [dropped, dropped]),
        ("a", [dropped]),
        ("a", [dropped, "TOOL_DROPPED:mcp"]),
        ("b", [dropped]),
        ("a", ["NO_CALL", dropped]),
    ):
        exchange = reported(Plan("chat", "chat", AnswerForm()), reports)
        exchange.owner = owner
        exchange.report.warnings += warnings
        flow = tflow.tflow(resp=True)
        exchange.close(flow, 200)
        marks.append(flow.marked)
        assert flow.metadata[REPORT]["warnings"] == warnings
    assert [bool(mark) for mark in marks] == [True, False, True, True, True]
    assert caplog.text.count(dropped.replace(":", " ")) == 2
    assert 'toolsim_warnings_total{reason="TOOL_DROPPED"} 7' in reports.metrics.text(0)


def test_comment_contains_the_users_message() -> None:
    """A flow's comment shows the user's message and the turn's position in its conversation."""
    exchange = reported(None, Reports())
    flow = tflow.tflow()
    flow.request.path = "/v1/chat/completions"
    messages = [{"role": "user", "content": "Where is Bonn?"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    flow.request.content = json.dumps({"model": "m", "messages": messages, "tools": tools}).encode()
    job = exchange.request_job(flow, "chat", Policy())
    assert job is not None
    exchange.take_request(flow, run(job))
    flow.response = tflow.tresp()
    exchange.close(flow, 200)
    assert "Where is Bonn?" in flow.comment
    assert flow.metadata[REPORT]["place"] == "#1 turn 1"
    assert "#1 turn 1 · m chat · " in flow.comment


def test_passed_request_is_not_counted() -> None:
    """The flow of a request without tools receives a comment but no report, and the request is not counted."""
    flow, metrics = closed(planned=False, status=200)
    assert REPORT not in flow.metadata
    assert flow.comment
    assert 'outcome="ok"} 1' not in metrics


def test_persons_comment_is_kept() -> None:
    """A comment that a person wrote is not overwritten."""
    assert closed(planned=True, status=200, comment="mine")[0].comment == "mine"


def test_exchange_is_freed_when_it_ends() -> None:
    """An exchange is freed as soon as it ends, without waiting for garbage collection."""
    for plan, sse in ((Plan("chat", "chat", AnswerForm(stream=True)), True), (None, False)):
        exchange = reported(plan, Reports())
        flow = tflow.tflow(resp=True)
        assert flow.response is not None
        flow.response.content = None
        flow.response.status_code = 200 if sse else 500
        flow.response.headers["content-type"] = "text/event-stream"
        exchange.begin(flow)
        if not sse:
            flow.response.stream = exchange.recorder.passing
        assert callable(flow.response.stream)
        exchange.close(flow, 200)
        assert flow.response.stream is True
        seen = weakref.ref(exchange)
        gc.disable()
        try:
            del exchange
            assert seen() is None
        finally:
            gc.enable()


def test_lost_call_is_shown_in_its_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the next request lacks the output of a call, the comment, mark and report of the call's flow show that the
    call was lost.
    """
    redrawn: list[HTTPFlow] = []
    monkeypatch.setattr(outcome, "updated", redrawn.append)
    reports, flow = Reports(), tflow.tflow(resp=True)

    def request(text: str, *ids: str, flow: HTTPFlow | None = None) -> None:
        calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
        messages = [{"role": "user", "content": text}]
        messages += [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "?"}] if ids else []
        tool = {"type": "function", "function": {"name": "f"}}
        body = json.dumps({"messages": messages, "tools": [tool]}).encode()
        path = "/v1/chat/completions"
        done = run(RequestJob(api_name="chat", path=path, data=body, limit=10**6, policy=Policy()))
        exchange = reported(Plan("chat", "chat", AnswerForm()), reports)
        exchange.report = done.report
        exchange.report.tool_call_ids = [] if ids else ["call_1", "call_2"]
        feature = exchange.find(OutcomeReporter)
        assert feature is not None
        feature.on_rewritten(exchange, flow or tflow.tflow(), done)
        exchange.close(flow or tflow.tflow(resp=True), 200)

    request("Hi", flow=flow)
    assert "lost_calls" not in flow.metadata[REPORT]
    before = flow.comment
    request("Hi", "call_2", "call_9")
    assert flow.metadata[REPORT]["lost_calls"] == ["call_2"]
    assert flow.comment == f"{before} · no output received for call_2"
    assert (flow.marked, redrawn) == (":warning:", [flow])
    request("Hi", "call_1")
    assert redrawn == [flow]


def test_open_calls_are_bounded() -> None:
    """Calls without an output are remembered only for the latest turn of each of the last 1,000 conversations.
    Remembering a call does not keep its flow in memory.
    """
    calls, flow = OpenCalls(), tflow.tflow()
    calls.add(1, "#1 turn 1", ["a"], flow)
    calls.add(1, "#1 turn 2", ["b"], None)
    calls.add(2, "#2 turn 1", [], None)
    assert calls.lost(2, ["a"]) is None
    assert calls.lost(1, ["a", "b"]) == OpenTurn("#1 turn 2", ["b"], None)
    assert calls.lost(1, ["b"]) is None
    for number in range(1, 1003):
        calls.add(number, "", ["a"], flow)
    assert [calls.lost(number, ["a"]) is not None for number in (1, 2, 3, 1002)] == [False, False, True, True]
    known = weakref.ref(flow)
    del flow
    gc.collect()
    assert known() is None
