"""A flow as ``route`` sees it."""

from __future__ import annotations

from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.mode_specs import RegularMode, ReverseMode, UpstreamMode

from toolsimlib.proxy import head, resend
from toolsimlib.proxy.access import Incoming
from toolsimlib.proxy.address import is_listener
from toolsimlib.proxy.builtin import is_local


def incoming(flow: HTTPFlow, *, reached_at: str = "", has_proxy_key: bool = False) -> Incoming:
    """Return what decides where a flow goes."""
    request, client = flow.request, flow.client_conn
    return Incoming(
        request.method,
        request.host,
        request.port,
        request.path,
        head.by_name(request.headers),
        is_reverse=isinstance(client.proxy_mode, ReverseMode),
        is_direct=is_listener(request.host, request.port, client.sockname),
        is_forward=isinstance(client.proxy_mode, RegularMode | UpstreamMode),
        has_proxy_key=has_proxy_key,
        is_local=is_local(client),
        is_resent=resend.is_resent(flow),
        reached_at=reached_at,
    )
