"""An exchange: how its answer is handled, its timeouts, and the effects of bugs in toolsim."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test import tflow
from support.each import each
from toolsim.core.plan import AnswerForm, Plan
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.exchange import Exchange, State
from toolsim.proxy.jobs import run
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.timeouts import MAX_TICK_SECONDS
from toolsim.response.rewrite import ResponseRewriter

SSE = "text/event-stream"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def exchange(*, stream: bool = True, planned: bool = True, keepalive: float = 10, idle_timeout: float = 60) -> Exchange:
    limits = Limits(keepalive=keepalive, connect_timeout=5, idle_timeout=idle_timeout, max_answer_bytes=1_000)
    made = Exchange(Report(), client_id="c", cors={}, limits=limits)
    if planned:
        made.plan = Plan("chat", "chat", AnswerForm(stream, "m"))
    return made


def rewrite_request(made: Exchange, flow: HTTPFlow) -> None:
    if (job := made.request_job(flow, "chat", Policy())) is not None:
        made.take_request(flow, run(job))


def rewrite_whole(made: Exchange, flow: HTTPFlow) -> None:
    if (job := made.answer_job(flow)) is not None:
        made.take_answer(flow, run(job))


def answered(status: int = 200, body: bytes | None = None, **headers: str) -> HTTPFlow:
    flow = tflow.tflow(resp=True)
    flow.response = Response.make(status, body or b"", {name.replace("_", "-"): v for name, v in headers.items()})
    if body is None:
        flow.response.raw_content = None
        flow.response.headers["content-length"] = "99"
    return flow


# The fields of each example: whether the exchange has a plan, whether the client requested a stream, and the status,
# headers and body of the response. The last two fields are the results: whether toolsim rewrites the answer, and the
# value of ``flow.response.stream``.
DECISIONS: dict[str, tuple[bool, bool, int, dict[str, str], bytes | None, bool, str]] = {
    "stream": (True, True, 200, {"content_type": SSE}, None, True, "feed"),
    "stream with a charset": (True, True, 201, {"content_type": f"{SSE}; charset=utf-8"}, None, True, "feed"),
    "not asked for": (True, False, 200, {"content_type": SSE}, None, True, "False"),
    "JSON for a stream": (True, True, 200, {"content_type": "application/json"}, None, True, "False"),
    "whole": (True, False, 200, {"content_type": "application/json"}, None, True, "False"),
    "compressed stream": (True, True, 200, {"content_type": SSE, "content_encoding": "gzip"}, None, True, "False"),
    "no content": (True, True, 204, {"content_type": SSE}, None, True, "False"),
    "reset content": (True, True, 205, {"content_type": SSE}, None, True, "False"),
    "identity by name": (True, True, 200, {"content_type": SSE, "content_encoding": "Identity"}, None, True, "feed"),
    "made by an addon": (True, True, 200, {"content_type": SSE}, b"x", True, "False"),
    "error": (True, True, 500, {"content_type": "application/json"}, None, True, "False"),
    "redirect": (True, True, 302, {}, None, False, "passing"),
    "error made by an addon": (True, True, 403, {}, b"no", False, "False"),
    "not ours": (False, False, 200, {"content_type": SSE}, None, False, "True"),
    "refused by us": (False, False, 400, {}, b"{}", False, "False"),
}


@each("name", DECISIONS)
def test_answer_handling_depends_on_plan_and_headers(name: str) -> None:
    """The plan and the headers determine whether an answer is rewritten as a stream, rewritten after it is complete, or
    not rewritten.
    """
    planned, stream, status, headers, body, ours, expected = DECISIONS[name]
    made, flow = exchange(planned=planned, stream=stream), answered(status, body, **headers)
    made.begin(flow)
    assert flow.response is not None
    assert made.is_ours is ours
    assert getattr(flow.response.stream, "__name__", str(flow.response.stream)) == expected
    if expected == "feed":
        assert flow.response.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in flow.response.headers


def test_backend_response_is_not_modified() -> None:
    """The backend's response object is not modified, because mitmproxy uses its headers to decide how to handle the
    connection.
    """
    made, flow = exchange(), answered(content_type=SSE, connection="close")
    original = flow.response
    assert original is not None
    original.http_version = "HTTP/1.0"
    made.begin(flow)
    assert flow.response is not original
    assert original.headers["connection"] == "close"
    assert flow.response is not None
    assert flow.response.http_version == "HTTP/1.1"
    assert "connection" not in flow.response.headers


def test_http_1_0_clients_get_no_chunks() -> None:
    """Clients that use HTTP/1.0 or HTTP/2 receive responses without chunked encoding."""
    for version in ("HTTP/1.0", "HTTP/2.0"):
        made, flow = exchange(), answered(content_type=SSE, transfer_encoding="chunked")
        flow.request.http_version = version
        made.begin(flow)
        assert flow.response is not None
        assert "transfer-encoding" not in flow.response.headers


def test_zero_idle_timeout_waits_forever(clock: Clock) -> None:
    """With an idle timeout of 0, toolsim waits for the backend forever."""
    made = exchange(stream=False, idle_timeout=0)
    clock.now += 1e6
    assert made.overdue() is None
    assert made.timeouts.next_tick() == MAX_TICK_SECONDS


def test_missing_non_streamed_answer_is_a_504(clock: Clock) -> None:
    """If nothing arrives from the backend before the idle timeout, the client receives a 504."""
    made = exchange(stream=False, idle_timeout=60)
    assert made.overdue() is None
    clock.now += 60
    response = made.overdue()
    assert response is not None
    assert response.status_code == 504
    assert not made.is_ours


def test_connect_timeout_is_separate(clock: Clock) -> None:
    """A backend that cannot be reached within the timeout causes a 504. A backend that refuses or drops the connection
    causes a 502.
    """
    for waited, connected, status in ((5, False, 504), (4, False, 502), (50, True, 502)):
        made = exchange()
        if connected:
            made.timeouts.connected()
        clock.now += waited
        assert made.refuse(made.timeouts.unreachable("gone")).status_code == status


def test_internal_error_in_a_non_streamed_answer_is_a_500(monkeypatch: pytest.MonkeyPatch) -> None:
    """If rewriting a non-streamed answer raises an exception, the client receives a 500."""

    def bug(*_: Any) -> list[bytes]:
        raise ZeroDivisionError

    monkeypatch.setattr(ResponseRewriter, "steps", bug)
    made, flow = exchange(stream=False), answered(body=b"{}", content_type="application/json")
    made.begin(flow)
    rewrite_whole(made, flow)
    assert flow.response is not None
    assert (flow.response.status_code, flow.response.json()["error"]["code"]) == (500, "internal_error")


def test_answer_is_rewritten_only_once() -> None:
    """An answer that was already streamed or passed on is not rewritten when it is complete."""
    for made, flow in (
        (exchange(), answered(content_type=SSE)),
        (exchange(), answered(500)),
        (exchange(planned=False), answered(body=b"x")),
    ):
        made.begin(flow)
        before = flow.response
        rewrite_whole(made, flow)
        assert flow.response is before


def test_oversized_answer_is_a_502() -> None:
    """A backend response that exceeds the size limit, even if only after decompression, causes a 502 that names the
    option for the limit.
    """
    for body, headers in ((b"x" * 1001, {}), (gzip.compress(b"x" * 1001), {"content_encoding": "gzip"})):
        made, flow = exchange(stream=False), answered(body=body, content_type="application/json")
        assert flow.response is not None
        flow.response.raw_content = body
        flow.response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        made.begin(flow)
        rewrite_whole(made, flow)
        assert flow.response is not None
        assert flow.response.status_code == 502
        assert "toolsim_max_body_bytes" in flow.response.json()["error"]["message"]


def request(body: bytes, **headers: str) -> HTTPFlow:
    flow = tflow.tflow()
    flow.request.method, flow.request.path = "POST", "/v1/chat/completions"
    flow.request.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    flow.request.raw_content = body
    return flow


TOOLS = b'"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"x"}]'
REQUESTS: dict[str, tuple[bytes, dict[str, str], int | None]] = {
    "fine": (b"{%s}" % TOOLS, {}, None),
    "too large": (b"{%s}" % TOOLS + b" " * 2_000, {}, 413),
    "too large once decoded": (gzip.compress(b"{%s}" % TOOLS + b" " * 2_000), {"content_encoding": "gzip"}, 413),
    "not decodable": (b"{%s}" % TOOLS, {"content_encoding": "gzip"}, 400),
    "nested without end": (b'{%s,"x":%s}' % (TOOLS, b"[" * 500 + b"]" * 500), {}, None),
    "a number without end": (b'{%s,"seed":%s}' % (TOOLS, b"1" * 4_301), {}, 400),
    "a number too large": (b'{%s,"seed":1e999}' % TOOLS, {}, 400),
    "not a number": (b'{%s,"seed":NaN}' % TOOLS, {}, 400),
    "torn": (b'{%s,"seed":' % TOOLS, {}, 400),
    "torn, without tools": (b'{"messages":[', {}, None),
    "another format": (b"tools=[]", {}, None),
}


@each("name", REQUESTS)
def test_unreadable_requests_are_refused(name: str) -> None:
    """A request body that mentions tools is refused if it cannot be parsed. It is never passed on unchanged."""
    body, headers, status = REQUESTS[name]
    limits = Limits(max_request_bytes=5_000 if "number" in name else 1_500)
    made, flow = Exchange(Report(), client_id="c", cors={}, limits=limits), request(body, **headers)
    rewrite_request(made, flow)
    assert (flow.response and flow.response.status_code) == status
    if flow.response is not None:
        assert flow.response.json()["error"]["type"] == "invalid_request_error"


def test_dropped_request_body_is_a_413() -> None:
    """If a request body was dropped because of its size, the client receives a 413."""
    made, flow = exchange(), request(b"")
    made.is_request_too_large = True
    rewrite_request(made, flow)
    assert flow.response is not None
    assert flow.response.status_code == 413


def test_repr_shows_the_state() -> None:
    made = exchange()
    assert repr(made) == "Exchange(open)"
    made.begin(answered(content_type=SSE))
    assert repr(made) == "Exchange(streamed)"
    assert made.streamed is not None
    made.streamed.cut = True
    assert repr(made) == "Exchange(streamed, cut)"
    passing = exchange(planned=False)
    passing.begin(answered())
    assert repr(passing) == "Exchange(passed)"


def test_states_follow_the_documented_order() -> None:
    """The state of an answer changes only once, except that a streamed answer can still fail."""
    for first in State:
        for then in State:
            made = exchange()
            made.state = first
            allowed = then is not State.OPEN and (
                first is State.OPEN or (first is State.STREAMED and then in (State.PASSED, State.REFUSED))
            )
            if allowed:
                made.enter(then)
                assert made.state is then
            else:
                with pytest.raises(RuntimeError, match=f"from '{first.value}' to '{then.value}'"):
                    made.enter(then)


def test_final_state_does_not_change() -> None:
    """If an exchange is already in a final state, settling it again has no effect."""
    for final in (State.PASSED, State.REFUSED, State.DELEGATED):
        made = exchange()
        made.enter(final)
        for settled in (State.PASSED, State.REFUSED):
            made.settle(settled)
        assert (made.state, made.is_ours, made.is_delegated) == (final, False, final is State.DELEGATED)


def test_second_stream_raises() -> None:
    """Starting a second stream for an exchange raises an error. Otherwise, the client would receive two answers mixed
    together.
    """
    made = exchange()
    made.begin(answered(content_type=SSE))
    with pytest.raises(RuntimeError, match="from 'streamed' to 'streamed'"):
        made.begin(answered(content_type=SSE))
