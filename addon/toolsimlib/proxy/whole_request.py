"""A request that was read whole leaves in one piece: its head and its body in one write.

mitmproxy writes them one after the other. Each is a packet, and a backend that wakes up for the head goes back to sleep
until the body is there. To write is also the most expensive thing that a proxy does with a small request.

What this leans on, in ``mitmproxy.proxy.layers.http`` 12.2:

1. The module's global name ``Http1Client`` makes what speaks HTTP/1 to a backend.
2. A request that is not streamed has its body in ``raw_content`` when its headers are sent, and the body is sent by the
   next event, with nothing awaited between.
3. For each of the two ``Http1Client.send`` yields one ``SendData``.
"""

from __future__ import annotations

from typing import override

from mitmproxy.proxy.commands import SendData
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import RequestHeaders
from mitmproxy.proxy.layers.http._http1 import Http1Client

# A larger body would be copied for the sake of one write of many.
_MAX_BYTES = 64 * 1024


class WholeRequestClient(Http1Client):
    """Keeps a request's head until its body comes, which is at once."""

    _head = b""

    @override
    def send(self, event: HttpEvent) -> CommandGenerator[None]:
        waits = isinstance(event, RequestHeaders) and _has_body_at_hand(event)
        for command in super().send(event):
            if not isinstance(command, SendData):
                yield command
            elif waits:
                self._head = command.data
            else:
                command.data, self._head = self._head + command.data, b""
                yield command


def _has_body_at_hand(event: RequestHeaders) -> bool:
    request = event.request
    return not (event.end_stream or request.stream) and 0 < len(request.raw_content or b"") <= _MAX_BYTES


def install() -> None:
    """Send requests in this way over new connections; a mitmproxy that sends them otherwise is left as it is."""
    if getattr(http, "Http1Client", None) is Http1Client:
        http.Http1Client = WholeRequestClient  # type: ignore[attr-defined]


def uninstall() -> None:
    """Send them as mitmproxy does."""
    if getattr(http, "Http1Client", None) is WholeRequestClient:
        http.Http1Client = Http1Client  # type: ignore[attr-defined]
