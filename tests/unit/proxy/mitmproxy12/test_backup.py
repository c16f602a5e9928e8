"""mitmproxy's backup of a flow, in which toolsim keeps the original messages of an exchange. The tests also check the
internals of mitmproxy that toolsim relies on.
"""

from __future__ import annotations

from typing import Any

import pytest
from mitmproxy.flow import Error
from mitmproxy.http import Headers, HTTPFlow, Response
from mitmproxy.test import tflow
from toolsim.proxy.mitmproxy12 import backup, patches


def rewritten() -> HTTPFlow:
    flow = tflow.tflow(resp=True)
    flow.request.content = b"the client's own"
    flow.backup()  # type: ignore[no-untyped-call]
    flow.request.content = b"rewritten"
    flow.metadata["toolsim"] = {"calls": ["f"]}
    return flow


def test_original_messages_are_read() -> None:
    """The original messages can be read from a flow's backup without reverting the flow. If the flow has no backup, the
    result is None.
    """
    flow = rewritten()
    backup.set_incoming_response(flow, Response.make(201, b"raw"))
    request, response = backup.incoming_request(flow), backup.incoming_response(flow)
    assert request is not None
    assert response is not None
    assert (request.content, response.status_code, response.content) == (b"the client's own", 201, b"raw")
    assert flow.request.content == b"rewritten"
    bare = tflow.tflow(resp=True)
    backup.set_incoming_response(bare, Response.make(200))
    assert backup.incoming_request(bare) is backup.incoming_response(bare) is None
    assert not bare.modified()


def test_resent_flow_replaces_its_backup() -> None:
    """When a rewritten flow is sent again, its earlier backup is replaced, so that old data does not reappear."""
    flow = rewritten()
    flow.request.content = b"sent again"
    flow.error, flow.intercepted, flow.response = Error("lost"), True, tflow.tresp()
    backup.begin(flow)
    flow.request = tflow.treq(content=b"rewritten")
    state = backup.incoming(flow)
    assert (state["error"], state["intercepted"], state["response"]) == (None, False, None)
    assert flow.request.content == b"rewritten"
    request = backup.incoming_request(flow)
    assert request is not None
    assert request.content == b"sent again"
    backup.drop(flow)
    assert not flow.modified()


def test_copy_shares_no_state() -> None:
    """A copied response equals mitmproxy's own copy, and shares no mutable state with the original."""
    response = Response.make(200, b"words", {"x-a": "b"})
    response.trailers, response.stream = Headers([(b"x-t", b"u")]), True
    copy, own = backup.copied(response), response.copy()
    before = response.get_state()  # type: ignore[no-untyped-call]
    assert copy.get_state() == own.get_state() == before  # type: ignore[no-untyped-call]
    assert vars(copy).keys() - {"stream"} == vars(own).keys()
    assert copy.stream == own.stream
    assert copy.trailers is not None
    copy.headers["x-a"], copy.trailers["x-t"], copy.content, copy.status_code = "c", "v", b"others", 201
    assert response.get_state() == before  # type: ignore[no-untyped-call]


def test_split() -> None:
    """Splitting a flow returns one flow for the backend's side and one for the client's side. "Revert" is not available
    for either of them.
    """
    flow = rewritten()
    backup.set_incoming_response(flow, Response.make(200, b"raw"))
    backend, client = backup.split(flow)
    assert backend.response is not None
    assert (backend.request.content, backend.response.content) == (b"the client's own", b"raw")
    assert client.request.content == b"rewritten"
    assert not backend.modified()
    assert not client.modified()


@pytest.mark.parametrize("state", [None, "x", {}, {"request": 1, "response": []}])
def test_unexpected_backup_is_ignored(state: Any) -> None:
    flow = tflow.tflow(resp=True)
    flow._backup = state
    assert backup.incoming_request(flow) is backup.incoming_response(flow) is None


def test_installed_mitmproxy_passes_the_check(caplog: pytest.LogCaptureFixture) -> None:
    """The installed version of mitmproxy has the internals that toolsim relies on."""
    patches.check()
    assert not caplog.records


@pytest.mark.parametrize("change", ["gone", "renamed", "of another shape", "revert does nothing"])
def test_changed_mitmproxy_is_reported(
    change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If mitmproxy's internals have changed, loading the addon logs a single error."""
    if change == "gone":
        monkeypatch.delattr(HTTPFlow.__base__, "backup")
    elif change == "renamed":
        monkeypatch.setattr(HTTPFlow, "backup", lambda self: setattr(self, "saved", self.get_state()))
    elif change == "of another shape":
        monkeypatch.setattr(HTTPFlow, "backup", lambda self: setattr(self, "_backup", {"state": self.get_state()}))
    else:
        monkeypatch.setattr(HTTPFlow, "revert", lambda self: None)
    patches.check()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "Unsupported mitmproxy" in caplog.text
