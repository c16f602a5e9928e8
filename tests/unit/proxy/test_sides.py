"""Both sides in one flow, and the internals of mitmproxy on which this relies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.flow import Error
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test import tflow
from toolsimlib.proxy import sides

PACKAGE = Path(sides.__file__).parents[1]


def rewritten() -> HTTPFlow:
    flow = tflow.tflow(resp=True)
    flow.request.content = b"the client's own"
    flow.backup()  # type: ignore[no-untyped-call]
    flow.request.content = b"rewritten"
    flow.metadata["toolsim"] = {"calls": ["f"]}
    return flow


def test_what_came_in() -> None:
    """The backup is read without reverting to it; a flow that was never rewritten has none."""
    flow = rewritten()
    sides.set_incoming_response(flow, Response.make(201, b"raw"))
    request, response = sides.incoming_request(flow), sides.incoming_response(flow)
    assert request is not None
    assert response is not None
    assert (request.content, response.status_code, response.content) == (b"the client's own", 201, b"raw")
    assert flow.request.content == b"rewritten"
    bare = tflow.tflow(resp=True)
    sides.set_incoming_response(bare, Response.make(200))
    assert sides.incoming_request(bare) is sides.incoming_response(bare) is None
    assert not bare.modified()


def test_a_flow_begins_anew() -> None:
    """An older backup, from an edit or an earlier run, does not come back."""
    flow = rewritten()
    flow.request.content = b"sent again"
    came_in, flow.request = flow.request, tflow.treq(content=b"rewritten")
    flow.error, flow.intercepted, flow.response = Error("lost"), True, tflow.tresp()
    sides.begin(flow, came_in)
    state = sides.incoming(flow)
    assert (state["error"], state["intercepted"], state["response"]) == (None, False, None)
    assert flow.request.content == b"rewritten"
    request = sides.incoming_request(flow)
    assert request is not None
    assert request.content == b"sent again"
    sides.drop(flow)
    assert not flow.modified()


def test_the_backup_is_mitmproxys_own() -> None:
    """However often a connection is used, the backup is the state that mitmproxy reports, and can be reverted to."""
    flow = tflow.tflow()
    for error in (None, "lost", "lost again"):
        flow.server_conn.error = error
        flow.client_conn.cipher_list = [error or "none"]
        for _ in range(2):
            state = flow.get_state()
            sides.begin(flow, flow.request)
            assert sides.incoming(flow) == state | {"backup": None}
            flow.request.content = b"rewritten"
            flow.revert()  # type: ignore[no-untyped-call]
            assert flow.get_state() == state


def test_split() -> None:
    """Each side has its own flow, and neither can be reverted."""
    flow = rewritten()
    sides.set_incoming_response(flow, Response.make(200, b"raw"))
    backend, client = sides.split(flow)
    assert backend.response is not None
    assert (backend.request.content, backend.response.content) == (b"the client's own", b"raw")
    assert client.request.content == b"rewritten"
    assert not backend.modified()
    assert not client.modified()


@pytest.mark.parametrize("state", [None, "x", {}, {"request": 1, "response": []}])
def test_flow_files_of_others(state: Any) -> None:
    """A backup of any other shape is ignored."""
    flow = tflow.tflow(resp=True)
    flow._backup = state
    assert sides.incoming_request(flow) is sides.incoming_response(flow) is None


def test_mitmproxy_is_as_described(caplog: pytest.LogCaptureFixture) -> None:
    """The installed version passes the check."""
    sides.check()
    assert not caplog.records


@pytest.mark.parametrize("change", ["gone", "renamed", "of another shape", "revert does nothing"])
def test_mitmproxy_that_changed(change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A mitmproxy with changed internals is one clear error at load, not a crash later."""
    if change == "gone":
        monkeypatch.delattr(HTTPFlow.__base__, "backup")
    elif change == "renamed":
        monkeypatch.setattr(HTTPFlow, "backup", lambda self: setattr(self, "saved", self.get_state()))
    elif change == "of another shape":
        monkeypatch.setattr(HTTPFlow, "backup", lambda self: setattr(self, "_backup", {"state": self.get_state()}))
    else:
        monkeypatch.setattr(HTTPFlow, "revert", lambda self: None)
    sides.check()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "This mitmproxy is not one that toolsim knows" in caplog.text


def test_no_other_file_touches_the_backup() -> None:
    """As the module's docstring claims."""
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "sides.py"]
    assert [path.name for path in others if re.search(r"\._backup\b", path.read_text())] == []
