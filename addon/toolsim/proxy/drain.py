"""Ends the proxy well: what is under way is finished, or its client learns why not.

    signal ─▶ announce ─▶ stop listening ─▶ wait ─▶ end what is left ─▶ mitmproxy's own end
               3 s                          option      3 s at most

1. The first SIGTERM or SIGINT begins this. A second one ends mitmproxy at once, as the first one
   does if ``toolsim_drain_timeout`` is 0.
2. *Announce.* Whoever asks whether the proxy is ready (``readiness``) gets a no from the beginning.
   If somebody has asked lately, the listener stays open until a load balancer has had time to hear
   it: a connection that arrives in the very moment in which a listener closes is lost.
3. *Wait.* Requests on connections that exist are answered as ever, each with ``connection: close``.
   Our own pages are the exception, so that a monitor that has a connection sees how it goes on. A WebSocket
   connection is closed (1001) when its client waits for no answer any more, so an idle one is at once.
4. *End what is left.* Each stream gets the error event of its API, and what has no head yet a 503.
   Streams look at the clock by themselves (``clocks``), so this takes up to
   ``clocks.MAX_TICK_SECONDS``. Answers that pass unread cannot get an event: they break off.

All this comes before mitmproxy's own end, whose hooks are called one after the other: what ``-w``
writes is closed then, perhaps before we would be called.
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
from toolsim.proxy.mitmproxy12 import stopping
from toolsim.proxy.reporting.metrics import Family
from toolsim.proxy.rounds import Rounds
from toolsim.proxy.upgrades import Sockets

logger = logging.getLogger(__name__)

ANNOUNCE_SECONDS = 3.0
"""How long the listener stays open for a load balancer that asks once a second."""
WATCHED_SECONDS = 15.0
"""Who has asked within this time will ask again."""
END_SECONDS = 3.0
"""How long the end of what is left may take; longer than a stream needs to look at the clock."""
POLL_SECONDS = 0.05

STOPPED = ApiError(
    "The proxy was stopped before the response was complete.", code="proxy_stopped", status=503, retry_after=1
)


class Drain:
    """An addon that counts what is under way, and ends the proxy."""

    def __init__(self, exchanges: Exchanges, rounds: Rounds, background: Background, sockets: Sockets) -> None:
        self.seconds = 0
        """How long answers may take once the proxy is to end; 0 = it ends at once."""
        self.is_draining = False
        self.asked_at: float | None = None
        """When somebody last asked whether the proxy is ready."""
        self._exchanges = exchanges
        self._rounds = rounds
        self._background = background
        self._sockets = sockets
        self._unsent = stopping.Unsent()
        self._taken: list[signal.Signals] = []
        self._task: asyncio.Task[None] | None = None

    # -- signals --

    def running(self) -> None:
        """Take the signals."""
        self._taken = stopping.take_signals(self.begin)

    def done(self) -> None:
        """Give them back."""
        taken, self._taken = self._taken, []
        stopping.return_signals(taken)

    def begin(self) -> None:
        """End the proxy: a signal has come."""
        if self.is_draining or not self.seconds:
            self._end_now()
            return
        self.is_draining = True
        self._task = asyncio.create_task(self._run())

    def _end_now(self) -> None:
        if open_ := self.open():
            logger.warning("toolsim: stopped at once, with %s open", _in_words(open_))
        # Whatever breaks off from now on does so because of us.
        self._exchanges.end(STOPPED)
        ctx.master.shutdown()  # type: ignore[no-untyped-call]

    async def _run(self) -> None:
        began = time.monotonic()
        is_watched = self.asked_at is not None and began - self.asked_at < WATCHED_SECONDS
        is_noted = is_watched or self.open()
        if is_noted:
            message = "toolsim: stopping; %s open, for at most %d s (a second signal stops at once)"
            logger.info(message, _in_words(self.open()), self.seconds)
        self._sockets.drain()
        try:
            if is_watched:
                await asyncio.sleep(min(ANNOUNCE_SECONDS, self.seconds))
            stopping.stop_listening()
            await self._wait(until=began + self.seconds)
            if left := self.open():
                logger.warning("toolsim: %s did not end within %d s", _in_words(left), self.seconds)
                self._exchanges.end(STOPPED)
                self._rounds.end(STOPPED)
                await self._background.stop()
                await self._wait(until=time.monotonic() + END_SECONDS)
                if cut := self.open():
                    logger.warning("toolsim: %s broken off", _in_words(cut))
            if is_noted:
                logger.info("toolsim: stopped after %.1f s", time.monotonic() - began)
        finally:
            ctx.master.shutdown()  # type: ignore[no-untyped-call]

    async def _wait(self, *, until: float) -> None:
        while (self.open() or self._unsent) and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)

    # -- what is under way --

    def open(self) -> int:
        """Return the number of exchanges and other answers; a round belongs to one of either."""
        return self._exchanges.answers() + len(self._exchanges.passing) + self._background.count()

    def families(self) -> list[Family]:
        """Return the metrics."""
        draining = Family("draining", "Whether the proxy is being stopped: 1, and 0 before.", "gauge")
        draining.add({}, int(self.is_draining))
        return [draining]

    # These hooks are called after those of the addon itself.

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Count a request, or refuse it when the time is over."""
        exchange = self._exchanges.of(flow)
        if exchange is not None and self._exchanges.ended_by is not None and flow.response is None:
            flow.response = exchange.refuse(self._exchanges.ended_by)
        # What a forward proxy passes may be anything, such as a page's stream that never ends.
        is_served = isinstance(flow.client_conn.proxy_mode, ReverseMode)
        if exchange is None and is_served and flow.response is None and flow.live:
            self._exchanges.passing[flow.id] = flow.client_conn.id

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Let the connection end with this answer."""
        self._close_after(flow)

    def response(self, flow: HTTPFlow) -> None:
        """The same, for an answer that is sent now; the exchange is over."""
        self._exchanges.passing.pop(flow.id, None)
        assert flow.response is not None
        if not flow.response.stream:
            self._close_after(flow)
        if self.is_draining:
            self._unsent.note(flow.client_conn)

    def error(self, flow: HTTPFlow) -> None:
        """Forget a request."""
        self._exchanges.passing.pop(flow.id, None)

    def _close_after(self, flow: HTTPFlow) -> None:
        response = flow.response
        assert response is not None
        is_http1 = flow.request.http_version.startswith("HTTP/1")
        # An upgrade has its own meaning of that header.
        if self.is_draining and is_http1 and PAGE not in flow.metadata and "upgrade" not in response.headers:
            response.headers["connection"] = "close"


def _in_words(count: int) -> str:
    return "1 exchange" if count == 1 else f"{count} exchanges"
