"""Implements a fast path for streamed bytes that bypasses mitmproxy, from the backend's connection to the client's.

For a delta of a few bytes, most of a proxy's cost is waking mitmproxy's task and passing the event through seven
generators and back. So while an answer is streamed over plain HTTP/1, toolsim's own protocol reads the backend's
connection. It handles reads that consist of complete chunks. If processing a read requires a pause, ends the answer or
raises an exception, the stream is woken to handle the rest. All other data is passed unchanged to mitmproxy's own
protocol, which defines the correct behavior. A test verifies that the client receives the same bytes from both, no
matter how the data is split.

mitmproxy still handles backpressure: while unsent bytes are waiting for the client, data is passed to mitmproxy's
protocol, which stops reading until the client has caught up. The stream still handles timeouts, because it is woken
every few seconds.

Relies on these internals of mitmproxy 12.2, and of asyncio:

1. ``ConnectionHandler.transports`` has the reader and the writer of each connection, which for TCP are asyncio's. One
   task per connection reads data, handles it, waits until all writers are drained, and reads again.
   ``StreamReader._waiter`` is set while the reader waits for data.
2. ``ConnectionHandler.server_event`` handles an event, and ``HttpLayer.command_sources`` maps each command to the
   stream that receives its completion.
3. The proxy mode's layer, the HTTP layer, ``HttpClient`` and ``Http1Client`` pass on bytes unchanged. Only TLS (on
   either side) and an upstream proxy add layers between them.
4. ``Http1Client`` stores unprocessed bytes in ``buf``. After the head of a response it creates a new ``body_reader``,
   whose state the ``chunks`` module describes.
5. A stream that waits for a hook is ``_paused``, and its events queue up. HTTP/1 has one stream at a time.
6. If a method of a protocol raises an exception, asyncio closes the connection and passes the exception to
   ``connection_lost``. Unless it is an OSError, it ends mitmproxy's task for the connection without any event.
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


class FastPath:
    """An asyncio protocol that reads the backend's connection while an answer is streamed.

    Data that this class cannot handle is passed to mitmproxy's own protocol.

    ``stream`` and ``answer`` are the stream and its answer. ``http`` is mitmproxy's own reader of the answer.
    ``framed`` converts a part of the answer to the bytes to send, for example to an HTTP chunk.
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
        self._is_first = False  # Whether all earlier data has been sent to the client.
        self._rest: Iterator[list[bytes] | None] | None = None
        self.resumption: RequestWakeup | None = None
        """The command that wakes the stream to send the remaining output, or None before the first wake-up."""
        self._usual: Any = self._backend.get_protocol()
        self._backend.set_protocol(self)  # type: ignore[arg-type]

    def close(self) -> None:
        """Return the connection to mitmproxy's protocol."""
        if self._backend.get_protocol() is self:  # type: ignore[comparison-overlap]
            self._backend.set_protocol(self._usual)

    def take_rest(self) -> Iterator[list[bytes] | None]:
        """Return the output that has not been sent, in slices, and remove it from this object."""
        rest, self._rest = self._rest, None
        return rest or iter(())

    def data_received(self, data: bytes) -> None:
        """Send the client the output for this data, or leave the data to mitmproxy's protocol."""
        try:
            read = whole_chunks(data) if self._is_free() else None
            self._is_first = bool(read)
            if not read:
                self._usual.data_received(data)
                return
            slices = self._answer.slices(read)
            for chunks in slices:
                if chunks is None or self._answer.has_read_all or self._answer.cut:
                    # ``chunks`` is None if the answer should pause. Only the stream can pause or end the answer, so it
                    # sends the remaining chunks.
                    self._wake(chain((chunks,), slices))
                    return
                for chunk in chunks:
                    self._client.write(self._framed(chunk))
        except Exception as problem:
            self._wake(_raising(problem))

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify mitmproxy that the connection is closed."""
        if exc is not None and not isinstance(exc, OSError):
            # The exception was raised by a method of this class (rule 6).
            self._wake(_raising(exc))
            exc = None
        self._usual.connection_lost(exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)

    def _wake(self, rest: Iterator[list[bytes] | None]) -> None:
        """Wake the stream, so that it sends the remaining output ``rest`` before it handles any later data."""
        self._is_first, self._rest = False, rest
        self.resumption = RequestWakeup(0)
        self._stream.layer.command_sources[self.resumption] = self._stream
        spawn(self._handler.server_event(Wakeup(self.resumption)), _TASKS)

    def _is_free(self) -> bool:
        """Return whether all earlier data has been sent to the client and both connections are open."""
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


def open_fast_path(
    stream: OwnStream, answer: StreamedAnswer, layer: HttpLayer, framed: Callable[[bytes], bytes]
) -> FastPath | None:
    """Open the fast path for a stream of ``layer``, or return None if other layers or protocols are in use (rule 3).

    The caller has already checked that the client uses HTTP/1.
    """
    client = layer.connections.get(stream.context.server)
    http = client.child_layer if type(client) is HttpClient else None
    handler = handler_of(stream.context.client)
    if not isinstance(http, Http1Client) or stream.context.layers[1:] != [layer, stream] or handler is None:
        return None
    return FastPath(stream, answer, http, handler, framed)
