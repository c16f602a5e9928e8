"""A client of the attacked proxy that must not notice: in its own process, since the attack keeps this one busy."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time


class Neighbour:
    """Requests the metrics again and again over one connection; the waits are in seconds.

    ``baseline``: the longest wait before the attack; ``worst``: the longest since, set on exit.
    """

    def __init__(self, port: int, key: str) -> None:
        self._command = [sys.executable, __file__, str(port), key]
        self.baseline = self.worst = 0.0

    def __enter__(self) -> Neighbour:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.baseline = float(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        output, _ = self._process.communicate(timeout=60)
        self.worst = float(output)


BASELINE_SECONDS = 0.5
PAUSE_SECONDS = 0.005


def ask(port: int, key: str) -> None:
    """Measure until the input ends."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    start, worst, has_baseline = time.monotonic(), 0.0, False
    while not over.is_set():
        asked = time.monotonic()
        connection.request("GET", "/toolsim/metrics", headers={"Authorization": f"Bearer {key}"})
        assert connection.getresponse().read()
        worst = max(worst, time.monotonic() - asked)
        if not has_baseline and time.monotonic() - start > BASELINE_SECONDS:
            print(worst, flush=True)
            has_baseline, worst = True, 0.0
        over.wait(PAUSE_SECONDS)
    print(worst, flush=True)


if __name__ == "__main__":
    ask(int(sys.argv[1]), sys.argv[2])
