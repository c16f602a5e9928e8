"""An HTTP server on 127.0.0.1 to which this proxy itself sends requests. Each connection carries one response."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from toolsim.core.errors import ApiError

# Maximum size of a request's body: 512 MB, like OpenAI's limit. It is this high because images are sent as data URLs
# inside the JSON body.
MAX_BODY_BYTES = 512 * 1024 * 1024

_UNSENT_BYTES = 64 * 1024
"""Size of the kernel's send buffer for a response, in bytes."""


class StreamHandler(RequestHandler):
    """Answers a POST by running ``answer`` in a separate task. The set ``running`` contains the task until it ends.

    Every error is sent in the API's own format.
    """

    running: set[asyncio.Task[None]]

    _task: asyncio.Task[None] | None = None

    async def answer(self) -> None:
        """Write the response.

        The task that runs this method is canceled when the client disconnects or the server stops.
        """
        raise NotImplementedError

    async def post(self) -> None:
        """Run ``answer`` in a task, and wait for the task to end."""
        # A separate task is needed so that a closed connection can cancel the answer without canceling tornado's
        # handler.
        self._task = asyncio.create_task(self.answer())
        self.running.add(self._task)
        try:
            await self._task
        except asyncio.CancelledError:
            # The client has disconnected, or the server is stopping. The connection is detached from tornado, which
            # would otherwise log the cancellation as an error or, if this method simply returned, complete the
            # response.
            if not self._task.cancelled():
                raise
            self.detach().close()
        except Exception:
            # Tornado sends an error if the headers have not been sent. If they have been sent, it would complete the
            # response. The connection is closed instead, so that the client sees that the response is incomplete.
            if not self._headers_written:
                raise
            self.log_exception(*sys.exc_info())
            self.detach().close()
        finally:
            self.running.discard(self._task)

    def on_connection_close(self) -> None:
        """Cancel the answer, because the client has disconnected."""
        if self._task is not None:
            self._task.cancel()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send an error that tornado reports, such as a 500 for an exception, in the API's format."""
        kind = "invalid_request_error" if status_code < 500 else "server_error"
        self.refuse(ApiError(f"{self.request.method} {self.request.path}: {self._reason}", kind, status=status_code))

    def refuse(self, error: ApiError) -> None:
        """Respond with an error in the API's format."""
        self.set_status(error.status)
        if error.retry_after is not None:
            self.set_header("Retry-After", str(error.retry_after))
        self.finish({"error": error.body()})


class LocalServer:
    """An HTTP server on 127.0.0.1 that runs from ``start`` to ``stop``. ``start`` needs a running event loop.

    If ``port`` is 0, ``start`` binds any free port and sets ``port`` to its number. ``running`` contains the tasks that
    are answering requests; the handlers add and remove these tasks.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.running: set[asyncio.Task[None]] = set()
        self._server: HTTPServer | None = None

    def start(self, rules: Sequence[tuple[str, type[StreamHandler], dict[str, Any]]]) -> None:
        """Bind the port and serve ``rules``, which are tornado's URL rules. Raises OSError if the port is in use."""
        sockets = bind_sockets(self.port, "127.0.0.1")
        for listening in sockets:
            # The send buffer is small, so that the model does not run far ahead of a slow client. Accepted connections
            # inherit this option.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT_BYTES)
        self.port = sockets[0].getsockname()[1]
        # Requests are not logged here, because the addon already logs each request.
        application = Application([*rules], log_function=lambda _handler: None)
        self._server = HTTPServer(application, max_buffer_size=MAX_BODY_BYTES, max_body_size=MAX_BODY_BYTES)
        self._server.add_sockets(sockets)

    async def stop(self) -> bool:
        """Reject new requests, cancel the requests in progress, and close the connections.

        Return False if the server was not running.
        """
        if self._server is None:
            return False
        self._server.stop()
        for task in list(self.running):
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        await self._server.close_all_connections()
        self._server = None
        return True
