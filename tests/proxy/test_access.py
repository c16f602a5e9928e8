"""Who may use the proxy: keys, other machines, web pages."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of

OBSIDIAN = "app://obsidian.md"


def own_address() -> str:
    """Return an address of this machine that is not loopback; skip if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
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
def test_api_key(header: str | None, status: int, backend: RawBackend, locked: Mitmdump, ask: Any) -> None:
    """If a key is set, every request needs it, whatever its path, with and without tools."""
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
def test_preflight(origin: str, listed: bool, backend: RawBackend, line: Line) -> None:
    """We answer the preflight of a listed origin; all others go to the backend."""

    async def refuse(answer: Answer) -> None:
        await answer.whole(b"", 405)

    backend.play(refuse)
    reply = line.request(
        "OPTIONS",
        "/v1/chat/completions",
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization, content-type, x-stainless-os",
    )
    assert reply.headers.get("Access-Control-Allow-Origin") == (origin if listed else None)
    assert reply.status == (200 if listed else 405)
    if listed:
        assert "x-stainless-os" in reply.headers["Access-Control-Allow-Headers"]
        assert "POST" in reply.headers["Access-Control-Allow-Methods"]
        assert backend.asked == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_answers_and_errors_may_be_read(path: str, backend: RawBackend, line: Line, ask: Any) -> None:
    """A listed origin may read answers, whole, streamed and passed, the backend's errors and our own."""

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


def test_backend_with_its_own_rule(backend: RawBackend, line: Line, ask: Any) -> None:
    """A backend's own CORS headers are unchanged."""

    async def behave(answer: Answer) -> None:
        await answer.whole(b"{}", Access_Control_Allow_Origin="*")

    backend.play(behave)
    assert line.request("GET", "/v1/models", Origin=OBSIDIAN).headers.get_all("Access-Control-Allow-Origin") == ["*"]  # type: ignore[attr-defined]


def test_unlisted_page_cannot_use_the_builtin_backend(ask: Any) -> None:
    """A web page can send requests whose answers it cannot read; a built-in backend does not answer them."""
    with Mitmdump(toolsim_backend="scripted", toolsim_cors_origins="https://chat.example") as proxy:
        proxy.wait_for("scripted backend answers")
        with Line(proxy.url) as line:
            for origin, status in (("https://evil.example", 403), (OBSIDIAN, 403), ("https://chat.example", 200)):
                reply = line.post("/v1/chat/completions", ask(), Origin=origin)
                assert reply.status == status
            # A foreign name that resolves to this machine (DNS rebinding) does not count as the listener.
            assert line.post("/v1/chat/completions", ask(), Host=f"rebound.invalid:{proxy.port}").status == 502


# -- other machines --


def test_codex_is_not_shared_by_accident() -> None:
    """The codex backend is not started on an address that others can reach, unless a key protects it."""
    proxy = Mitmdump(toolsim_backend="codex", toolsim_codex_command="true", listen_host="0.0.0.0")
    assert proxy.exit_code() == 1
    assert "toolsim_api_key" in proxy.log()


def test_codex_on_all_addresses_serves_this_machine_only(ask: Any) -> None:
    """mitmproxy listens everywhere by default: then requests from other machines are refused, however they come in."""
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
            tunnel.recv(1000)
            tunnel.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b'"data"' not in tunnel.recv(1000)
