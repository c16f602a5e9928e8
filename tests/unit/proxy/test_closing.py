"""The end of an exchange: what is counted, and what is left in its flow (`tests/proxy` covers the rest)."""

from __future__ import annotations

import gc
import weakref

from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow
from toolsimlib.pages.topic import Topic
from toolsimlib.plan import AnswerForm, Plan
from toolsimlib.proxy.closing import close
from toolsimlib.proxy.exchange import Exchange
from toolsimlib.proxy.known import KnownBackends
from toolsimlib.proxy.notes import REPORT
from toolsimlib.proxy.options.settings import Limits
from toolsimlib.proxy.reporting.log import Log
from toolsimlib.proxy.reporting.metrics import Metrics
from toolsimlib.report import Report


def closed(*, planned: bool, status: int | None, comment: str = "") -> tuple[HTTPFlow, str]:
    """Close an exchange; return its flow and the metrics."""
    exchange = Exchange(Report(client="chat", backend="chat"), client_id="c", cors={}, limits=Limits())
    exchange.plan = Plan("chat", "chat", AnswerForm()) if planned else None
    flow, metrics = tflow.tflow(resp=True), Metrics()
    flow.comment = comment
    close(exchange, flow, status, known=KnownBackends(), log=Log(), metrics=metrics)
    return flow, metrics.text(0)


def test_a_turn_of_ours_is_counted_and_reported() -> None:
    """Its flow has a report and a comment; one that broke off is counted as aborted."""
    flow, metrics = closed(planned=True, status=200)
    assert flow.metadata[REPORT]["status"] == 200
    assert flow.comment
    assert 'toolsim_exchanges_total{client="chat",backend="chat",stream="false",outcome="ok"} 1' in metrics
    _, metrics = closed(planned=True, status=None)
    assert 'stream="false",outcome="aborted"} 1' in metrics


def test_the_comment_says_what_it_was_about() -> None:
    """It has the topic, and where the turn is in its conversation."""
    exchange = Exchange(Report(client="chat", backend="chat"), client_id="c", cors={}, limits=Limits())
    exchange.plan = Plan("chat", "chat", AnswerForm())
    exchange.topic, exchange.place = Topic("Where is Bonn?", 1, 1, ()), "#1 turn 1"
    flow = tflow.tflow(resp=True)
    close(exchange, flow, 200, known=KnownBackends(), log=Log(), metrics=Metrics())
    assert "Where is Bonn?" in flow.comment
    assert "#1 turn 1" in flow.comment


def test_what_passed_is_not_counted() -> None:
    """A request without tools leaves a comment and no report."""
    flow, metrics = closed(planned=False, status=200)
    assert REPORT not in flow.metadata
    assert flow.comment
    assert 'outcome="ok"} 1' not in metrics


def test_a_persons_comment_stays() -> None:
    """What a person wrote about a flow is not overwritten."""
    assert closed(planned=True, status=200, comment="mine")[0].comment == "mine"


def test_a_flow_lets_go_of_its_exchange() -> None:
    """What parsed and wrote an answer is freed at its end, without waiting for garbage collection."""
    for plan, sse in ((Plan("chat", "chat", AnswerForm(stream=True)), True), (None, False)):
        exchange = Exchange(Report(client="chat", backend="chat"), client_id="c", cors={}, limits=Limits())
        exchange.plan = plan
        flow = tflow.tflow(resp=True)
        assert flow.response is not None
        flow.response.content = None
        flow.response.status_code = 200 if sse else 500
        flow.response.headers["content-type"] = "text/event-stream"
        exchange.begin(flow)
        if not sse:
            flow.response.stream = exchange.recorder.passing
        assert callable(flow.response.stream)
        close(exchange, flow, 200, known=KnownBackends(), log=Log(), metrics=Metrics())
        assert flow.response.stream is True
        seen = weakref.ref(exchange)
        gc.disable()
        try:
            del exchange
            assert seen() is None
        finally:
            gc.enable()
