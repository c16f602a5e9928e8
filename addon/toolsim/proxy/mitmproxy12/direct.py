"""A fast path for the bytes of a stream: from the backend's connection to the client's, past mitmproxy's layers.

What a backend sends goes down through seven of mitmproxy's generators to its stream, and up again to the client. For a
delta of a few bytes that is most of the cost in a proxy, our own work included. So while an answer is streamed, we
intercept the events of the topmost layer, and handle those that hold whole HTTP/1 chunks. If one of them takes a pause,
or ends the answer, its rest goes directly to the stream. Everything else goes untouched to the layers. They are
authoritative; a test compares both paths at every cut.

Relies on these internals of mitmproxy 12.2:

1. ``ConnectionHandler.server_event`` calls ``handle_event`` of its topmost layer. Layers replace their own in this way
   too (``NextLayer``). Only the topmost layer passes events to the layers below.
2. Stacked directly, the layers of the mode, of HTTP, ``HttpClient`` and ``Http1Client`` change no bytes: there is no
   TLS on either side, and no other proxy after this one.
3. ``Http1Client`` has in ``buf`` what it has not read yet. After the head of an answer it creates a new
   ``body_reader``, whose state ``chunks`` describes.
4. A stream that waits for a hook is ``_paused``, and its events queue up.
5. HTTP/1 has one stream at a time per connection.
6. ``HttpLayer.event_to_child`` passes an event to a stream, and executes the commands that it yields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from mitmproxy.proxy.commands import Command
from mitmproxy.proxy.events import DataReceived, Event
from mitmproxy.proxy.layer import CommandGenerator, Layer
from mitmproxy.proxy.layers.http import HttpClient, HttpLayer
from mitmproxy.proxy.layers.http._events import ResponseData
from mitmproxy.proxy.layers.http._http1 import Http1Client

from toolsim.proxy.mitmproxy12.chunks import JoiningReader, whole_chunks
from toolsim.proxy.mitmproxy12.stream import Crashed, OwnStream
from toolsim.proxy.streamed import StreamedAnswer


class DirectWay:
    """Intercepts events of the topmost layer while ``stream`` feeds ``answer``.

    ``reader`` reads the backend's bytes; ``sending`` returns the command that sends to the client.
    """

    def __init__(
        self,
        stream: OwnStream,
        answer: StreamedAnswer,
        layer: HttpLayer,
        reader: Http1Client,
        sending: Callable[[bytes], Command],
    ) -> None:
        self._stream, self._answer, self._layer = stream, answer, layer
        self._reader, self._server = reader, reader.conn
        self._sending = sending
        self._is_first = False  # Whether nothing that arrived earlier is still pending.
        self._rest: Iterator[list[bytes] | None] | None = None
        self._top: Layer = stream.context.layers[0]
        self._handle_in_layers = self._top.handle_event
        self._top.handle_event = self._handle_event  # type: ignore[method-assign]

    def close(self) -> None:
        """Leave all events to the layers from now on."""
        self._top.handle_event = self._handle_in_layers  # type: ignore[method-assign]

    def take_rest(self) -> Iterator[list[bytes] | None] | None:
        """Return the remaining slices for data that has reached the stream; None if it was not read yet."""
        rest, self._rest = self._rest, None
        return rest

    def _handle_event(self, event: Event) -> CommandGenerator[None]:
        try:
            yield from self._handled(event)
        except Exception as problem:
            self.close()
            self._stream.unpause()
            yield from self._layer.event_to_child(self._stream, Crashed(problem))

    def _handled(self, event: Event) -> CommandGenerator[None]:
        data = self._whole_chunks(event)
        self._is_first = bool(data)
        if not data:
            yield from self._handle_in_layers(event)
            return
        slices = self._answer.slices(data)
        for chunks in slices:
            if chunks is None or self._answer.has_read_all or self._answer.cut:
                # At a pause and at the end of an answer the stream has more to do than send chunks.
                self._is_first = False
                self._rest = chain((chunks,), slices)
                yield from self._layer.event_to_child(self._stream, ResponseData(self._stream.stream_id, data))
                return
            yield from map(self._sending, chunks)

    def _whole_chunks(self, event: Event) -> bytes | None:
        """Return the data of an event that the fast path can handle, else None."""
        if not isinstance(event, DataReceived) or event.connection is not self._server:
            return None
        return whole_chunks(event.data) if self._is_first or self._is_free() else None

    def _is_free(self) -> bool:
        reader = self._reader
        if reader.buf or not isinstance(reader.body_reader, JoiningReader):
            return False
        return reader.body_reader.is_between_chunks and self._stream._paused is None


def direct_way(
    stream: OwnStream, answer: StreamedAnswer, layer: HttpLayer, sending: Callable[[bytes], Command]
) -> DirectWay | None:
    """Open the fast path for a stream of ``layer`` if rule 2 allows it; its client must speak HTTP/1."""
    client = layer.connections.get(stream.context.server)
    reader = client.child_layer if type(client) is HttpClient else None
    if not isinstance(reader, Http1Client) or stream.context.layers[1:] != [layer, stream]:
        return None
    return DirectWay(stream, answer, layer, reader, sending)
