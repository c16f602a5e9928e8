"""What a conversation was shown is forgotten when an answer of it is deleted at its backend."""

from __future__ import annotations

import pytest
from mitmproxy.test import tflow
from toolsimlib.plan import HeldCatalogue
from toolsimlib.proxy.deletions import Deletions
from toolsimlib.proxy.known import KnownBackends


@pytest.mark.parametrize(
    ("method", "path", "is_forgotten"),
    [
        ("DELETE", "/api/v1/responses/r1", True),
        ("DELETE", "/api/v1/responses/r1/?a=/responses/r2", True),
        ("DELETE", "/v1/responses/r1", False),
        ("DELETE", "/api/v1/responses/r2", False),
        ("DELETE", "/api/v1/conversations/r1", False),
        ("GET", "/api/v1/responses/r1", False),
    ],
)
def test_answers_that_are_deleted(method: str, path: str, is_forgotten: bool) -> None:
    """Only for that answer of that backend, and only by a DELETE."""
    known = KnownBackends()
    backend = known.at("http", "backend", 80, "/api/v1")
    backend.held.note(backend.root, "r1", HeldCatalogue("digest"))
    flow = tflow.tflow()
    flow.request.scheme, flow.request.host, flow.request.port = "http", "backend", 80
    flow.request.method, flow.request.path = method, path
    Deletions(known).requestheaders(flow)
    assert bool(backend.held.before(backend.root, b'{"previous_response_id":"r1"}')) is not is_forgotten
