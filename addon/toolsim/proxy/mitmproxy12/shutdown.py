"""mitmproxy's shutdown: the signals that start it, its listeners, and unsent bytes.

Relies on these internals of mitmproxy 12.2:

1. ``tools.main`` handles SIGTERM and SIGINT on the event loop, and both call ``master.shutdown``. In the console SIGINT
   asks a person instead (``prompt_for_exit``), so it is left alone there, as it is when mitmproxy is run in another
   way, without a handler of these signals.
2. When the option ``server`` is unset, the listeners are closed, and the connections stay open, except those of UDP. So
   a proxy with a mode that has only UDP keeps listening.
3. A closed connection is removed from ``Proxyserver.connections`` while its last bytes can still be on their way.
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
    """Call ``handle`` for the signals that end mitmproxy; return the signals that were installed."""
    # Without a handler they end the process: that is up to its parent.
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN, None):
        return []
    asks_a_person = hasattr(ctx.master, "prompt_for_exit")
    taken = [number for number in _SIGNALS if number is not signal.SIGINT or not asks_a_person]
    loop = asyncio.get_running_loop()
    try:
        for number in taken:
            loop.add_signal_handler(number, handle)
    except (NotImplementedError, RuntimeError, ValueError):
        # Windows, or a thread that receives no signals.
        return []
    return taken


def restore_signal_handlers(taken: list[signal.Signals]) -> None:
    """Let these signals end mitmproxy again."""
    for number in taken:
        asyncio.get_running_loop().add_signal_handler(number, ctx.master.shutdown)


def stop_listening() -> None:
    """Accept no more connections; existing ones stay open."""
    if all(ProxyMode.parse(mode).transport_protocol != "udp" for mode in ctx.options.mode):
        ctx.options.update(server=False)  # type: ignore[no-untyped-call]


class Unsent:
    """Bytes that have been written to clients, but not sent yet."""

    def __init__(self) -> None:
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()

    def note(self, client: Client) -> None:
        """Watch the connection of a client, even when it is closed."""
        if (writer := writer_of(client)) is not None:
            self._writers.add(writer)

    def __bool__(self) -> bool:
        return any(writer.transport.get_write_buffer_size() for writer in self._writers)
