"""A client of the attacked proxy that must not notice."""

from __future__ import annotations

import http.client
import threading
import time

from attack.cases import KEY


class Neighbour:
    """Asks for the metrics again and again over one connection; ``worst``: the longest wait, in seconds."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.worst = 0.0

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._over.is_set():
            start = time.monotonic()
            connection.request("GET", "/toolsim/metrics", headers={"Authorization": f"Bearer {KEY}"})
            assert connection.getresponse().read()
            self.worst = max(self.worst, time.monotonic() - start)
            self._over.wait(0.005)
        connection.close()
