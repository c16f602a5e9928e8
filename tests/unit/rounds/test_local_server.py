from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from toolsim.core.errors import ApiError
from toolsim.rounds.local_server import StreamHandler
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application


class Slow(StreamHandler):
    """A handler that refuses the request, raises an exception, or never answers, depending on the path."""

    def initialize(self, running: set[asyncio.Task[None]], began: asyncio.Event) -> None:
        self.running = running
        self.began = began

    async def answer(self) -> None:
        if self.request.path == "/refused":
            self.refuse(ApiError("Later.", code="c", status=503, retry_after=7))
            return
        if self.request.path == "/failed":
            raise RuntimeError
        self.began.set()
        await asyncio.Event().wait()


@pytest.fixture
async def served() -> AsyncIterator[tuple[str, set[asyncio.Task[None]], asyncio.Event]]:
    context = {"running": set[asyncio.Task[None]](), "began": asyncio.Event()}
    server = HTTPServer(Application([(r"/.*", Slow, context)], log_function=lambda _: None))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}", context["running"], context["began"]  # type: ignore[misc]
    server.stop()
    await server.close_all_connections()


async def test_refusal_has_the_format_of_the_api(served: tuple[str, set[asyncio.Task[None]], asyncio.Event]) -> None:
    """If a handler refuses a request, the response has the error's status, Retry-After header and body."""
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{served[0]}/refused")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert answer.json()["error"] == {"message": "Later.", "type": "server_error", "param": None, "code": "c"}


async def test_exception_has_the_format_of_the_api(served: tuple[str, set[asyncio.Task[None]], asyncio.Event]) -> None:
    """If a handler raises an exception, the response is an error in the format of the API, because clients cannot parse
    an HTML page.
    """
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{served[0]}/failed")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


async def test_client_disconnect_cancels_the_answer(served: tuple[str, set[asyncio.Task[None]], asyncio.Event]) -> None:
    """If the client disconnects, the task that answers its request is canceled and removed from ``running``."""
    url, running, began = served
    asked = asyncio.create_task(httpx.AsyncClient().post(f"{url}/slow"))
    await asyncio.wait_for(began.wait(), 5)
    (task,) = running
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await asyncio.wait_for(asyncio.wait({task}), 5)
    assert task.cancelled()
    await asyncio.sleep(0.01)
    assert not running


async def test_cancelled_answer_closes_the_connection(
    served: tuple[str, set[asyncio.Task[None]], asyncio.Event],
) -> None:
    """If the task that answers a request is canceled, the connection is closed, so that the answer does not look
    complete.
    """
    url, running, began = served
    asked = asyncio.create_task(httpx.AsyncClient().post(f"{url}/slow"))
    await asyncio.wait_for(began.wait(), 5)
    for task in list(running):
        task.cancel()
    with pytest.raises(httpx.RemoteProtocolError):
        await asked
