"""An HTTP handler whose answer ends with its connection."""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.web import RequestHandler

from toolsimlib.errors import ApiError


class AnsweringHandler(RequestHandler):
    """Answers a POST by ``answer``, in its own task, which is in ``running``.

    Every error has the API's own shape, whatever raised it.
    """

    running: set[asyncio.Task[None]]

    _task: asyncio.Task[None] | None = None

    async def answer(self) -> None:
        """Write the answer; cancelled when the client leaves or the server stops."""
        raise NotImplementedError

    async def post(self) -> None:
        """Run the answer."""
        # In its own task, so that a closed connection can cancel the answer without cancelling tornado's handler.
        self._task = asyncio.create_task(self.answer())
        self.running.add(self._task)
        try:
            await self._task
        except asyncio.CancelledError:
            # The client has left, or the server is stopping. Tornado would log a cancelled handler as an error, and
            # would complete the answer of a handler that simply returns.
            if not self._task.cancelled():
                raise
            self.detach().close()
        finally:
            self.running.discard(self._task)

    def on_connection_close(self) -> None:
        """Cancel the answer: its client has left."""
        if self._task is not None:
            self._task.cancel()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with tornado's own errors, among them a 500 for any exception."""
        kind = "invalid_request_error" if status_code < 500 else "server_error"
        self.refuse(ApiError(f"{self.request.method} {self.request.path}: {self._reason}", kind, status=status_code))

    def refuse(self, error: ApiError) -> None:
        """Answer with an error."""
        self.set_status(error.status)
        if error.retry_after is not None:
            self.set_header("Retry-After", str(error.retry_after))
        self.finish({"error": error.body()})
