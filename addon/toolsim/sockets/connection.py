"""Handles one WebSocket connection: queues its requests, and sends its answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from toolsim.core.errors import FAILED, ApiError, BadRequest
from toolsim.core.tasks import spawn
from toolsim.core.time_slice import TimeSlice
from toolsim.sockets.protocol import (
    MAX_LANES,
    MAX_RUNNING,
    MAX_UNREAD_ERRORS,
    MAX_WAITING,
    NOT_ACTIVE,
    TOO_MANY_LANES,
    TOO_MANY_WAITING,
    BadMessage,
    ClientMessage,
    RecentTurns,
    SocketAnswer,
    error_message,
)
from toolsim.wire.json_fields import string
from toolsim.wire.responses.background import STOPPED

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """The status and headers of an HTTP response.

    ``headers`` contains only headers that the client needs if the status is an error.
    """

    status: int
    content_type: str
    headers: Mapping[str, str]


class TooManyUnread(Exception):
    """Raised if the client keeps sending invalid messages, but does not read the errors."""


class PendingResponse(Protocol):
    """A request to a backend, and its response.

    The response is read to its end even if nobody consumes its parts, unless ``leave`` is called.
    """

    def parts(self) -> AsyncGenerator[Head | bytes]:
        """Yield the head of the response, then the parts of the body. Yield nothing if the request fails first."""

    async def leave(self) -> None:
        """Disconnect from the backend, which stops the model."""


Read = Callable[[bytes], Awaitable[ClientMessage]]
"""A function that parses a client's message. Raises BadMessage if the message is invalid."""
Ask = Callable[[bytes], PendingResponse]
"""A function that starts a request with the given body, and returns the pending response."""
Send = Callable[[Sequence[str]], Awaitable[None]]
"""A function that sends messages to the client. It waits if the client is slow, and raises ConnectionError if the
client is gone.
"""


class SocketConnection:
    """Answers the requests on one connection. ``max_bytes`` limits the total size of the waiting requests.

    ``recent`` contains the conversations that can be continued. ``has_store`` returns whether the proxy currently
    stores answers. ``on_end`` is called after each answered request.
    """

    def __init__(
        self,
        read: Read,
        ask: Ask,
        send: Send,
        recent: RecentTurns,
        max_bytes: int,
        has_store: Callable[[], bool],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._read = read
        self._ask = ask
        self._send = send
        self._max_bytes = max_bytes
        self._has_store = has_store
        self._on_end = on_end
        self._recent = recent
        self._lanes: dict[str, asyncio.Lock] = {"": asyncio.Lock()}
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._waiting = 0  # Number of requests that are waiting.
        self._waiting_size = 0  # Total size of the waiting requests, in bytes.
        self._running: dict[str, tuple[SocketAnswer, asyncio.Task[None]]] = {}  # The answer in progress in each lane.
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: deque[str] = deque()  # Errors that wait to be sent to the client.
        self._errors_size = 0  # Total length of the queued errors, in characters.
        self._sending_errors: set[asyncio.Task[None]] = set()
        self._is_sending_errors = False
        self._is_stopping = False
        self._has_refused = False

    @property
    def is_busy(self) -> bool:
        """Whether an answer is in progress."""
        return bool(self._tasks)

    async def receive(self, data: bytes) -> bool:
        """Handle the client's next message, and return whether it could be parsed.

        This method never waits for the client to read errors, because the client might not read until its own message
        has been read. Instead, it raises TooManyUnread if there are too many errors.
        """
        try:
            message = await self._read(data)
        except BadMessage as bad:
            self._refuse(bad)
            return False
        try:
            match message.kind:
                case "create":
                    self._begin(message)
                case "cancel":
                    self._cancel(message)
                case "steer":
                    self._send_error(message.refusal)
        except BadMessage as bad:
            self._refuse(bad)
        return True

    def _refuse(self, bad: BadMessage) -> None:
        # A client that uses another version of the protocol could send many bad messages. So only the first one is
        # logged as a warning.
        logger.log(logging.DEBUG if self._has_refused else logging.WARNING, "WebSocket: %s", bad.error.message)
        self._has_refused = True
        self._send_error(error_message(bad.error, bad.lane))

    def _send_error(self, message: str) -> None:
        """Queue an error for the client, without waiting until the client has read it."""
        size = self._errors_size + len(message)
        if self._errors and size > MAX_UNREAD_ERRORS:
            raise TooManyUnread
        self._errors.append(message)
        self._errors_size = size
        if not self._is_sending_errors:
            self._is_sending_errors = True
            spawn(self._send_errors(), self._sending_errors)

    async def _send_errors(self) -> None:
        pace = TimeSlice()
        try:
            while self._errors:
                await self._send([self._errors[0]])
                self._errors_size -= len(self._errors.popleft())
                await pace.yield_to_others()
        except ConnectionError:
            return  # The client is gone. The server closes the connection.
        finally:
            # A flag is used, because the finished task is removed from the set of tasks only later. If the set were
            # checked instead, an error that is queued in the meantime would never be sent.
            self._is_sending_errors = False

    async def stop(self, error: ApiError | None = STOPPED) -> None:
        """Stop all answers, and report ``error`` to the client. If ``error`` is None, the client is gone."""
        self._is_stopping = True
        if error is not None and self._tasks:
            with suppress(ConnectionError):
                await self._send([error_message(error, lane) for lane in self._running or [""]])
        tasks = [*self._tasks, *self._sending_errors]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._recent.clear()

    def _begin(self, message: ClientMessage) -> None:
        if self._is_stopping:
            raise BadMessage(STOPPED, message.lane)
        if message.lane not in self._lanes and len(self._lanes) > MAX_LANES:
            raise BadMessage(TOO_MANY_LANES, message.lane)
        size = self._waiting_size + message.size
        if self._waiting >= MAX_WAITING or (self._waiting and size > self._max_bytes):
            raise BadMessage(TOO_MANY_WAITING, message.lane)
        self._waiting += 1
        self._waiting_size = size
        lane = self._lanes.setdefault(message.lane, asyncio.Lock())
        task = spawn(self._in_turn(message, lane), self._tasks)
        task.add_done_callback(partial(self._ended, message))

    def _ended(self, message: ClientMessage, task: asyncio.Task[None]) -> None:
        """Handle the end of a request's task."""
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, ConnectionError):
            # A bug in toolsim caused this exception. Without an error, the client would wait for its answer forever.
            task.get_loop().call_exception_handler({"message": "A request failed.", "exception": problem})
            with suppress(TooManyUnread):
                self._send_error(error_message(FAILED, message.lane))
        self._on_end()

    def _cancel(self, message: ClientMessage) -> None:
        wanted = message.response_id
        for lane, (answer, task) in self._running.items():
            is_wanted = string((answer.response or {}).get("id")) == wanted if wanted else lane == message.lane
            if is_wanted and not answer.is_over:
                answer.is_cancelled = True
                task.cancel()
                return
        raise BadMessage(NOT_ACTIVE, message.lane)

    async def _in_turn(self, message: ClientMessage, lane: asyncio.Lock) -> None:
        """Answer a request as soon as the earlier requests in its lane have been answered.

        Raises ConnectionError if the client is gone. The server then closes the connection.
        """
        is_waiting = True
        try:
            async with lane, self._slots:
                is_waiting = False
                self._started(message)
                await self._answer(message)
        finally:
            if is_waiting:
                self._started(message)

    def _started(self, message: ClientMessage) -> None:
        self._waiting -= 1
        self._waiting_size -= message.size

    async def _answer(self, message: ClientMessage) -> None:
        draft = message.draft
        assert draft is not None
        try:
            turn = self._recent.turn(draft, has_store=self._has_store())
        except BadRequest as bad:
            self._recent.forget(draft.previous or "")
            await self._send([error_message(bad.error, message.lane)])
            return
        answer, pace = SocketAnswer(turn, message.lane), TimeSlice()
        if draft.prepared is not None:
            await self._deliver(answer, draft.prepared, pace)
            return
        task = asyncio.current_task()
        assert task is not None
        self._running[message.lane] = answer, task
        asked, is_over = self._ask(turn.body), False
        try:
            async with aclosing(asked.parts()) as parts:
                async for part in parts:
                    pace.begin()
                    if isinstance(part, Head):
                        answer.begin(part.status, part.content_type, part.headers)
                    else:
                        await self._deliver(answer, part, pace)
                    pace.end()
                    if answer.is_over:
                        is_over = True
                        return
            is_over = True
            await self._deliver(answer, b"", pace)
        except asyncio.CancelledError:
            if not answer.is_cancelled:
                raise
            await self._send([answer.cancel()])
        finally:
            del self._running[message.lane]
            if not is_over:
                await asked.leave()

    async def _deliver(self, answer: SocketAnswer, data: bytes, pace: TimeSlice) -> None:
        """Send the messages for a part of the HTTP response.

        Other tasks can run between the messages, because a part may contain thousands of events.
        """
        for messages in answer.feed(data):
            if answer.is_over:
                # The conversation is remembered before the last message of the answer is sent, because the client can
                # continue it immediately.
                self._recent.take(answer, has_store=self._has_store())
            await self._send(messages)
            await pace.yield_to_others()
