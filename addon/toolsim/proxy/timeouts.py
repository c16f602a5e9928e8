"""The three timers of an exchange. All of them use a monotonic clock.

1. ``seconds`` measures the time since the start of the exchange. It has no limit.
2. *The backend's silence* is measured from its last activity; its limits are ``idle_timeout`` and ``connect_timeout``.
3. *The client's silence* is measured from the last data that the client received; its limit is ``keepalive``. Before
   the first data, the limit is somewhat longer, because the status of the answer can still change until then.

When the proxy is stopped, all timers expire (``end``), so every exchange is overdue.

mitmproxy's streams have no timers, so ``next_tick`` returns when to check timers 2 and 3 again. A finished
stream and all objects that it references remain in memory until its next tick, so ticks are frequent.
"""

from __future__ import annotations

import time

from toolsim.core.errors import ApiError
from toolsim.core.events import FIRST_KEEPALIVE_FACTOR
from toolsim.proxy.options.settings import Limits

MAX_TICK_SECONDS = 2.0
"""Maximum number of seconds between two ticks.

It is short enough to release finished streams soon, but long enough to cost little.
"""


class Timeouts:
    """The timers of one exchange. They start when this object is created."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._is_connected = False
        self._started_at = self._last_input_at = self._last_output_at = time.monotonic()
        self._answered_at: float | None = None
        self._is_served = False
        self.ended_by: ApiError | None = None
        """The error that has to end the exchange immediately, or None if the exchange can continue."""

    def backend_active(self) -> None:
        """Restart the timer that measures how long the backend has been silent."""
        self._last_input_at = time.monotonic()

    def connected(self) -> None:
        """Record that the backend is connected."""
        self._is_connected = True
        self.backend_active()

    def client_served(self) -> None:
        """Restart the timer that measures how long the client has received no data."""
        self._last_output_at, self._is_served = time.monotonic(), True

    def answered(self) -> None:
        """Record that the client has received a part of the answer, rather than just a keep-alive."""
        self.client_served()
        self._answered_at = self._answered_at or self._last_output_at

    @property
    def first_byte(self) -> float | None:
        """The time, in seconds, from the start of the exchange to the first byte of a stream. None before that byte."""
        return None if self._answered_at is None else self._answered_at - self._started_at

    def seconds(self) -> float:
        """Return the time since the start of the exchange, in seconds."""
        return time.monotonic() - self._started_at

    def end(self, error: ApiError) -> None:
        """Make all timers expire immediately. The client receives ``error``."""
        self.ended_by = error

    def next_tick(self) -> float:
        """Return the number of seconds until the backend might be overdue or the client needs a keep-alive."""
        now = time.monotonic()
        due = self._last_output_at + self._silence_limit
        if due <= now:
            # The time for a keep-alive has passed, but a non-streamed answer has no keep-alives.
            due = now + MAX_TICK_SECONDS
        if self._limits.idle_timeout:
            due = min(due, self._last_input_at + self._limits.idle_timeout)
        # The result is never zero, because the event loop's timer clock can differ slightly from ``time.monotonic``.
        return min(max(due - now, 0.01), MAX_TICK_SECONDS)

    @property
    def _silence_limit(self) -> float:
        return self._limits.keepalive if self._is_served else self._limits.keepalive * FIRST_KEEPALIVE_FACTOR

    @property
    def is_overdue(self) -> bool:
        """Whether the backend has been silent for too long, or the proxy is being stopped."""
        return self.ended_by is not None or 0 < self._limits.idle_timeout <= time.monotonic() - self._last_input_at

    def overdue(self) -> ApiError:
        """Return the error for an overdue answer."""
        if self.ended_by is not None:
            return self.ended_by
        message = f"The backend sent no data for {self._limits.idle_timeout:g} s."
        return ApiError(message, code="backend_timeout", status=504)

    def unreachable(self, message: str) -> ApiError:
        """Return the error for a backend that could not be reached or that disconnected."""
        if self.ended_by is not None:
            return self.ended_by
        if not self._is_connected and 0 < self._limits.connect_timeout <= time.monotonic() - self._last_input_at:
            text = f"The backend could not be reached within {self._limits.connect_timeout:g} s."
            return ApiError(text, code="backend_timeout", status=504)
        # The module is imported on demand, because only a failed answer needs it.
        from toolsim.proxy.reporting.connect_errors import explain

        return ApiError(f"The backend did not answer: {explain(message)}", code="backend_unavailable", status=502)

    @property
    def is_quiet(self) -> bool:
        """Whether the client has received no data for so long that a keep-alive is due."""
        return time.monotonic() - self._last_output_at >= self._silence_limit
