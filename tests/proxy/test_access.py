"""Tests for access to the proxy: with and without API keys, from other machines, and from web pages."""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import pytest
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of

OBSIDIAN = "app://obsidian.md"


def own_address() -> str:
    """Return a non-loopback address of this machine, or skip the test if the machine has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Connecting a UDP socket sends no packet.
        except OSError:
            pytest.skip("needs a network address")
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def locked(backend: RawBackend) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, toolsim_api_key="söcret") as proxy:
        yield proxy


KEYS: list[tuple[str | None, int]] = [
    (None, 401),
    ("", 401),
    ("Bearer", 401),
    ("Bearer wrong", 401),
    ("Basic söcret", 401),
    ("Bearer söcret!", 401),
    ("Bearer söcret", 200),
    ("bearer  söcret", 200),
]


@pytest.mark.parametrize(("header", "status"), KEYS)
def test_every_request_needs_the_key(
    header: str | None, status: int, backend: RawBackend, locked: Mitmdump, ask: Any
) -> None:
    """If an API key is set, every request needs it, with or without tools and regardless of the path."""
    backend.play(stream_of("Hi"))
    headers = {} if header is None else {"Authorization": header.encode().decode("latin-1")}
    with Line(locked.url) as line:
        for method, path, body in (
            ("POST", "/v1/chat/completions", ask(stream=True)),
            ("POST", "/v1/responses", {"input": "no tools"}),
            ("GET", "/v1/models", None),
            ("GET", "/toolsim/metrics", None),
            ("GET", "/other", None),
        ):
            reply = line.request(method, path, body, **headers)
            assert reply.status == status, path
            if status == 401:
                assert reply.json()["error"]["code"] == "invalid_api_key"
                assert reply.headers["WWW-Authenticate"] == "Bearer"


def test_only_the_backend_is_reachable(backend: RawBackend, locked: Mitmdump) -> None:
    """If a proxy has a single backend, clients cannot reach another server by naming its host or by opening a tunnel,
    even with the key.
    """
    key = {"Authorization": "Bearer söcret".encode().decode("latin-1")}
    backend.play(stream_of("Hi"))
    with RawBackend() as elsewhere, Line(locked.url) as line:
        place = elsewhere.url.removeprefix("http://")
        for path, host in ((f"{elsewhere.url}/v1/models", place), ("/v1/models", place), (f"{elsewhere.url}/x", "x")):
            line.request("GET", path, Host=host, **key)
            line.request("POST", path, {"input": "no tools"}, Host=host, **key)
        with suppress(OSError, HTTPException), Line(locked.url) as tunnel:
            tunnel.request("CONNECT", place, **key)
        assert elsewhere.asked == []
    assert len(backend.asked) >= 6


# -- web pages --

ORIGINS = [
    (OBSIDIAN, True),
    ("capacitor://localhost", True),
    ("http://localhost", True),
    ("http://localhost:5173", True),
]
ORIGINS += [("http://127.0.0.1:80", True), ("https://evil.example", False), ("http://localhost.evil.example", False)]
ORIGINS += [("null", False), ("http://localhost:80:80", False)]


@pytest.mark.parametrize(("origin", "listed"), ORIGINS)
def test_preflight_requests(origin: str, listed: bool, backend: RawBackend, line: Line) -> None:
    """A preflight request is answered if its origin is listed in ``toolsim_cors_origins``. Otherwise, it is refused."""
    backend.play(stream_of("Hi"))
    reply = line.request(
        "OPTIONS",
        "/v1/chat/completions",
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization, content-type, x-stainless-os",
    )
    assert reply.headers.get("Access-Control-Allow-Origin") == (origin if listed else None)
    assert reply.status == (200 if listed else 403)
    assert backend.asked == []
    if listed:
        assert "x-stainless-os" in reply.headers["Access-Control-Allow-Headers"]
        assert "POST" in reply.headers["Access-Control-Allow-Methods"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_listed_pages_can_read_answers_and_errors(path: str, backend: RawBackend, line: Line, ask: Any) -> None:
    """Pages from a listed origin can read all responses: rewritten answers, unchanged answers, and errors."""

    async def refuse(answer: Answer) -> None:
        await answer.whole(b"{}", 429, Content_Type="application/json", Vary="Accept")

    for behaviour in (stream_of("Hi"), refuse):
        backend.play(behaviour)
        for body in (ask(), ask(stream=True), ask(tools=[]), ask(tools=1)):
            method = "GET" if path.endswith("models") else "POST"
            reply = line.request(method, path, None if method == "GET" else body, Origin=OBSIDIAN)
            assert reply.headers["Access-Control-Allow-Origin"] == OBSIDIAN
            assert "Origin" in reply.headers["Vary"]
            assert (
                "Access-Control-Allow-Origin"
                not in line.request(method, path, b"{}", Origin="https://x.example").headers
            )


def test_backends_cors_headers_are_unchanged(backend: RawBackend, line: Line, ask: Any) -> None:
    """CORS headers that the backend itself sends reach the client unchanged."""

    async def behave(answer: Answer) -> None:
        await answer.whole(b"{}", Access_Control_Allow_Origin="*")

    backend.play(behave)
    assert line.request("GET", "/v1/models", Origin=OBSIDIAN).headers.get_all("Access-Control-Allow-Origin") == ["*"]  # type: ignore[attr-defined]


def test_unlisted_page_cannot_use_the_builtin_backend(ask: Any) -> None:
    """A built-in backend refuses requests from web pages whose origin is not listed, although such a page could not
    read the response anyway.
    """
    with Mitmdump(toolsim_backend="scripted", toolsim_cors_origins="https://chat.example") as proxy:
        proxy.wait_for("scripted backend answers")
        with Line(proxy.url) as line:
            for origin, status in (("https://evil.example", 403), (OBSIDIAN, 403), ("https://chat.example", 200)):
                reply = line.post("/v1/chat/completions", ask(), Origin=origin)
                assert reply.status == status
            # A host name that an attacker's DNS server resolves to this machine (DNS rebinding) is not accepted as the
            # listener's name.
            assert line.post("/v1/chat/completions", ask(), Host=f"rebound.invalid:{proxy.port}").status == 403


# -- names: DNS rebinding --

PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/toolsim/metrics"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("GET", "/v1/files"),
    ("GET", "/"),
]


@pytest.fixture(scope="module")
def storing(backend: RawBackend) -> Iterator[Mitmdump]:
    """A proxy with a store and two listed origins. The host names in these origins are also accepted as names of the
    proxy.
    """
    with Mitmdump(
        backend.url, toolsim_store="memory", toolsim_cors_origins=["https://chat.example", "http://listed.example:*"]
    ) as proxy:
        yield proxy


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_rebound_host_name_is_refused(method: str, path: str, backend: RawBackend, storing: Mitmdump, ask: Any) -> None:
    """A request for a foreign host name that resolves to this machine (DNS rebinding) is refused, with or without an
    Origin header.
    """
    backend.play(stream_of("Hi"))
    with Line(storing.url) as line:
        for name in (
            f"evil.test:{storing.port}",
            "evil.test",
            "localhost.evil.test",
            "obsidian.md",
            "127.0.0.1.evil.test",
        ):
            for more in ({}, {"Origin": f"http://{name}"}):
                reply = line.request(method, path, ask() if method == "POST" else None, Host=name, **more)
                assert (reply.status, reply.json()["error"]["code"]) == (403, "forbidden")
                assert "Access-Control-Allow-Origin" not in reply.headers
    assert backend.asked == []


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_unlisted_origin_is_refused(method: str, path: str, backend: RawBackend, storing: Mitmdump, ask: Any) -> None:
    """A request from an origin that is not listed is refused on every path."""
    backend.play(stream_of("Hi"))
    with Line(storing.url) as line:
        for origin in ("https://evil.example", "null", "http://localhost:5173", "https://chat.example.evil"):
            reply = line.request(method, path, ask() if method == "POST" else None, Origin=origin)
            assert (reply.status, reply.json()["error"]["code"]) == (403, "forbidden")
    assert backend.asked == []


def known_names(port: int) -> list[str]:
    own = socket.gethostname()
    names = [
        "127.0.0.1",
        "localhost",
        f"LOCALHOST:{port}",
        f"[::1]:{port}",
        "192.168.7.7:9",
        "a.localhost",
        own,
        f"{own}:1",
    ]
    return [*names, f"{own.upper()}.local", "host.docker.internal:8080", "chat.example", "LISTED.example:7"]


def test_accepted_host_names(backend: RawBackend, storing: Mitmdump, ask: Any) -> None:
    """A request is accepted if its Host header is missing, or if it contains an IP address, localhost, this machine's
    name or a listed host.
    """
    backend.play(stream_of("Hi"))
    with Line(storing.url) as line:
        for name in known_names(storing.port):
            assert line.post("/v1/chat/completions", ask(stream=True), Host=name).status == 200, name
            # As is usual for mitmproxy, the backend receives its own address in the Host header.
            assert backend.asked[-1].header("host") == f"127.0.0.1:{backend.port}"
    with socket.create_connection(("127.0.0.1", storing.port)) as client:
        client.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert b" 200 " in client.recv(1000)


def test_page_of_the_listener_can_call_it(backend: RawBackend, storing: Mitmdump) -> None:
    """A page that was loaded from the listener can send requests to it, because the origin and the Host header contain
    the same address.
    """
    backend.play(stream_of("Hi"))
    with Line(storing.url) as line:
        for host in (f"127.0.0.1:{storing.port}", "192.168.7.7:8080"):
            assert line.request("GET", "/v1/files", Host=host, Origin=f"http://{host}").status == 200
        other = line.request("GET", "/v1/files", Host="192.168.7.7:8080", Origin="http://192.168.7.7:8081")
        assert other.status == 403


def test_wildcard_origin_accepts_every_page(backend: RawBackend) -> None:
    """If the wildcard origin ``*`` is listed, every page can use the listener under any host name."""
    backend.play(stream_of("Hi"))
    with Mitmdump(backend.url, toolsim_cors_origins="*") as proxy, Line(proxy.url) as line:
        assert line.request("GET", "/v1/models", Host="any.test", Origin="http://any.test").status == 200


def test_host_name_is_not_checked_with_a_key(backend: RawBackend, locked: Mitmdump) -> None:
    """If an API key is set and the request contains it, any host name is accepted, because a foreign web page does not
    know the key.
    """
    backend.play(stream_of("Hi"))
    key = {"Authorization": "Bearer söcret".encode().decode("latin-1")}
    with Line(locked.url) as line:
        assert line.request("GET", "/v1/models", Host="llm.example", Origin="https://any.example", **key).status == 200
        assert line.request("GET", "/v1/models", Host="llm.example").status == 401


@pytest.mark.parametrize("keeps", [True, False])
def test_keep_host_header_works(keeps: bool, backend: RawBackend) -> None:
    """mitmproxy's ``keep_host_header`` option works as documented. Even if the option is off, the host name in the
    client's Host header is checked.
    """
    backend.play(stream_of("Hi"))
    with Mitmdump(backend.url, keep_host_header=keeps) as proxy, Line(proxy.url) as line:
        assert line.request("GET", "/v1/models", Host="localhost:99").status == 200
        assert backend.asked[-1].header("host") == ("localhost:99" if keeps else f"127.0.0.1:{backend.port}")
        assert line.request("GET", "/v1/models", Host="evil.test").status == 403


# -- a forward proxy --


def said(port: int, data: bytes, then: bytes = b"") -> bytes:
    """Send ``data``. If a tunnel is established, send ``then`` as well. Return the answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(data)
        received = _answer(client)
        if then and b" 200 " in received:
            client.sendall(then)
            received += _answer(client)
        return received


def _answer(client: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += client.recv(65536)
    length = re.search(rb"(?i)content-length: (\d+)", received)
    while length and len(received.partition(b"\r\n\r\n")[2]) < int(length[1]):
        received += client.recv(65536)
    return received


def absolute(port: int, *more: str) -> bytes:
    lines = [f"GET http://127.0.0.1:{port}/secret HTTP/1.1", f"Host: 127.0.0.1:{port}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def connect(target: str, *more: str) -> bytes:
    return "\r\n".join([f"CONNECT {target} HTTP/1.1", f"Host: {target}", *more, "", ""]).encode()


@pytest.fixture(scope="module")
def site() -> Iterator[RawBackend]:
    """A service on the operator's machine that only a forward proxy is allowed to reach."""

    async def secret(answer: Answer) -> None:
        await answer.whole(b"the secret")

    with RawBackend() as site:
        site.play(secret)
        yield site


BUILTIN: list[dict[str, Any]] = [{}, {"toolsim_api_key": "k"}]


@pytest.mark.parametrize("options", BUILTIN, ids=["no key", "key"])
def test_builtin_backend_does_not_forward(options: dict[str, Any], site: RawBackend) -> None:
    """A proxy with a built-in backend does not forward requests to other hosts, with or without the key."""
    key = ["Proxy-Authorization: Bearer k", "Authorization: Bearer k"] if options else []
    before = len(site.asked)
    with Mitmdump(toolsim_backend="scripted", **options) as proxy:
        builtin = int(proxy.wait_for(r"scripted backend answers .*127\.0\.0\.1:(\d+)")[1])
        for headers in ([], key):
            by_host = "\r\n".join(["GET /secret HTTP/1.1", f"Host: 127.0.0.1:{site.port}", *headers, "", ""]).encode()
            for data in (
                absolute(site.port, *headers),
                by_host,
                connect(f"127.0.0.1:{site.port}", *headers),
                connect("169.254.169.254:80", *headers),
                connect(f"127.0.0.1:{proxy.port}", *headers),
                connect(f"localhost:{builtin}", *headers),
                absolute(builtin, *headers),
            ):
                reply = said(proxy.port, data)
                assert reply.startswith(b"HTTP/1.1 403 "), data
                assert b"toolsim_upstream" in reply
        assert site.asked[before:] == []
        # A request to the listener itself is served even if it contains an absolute URL, as requests to a forward proxy
        # do.
        models = f"GET http://127.0.0.1:{proxy.port}/v1/models HTTP/1.1\r\nAuthorization: Bearer k\r\n"
        assert b'"data"' in said(proxy.port, f"{models}Host: 127.0.0.1:{proxy.port}\r\n\r\n".encode())


SECRET = b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("options", [{}, {"toolsim_backend": "scripted"}], ids=["plain", "builtin"])
def test_upstream_option_forwards_other_traffic(options: dict[str, Any], site: RawBackend, backend: RawBackend) -> None:
    """With ``toolsim_upstream``, requests to other hosts are forwarded as they would be without toolsim."""
    with Mitmdump(toolsim_upstream=backend.url, **options) as proxy:
        assert b"the secret" in said(proxy.port, absolute(site.port))
        assert b"the secret" in said(proxy.port, connect(f"127.0.0.1:{site.port}"), SECRET)


def test_plain_forward_proxy_without_backend(site: RawBackend) -> None:
    with Mitmdump() as proxy:
        assert b"the secret" in said(proxy.port, absolute(site.port))
        assert b"the secret" in said(proxy.port, connect(f"127.0.0.1:{site.port}"), SECRET)


BASIC = base64.b64encode(b"anybody:k").decode()
PROXY_KEYS = [
    ([], 407),
    (["Authorization: Bearer k"], 407),
    (["Proxy-Authorization: Bearer x"], 407),
    (["Proxy-Authorization: Basic !"], 407),
    ([f"Proxy-Authorization: Basic {base64.b64encode(b'k:x').decode()}"], 407),
    (["Proxy-Authorization: Bearer k"], 200),
    ([f"Proxy-Authorization: Basic {BASIC}"], 200),
]


@pytest.fixture(scope="module")
def locked_forward(backend: RawBackend) -> Iterator[Mitmdump]:
    with Mitmdump(toolsim_upstream=backend.url, toolsim_api_key="k") as proxy:
        yield proxy


@pytest.mark.parametrize(("headers", "status"), PROXY_KEYS)
def test_forwarding_requires_the_key(
    headers: list[str], status: int, locked_forward: Mitmdump, site: RawBackend
) -> None:
    """Each forwarded request or tunnel needs the key, which is not passed on."""
    before = len(site.asked)
    port = locked_forward.port
    for reply in (
        said(port, absolute(site.port, *headers)),
        said(port, connect(f"127.0.0.1:{site.port}", *headers), SECRET),
    ):
        assert reply.startswith(f"HTTP/1.1 {status} ".encode())
        assert (b"the secret" in reply) == (status == 200)
        assert (b"proxy-authenticate: Basic" in reply) == (status == 407)
    assert len(site.asked) == before + (2 if status == 200 else 0)
    assert all(request.header("proxy-authorization") is None for request in site.asked)


def test_proxy_header_leaves_clients_other_key(locked_forward: Mitmdump, backend: RawBackend, ask: Any) -> None:
    """If the client sends toolsim's key in Proxy-Authorization, the other key, in Authorization, reaches the backend
    unchanged.
    """
    backend.play(stream_of("Hi"))
    url = "http://api.nowhere.invalid/v1/chat/completions"
    for key, proxy_key, status, sent in (
        (None, None, 401, None),
        ("k", None, 200, None),
        ("x", "k", 200, "Bearer x"),
        ("k", "k", 200, None),
        ("x", "x", 401, None),
    ):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= {"Proxy_Authorization": f"Bearer {proxy_key}"} if proxy_key else {}
        with Line(locked_forward.url) as line:
            assert line.post(url, ask(stream=True), **headers).status == status
        if status == 200:
            assert backend.asked[-1].header("authorization") == sent
            assert backend.asked[-1].header("proxy-authorization") is None


def test_mitmproxys_authentication(site: RawBackend, backend: RawBackend) -> None:
    """mitmproxy's ``proxyauth`` option also protects the forward proxy. API requests need toolsim's key in addition."""
    basic = f"Proxy-Authorization: Basic {base64.b64encode(b'u:p').decode()}"
    with Mitmdump(toolsim_upstream=backend.url, toolsim_api_key="k", proxyauth="u:p") as proxy:
        assert said(proxy.port, absolute(site.port)).startswith(b"HTTP/1.1 407 ")
        assert b"the secret" in said(proxy.port, absolute(site.port, basic))
        assert b"the secret" in said(proxy.port, connect(f"127.0.0.1:{site.port}", basic), SECRET)


# -- other machines --


def test_codex_needs_a_key_on_reachable_addresses() -> None:
    """If other machines can reach the listener's address, the codex backend does not start without a key."""
    proxy = Mitmdump(toolsim_backend="codex", toolsim_codex_command="true", listen_host="0.0.0.0")
    assert proxy.exit_code() == 1
    assert "toolsim_api_key" in proxy.log()


def test_codex_on_all_interfaces_serves_this_machine_only(ask: Any) -> None:
    """By default, mitmproxy listens on all interfaces. The codex backend then refuses requests from other machines."""
    address = own_address()
    with Mitmdump(toolsim_backend="codex", toolsim_codex_command="false", listen_host="") as proxy:
        port = int(proxy.wait_for(r"go to the codex backend on 127\.0\.0\.1:(\d+)")[1])
        with Line(f"http://{address}:{proxy.port}") as line:
            assert line.post("/v1/chat/completions", ask()).status == 403
            assert line.request("GET", "/v1/models").status == 403
        for target in ("127.0.0.1", "localhost"):
            with Line(f"http://{address}:{proxy.port}") as line:
                body = ask()
                assert line.request("POST", f"http://{target}:{port}/v1/responses", body).status in (403, 502)
                assert line.request("GET", f"http://{target}:{port}/anything").status in (403, 502)
        with socket.create_connection((address, proxy.port)) as tunnel:
            tunnel.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
            assert tunnel.recv(1000).startswith(b"HTTP/1.1 403 ")
