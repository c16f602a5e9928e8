"""Ports for servers that have to be told theirs before they start."""

from __future__ import annotations

import random
import socket

# Below the range from which systems take ports for connections and for servers that ask for any: one of those could
# take what was found free before the server that is told to does.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port of this machine on which nobody listens, not likely to be taken by somebody else meanwhile."""
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
