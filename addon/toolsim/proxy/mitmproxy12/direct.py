"""Implements a fast path for streamed bytes, from the backend's connection to the client's, past mitmproxy.

For a delta of a few bytes, most of the cost in a proxy is waking mitmproxy's task and passing the event through seven
generators and back. So while an answer is streamed over plain HTTP/1, a protocol of ours has the backend's connection.
It handles reads that consist of complete chunks. If such a read needs a pause, ends the answer or raises, the stream is
woken up for the rest. Everything else goes unchanged to mitmproxy's own protocol. mitmproxy is authoritative; a test
compares both paths at every cut. Backpressure is mitmproxy's: while bytes wait for the client, reads go to its
protocol, which stops reading until the client has caught up. So are the timeouts: a stream is woken every few seconds.

Relies on these internals of mitmproxy 12.2, and of asyncio:

1. ``ConnectionHandler.transports`` has the reader and the writer of each connection, which for TCP are asyncio's. One
   task per connection reads, handles what it has read, waits until all writers are drained, and reads again.
   ``StreamReader._waiter`` is set while it waits for data.
2. ``ConnectionHandler.server_event`` handles an event, and ``HttpLayer.command_sources`` has the stream that the
   completion of a command is routed to.
3. Stacked directly, the layers of the mode, of HTTP, ``HttpClient`` and ``Http1Client`` change no bytes: there is no
   TLS on either side, and no other proxy after this one.
4. ``Http1Client`` has in ``buf`` what it has not read yet. After the head of an answer it creates a new
   ``body_reader``, whose state ``chunks`` describes.
5. A stream that waits for a hook is ``_paused``, and its events queue up. HTTP/1 has one stream at a time.
6. If a method of a protocol raises, asyncio closes the connection and passes the exception to ``connection_lost``. A
   task of mitmproxy that reads a connection is ended by it, without an event, unless it is an OSError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from mitmproxy.proxy.commands import RequestWakeup
from mitmproxy.proxy.events import Wakeup
from mitmproxy.proxy.layers.http import HttpClient, HttpLayer
from mitmproxy.proxy.layers.http._http1 import Http1Client
from mitmproxy.proxy.server import ConnectionHandler

from toolsim.core.tasks import spawn
from toolsim.proxy.mitmproxy12.backpressure import handler_of
from toolsim.proxy.mitmproxy12.chunks import JoiningReader, whole_chunks
from toolsim.proxy.mitmproxy12.stream import OwnStream
from toolsim.proxy.streamed import StreamedAnswer

_TASKS: set[asyncio.Task[None]] = set()


class DirectWay:
    """A protocol that has the backend's connection while ``stream`` feeds ``answer``; the usual one does all the rest.

    ``http``: mitmproxy's reader of the answer. ``framed`` returns the client's bytes for a part of the answer.
    """

    def __init__(
        self,
        stream: OwnStream,
        answer: StreamedAnswer,
        http: Http1Client,
        handler: ConnectionHandler,
        framed: Callable[[bytes], bytes],
    ) -> None:
        self._stream, self._answer, self._http = stream, answer, http
        self._handler, self._framed = handler, framed
        server, client = handler.transports[http.conn], handler.transports[stream.context.client]
        assert isinstance(server.reader, asyncio.StreamReader)
        assert isinstance(server.writer, asyncio.StreamWriter)
        assert isinstance(client.writer, asyncio.StreamWriter)
        self._reader, self._backend, self._client = server.reader, server.writer.transport, client.writer.transport
        self._is_first = False  # Whether nothing that arrived earlier is still pending.
        self._rest: Iterator[list[bytes] | None] | None = None
        self.resumption: RequestWakeup | None = None
        """What the stream is woken with to feed the rest."""
        self._usual: Any = self._backend.get_protocol()
        self._backend.set_protocol(self)  # type: ignore[arg-type]

    def close(self) -> None:
        """Leave everything to mitmproxy from now on."""
        if self._backend.get_protocol() is self:  # type: ignore[comparison-overlap]
            self._backend.set_protocol(self._usual)

    def take_rest(self) -> Iterator[list[bytes] | None]:
        """Return what is left of the slices for what has been read."""
        rest, self._rest = self._rest, None
        return rest or iter(())

    def data_received(self, data: bytes) -> None:
        """Send the client what the data brings, if possible."""
        try:
            read = whole_chunks(data) if self._is_free() else None
            self._is_first = bool(read)
            if not read:
                self._usual.data_received(data)
                return
            slices = self._answer.slices(read)
            for chunks in slices:
                if chunks is None or self._answer.has_read_all or self._answer.cut:
                    # At a pause and at the end of an answer the stream has more to do than send chunks.
                    self._wake(chain((chunks,), slices))
                    return
                for chunk in chunks:
                    self._client.write(self._framed(chunk))
        except Exception as problem:
            self._wake(_raising(problem))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell mitmproxy that the connection is closed."""
        if exc is not None and not isinstance(exc, OSError):
            # One of these methods has raised it (rule 6).
            self._wake(_raising(exc))
            exc = None
        self._usual.connection_lost(exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)

    def _wake(self, rest: Iterator[list[bytes] | None]) -> None:
        """Have the stream feed ``rest``, before anything that is read later."""
        self._is_first, self._rest = False, rest
        self.resumption = RequestWakeup(0)
        self._stream.layer.command_sources[self.resumption] = self._stream
        spawn(self._handler.server_event(Wakeup(self.resumption)), _TASKS)

    def _is_free(self) -> bool:
        """Whether what has been read before is with the client, whose connection is open, as the backend's is."""
        if self._rest is not None or self._stream._paused is not None or not self._http.conn.connected:
            return False
        if self._client.get_write_buffer_size() or self._client.is_closing():
            return False
        if self._is_first:
            return True
        body = self._http.body_reader
        is_read = self._reader._waiter is not None and not self._http.buf  # type: ignore[attr-defined]
        return is_read and isinstance(body, JoiningReader) and body.is_between_chunks


def _raising(problem: Exception) -> Iterator[list[bytes] | None]:
    raise problem
    yield


def direct_way(
    stream: OwnStream, answer: StreamedAnswer, layer: HttpLayer, framed: Callable[[bytes], bytes]
) -> DirectWay | None:
    """Open the fast path for a stream of ``layer`` if rule 3 allows it; its client must speak HTTP/1."""
    client = layer.connections.get(stream.context.server)
    http = client.child_layer if type(client) is HttpClient else None
    handler = handler_of(stream.context.client)
    if not isinstance(http, Http1Client) or stream.context.layers[1:] != [layer, stream] or handler is None:
        return None
    return DirectWay(stream, answer, http, handler, framed)
