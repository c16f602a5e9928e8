"""A direct way for a stream's bytes: from the backend's connection to the client's, past mitmproxy's layers.

What a backend sends goes down through seven of mitmproxy's generators to its stream, and up again to the client. For a
delta of a few bytes that is most of what a proxy spends on it, ours included. So while an answer is streamed, the
topmost layer asks us first. Of whole chunks of HTTP/1 we take what is plain (deltas that are alike), and give the rest
to the stream itself. Everything else we leave, before anything was done with it, to the layers. They are the truth; a
test holds both ways against each other at every cut.

What this leans on, in mitmproxy 12.2:

1. ``ConnectionHandler.server_event`` asks its topmost layer's ``handle_event`` what to do. Layers replace their own in
   this way too (``NextLayer``). Whatever is below the topmost is asked by it, and not by anyone else.
2. Directly on one another, the layers of the mode, of HTTP, ``HttpClient`` and ``Http1Client`` change no bytes: there
   is no TLS on either side, and no other proxy behind this one.
3. ``Http1Client`` keeps in ``buf`` what it has not read yet. Behind an answer's head it makes a new ``body_reader``,
   which is where ``chunks`` says.
4. A stream that waits for a hook is ``_paused``, and its events queue up.
5. HTTP/1 has one stream at a time on each connection.
6. ``HttpLayer.event_to_child`` gives a stream an event, and carries out what it commands.
"""

from __future__ import annotations

from collections.abc import Callable

from mitmproxy.proxy.commands import Command
from mitmproxy.proxy.events import DataReceived, Event
from mitmproxy.proxy.layer import CommandGenerator, Layer
from mitmproxy.proxy.layers.http import HttpClient, HttpLayer, HttpStream
from mitmproxy.proxy.layers.http._events import ResponseData
from mitmproxy.proxy.layers.http._http1 import Http1Client

from toolsimlib.proxy.chunks import JoiningReader, whole_chunks
from toolsimlib.proxy.streamed import StreamedAnswer


class DirectWay:
    """Stands before the topmost layer while ``answer`` is fed by ``stream``.

    ``reader`` reads the backend's bytes; ``sending`` makes the command that sends to the client.
    """

    def __init__(
        self,
        stream: HttpStream,
        answer: StreamedAnswer,
        layer: HttpLayer,
        reader: Http1Client,
        sending: Callable[[bytes], Command],
    ) -> None:
        self._stream, self._answer, self._layer = stream, answer, layer
        self._reader, self._server = reader, reader.conn
        self._sending = sending
        self._is_first = False  # Whether nothing that came earlier is still on its way.
        self._chunks: list[bytes] | None = None
        self._asked: bytes | None = None
        self._top: Layer = stream.context.layers[0]
        self._long_way = self._top.handle_event
        self._top.handle_event = self._handle_event  # type: ignore[method-assign]

    def close(self) -> None:
        """Leave everything to the layers from now on."""
        self._top.handle_event = self._long_way  # type: ignore[method-assign]

    def taken(self, data: bytes) -> list[bytes] | None:
        """Return what comes at once of the piece that is at the stream now; None: nothing was done."""
        chunks, asked, self._chunks, self._asked = self._chunks, self._asked, None, None
        # Nobody is asked twice.
        return self._answer.at_once(data) if chunks is None and data != asked else chunks

    def _handle_event(self, event: Event) -> CommandGenerator[None]:
        if type(event) is DataReceived and event.connection is self._server and (self._is_first or self._is_free()):
            data = whole_chunks(event.data)
            chunks = self._answer.at_once(data) if data else None
            if chunks is not None and not (self._answer.finished or self._answer.cut):
                self._is_first = True
                for chunk in chunks:
                    yield self._sending(chunk)
                return
            # At its end the stream has more to do than to send this.
            self._chunks, self._asked = chunks, data
            if data:
                self._is_first = False
                yield from self._layer.event_to_child(self._stream, ResponseData(self._stream.stream_id, data))
                return
        self._is_first = False
        yield from self._long_way(event)

    def _is_free(self) -> bool:
        reader = self._reader
        if reader.buf or not isinstance(reader.body_reader, JoiningReader):
            return False
        return reader.body_reader.is_between_chunks and self._stream._paused is None


def direct_way(
    stream: HttpStream, answer: StreamedAnswer, layer: HttpLayer, sending: Callable[[bytes], Command]
) -> DirectWay | None:
    """Open the direct way for a stream of ``layer``, if there is one (rule 2); its client speaks HTTP/1."""
    client = layer.connections.get(stream.context.server)
    reader = client.child_layer if type(client) is HttpClient else None
    if not isinstance(reader, Http1Client) or stream.context.layers[1:] != [layer, stream]:
        return None
    return DirectWay(stream, answer, layer, reader, sending)
