"""Handling of the client's Host header and of tunnel keys, tested with individual flows."""

from __future__ import annotations

from typing import Any

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Server
from mitmproxy.http import Headers, HTTPFlow
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import taddons, tflow
from toolsim.proxy.incoming import IncomingReader
from toolsim.proxy.options.api_keys import ApiKeys
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.refusals import Refusals
from toolsim.proxy.reporting.log import Log


@pytest.fixture
def reader() -> Any:
    with taddons.context(Proxyserver()) as context:
        reader = IncomingReader(Refusals(Log()))
        context.master.addons.add(reader)
        reader.configure({"keep_host_header"})
        context.reader = reader
        yield context


def reverse(host: str = "evil.test") -> HTTPFlow:
    flow = tflow.tflow()
    flow.client_conn.proxy_mode = ProxyMode.parse("reverse:http://backend:8000")
    flow.request.host, flow.request.port = "backend", 8000
    flow.request.headers["host"] = host
    return flow


def test_host_is_read_and_replaced(reader: Any) -> None:
    """In reverse mode, the Host header is replaced by the backend's host name, as mitmproxy would do. The original
    header is kept in other modes and in stored flows.
    """
    assert reader.options.keep_host_header
    flow = reverse()
    assert reader.reader.take_host(flow) == "evil.test"
    assert flow.request.headers["host"] == "backend:8000"
    stored = reverse()
    stored.live = False
    reader.reader.take_host(stored)
    assert stored.request.headers["host"] == "evil.test"
    regular = reverse()
    regular.client_conn.proxy_mode = ProxyMode.parse("regular")
    assert reader.reader.take_host(regular) == "evil.test"
    assert regular.request.headers["host"] == "evil.test"


def test_absolute_target_precedes_the_host_header(reader: Any) -> None:
    """An absolute request target takes precedence over the Host header, as required by RFC 9112, section 3.2.2."""
    flow = reverse("127.0.0.1")
    flow.request.authority = "evil.test:80"
    assert reader.reader.take_host(flow) == "evil.test:80"


def test_operator_can_change_keep_host_header(reader: Any) -> None:
    """The operator can change ``keep_host_header`` while the proxy runs. On shutdown, the option is reset to the
    operator's last value.
    """
    reader.options.update(keep_host_header=True)
    flow = reverse("kept")
    assert reader.reader.take_host(flow) == "kept"
    assert flow.request.headers["host"] == "kept"
    reader.options.update(keep_host_header=False)
    assert reader.options.keep_host_header
    reader.reader.take_host(flow)
    assert flow.request.headers["host"] == "backend:8000"
    reader.reader.done()
    assert not reader.options.keep_host_header


def test_tls_uses_the_backends_name(reader: Any) -> None:
    """In the TLS handshake with the backend, the server name is the backend's host, rather than the host that the
    client requested.
    """
    flow = reverse()
    for address, expected in ((("backend", 8000), "backend"), (("other", 1), None)):
        server = Server(address=address)
        reader.reader.server_connect(ServerConnectionHookData(server, flow.client_conn))
        assert server.sni == expected


def tunnel(header: str = "") -> HTTPFlow:
    flow = tflow.tflow()
    flow.request.method = "CONNECT"
    if header:
        flow.request.headers["proxy-authorization"] = header
    return flow


def test_tunnel_requires_the_key(reader: Any) -> None:
    """A client needs toolsim's key to open a tunnel. The key is not forwarded, and requests inside the tunnel need no
    key.
    """
    reader.reader.settings = Settings(api_key=ApiKeys.single("k"))
    refused, opened = tunnel("Bearer x"), tunnel("Bearer k")
    for flow in (refused, opened):
        reader.reader.http_connect(flow)
    assert refused.response is not None
    assert refused.response.status_code == 407
    assert opened.response is None
    assert "proxy-authorization" not in opened.request.headers
    inner = tflow.tflow(client_conn=opened.client_conn)
    assert reader.reader.incoming(inner, "").proxy_user is not None
    assert reader.reader.incoming(tflow.tflow(client_conn=refused.client_conn), "").proxy_user is None


def test_answered_tunnel_is_unchanged(reader: Any) -> None:
    """A tunnel that another addon has already answered is not changed."""
    flow = tunnel()
    flow.response = tflow.tresp()
    reader.reader.settings = Settings(builtin="scripted")
    reader.reader.http_connect(flow)
    assert flow.response.status_code == 200


def test_kind_of_flow_is_recognized() -> None:
    """toolsim distinguishes requests to the listener itself, requests in reverse mode, and requests to other hosts."""
    flow = tflow.tflow()
    flow.client_conn.sockname, flow.client_conn.peername = ("127.0.0.1", 8080), ("127.0.0.1", 1)
    flow.client_conn.proxy_mode = ProxyMode.parse("regular")
    seen = IncomingReader(Refusals(Log())).incoming(flow, "")
    assert (seen.method, seen.host, seen.port, seen.path) == ("GET", "address", 22, "/path")
    assert (seen.is_reverse, seen.is_direct, seen.is_local, seen.is_resent) == (False, False, True, False)
    flow.request.host, flow.request.port = "localhost", 8080
    assert IncomingReader(Refusals(Log())).incoming(flow, "").is_direct
    flow.client_conn.proxy_mode = ProxyMode.parse("reverse:http://backend")
    flow.is_replay = "request"
    seen = IncomingReader(Refusals(Log())).incoming(flow, "")
    assert (seen.is_reverse, seen.is_resent) == (True, True)


def test_header_names_are_lowercased() -> None:
    """Header names are converted to lower case, and fields with the same name are joined."""
    flow = tflow.tflow()
    flow.request.headers = Headers([(b"Via", b"1.0 a"), (b"X-Odd", b"\xff"), (b"VIA", b"1.1 b, 1.1 c")])
    assert IncomingReader(Refusals(Log())).incoming(flow, "").headers == {
        "via": "1.0 a, 1.1 b, 1.1 c",
        "x-odd": "\udcff",
    }
    assert all(
        flow.request.headers[name] == value
        for name, value in IncomingReader(Refusals(Log())).incoming(flow, "").headers.items()
    )
