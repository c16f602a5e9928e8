"""Ports for servers whose port must be known before they start."""

from __future__ import annotations

import random
import socket

# Systems assign ports automatically from a higher range. A port in that range could be assigned to another process
# before the server uses it.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a free port of this machine. It is unlikely that another process uses it before the caller does."""
    # Hypothesis seeds the global generator of ``random``, so two test workers would draw the same port from it.
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
