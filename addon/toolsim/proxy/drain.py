"""Graceful shutdown, which lets answers in progress finish, or ends them with an error after a time limit.

    signal ─▶ announce ─▶ stop listening ─▶ wait ─▶ end the remaining ─▶ mitmproxy's own shutdown
               3 s                          option     3 s at most

1. The first SIGTERM or SIGINT starts the drain. A second signal stops mitmproxy immediately. If
   ``toolsim_drain_timeout`` is 0, the first signal also stops it immediately.
2. *Announce.* Readiness checks fail from this point on (``readiness``). If there was a check recently, the listener
   stays open until load balancers have had time to react, because a connection that arrives just as the listener closes
   is lost.
3. *Wait.* Requests on existing connections are served as usual, each with ``connection: close``. Built-in pages are the
   exception, so that a monitoring connection stays usable. A WebSocket connection is closed (close code 1001) once its
   client is no longer waiting for an answer; an idle WebSocket connection is closed immediately.
4. *End the remaining answers.* Each stream ends with its API's error event, and an answer whose headers have not been
   sent becomes a 503. Each stream checks its own timers (``timeouts``), so this step takes up to
   ``timeouts.MAX_TICK_SECONDS``. Answers that pass through unread cannot contain an error event, so they are cut off.

The drain precedes mitmproxy's own shutdown. That shutdown calls the addons' hooks one after another, so it might close
the file that ``-w`` writes before it calls this addon's hook.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.mode_specs import ReverseMode

from toolsim.core.errors import ApiError
from toolsim.proxy.background import Background
from toolsim.proxy.exchange import Exchanges
from toolsim.proxy.metadata import PAGE
from toolsim.proxy.mitmproxy12 import shutdown
from toolsim.proxy.reporting.metrics import Family
from toolsim.proxy.rounds import Rounds
from toolsim.proxy.upgrades import Sockets

logger = logging.getLogger(__name__)

ANNOUNCE_SECONDS = 3.0
"""The time, in seconds, that the listener stays open after readiness checks have started to fail.

It is long enough for a load balancer that checks once per second.
"""
WATCHED_SECONDS = 15.0
"""The time, in seconds, within which a client that has checked readiness is expected to check again."""
END_SECONDS = 3.0
"""The time, in seconds, that unfinished answers have to end after the drain has timed out.

It is longer than the interval at which streams check their timers.
"""
POLL_SECONDS = 0.05

STOPPED = ApiError(
    "The proxy was stopped before the response was complete.", code="proxy_stopped", status=503, retry_after=1
)


class Drain:
    """An addon that counts the answers in progress and shuts the proxy down."""

    def __init__(self, exchanges: Exchanges, rounds: Rounds, background: Background, sockets: Sockets) -> None:
        self.seconds = 0
        """The time, in seconds, that answers can take during the drain. If it is 0, the proxy stops immediately."""
        self.is_draining = False
        self.asked_at: float | None = None
        """The time of the last readiness check, or None before the first check."""
        self._exchanges = exchanges
        self._rounds = rounds
        self._background = background
        self._sockets = sockets
        self._unsent = shutdown.Unsent()
        self._taken: list[signal.Signals] = []
        self._task: asyncio.Task[None] | None = None

    # -- signals --

    def running(self) -> None:
        """Install the signal handlers that start the drain."""
        self._taken = shutdown.install_signal_handlers(self.begin)

    def done(self) -> None:
        """Restore the original signal handlers."""
        taken, self._taken = self._taken, []
        shutdown.restore_signal_handlers(taken)

    def begin(self) -> None:
        """Start the drain, or stop immediately if it has already started or is disabled."""
        if self.is_draining or not self.seconds:
            self._end_now()
            return
        self.is_draining = True
        self._task = asyncio.create_task(self._run())

    def _end_now(self) -> None:
        if open_ := self.open():
            logger.warning("toolsim: stopped immediately, with %s in progress", _counted(open_))
        # Answers that are interrupted from now on are recorded as interrupted by the shutdown.
        self._exchanges.end(STOPPED)
        ctx.master.shutdown()  # type: ignore[no-untyped-call]

    async def _run(self) -> None:
        began = time.monotonic()
        is_watched = self.asked_at is not None and began - self.asked_at < WATCHED_SECONDS
        is_noted = is_watched or self.open()
        if is_noted:
            message = "toolsim: stopping; waiting up to %d s for %s in progress (a second signal stops immediately)"
            logger.info(message, self.seconds, _counted(self.open()))
        self._sockets.drain()
        try:
            if is_watched:
                await asyncio.sleep(min(ANNOUNCE_SECONDS, self.seconds))
            shutdown.stop_listening()
            await self._wait(until=began + self.seconds)
            if left := self.open():
                logger.warning("toolsim: %s did not end within %d s", _counted(left), self.seconds)
                self._exchanges.end(STOPPED)
                self._rounds.end(STOPPED)
                await self._background.stop()
                await self._wait(until=time.monotonic() + END_SECONDS)
                if cut := self.open():
                    logger.warning("toolsim: %s cut off", _counted(cut))
            if is_noted:
                logger.info("toolsim: stopped after %.1f s", time.monotonic() - began)
        finally:
            ctx.master.shutdown()  # type: ignore[no-untyped-call]

    async def _wait(self, *, until: float) -> None:
        while (self.open() or self._unsent) and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)

    # -- answers in progress --

    def open(self) -> int:
        """Return the number of answers in progress. The rounds of an answer are not counted separately."""
        return self._exchanges.answers() + len(self._exchanges.passing) + self._background.count()

    def families(self) -> list[Family]:
        """Return the metrics about the drain."""
        draining = Family("draining", "1 while the proxy is shutting down, otherwise 0.", "gauge")
        draining.add({}, int(self.is_draining))
        return [draining]

    # mitmproxy calls these hooks after the hooks of the same names in ``ToolSim``.

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Count a request that passes through unread. Reject any other request once the drain has timed out."""
        exchange = self._exchanges.of(flow)
        if exchange is not None and self._exchanges.ended_by is not None and flow.response is None:
            flow.response = exchange.refuse(self._exchanges.ended_by)
        # A forward proxy's traffic is not counted, because it can contain anything, such as a website's endless stream.
        is_served = isinstance(flow.client_conn.proxy_mode, ReverseMode)
        if exchange is None and is_served and flow.response is None and flow.live:
            self._exchanges.passing[flow.id] = flow.client_conn.id

    def responseheaders(self, flow: HTTPFlow) -> None:
        """If the proxy is draining, announce that the connection will close after this streamed response."""
        self._close_after(flow)

    def response(self, flow: HTTPFlow) -> None:
        """If the proxy is draining, announce that the connection will close after this non-streamed response."""
        self._exchanges.passing.pop(flow.id, None)
        assert flow.response is not None
        if not flow.response.stream:
            self._close_after(flow)
        if self.is_draining:
            self._unsent.note(flow.client_conn)

    def error(self, flow: HTTPFlow) -> None:
        """Stop counting a request that failed."""
        self._exchanges.passing.pop(flow.id, None)

    def _close_after(self, flow: HTTPFlow) -> None:
        response = flow.response
        assert response is not None
        is_http1 = flow.request.http_version.startswith("HTTP/1")
        # The Connection header of an upgrade response must remain "upgrade".
        if self.is_draining and is_http1 and PAGE not in flow.metadata and "upgrade" not in response.headers:
            response.headers["connection"] = "close"


def _counted(count: int) -> str:
    return "1 exchange" if count == 1 else f"{count} exchanges"
