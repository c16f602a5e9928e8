"""Builds the input for ``access`` and ``route`` from a flow, and from two values that a flow does not contain.

*The Host header.* In reverse mode, mitmproxy replaces it with the backend's Host before it calls any hook, unless its
``keep_host_header`` option is set. But whether toolsim serves a client depends on the Host that the client used to
reach the proxy (``access``, rule 3). So this module sets that option, and replaces the header itself unless the
operator has set the option. With the option set, mitmproxy would also send the client's SNI to the backend, so this
module sets the SNI to the backend's own name.

*The key of a tunnel.* A client sends it only once, in the CONNECT request, for all requests on its connection.

With a key file, the number of wrong keys from each source is limited (``wrong_keys``).
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import replace
from weakref import WeakKeyDictionary

from mitmproxy import ctx
from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow
from mitmproxy.net.http.url import hostport
from mitmproxy.proxy.mode_specs import RegularMode, ReverseMode, UpstreamMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from toolsim.proxy.access import KEY_HEADERS, Incoming, Refusal, check_forward, own_names, proxy_user_of, user_of
from toolsim.proxy.address import is_listener, is_loopback
from toolsim.proxy.head import by_name
from toolsim.proxy.metadata import is_resent
from toolsim.proxy.options.api_keys import User
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.refusals import Refusals, source_of
from toolsim.proxy.wrong_keys import WrongKeys
from toolsim.wire.apis import api_of_headers, api_of_path

_KEEP = "keep_host_header"


def with_names(settings: Settings, listen_hosts: Collection[str]) -> Settings:
    """Return the settings with the listener's names added."""
    return replace(settings, names=own_names(socket.gethostname(), listen_hosts, settings.origins))


class IncomingReader:
    """An addon that checks CONNECT requests, and determines the original Host header and the key of each request."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self.settings = Settings()
        self._tunnels: WeakKeyDictionary[Client, User] = WeakKeyDictionary()
        """The user of each client that has an open tunnel."""
        self._wrong_keys = WrongKeys()
        # Whether to replace the Host header, as mitmproxy does if its option keep_host_header is not set.
        self._replaces = False
        self._is_setting = False

    # -- hooks --

    def configure(self, updated: Collection[str]) -> None:
        """Set mitmproxy's ``keep_host_header`` option, and remember the operator's value."""
        if _KEEP in updated and not self._is_setting:
            self._replaces = not ctx.options.keep_host_header
            self._set(True)

    def done(self) -> None:
        """Restore the operator's value of ``keep_host_header``."""
        if self._replaces:
            self._set(False)

    def http_connect(self, flow: HTTPFlow) -> None:
        """Reject a tunnel if the forward proxy is not enabled, or if the client did not send a valid key."""
        if flow.response is not None:
            return
        user, is_guessing = self._accepted(flow, self._take_proxy_user(flow))
        error = check_forward(self.settings, has_key=user is not None, is_guessing=is_guessing)
        if error is not None:
            self.note_refusal(flow, error)
            self._refusals.answer(flow, error)
        elif user is not None:
            self._tunnels[flow.client_conn] = user

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Use the backend's own name as the SNI of a connection to the backend."""
        mode, server = data.client.proxy_mode, data.server
        if isinstance(mode, ReverseMode) and self._replaces and server.address == mode.address:
            server.sni = server.sni or mode.address[0]

    # -- called by the request hooks --

    def take_host(self, flow: HTTPFlow) -> str:
        """Return the Host that the client used to reach the proxy, and set the Host header for the backend."""
        request = flow.request
        found = request.authority or request.host_header or ""
        # The Host header is replaced only in live flows. A flow that was loaded from a file is left unchanged.
        if flow.live and isinstance(flow.client_conn.proxy_mode, ReverseMode) and self._replaces:
            request.host_header = hostport(request.scheme, request.host, request.port)
        return found

    def incoming(self, flow: HTTPFlow, reached_at: str, proxy_user: User | None = None) -> Incoming:
        """Return the input for routing a flow. ``reached_at`` is the return value of ``take_host``.

        If the request arrived on a WebSocket connection that the client opened with a key for the forward proxy,
        ``proxy_user`` is the user of that key.
        """
        request, client, keys = flow.request, flow.client_conn, self.settings.api_key
        headers = by_name(request.headers)
        user, is_guessing = None, False
        if keys is not None:
            user = user_of(headers, api_of_path(request.path) or api_of_headers(headers), keys)
            user, is_guessing = self._accepted(flow, user)
            proxy_user = keys.current(proxy_user) if proxy_user is not None else self._take_proxy_user(flow)
            proxy_user, _ = self._accepted(flow, proxy_user)
        return Incoming(
            request.method,
            request.host,
            request.port,
            request.path,
            headers,
            is_reverse=isinstance(client.proxy_mode, ReverseMode),
            is_direct=is_listener(request.host, request.port, client.sockname),
            is_forward=isinstance(client.proxy_mode, RegularMode | UpstreamMode),
            user=user,
            proxy_user=proxy_user,
            is_guessing=is_guessing,
            is_local=bool(client.peername) and is_loopback(str(client.peername[0])),
            is_resent=is_resent(flow),
            reached_at=reached_at,
        )

    def note_refusal(self, flow: HTTPFlow, error: Refusal) -> None:
        """Count a wrong key against the client's address, if a wrong key is the reason for this refusal."""
        keys, headers = self.settings.api_key, flow.request.headers
        names = {"wrong_key": KEY_HEADERS, "proxy_key": ("proxy-authorization",)}.get(error.reason, ())
        if keys is not None and keys.has_names and any(headers.get(name, "").strip() for name in names):
            self._wrong_keys.add(source_of(flow.client_conn))

    def _accepted(self, flow: HTTPFlow, user: User | None) -> tuple[User | None, bool]:
        """Return ``user``, and whether the flow's source is limited because it has sent too many wrong keys.

        None is returned instead of a user whose key the source must not use.
        """
        keys = self.settings.api_key
        if keys is None or not keys.has_names:
            return user, False
        source = source_of(flow.client_conn)
        is_guessing = self._wrong_keys.is_limited(source)
        if user is None or not self._wrong_keys.accept(source, user.name):
            return None, is_guessing
        return user, is_guessing

    def _take_proxy_user(self, flow: HTTPFlow) -> User | None:
        """Return the user whose key the client sent to the forward proxy, and remove the header with the key."""
        keys, headers = self.settings.api_key, flow.request.headers
        if keys is None:
            return None
        user = proxy_user_of(headers.get("proxy-authorization", ""), keys)
        if user is not None:
            del headers["proxy-authorization"]
            return user
        if (checked := flow.metadata.get("proxyauth")) is not None:
            # mitmproxy has already checked the key because of its own ``proxyauth`` option.
            return keys.proxyauth_user(str(checked[0]))
        opened = self._tunnels.get(flow.client_conn)
        return keys.current(opened) if opened is not None else None

    def _set(self, value: bool) -> None:
        self._is_setting = True
        try:
            ctx.options.update(keep_host_header=value)  # type: ignore[no-untyped-call]
        finally:
            self._is_setting = False
