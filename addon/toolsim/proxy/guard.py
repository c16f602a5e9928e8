"""Fails closed: an exception in toolsim ends the exchange that it happened in, and nothing unchecked is forwarded.

mitmproxy logs an exception that leaves a hook, and goes on with the flow as it is. So no hook counts unless it is known
to have run to its end, and what is not known is refused:

1. mitmproxy calls the hooks of a script's addons one after another, and none of those that follow one that raises.
   ``Clearance`` is the last of them: what it clears, all others have handled.
2. The stream (``mitmproxy12/guarded.py``) asks for clearance after each hook, and ends its exchange without one, as it
   does when anything in it raises. It sends the error; before there is an exchange, a plain 502.
3. What only reports is exempt: ``reporting`` logs its exceptions, and the turn goes on.

A flow that is not live, such as one that is replayed from a file, has no stream: its exceptions reach the caller.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from mitmproxy.connection import Server
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from toolsim.core.errors import ApiError
from toolsim.proxy.reporting.metrics import Family

logger = logging.getLogger(__name__)

FAILED = ApiError("toolsim failed to handle this request; its log has the reason.", code="internal_error")

_FOLDER = str(Path(__file__).parents[1])


class NotCleared(Exception):
    """A hook has not run to its end; mitmproxy has logged why."""


class Guard:
    """Knows what has been cleared, and counts failures. One for all instances of the addon, as ``Exchanges``."""

    def __init__(self) -> None:
        self.failures = 0
        """How many exceptions have ended an exchange, or would have."""
        self._since = 0.0
        """When it began to ask for clearance; 0 while it does not."""
        self._flows: WeakSet[HTTPFlow] = WeakSet()
        """The flows whose last hook has run to its end."""
        self._servers: WeakSet[Server] = WeakSet()
        """The connections to backends whose hooks have."""

    def start(self) -> None:
        """Ask for clearance from now on."""
        self._since = time.time()

    def stop(self) -> None:
        """Ask for none: there is nobody to give it."""
        self._since = 0.0

    def clear(self, flow: HTTPFlow) -> None:
        """Note that a hook of a flow has run to its end."""
        self._flows.add(flow)

    def forget(self, flow: HTTPFlow) -> None:
        """Note that a hook of a flow begins."""
        self._flows.discard(flow)

    def check(self, flow: HTTPFlow, hook: str) -> None:
        """Raise NotCleared unless the hook has run to its end."""
        if self._since and flow not in self._flows:
            raise NotCleared(f"the hook {hook} was not completed")

    def clear_server(self, server: Server) -> None:
        """Note that the hooks of a new connection to a backend have run to their end."""
        self._servers.add(server)

    def check_server(self, server: Server) -> None:
        """Raise NotCleared for a connection to a backend whose hooks have not run to their end."""
        # One that leads through another proxy is not the one that was opened.
        is_ours = self._since and server.via is None and (server.timestamp_start or 0.0) > self._since
        if is_ours and server not in self._servers:
            raise NotCleared("the hook server_connected was not completed")

    def note(self, problem: Exception) -> None:
        """Count an exception, and log where it came from; what mitmproxy has logged has been counted then."""
        if not isinstance(problem, NotCleared):
            self.failures += 1
            logger.error("%s", described(problem), exc_info=problem)

    def note_logged(self, problem: BaseException | None) -> str:
        """Count an exception that mitmproxy is about to log; return what is logged instead, "" if it is not ours."""
        if not isinstance(problem, Exception) or not place_of(problem):
            return ""
        self.failures += 1
        return described(problem)

    def families(self) -> list[Family]:
        """Return the metrics."""
        failures = Family("internal_errors_total", "Exceptions in toolsim that ended an exchange.")
        failures.add({}, self.failures)
        return [failures]


def described(problem: Exception) -> str:
    """Return the log line about an exception in toolsim."""
    place = place_of(problem) or "mitmproxy"
    return f"toolsim failed in {place} and ended the exchange; please report this: {problem!r}"


def place_of(problem: Exception) -> str:
    """Return the innermost function of toolsim that an exception has come through, "" if there is none."""
    frames = [frame for frame, _ in traceback.walk_tb(problem.__traceback__)]
    own = [frame.f_code for frame in frames if frame.f_code.co_filename.startswith(_FOLDER)]
    if not own:
        return ""
    path = Path(own[-1].co_filename).relative_to(_FOLDER).with_suffix("")
    return ".".join((*path.parts, own[-1].co_qualname))


@contextmanager
def reporting() -> Iterator[None]:
    """Log what a report raises: no turn ends because of it."""
    try:
        yield
    except Exception:
        logger.exception("toolsim failed to report an exchange; please report this")


class Clearance:
    """The last addon: clears what all others have handled."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._connecting: WeakSet[Server] = WeakSet()

    def http_connect(self, flow: HTTPFlow) -> None:
        """Clear a flow."""
        self._guard.clear(flow)

    requestheaders = request = responseheaders = response = http_connect
    toolsim_resend = toolsim_ask = toolsim_store = http_connect

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Note the first hook of a connection."""
        self._connecting.add(data.server)

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Clear a connection whose hooks have both run to their end."""
        if data.server in self._connecting:
            self._guard.clear_server(data.server)
