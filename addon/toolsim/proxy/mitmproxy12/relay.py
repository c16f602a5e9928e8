"""Relays an upgraded connection, unread, between its client and the local WebSocket server.

mitmproxy's own WebSocket layer collects each message before passing it on, regardless of its size, and keeps all
messages in the connection's flow. With the relay, only the local server reads the messages, and it limits their size.
Each request that arrives in a message has a separate flow, which people can inspect.

Relies on these internals of mitmproxy 12.2:

1. ``HttpStream.flow_done`` creates the layer that follows a 101 response, and ``passthrough`` passes all further events
   to that layer.
2. ``TCPLayer`` with ``ignore`` relays bytes without creating a flow.
3. ``websocket_end`` is the last hook of a flow with ``websocket``. Without this hook, addons would not learn that the
   connection has ended.
"""

from __future__ import annotations

import time
from typing import override

from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.commands import CloseConnection
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.events import ConnectionClosed, Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.tcp import TCPLayer
from mitmproxy.proxy.layers.websocket import WebsocketEndHook

ABNORMAL = 1006
"""The close code to record for a connection that ended without a close frame."""


def note_end(flow: HTTPFlow, code: int | None, reason: str) -> None:
    """Record the close code and reason of a WebSocket connection in its flow. If ``code`` is None, record nothing."""
    if flow.websocket is not None and code is not None:
        flow.websocket.close_code, flow.websocket.close_reason = code, reason


class Relay(TCPLayer):
    """Relays the bytes of a connection until either side closes it, and then closes both sides.

    ``upgraded`` is the flow of the request that was upgraded to a WebSocket connection.
    """

    def __init__(self, context: Context, upgraded: HTTPFlow) -> None:
        super().__init__(context, ignore=True)
        self._upgraded = upgraded

    @override
    def relay_messages(self, event: Event) -> CommandGenerator[None]:
        if not isinstance(event, ConnectionClosed):
            yield from super().relay_messages(event)
            return
        self._handle_event = self.done
        for connection in (self.context.server, self.context.client):
            yield CloseConnection(connection)
        flow = self._upgraded
        if (websocket := flow.websocket) is not None:
            websocket.timestamp_end = time.time()
            if websocket.close_code is None:
                websocket.close_code, websocket.closed_by_client = ABNORMAL, event.connection is self.context.client
            yield WebsocketEndHook(flow)
        flow.live = False
