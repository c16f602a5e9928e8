"""Controls mitmproxy's shutdown: signal handlers, listeners, and unsent bytes.

Relies on these internals of mitmproxy 12.2:

1. ``tools.main`` handles SIGTERM and SIGINT on the event loop by calling ``master.shutdown``. In the console, SIGINT
   opens a prompt instead (``prompt_for_exit``). So the handler of SIGINT is not replaced in the console, and neither
   handler is replaced if mitmproxy is run in a way that installs none.
2. Turning off the ``server`` option closes the listeners and all UDP connections, while other connections remain open.
   So a proxy with a UDP mode continues to listen.
3. A closed connection is removed from ``Proxyserver.connections`` even if its last bytes have not been sent yet.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from weakref import WeakSet

from mitmproxy import ctx
from mitmproxy.connection import Client
from mitmproxy.proxy.mode_specs import ProxyMode

from toolsim.proxy.mitmproxy12.backpressure import writer_of

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def install_signal_handlers(handle: Callable[[], None]) -> list[signal.Signals]:
    """Install ``handle`` for the signals that end mitmproxy. Return the signals for which it was installed."""
    # If mitmproxy has installed no handlers, the program that embeds it decides what these signals do.
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN, None):
        return []
    asks_a_person = hasattr(ctx.master, "prompt_for_exit")
    taken = [number for number in _SIGNALS if number is not signal.SIGINT or not asks_a_person]
    loop = asyncio.get_running_loop()
    try:
        for number in taken:
            loop.add_signal_handler(number, handle)
    except (NotImplementedError, RuntimeError, ValueError):
        # Signal handlers cannot be installed on Windows, or outside of the main thread.
        return []
    return taken


def restore_signal_handlers(taken: list[signal.Signals]) -> None:
    """Restore mitmproxy's handlers for these signals."""
    for number in taken:
        asyncio.get_running_loop().add_signal_handler(number, ctx.master.shutdown)


def stop_listening() -> None:
    """Stop accepting connections. Existing connections remain open."""
    if all(ProxyMode.parse(mode).transport_protocol != "udp" for mode in ctx.options.mode):
        ctx.options.update(server=False)  # type: ignore[no-untyped-call]


class Unsent:
    """Tracks bytes that have been written to clients but not sent yet."""

    def __init__(self) -> None:
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()

    def note(self, client: Client) -> None:
        """Start tracking a client's connection. Its unsent bytes count even after the connection is closed."""
        if (writer := writer_of(client)) is not None:
            self._writers.add(writer)

    def __bool__(self) -> bool:
        return any(writer.transport.get_write_buffer_size() for writer in self._writers)
