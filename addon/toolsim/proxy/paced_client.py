"""A client for pages of backends, which pauses between the chunks of a page.

Reading a chunk that has arrived does not suspend, and a page can consist of a million of them. Imported on demand,
since tornado's client is half of the imports of a start.

Relies on these internals of tornado 6.5: ``_connection_class`` names the connection, and what ``data_received`` returns
is awaited before the next chunk is read.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, override

from tornado.simple_httpclient import SimpleAsyncHTTPClient, _HTTPConnection

from toolsim.core.time_slice import TimeSlice


class PacedClient(SimpleAsyncHTTPClient):
    """Tornado's client with connections that pause."""

    @override
    def _connection_class(self) -> type:
        return _PacedConnection


class _PacedConnection(_HTTPConnection):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._pace = TimeSlice()

    @override
    def data_received(self, chunk: bytes) -> Awaitable[None]:  # type: ignore[override]
        super().data_received(chunk)
        return self._pace.yield_to_others()
