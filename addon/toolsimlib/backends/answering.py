"""An HTTP handler whose answer ends with its connection."""

from __future__ import annotations

import asyncio

from tornado.web import RequestHandler

from toolsimlib.errors import ApiError


class AnsweringHandler(RequestHandler):
    """Answers a POST by ``answer``, as a task of its own in ``running``; errors are in the API's own shape."""

    running: set[asyncio.Task[None]]

    _task: asyncio.Task[None] | None = None

    async def answer(self) -> None:
        """Answer; cancelled when the client leaves, or by whoever stops the server."""
        raise NotImplementedError

    async def post(self) -> None:
        """Run the answer."""
        # The answer is a task of its own: a closed connection can cancel it without cancelling tornado's handler.
        self._task = asyncio.create_task(self.answer())
        self.running.add(self._task)
        try:
            await self._task
        except asyncio.CancelledError:
            # The client has left, or the server is stopped. Tornado would log a cancelled handler as an error, and end
            # one that simply returns as if its answer were complete.
            if not self._task.cancelled():
                raise
            self.detach().close()
        finally:
            self.running.discard(self._task)

    def on_connection_close(self) -> None:
        """Stop it."""
        if self._task is not None:
            self._task.cancel()

    def refuse(self, error: ApiError) -> None:
        """Answer an error."""
        self.set_status(error.status)
        if error.retry_after is not None:
            self.set_header("Retry-After", str(error.retry_after))
        self.finish({"error": error.body()})
