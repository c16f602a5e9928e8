"""A client that measures how much an attack delays others.

It runs in a separate process because the attack keeps the test process busy.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time


class Neighbour:
    """A client that requests the metrics repeatedly over one connection while its context is active.

    ``baseline``: the longest response time before the attack, in seconds. ``worst``: the longest response time since
    then, set when the context is exited. The context can be entered again for another attack. ``close`` ends the
    process.
    """

    def __init__(self, port: int, key: str) -> None:
        command = [sys.executable, __file__, str(port), key]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.baseline = self.worst = 0.0

    def __enter__(self) -> Neighbour:
        self.baseline = self._told()
        return self

    def __exit__(self, *_: object) -> None:
        self.worst = self._told()

    def _told(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


BASELINE_SECONDS = 0.1
PAUSE_SECONDS = 0.005


def ask(port: int, key: str) -> None:
    """Request the metrics repeatedly; print the longest response time of the baseline, and then of the attack.

    Each measurement starts when a line arrives on standard input, and ends with the next line.
    """
    while sys.stdin.readline():
        over = threading.Event()
        ending = threading.Thread(target=lambda over=over: (sys.stdin.readline(), over.set()))
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
                ending.start()
            over.wait(PAUSE_SECONDS)
        print(worst, flush=True)
        ending.join()
        connection.close()


if __name__ == "__main__":
    ask(int(sys.argv[1]), sys.argv[2])
