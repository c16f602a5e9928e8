"""Answers that clients delete at a backend which keeps them itself: what its contexts hold is uncertain from then on.

Whether a conversation goes on without an answer that it went through is each backend's own affair. If that was the one
that carried its catalogue, it may not know of any tool any more, and nobody would see why it calls none.
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
        """Look at what is to be deleted. Called behind the hook that routes it."""
        request = flow.request
        resource = resource_of(request.path) if request.method == "DELETE" else None
        if resource is not None and resource.kind == "response":
            prefix = request.path.partition("?")[0].rpartition("/responses/")[0]
            backend = self._known.at(request.scheme, request.host, request.port, prefix)
            backend.held.forget(backend.root, resource.id)
