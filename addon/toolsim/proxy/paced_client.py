"""An HTTP client that requests pages from backends and pauses between the chunks of a page.

Reading a chunk that has already arrived does not yield to the event loop, and a page can consist of a million chunks.
This module is imported on demand, since importing tornado's client would take half of the startup time.

The module relies on two internals of tornado 6.5: ``_connection_class`` returns the class of connections, and the
return value of ``data_received`` is awaited before the next chunk is read.
"""

from __future__ import annotations

import asyncio
from typing import Any, override

from tornado.simple_httpclient import SimpleAsyncHTTPClient, _HTTPConnection

from toolsim.core.time_slice import TimeSlice


class PacedClient(SimpleAsyncHTTPClient):
    """Tornado's HTTP client, with connections that pause between chunks."""

    @override
    def _connection_class(self) -> type:
        return _PacedConnection


class _PacedConnection(_HTTPConnection):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._pace = TimeSlice()

    @override
    async def data_received(self, chunk: bytes) -> None:  # type: ignore[override]
        super().data_received(chunk)
        try:
            await self._pace.yield_to_others()
        except asyncio.CancelledError:
            # The proxy is exiting. Tornado would log this exception with a traceback. It logs nothing if the stream is
            # closed instead.
            self.stream.close()
