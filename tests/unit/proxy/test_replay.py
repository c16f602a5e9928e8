"""Replayed flows: the request that is sent, and the data that is kept from the first run."""

from __future__ import annotations

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test import tflow
from toolsim.proxy import metadata
from toolsim.proxy.jobs import digest
from toolsim.proxy.mitmproxy12 import backup
from toolsim.proxy.replay import ReplayedRequest, forget

OWN, SENT = b"the client's own", b"rewritten"


def finished() -> HTTPFlow:
    """Return the flow of a completed exchange whose request was rewritten."""
    flow = tflow.tflow()
    flow.request.content, flow.request.path = OWN, "/v1/responses"
    backup.begin(flow)
    flow.request.content, flow.request.path = SENT, "/v1/chat/completions"
    flow.metadata[metadata.SENT] = digest(SENT)
    flow.response = Response.make(200, b"to the client")
    flow.metadata["toolsim"] = {"calls": ["f"]}
    flow.comment = flow.metadata["toolsim_comment"] = "1 call: f"
    flow.marked = ":heavy_multiplication_x:"
    backup.set_incoming_response(flow, Response.make(200, b"raw"))
    return flow


def replay(flow: HTTPFlow) -> ReplayedRequest:
    """Replay the flow as mitmproxy does, and run the first two hooks of the addon."""
    flow.backup()  # type: ignore[no-untyped-call]
    flow.is_replay, flow.response = "request", None
    body = flow.request.raw_content
    resent = ReplayedRequest(flow)
    forget(flow)
    flow.request.raw_content = body
    resent.give_body(flow)
    return resent


def test_original_request_is_replayed() -> None:
    """A replay sends the client's original request, even without "Revert". All data from the first run is discarded."""
    flow = finished()
    assert replay(flow).words is None
    assert (flow.request.content, flow.request.path) == (OWN, "/v1/responses")
    assert (flow.metadata, flow.comment, flow.marked) == ({}, "", "")
    assert not flow.modified()


def test_edited_text_is_sent() -> None:
    """If a person edited the rewritten request, the edited text is sent to the model."""
    flow = finished()
    flow.request.content = b"rewritten, and edited"
    assert replay(flow).words == b"rewritten, and edited"
    assert flow.request.content == OWN


def test_reverted_flow_sends_the_clients_request() -> None:
    """After "Revert", a replay sends the client's request with any edits made after the revert."""
    for edit in (None, b"edited"):
        flow = finished()
        flow.revert()  # type: ignore[no-untyped-call]
        if edit is not None:
            flow.backup()  # type: ignore[no-untyped-call]
            flow.request.content = edit
        assert replay(flow).words is None
        assert flow.request.content == (edit or OWN)
        assert not flow.modified()


def test_unmodified_request_is_sent_with_edits() -> None:
    """If toolsim never rewrote the request, a replay sends it with the person's edits."""
    flow = tflow.tflow(resp=True)
    flow.backup()  # type: ignore[no-untyped-call]
    flow.request.content = b"edited"
    assert replay(flow).words is None
    assert flow.request.content == b"edited"


def test_persons_comment_and_mark_are_kept() -> None:
    """A comment or mark that a person added is kept. Flows that toolsim never handled are not changed."""
    flow = finished()
    flow.comment, flow.marked = "look at this", ":pig:"
    forget(flow)
    assert (flow.comment, flow.marked) == ("look at this", ":pig:")
    stranger = tflow.tflow()
    stranger.comment, stranger.marked = "1 call: f", ":heavy_multiplication_x:"
    forget(stranger)
    assert (stranger.comment, stranger.marked) == ("1 call: f", ":heavy_multiplication_x:")


def test_only_a_persons_replay_counts_as_resent() -> None:
    """A live request does not count as resent. A flow that mitmproxy has answered by server replay does not count
    either.
    """
    flow = tflow.tflow()
    assert not metadata.is_resent(flow)
    flow.is_replay = "response"
    assert not metadata.is_resent(flow)
