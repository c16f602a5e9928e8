"""Answers that clients delete at a backend which stores them itself: then we no longer know what its contexts hold.

Whether a conversation can continue without one of its answers depends on the backend. If the deleted answer carried the
catalogue, the model may no longer have any tools, and nobody would see why it calls none.
"""

from __future__ import annotations

from mitmproxy.http import HTTPFlow

from toolsimlib.proxy.known import KnownBackends
from toolsimlib.wire.responses.resources import resource_of


class Deletions:
    """An addon that forgets which catalogue such a conversation holds."""

    def __init__(self, known: KnownBackends) -> None:
        self._known = known

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Inspect what is deleted. Called after the hook that routes the request."""
        request = flow.request
        resource = resource_of(request.path) if request.method == "DELETE" else None
        if resource is not None and resource.kind == "response":
            prefix = request.path.partition("?")[0].rpartition("/responses/")[0]
            backend = self._known.at(request.scheme, request.host, request.port, prefix)
            backend.held.forget(backend.root, resource.id)
