"""Detection of requests that a listener receives from itself, directly or through another proxy."""

from __future__ import annotations

from mitmproxy.connection import Client, Server
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import tflow
from toolsim.proxy.loop_detection import Connections, Via

LISTENER, OTHER_LISTENER = ("127.0.0.1", 8080), ("127.0.0.1", 8081)


def client(peer: tuple[str, int], listener: tuple[str, int] = LISTENER) -> Client:
    return Client(peername=peer, sockname=listener)


def server(sockname: tuple[str, int], to: tuple[str, int] = LISTENER) -> Server:
    made = tflow.tserver_conn()
    made.sockname, made.peername, made.tls = sockname, to, False
    return made


def opened(connections: Connections, by: Client, to: Server) -> None:
    connections.server_connected(ServerConnectionHookData(to, by))


def test_request_loop_is_detected() -> None:
    """A request loop is detected by comparing the client's address with the local addresses of open connections, even
    if the request passed through other listeners.
    """
    connections = Connections()
    outside, outgoing = client(("10.0.0.9", 1)), server(("127.0.0.1", 50000))
    assert not connections.is_loop(outside)
    opened(connections, outside, outgoing)
    assert connections.is_loop(client(("127.0.0.1", 50000)))
    assert not connections.is_loop(client(("127.0.0.1", 50001)))
    opened(connections, outside, server(("127.0.0.1", 50000), OTHER_LISTENER))
    between = client(("127.0.0.1", 50000), OTHER_LISTENER)
    assert not connections.is_loop(between)
    opened(connections, between, server(("127.0.0.1", 50002)))
    assert connections.is_loop(client(("127.0.0.1", 50002)))
    connections.server_disconnected(ServerConnectionHookData(outgoing, outside))
    assert not connections.is_loop(client(("127.0.0.1", 50000)))


def test_connection_is_identified_by_both_ends() -> None:
    """A connection is identified by both its local and its remote address, because the operating system can use one
    local port for several targets.
    """
    connections = Connections()
    opened(connections, client(("10.0.0.9", 1)), server(("127.0.0.1", 50000), ("127.0.0.1", 11434)))
    assert not connections.is_loop(client(("127.0.0.1", 50000)))


def test_dual_stack_addresses_are_recognized() -> None:
    """An IPv4 connection is recognized even if it arrives at an IPv6 socket."""
    connections = Connections()
    opened(connections, client(("10.0.0.9", 1)), server(("127.0.0.1", 50000)))
    assert connections.is_loop(client(("::ffff:127.0.0.1", 50000), ("::ffff:127.0.0.1", 8080)))


def test_listener_recognizes_only_its_own_via() -> None:
    """A listener recognizes its own entry in the Via header, but not the entry of another listener or process."""
    here, there, elsewhere = Via(), Via(), tflow.tclient_conn()
    client = tflow.tclient_conn()
    client.sockname, elsewhere.sockname = ("127.0.0.1", 8080), ("127.0.0.1", 8081)
    assert not here.has_passed("", client)
    via = here.signed("", client)
    assert here.has_passed(via, client)
    assert not here.has_passed(via, elsewhere)
    assert not there.has_passed(via, client)


def test_via_entries_of_others_are_kept() -> None:
    """Other proxies' entries in the Via header are kept in order, and toolsim's own entry is appended once."""
    via, client = Via(), tflow.tclient_conn()
    header = "1.0 fred (odd), HTTP/1.1 p.example.net,  , 2 three"
    for _ in range(2):
        header = via.signed(header, client)
        *others, own = header.split(", ")
        assert others == ["1.0 fred (odd)", "HTTP/1.1 p.example.net", "2 three"]
        assert own.startswith("1.1 toolsim-")
    assert via.has_passed(header, client)
