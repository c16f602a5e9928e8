"""Tests for the HTTP requests that the doctor sends to examine an unknown server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest
from support.ports import free_port
from support.raw_backend import Answer, RawBackend
from toolsim.cli.probe import Unreachable, ask


def test_request_and_result_are_complete() -> None:
    """The doctor's request contains the API key and the JSON body. The result contains the status and the error
    message.
    """

    async def behave(answer: Answer) -> None:
        await answer.whole(b'{"error": {"message": "no\\nsuch model"}}', status=404, Content_Type="application/json")

    with RawBackend() as backend:
        backend.play(behave)
        answer = ask(f"{backend.url}/v1/x", key="k", json_body={"a": 1})
        [asked] = backend.asked
    assert (answer.status, answer.problem, answer.is_page) == (404, "no such model", False)
    assert (asked.method, asked.header("authorization"), json.loads(asked.body)) == ("POST", "Bearer k", {"a": 1})


def test_web_page_and_redirect_are_not_an_api() -> None:
    """The doctor does not mistake a web page for an API, and does not follow redirects."""

    async def behave(answer: Answer) -> None:
        if answer.asked.path == "/page":
            await answer.whole(b"<html>", Content_Type="text/html; charset=utf-8")
        else:
            await answer.whole(b"", status=302, Location="/page")

    with RawBackend() as backend:
        backend.play(behave)
        page, redirect = ask(f"{backend.url}/page"), ask(f"{backend.url}/other")
    assert (page.is_page, page.body, page.problem) == (True, None, "")
    assert (redirect.status, redirect.is_page) == (302, False)


def test_unreachable_server_has_a_reason() -> None:
    """If the doctor cannot reach the server, the error states the reason and, if possible, gives a hint."""
    with pytest.raises(Unreachable, match="refused; is the server running"):
        ask(f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(Unreachable, match="host name cannot be resolved"):
        ask("http://nosuch.invalid/v1")


def test_silent_server_is_unreachable() -> None:
    """If a server does not answer within the timeout, it counts as unreachable."""

    async def behave(answer: Answer) -> None:
        await asyncio.sleep(1)

    with RawBackend() as backend:
        backend.play(behave)
        with pytest.raises(Unreachable, match="no answer within"):
            ask(f"{backend.url}/v1", seconds=0.1)


@pytest.mark.parametrize("status", [200, 500])
def test_answer_that_breaks_off_is_an_unreachable_server(status: int) -> None:
    """If a response is cut off or stalls, the server counts as unreachable, regardless of the status."""

    async def behave(answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{" % status)
        if answer.asked.path == "/silent":
            await asyncio.sleep(1)
        answer.hang_up()

    with RawBackend() as backend:
        backend.play(behave)
        with pytest.raises(Unreachable, match="the answer ended prematurely"):
            ask(f"{backend.url}/v1")
        with pytest.raises(Unreachable, match="no answer within"):
            ask(f"{backend.url}/silent", seconds=0.1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/ä", f"http://{'a' * 64}.invalid/"])
def test_unusable_url_is_reported_with_a_hint(url: str) -> None:
    """If a URL contains characters that must be escaped, the error message points this out."""
    with pytest.raises(Unreachable, match=r"the URL has characters that must be escaped \("):
        ask(url)


@pytest.mark.parametrize(
    ("reply", "scheme", "message"),
    [(b"HTTP/1.1 400 No\r\n\r\n", "https", "did you mean http://"), (b"x", "http", "does not use HTTP")],
)
def test_another_protocol_is_distinguished(reply: bytes, scheme: str, message: str) -> None:
    """The error for a server that does not use HTTP, or that uses HTTP instead of HTTPS, differs from the error for an
    unreachable server.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(reply + b"\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(Unreachable, match=message):
            ask(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/v1")
        thread.join(5)
