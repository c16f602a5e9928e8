"""A flow as ``route`` looks at it."""

from __future__ import annotations

from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.mode_specs import ReverseMode

from toolsimlib.proxy import resend
from toolsimlib.proxy.address import is_listener
from toolsimlib.proxy.builtin import is_local
from toolsimlib.proxy.route import Incoming


def incoming(flow: HTTPFlow) -> Incoming:
    """Return what decides where a flow goes; its headers are read once, since mitmproxy looks at all for each."""
    request, client = flow.request, flow.client_conn
    headers: dict[str, str] = {}
    for raw_name, raw in request.headers.fields:
        name, value = raw_name.lower().decode("utf-8", "surrogateescape"), raw.decode("utf-8", "surrogateescape")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Incoming(
        request.method,
        request.host,
        request.port,
        request.path,
        headers,
        is_reverse=isinstance(client.proxy_mode, ReverseMode),
        is_direct=is_listener(request.host, request.port, client.sockname),
        is_local=is_local(client),
        is_resent=resend.is_resent(flow),
    )
