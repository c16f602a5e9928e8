"""Builds the input for ``access`` and ``route`` from a flow, plus two facts that mitmproxy hides.

*The Host header.* In reverse mode mitmproxy replaces it by the backend's before any hook sees the request, unless its
option ``keep_host_header`` is set. But the Host by which a client has reached the proxy decides whether it is served
(``access``, rule 3). So this module sets that option, and replaces the header itself unless the operator wants it kept.
With the option set, mitmproxy would also send the client's SNI to the backend, so the backend's own name is set there.

*The key of a tunnel.* A client sends it in the CONNECT request, once for all requests of its connection.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import replace
from weakref import WeakSet

from mitmproxy import ctx
from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow
from mitmproxy.net.http.url import hostport
from mitmproxy.proxy.mode_specs import RegularMode, ReverseMode, UpstreamMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from toolsim.proxy.access import Incoming, check_forward, is_proxy_key, own_names
from toolsim.proxy.address import is_listener, is_loopback
from toolsim.proxy.head import by_name
from toolsim.proxy.metadata import is_resent
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.refusals import Refusals

_KEEP = "keep_host_header"


def with_names(settings: Settings, listen_hosts: Collection[str]) -> Settings:
    """Return settings that include the listener's names."""
    return replace(settings, names=own_names(socket.gethostname(), listen_hosts, settings.origins))


class IncomingReader:
    """An addon that answers CONNECT, and determines the Host and key with which a request has arrived."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self.settings = Settings()
        """The current settings."""
        # The clients whose tunnels were opened with the key.
        self._opened: WeakSet[Client] = WeakSet()
        # Whether to do what mitmproxy does without keep_host_header, which is set here.
        self._replaces = False
        self._is_setting = False

    # -- hooks --

    def configure(self, updated: Collection[str]) -> None:
        """Take over the option."""
        if _KEEP in updated and not self._is_setting:
            self._replaces = not ctx.options.keep_host_header
            self._set(True)

    def done(self) -> None:
        """Restore the option."""
        if self._replaces:
            self._set(False)

    def http_connect(self, flow: HTTPFlow) -> None:
        """Refuse a tunnel if the forward proxy is not enabled, or if its client does not have the key."""
        if flow.response is not None:
            return
        has_key = self.take_key(flow)
        error = check_forward(self.settings, has_key=has_key)
        if error is not None:
            self._refusals.answer(flow, error)
        elif has_key:
            self._opened.add(flow.client_conn)

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Use the backend's own name in its TLS handshake."""
        mode, server = data.client.proxy_mode, data.server
        if isinstance(mode, ReverseMode) and self._replaces and server.address == mode.address:
            server.sni = server.sni or mode.address[0]

    # -- called by the request hooks --

    def take_host(self, flow: HTTPFlow) -> str:
        """Return the host and port by which the client has reached the proxy, and set the backend's Host."""
        request = flow.request
        found = request.authority or request.host_header or ""
        # A flow from a file is left unchanged.
        if flow.live and isinstance(flow.client_conn.proxy_mode, ReverseMode) and self._replaces:
            request.host_header = hostport(request.scheme, request.host, request.port)
        return found

    def incoming(self, flow: HTTPFlow, reached_at: str) -> Incoming:
        """Return the input for routing a flow; ``reached_at``: as returned by ``take_host``."""
        request, client = flow.request, flow.client_conn
        return Incoming(
            request.method,
            request.host,
            request.port,
            request.path,
            by_name(request.headers),
            is_reverse=isinstance(client.proxy_mode, ReverseMode),
            is_direct=is_listener(request.host, request.port, client.sockname),
            is_forward=isinstance(client.proxy_mode, RegularMode | UpstreamMode),
            has_proxy_key=self.take_key(flow),
            is_local=bool(client.peername) and is_loopback(str(client.peername[0])),
            is_resent=is_resent(flow),
            reached_at=reached_at,
        )

    def take_key(self, flow: HTTPFlow) -> bool:
        """Return whether the client has sent the key to the forward proxy; the header is removed."""
        key, headers = self.settings.api_key, flow.request.headers
        if not key:
            return False
        if is_proxy_key(headers.get("proxy-authorization", ""), key):
            del headers["proxy-authorization"]
            return True
        # mitmproxy's own option proxyauth has checked it.
        return flow.client_conn in self._opened or "proxyauth" in flow.metadata

    def _set(self, value: bool) -> None:
        self._is_setting = True
        try:
            ctx.options.update(keep_host_header=value)  # type: ignore[no-untyped-call]
        finally:
            self._is_setting = False
