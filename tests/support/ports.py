"""Ports for servers that need a fixed port before they start."""

from __future__ import annotations

import random
import socket

# Below the range from which systems assign ports to connections and to servers that ask for any: one of those could
# take a free port before the server that is to use it.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a free port of this machine that nobody else is likely to take meanwhile."""
    # Not the module's own generator: Hypothesis seeds that one, and two workers would draw the same port.
    draw = random.SystemRandom()
    while True:
        port = draw.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
