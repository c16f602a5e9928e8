"""Ensures that toolsim fails closed: an exception ends its exchange, and unchecked data is never forwarded.

mitmproxy logs an exception that a hook raises, and continues with the unchanged flow. So toolsim rejects a flow unless
each hook is known to have completed:

1. mitmproxy calls the hooks of a script's addons one after another, and skips the rest if one raises. ``Clearance`` is
   the last addon, so if it clears a flow, all other addons have handled the flow.
2. The stream (``mitmproxy12/guarded.py``) requires clearance after each hook. Without clearance, or if the stream
   itself raises an exception, it ends the exchange and sends the error, or a plain 502 if there is no exchange yet.
3. Reporting is exempt: ``reporting`` logs its exceptions, and the turn continues.

A flow that is not live, such as a flow read from a file, has no stream, so its exceptions reach the caller.
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

from toolsim.core.failures import FAILURES, Failures
from toolsim.proxy.reporting.metrics import Family

logger = logging.getLogger(__name__)

_FOLDER = str(Path(__file__).parents[1])


class NotCleared(Exception):
    """Raised if a hook has not completed. mitmproxy has logged the reason."""


class Guard:
    """Tracks clearance, which shows that all addons have handled a flow, and counts failures.

    All instances of the addon share one guard.
    """

    def __init__(self, failures: Failures = FAILURES) -> None:
        self.failures = failures
        self._since = 0.0
        """The time at which clearance became required, or 0 if it is not required."""
        self._flows: WeakSet[HTTPFlow] = WeakSet()
        """The flows whose most recent hook has completed."""
        self._servers: WeakSet[Server] = WeakSet()
        """The backend connections whose hooks have completed."""

    def start(self) -> None:
        """Require clearance from now on."""
        self._since = time.time()

    def stop(self) -> None:
        """Stop requiring clearance, since no addon is left to grant it."""
        self._since = 0.0

    def clear(self, flow: HTTPFlow) -> None:
        """Record that the current hook of a flow has completed."""
        self._flows.add(flow)

    def forget(self, flow: HTTPFlow) -> None:
        """Revoke the clearance of a flow, because another hook is about to run."""
        self._flows.discard(flow)

    def check(self, flow: HTTPFlow, hook: str) -> None:
        """Raise NotCleared unless the flow's hook has completed."""
        if self._since and flow not in self._flows:
            raise NotCleared(f"the hook {hook} did not complete")

    def clear_server(self, server: Server) -> None:
        """Record that the hooks of a new connection to a backend have completed."""
        self._servers.add(server)

    def check_server(self, server: Server) -> None:
        """Raise NotCleared if the hooks of a new connection to a backend have not completed."""
        # A connection through another proxy is exempt, because its hooks received another connection object.
        is_ours = self._since and server.via is None and (server.timestamp_start or 0.0) > self._since
        if is_ours and server not in self._servers:
            raise NotCleared("the hook server_connected did not complete")

    def note(self, problem: Exception) -> None:
        """Count and log an exception. Ignore NotCleared, because ``note_logged`` has already counted its cause."""
        if not isinstance(problem, NotCleared):
            self.failures.count += 1
            logger.error("%s", described(problem), exc_info=problem)

    def note_logged(self, problem: BaseException | None) -> str:
        """Count an exception in toolsim that mitmproxy is about to log.

        Return a log message, or "" for an exception that did not occur in toolsim.
        """
        if not isinstance(problem, Exception) or not place_of(problem):
            return ""
        self.failures.count += 1
        return described(problem)

    def families(self) -> list[Family]:
        """Return the metrics about failures."""
        failures = Family("internal_errors_total", "Exceptions in toolsim that ended an exchange.")
        failures.add({}, self.failures.count)
        return [failures]


def described(problem: Exception) -> str:
    """Return the log message for an exception in toolsim."""
    place = place_of(problem) or "mitmproxy"
    return f"toolsim failed in {place} and ended the exchange; please report this: {problem!r}"


def place_of(problem: Exception) -> str:
    """Return the innermost toolsim function in an exception's traceback, or "" if there is none."""
    frames = [frame for frame, _ in traceback.walk_tb(problem.__traceback__)]
    own = [frame.f_code for frame in frames if frame.f_code.co_filename.startswith(_FOLDER)]
    if not own:
        return ""
    path = Path(own[-1].co_filename).relative_to(_FOLDER).with_suffix("")
    return ".".join((*path.parts, own[-1].co_qualname))


@contextmanager
def reporting() -> Iterator[None]:
    """Log any exception that the reporting code raises, so that the exception does not end a turn."""
    try:
        yield
    except Exception:
        logger.exception("toolsim failed to report an exchange; please report this")


class Clearance:
    """The last addon, which records that all other addons have handled a flow."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._connecting: WeakSet[Server] = WeakSet()

    def http_connect(self, flow: HTTPFlow) -> None:
        """Record that all other addons have completed the current hook of a flow."""
        self._guard.clear(flow)

    requestheaders = request = responseheaders = response = http_connect
    toolsim_resend = toolsim_ask = toolsim_store = http_connect

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Record that all addons have handled the hook ``server_connect`` of a connection."""
        self._connecting.add(data.server)

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Record that a connection's hooks have completed, unless a hook failed in another addon."""
        if data.server in self._connecting:
            self._guard.clear_server(data.server)
