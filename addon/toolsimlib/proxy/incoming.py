"""A flow as ``route`` sees it."""

from __future__ import annotations

from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.mode_specs import ReverseMode

from toolsimlib.proxy import head, resend
from toolsimlib.proxy.address import is_listener
from toolsimlib.proxy.builtin import is_local
from toolsimlib.proxy.route import Incoming


def incoming(flow: HTTPFlow) -> Incoming:
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
        is_local=is_local(client),
        is_resent=resend.is_resent(flow),
    )
