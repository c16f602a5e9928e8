"""Streams an answer: feeds the backend's data to a ``StreamedAnswer``, and sends its output to the client.

Relies on these internals of ``mitmproxy.proxy.layers.http`` 12.2:

1. For ``ResponseEndOfMessage``, ``state_stream_response_body`` runs the ``response`` hook and ends the client's answer
   without closing its connection.
2. For ``ResponseData``, it only calls ``flow.response.stream`` and sends the result, which ``Http1Server.send`` frames
   as a chunk. Nearly all events of a stream are of this type, so this class does both in one step, which saves half of
   mitmproxy's own work.
3. For each hook, mitmproxy looks up a handler in every addon, which takes 0.1 ms. If the argument of the hook is a
   flow, it also looks up the handlers of ``update``. So the hook that may run many times during an answer
   (``ToolsimPauseHook``) receives the answer instead of the flow.
4. While a hook runs, other events of the stream have to wait, including the client's disconnection. So a stream that
   waits for another round does not wait in a hook. It polls the round, and requests a wake-up for the next poll. The
   ``Wakeup`` event contains the command that requested it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import override

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.commands import Command, RequestWakeup, SendData, StartHook
from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import SendHttp
from mitmproxy.proxy.layers.http._events import ResponseData, ResponseEndOfMessage
from mitmproxy.proxy.layers.http._http1 import Http1Server

from toolsim.proxy.head import by_name
from toolsim.proxy.mitmproxy12.backpressure import HIGH_WATER_BYTES, writer_of
from toolsim.proxy.mitmproxy12.fast_path import FastPath, open_fast_path
from toolsim.proxy.mitmproxy12.stream import OwnStream
from toolsim.proxy.streamed import StreamedAnswer

LINGER_SECONDS = 0.5
"""Time, in seconds, that a backend has to disconnect after its answer. After that, toolsim closes the connection."""

UNREAD_SECONDS = 0.1
"""Interval, in seconds, at which a stream checks whether a slow client has read enough for a round to continue."""


@dataclass
class ToolsimPauseHook(StartHook):  # type: ignore[no-untyped-call]
    """The hook for a stream that pauses in the middle of a long answer, so that other tasks can run."""

    answer: StreamedAnswer


@dataclass
class ToolsimAskHook(StartHook):  # type: ignore[no-untyped-call]
    """The hook for a flow whose streamed answer needs another round before it can end."""

    flow: HTTPFlow


@dataclass
class ToolsimStoreHook(StartHook):  # type: ignore[no-untyped-call]
    """The hook for a flow whose streamed answer has to be stored before its final event is sent."""

    flow: HTTPFlow


class ResponsePump(OwnStream):
    """A stream that feeds the backend's data to the exchange's ``StreamedAnswer``."""

    fed: StreamedAnswer | None = None
    """The answer that is being streamed, or None before and after streaming."""
    is_lingering = False
    """Whether the answer has been sent completely and the backend still has time to disconnect."""
    frames_chunks = False
    """Whether this class frames the HTTP/1 chunks in place of mitmproxy (rule 2)."""
    stores_bytes = False
    """Whether mitmproxy stores the bytes of the answer. This is determined when the answer begins."""
    fast_path: FastPath | None = None
    """The fast path that bypasses mitmproxy's layers, or None if it is not used."""
    next_look: RequestWakeup | None = None
    """The pending wake-up for polling another round (rule 4), or None if no wake-up is pending."""
    is_delivered = False
    """Whether the entire answer has been sent to the client, except the end of the HTTP message."""
    has_backend_ended = False
    """Whether the backend's answer ended while the client's answer continues."""

    def receive(self, fed: StreamedAnswer, data: bytes) -> CommandGenerator[None]:
        """Feed data from the backend to the answer."""
        if not data:
            # Empty data (from an empty HTTP/2 frame) is skipped, because the answer would take it for the end of input.
            return
        if not fed.waits:  # After the end of the backend's answer, nothing is left to read.
            yield from self.feed(fed, fed.slices(data))

    @override
    def start_response_stream(self) -> CommandGenerator[None]:
        yield from super().start_response_stream()
        self.begin_feeding()

    def begin_feeding(self) -> None:
        """Start feeding data to the exchange's answer, if the answer is streamed."""
        exchange, response = self.exchange, self.flow.response
        answer = exchange.streamed if exchange is not None else None
        if answer is None or response is None or response.stream != answer.feed:
            return
        self.fed = answer
        self.stores_bytes = self.context.options.store_streamed_bodies
        self.frame_chunks(response)
        if self.frames_chunks:
            self.fast_path = open_fast_path(self, answer, self.layer, self.framed)

    def frame_chunks(self, response: Response) -> None:
        """Frame HTTP/1 chunks in this class if the client uses HTTP/1 and the response is chunked (rule 2)."""
        is_chunked = "chunked" in by_name(response.headers).get("transfer-encoding", "").lower()
        self.frames_chunks = is_chunked and type(self.layer.connections.get(self.context.client)) is Http1Server

    @override
    def state_stream_response_body(self, event: Event) -> CommandGenerator[None]:
        if isinstance(event, ResponseData) and not event.data:
            # An empty HTTP/2 frame must not be forwarded, because an empty chunk would end an HTTP/1 client's
            # response.
            return
        if isinstance(event, ResponseEndOfMessage):
            answer = self.fed
            if answer is not None and answer.waits:
                self.has_backend_ended = True
                return
            self.stop_feeding()
            if answer is not None and answer.needs_time:
                for chunks in answer.slices(b""):
                    yield from map(self.sending, chunks or ())
                if answer.waits:
                    self.fed, self.has_backend_ended = answer, True
                    yield from self.ask(answer)
                    return
                yield from self.store(answer)
        yield from super().state_stream_response_body(event)

    def feed(self, answer: StreamedAnswer, slices: Iterable[list[bytes] | None]) -> CommandGenerator[None]:
        """Send the output in ``slices`` to the client. A None in ``slices`` means that other tasks should run first."""
        for chunks in slices:
            if chunks is None:
                yield from self.pause(answer)
            else:
                yield from map(self.sending, chunks)
        self.is_delivered = answer.finished and not answer.end
        if answer.waits:
            yield from self.ask(answer)
        else:
            yield from self.over(answer)

    def over(self, answer: StreamedAnswer) -> CommandGenerator[None]:
        """End the client's answer if the backend's answer has ended, or if toolsim has cut the answer short.

        If the answer is complete but the backend is still connected, first give the backend time to disconnect.
        """
        yield from self.store(answer)
        if self.has_backend_ended:
            self.stop_feeding()
            yield from super().state_stream_response_body(ResponseEndOfMessage(self.stream_id))
        elif answer.cut:
            yield from self.end()
        elif answer.finished and not self.is_lingering:
            self.is_lingering = True
            yield RequestWakeup(LINGER_SECONDS)

    def ask(self, answer: StreamedAnswer) -> CommandGenerator[None]:
        """Start another round for the answer."""
        if self.fast_path is not None:
            self.fast_path.close()
            self.fast_path = None
        yield ToolsimAskHook(self.flow)
        yield from self.resume(answer)

    def poll(self, answer: StreamedAnswer | None) -> CommandGenerator[None]:
        """Send any new events from another round of the answer, unless the client is slow to read."""
        self.next_look = None
        if answer is None or not answer.waits or self.exchange is None or self.ended:
            return
        writer = writer_of(self.context.client)
        if writer is not None and writer.transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            # No more output is produced while the client does not read.
            self.next_look = RequestWakeup(UNREAD_SECONDS)
            yield self.next_look
            return
        yield ToolsimPauseHook(answer)
        yield from self.resume(answer)

    def resume(self, answer: StreamedAnswer) -> CommandGenerator[None]:
        """Send the new events, and poll again unless the answer has ended (rule 4)."""
        yield from map(self.sending, answer.proceed())
        if answer.waits:
            self.next_look = RequestWakeup(0)
            yield self.next_look
        else:
            yield from self.over(answer)

    def pause(self, answer: StreamedAnswer) -> CommandGenerator[None]:
        """Let other tasks run. Stop reading from the backend meanwhile, so that its data does not pile up."""
        writer = writer_of(self.context.client, self.context.server)
        transport = writer.transport if writer is not None else None
        # If the reader has already paused its transport, only the reader may resume it. Resuming it here would let the
        # reader's buffer grow without limit.
        if isinstance(transport, asyncio.ReadTransport) and transport.is_reading():
            transport.pause_reading()
            yield ToolsimPauseHook(answer)
            transport.resume_reading()
        else:
            yield ToolsimPauseHook(answer)

    def store(self, answer: StreamedAnswer) -> CommandGenerator[None]:
        """Run the hook that stores a finished answer, then send the answer's final event to the client."""
        if answer.end:
            yield ToolsimStoreHook(self.flow)
            yield from map(self.sending, answer.release(answer.end))
        self.is_delivered = answer.finished

    def sending(self, data: bytes) -> Command:
        """Return the command that sends a part of the answer to the client."""
        raw, client = self.framed(data), self.context.client
        return SendData(client, raw) if self.frames_chunks else SendHttp(ResponseData(self.stream_id, raw), client)

    def framed(self, data: bytes) -> bytes:
        """Return the bytes to send for a part of the answer: an HTTP/1 chunk if this class frames chunks."""
        if self.stores_bytes:
            self.response_body_buf += data
        return b"%x\r\n%s\r\n" % (len(data), data) if self.frames_chunks else data

    def stop_feeding(self) -> None:
        """Stop reading the backend's answer."""
        self.fed = None
        if self.fast_path is not None:
            self.fast_path.close()
            self.fast_path = None

    def end(self) -> CommandGenerator[None]:
        """End the streamed answer, and stop the backend."""
        self.ended = True
        self.stop_feeding()
        yield self.stop_backend()
        yield from super().state_stream_response_body(ResponseEndOfMessage(self.stream_id))
