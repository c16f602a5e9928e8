"""A request that was read whole leaves in one write, with the same bytes as mitmproxy's own two writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy import connection, options
from mitmproxy.http import Headers, Request
from mitmproxy.proxy.commands import CloseConnection, SendData
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.events import Start
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
)
from mitmproxy.proxy.layers.http._http1 import Http1Client
from toolsimlib.proxy import whole_request
from toolsimlib.proxy.whole_request import WholeRequestClient

BODY = b'{"model": "m"}'
LARGE = bytes(64 * 1024 + 1)


def client(kind: type[Http1Client]) -> Http1Client:
    """Return a client connection to a backend."""
    sockname = ("127.0.0.1", 1)
    person = connection.Client(peername=("127.0.0.1", 2), sockname=sockname, state=connection.ConnectionState.OPEN)
    context = Context(person, options.Options())
    context.server = connection.Server(address=("127.0.0.1", 3))
    context.server.state = connection.ConnectionState.OPEN
    made = kind(context)
    assert [*made.handle_event(Start())] == []
    return made


def request(body: bytes | None, version: bytes = b"HTTP/1.1", *, stream: bool = False) -> Request:
    headers = Headers(content_type="application/json", host="127.0.0.1")
    if body is not None:
        headers["content-length"] = str(len(body))
    made = Request("127.0.0.1", 3, b"POST", b"http", b"", b"/v1/responses", version, headers, body, None, 1, 2)
    made.stream = stream
    return made


def commands(made: Http1Client, asked: Request, pieces: list[bytes]) -> Iterator[object]:
    """Yield the commands for a request with this body."""
    yield from made.handle_event(RequestHeaders(1, asked, not pieces))
    for piece in pieces:
        yield from made.handle_event(RequestData(1, piece))
    yield from made.handle_event(RequestEndOfMessage(1))


def writes(kind: type[Http1Client], asked: Request, pieces: list[bytes]) -> list[bytes]:
    return [command.data for command in commands(client(kind), asked, pieces) if isinstance(command, SendData)]


@given(st.binary(max_size=100), st.sampled_from([b"HTTP/1.1", b"HTTP/2.0"]))
def test_one_write(body: bytes, version: bytes) -> None:
    """Head and body are one write, of the bytes that mitmproxy writes."""
    pieces = [body] if body else []
    (written,) = writes(WholeRequestClient, request(body, version), pieces)
    assert written == b"".join(writes(Http1Client, request(body, version), pieces))
    assert written.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("asked", "pieces"),
    [(request(None, stream=True), [b"{", b"}"]), (request(LARGE), [LARGE]), (request(BODY, stream=True), [BODY])],
)
def test_a_head_without_its_body_does_not_wait(asked: Request, pieces: list[bytes]) -> None:
    """The head of a request that is streamed, or too large to copy, is sent as mitmproxy sends it."""
    written = writes(WholeRequestClient, asked, pieces)
    assert written == writes(Http1Client, asked, pieces)
    assert len(written) == 1 + len(pieces)


def test_one_request_after_another() -> None:
    """Nothing of a request is left over for the next one on the same connection."""
    made = client(WholeRequestClient)
    first = [*made.handle_event(RequestHeaders(1, request(BODY), end_stream=False))]
    assert first == []
    commanded = [*made.handle_event(RequestData(1, BODY)), *made.handle_event(RequestEndOfMessage(1))]
    made.stream_id = made.request = None  # As it is once the answer has come.
    commanded += commands(made, request(BODY), [BODY])
    sent = [command.data for command in commanded if isinstance(command, SendData)]
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_a_request_that_is_broken_off() -> None:
    """A request that is never sent does not keep the connection open."""
    made = client(WholeRequestClient)
    assert [*made.handle_event(RequestHeaders(1, request(BODY), end_stream=False))] == []
    commanded = [*made.handle_event(RequestProtocolError(1, "gone", ErrorCode.CANCEL))]
    assert [type(command) for command in commanded] == [CloseConnection]


def test_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """mitmproxy uses it while the addon is loaded; if mitmproxy has another client, that is left alone."""
    monkeypatch.setattr(http, "Http1Client", Http1Client)
    whole_request.install()
    assert http.Http1Client is WholeRequestClient  # type: ignore[attr-defined]
    whole_request.uninstall()
    assert http.Http1Client is Http1Client  # type: ignore[attr-defined]
    monkeypatch.setattr(http, "Http1Client", None)
    whole_request.install()
    assert http.Http1Client is None  # type: ignore[attr-defined]
