import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy import contentviews
from mitmproxy.contentviews import Metadata, prettify_message
from mitmproxy.http import HTTPFlow, Request, Response
from mitmproxy.test import taddons, tflow
from toolsim.pages import view
from toolsim.pages.commands import Inspect
from toolsim.proxy.mitmproxy12 import views
from toolsim.proxy.recorder import BodyRecorder

TOOL = {"type": "function", "function": {"name": "f"}}
CLIENT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
BACKEND = {"model": "m", "messages": [{"role": "system", "content": "the catalog"}, {"role": "user", "content": "Hi"}]}
BLOCK = '<tool_call>{"name":"f","arguments":"{}"}</tool_call>'
WRITTEN = {"choices": [{"message": {"content": BLOCK}, "finish_reason": "stop"}]}
CALL = {"id": "call_001", "function": {"name": "f", "arguments": '{"a":1}'}}
SENT = {"choices": [{"message": {"tool_calls": [CALL]}}]}
JUDGED = {"choice": 0, "start": 0, "end": len(BLOCK), "verdicts": ["call f"], "repairs": []}
REPORT = {"client": "chat", "blocks": [JUDGED]}
JSON = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
def tctx():
    with taddons.context(Inspect()) as tctx:
        yield tctx


def make(path="/v1/chat/completions", request: object = CLIENT, response: object = SENT) -> HTTPFlow:
    flow = tflow.tflow()
    flow.request = Request.make(
        "POST", f"http://backend{path}", json.dumps(request), {"content-type": "application/json"}
    )
    flow.request.timestamp_start = 100.0
    flow.response = Response.make(200, json.dumps(response), JSON)
    flow.response.timestamp_start, flow.response.timestamp_end = 100.25, 101.5
    return flow


def exchanged() -> HTTPFlow:
    """Return the flow of a finished exchange, whose request and answer were rewritten. The flow also contains the
    originals.
    """
    flow = make()
    flow.backup()
    flow.request.text = json.dumps(BACKEND)
    recorder = BodyRecorder()
    recorder.whole(Response.make(200, json.dumps(WRITTEN), JSON))
    flow.metadata["toolsim"] = dict(REPORT)
    recorder.store_in(flow)
    return flow


def show(flow: HTTPFlow, message: object, name: str = "auto") -> tuple[str | None, str]:
    shown = prettify_message(message, flow, name)  # type: ignore[arg-type]
    return shown.view_name, shown.text


def test_view_is_the_default_for_exchanges():
    """mitmproxy shows the request and the answer of an exchange in toolsim's view by default."""
    flow = exchanged()
    name, request = show(flow, flow.request)
    assert name == "toolsim"
    assert "  f()\n" in request
    assert "as sent to the backend" in request
    name, answer = show(flow, flow.response)
    assert name == "toolsim"
    assert "╰─ ✓ call of f" in answer
    assert '→ f   call_001\n    {"a": 1}' in answer
    assert "1.50 s (first byte 0.25 s)" in answer


def test_reverted_flow_shows_the_original_answer():
    """If the user reverts the flow, toolsim's view shows the backend's original answer and its verdicts."""
    flow = exchanged()
    flow.revert()
    assert "as sent to the backend" not in show(flow, flow.request)[1]
    answer = show(flow, flow.response)[1]
    assert "╰─ ✓ call of f" in answer
    assert "THE CLIENT GOT" not in answer


@pytest.mark.parametrize(
    ("flow", "chosen"),
    [
        (make(), True),
        (make("/v1/responses?x=1", {"input": "Hi"}, {"object": "response"}), True),
        (make("/v1/models"), False),
        (make("/v1/responses", {"name": "a form"}), False),
        (make("/v1/responses", [1]), False),
    ],
    ids=["chat", "responses", "other path", "other object", "no object"],
)
def test_requests_without_a_report_are_chosen_by_path_and_body(flow, chosen):
    """If a flow has no report, toolsim's view is the default for a request whose path and body match an API."""
    assert (show(flow, flow.request)[0] == "toolsim") is chosen


def test_answers_without_a_report_are_chosen_by_type():
    """If a flow has no report, toolsim's view is the default for event streams and JSON objects from an API endpoint,
    but not for other content types and methods.
    """
    flow = make()
    assert flow.response is not None
    assert show(flow, flow.response)[0] == "toolsim"
    flow.response.headers["content-type"] = "text/event-stream; charset=utf-8"
    assert show(flow, flow.response)[0] == "toolsim"
    flow.response.headers["content-type"] = "text/html"
    assert show(flow, flow.response)[0] != "toolsim"
    flow.response.headers["content-type"] = "application/json"
    flow.request.method = "GET"
    assert show(flow, flow.response)[0] == "JSON"


def test_view_can_be_selected_for_any_flow():
    """A user can select toolsim's view for a flow of any kind. The view then shows a page."""
    flow = tflow.tflow(resp=True)
    assert show(flow, flow.request, "toolsim")[1].startswith("REQUEST")
    assert show(flow, flow.response, "toolsim")[1].startswith("ANSWER")
    tcp = tflow.ttcpflow()
    assert prettify_message(tcp.messages[0], tcp, "toolsim").text.startswith("REQUEST")
    assert all(own.render_priority(b"", Metadata()) < 0 for own in view.VIEWS)


def test_compressed_bodies():
    """Compressed bodies are decoded before they are shown. If the stored original cannot be decoded, the page is shown
    without it.
    """
    flow = exchanged()
    assert flow.response is not None
    flow.response.encode("gzip")
    assert "→ f   call_001" in show(flow, flow.response)[1]
    backup = flow._backup
    backup["response"]["headers"] = ((b"content-encoding", b"gzip"),)  # type: ignore[index]
    assert show(flow, flow.response)[0] == "toolsim"


@given(
    st.binary(max_size=60),
    st.none() | st.text() | st.dictionaries(st.sampled_from(["side", "blocks", "error", "missing_bytes"]), st.text()),
    st.booleans(),
)
def test_view_never_fails(data, metadata, reverted):
    """For any bytes and any metadata in a flow file, toolsim's view shows a page instead of a traceback."""
    flow = exchanged()
    if reverted:
        flow.revert()
    flow.metadata["toolsim"] = metadata
    flow.metadata["toolsim_capture"] = metadata
    assert flow.response is not None
    flow.request.raw_content = flow.response.raw_content = data
    for message in (flow.request, flow.response):
        assert "Couldn't parse" not in show(flow, message, "toolsim")[1]


def test_view_is_registered_with_the_addon(caplog):
    """mitmproxy offers toolsim's views while the addon is loaded. Registering them again after a reload causes no
    warning.
    """
    assert [contentviews.registry[own.name] for own in view.VIEWS] == list(view.VIEWS)
    with caplog.at_level(logging.WARNING):
        views.uninstall(view.VIEWS)
        assert "toolsim" not in contentviews.registry
        views.uninstall(view.VIEWS)
        views.install(view.VIEWS)
    assert "toolsim" in contentviews.registry.available_views()
    assert not caplog.records


def test_prompt_view_is_verbatim():
    """The ``toolsim-prompt`` view shows the model's prompt and answer verbatim. If the flow has been reverted, the view
    shows the prompt from the client's request.
    """
    flow = exchanged()
    name, text = show(flow, flow.request, "toolsim-prompt")
    assert (name, text) == ("toolsim-prompt", "▌system\nthe catalog\n \n▌user\nHi\n")
    assert show(flow, flow.response, "toolsim-prompt")[1] == f"{BLOCK}\n"
    flow.revert()
    assert show(flow, flow.request, "toolsim-prompt")[1] == "▌user\nHi\n"
    assert show(flow, flow.response, "toolsim-prompt")[1] == f"{BLOCK}\n"
