"""Sends the head and the body of a request that was read whole in one write.

mitmproxy writes them one after the other. Each is a packet, and a backend that wakes up for the head goes back to sleep
until the body arrives. The write is also the most expensive thing that a proxy does with a small request.

Relies on these internals of ``mitmproxy.proxy.layers.http`` 12.2:

1. mitmproxy creates its HTTP/1 clients by the module's global name ``Http1Client``.
2. A request that is not streamed has its body in ``raw_content`` when its headers are sent, and the body is sent by the
   next event, with nothing awaited in between.
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

# Joining a larger body would copy it to save one write of many.
_MAX_BYTES = 64 * 1024


class WholeRequestClient(Http1Client):
    """Holds back the head of a request until the body, which follows at once."""

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
    """Install the client for new connections; leave a mitmproxy that uses another one unchanged."""
    if getattr(http, "Http1Client", None) is Http1Client:
        http.Http1Client = WholeRequestClient  # type: ignore[attr-defined]


def uninstall() -> None:
    """Restore mitmproxy's own client."""
    if getattr(http, "Http1Client", None) is WholeRequestClient:
        http.Http1Client = Http1Client  # type: ignore[attr-defined]
