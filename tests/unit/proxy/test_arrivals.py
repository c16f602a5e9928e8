"""What the router sees of a flow."""

from __future__ import annotations

from mitmproxy.http import Headers
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import tflow
from toolsimlib.proxy.arrivals import incoming_of


def test_which_way_a_flow_came() -> None:
    """To the listener itself, in reverse mode, or on its way to another host."""
    flow = tflow.tflow()
    flow.client_conn.sockname, flow.client_conn.peername = ("127.0.0.1", 8080), ("127.0.0.1", 1)
    flow.client_conn.proxy_mode = ProxyMode.parse("regular")
    seen = incoming_of(flow)
    assert (seen.method, seen.host, seen.port, seen.path) == ("GET", "address", 22, "/path")
    assert (seen.is_reverse, seen.is_direct, seen.is_local, seen.is_resent) == (False, False, True, False)
    flow.request.host, flow.request.port = "localhost", 8080
    assert incoming_of(flow).is_direct
    flow.client_conn.proxy_mode = ProxyMode.parse("reverse:http://backend")
    flow.is_replay = "request"
    seen = incoming_of(flow)
    assert (seen.is_reverse, seen.is_resent) == (True, True)


def test_headers_are_those_of_the_request() -> None:
    """Names are lower case, and fields of one name are joined."""
    flow = tflow.tflow()
    flow.request.headers = Headers([(b"Via", b"1.0 a"), (b"X-Odd", b"\xff"), (b"VIA", b"1.1 b, 1.1 c")])
    assert incoming_of(flow).headers == {"via": "1.0 a, 1.1 b, 1.1 c", "x-odd": "\udcff"}
    assert all(flow.request.headers[name] == value for name, value in incoming_of(flow).headers.items())
