"""Two proxies behind HAProxy (with the configuration in ``addon/deploy``), restarted one after the other under load.

    python -m soak.restart --clients 50 --seconds 10            # a rolling restart
    python -m soak.restart --clients 50 --seconds 10 --kill     # kills the proxies instead of stopping them

Each client runs a series of turns, whose answers are streams that last ``--seconds``. The model numbers the parts
of its answer, so that a missing part is detected.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from support.haproxy import haproxy
from support.line import Line
from support.mitmdump import Mitmdump
from support.ports import free_port
from support.text_backend import TextBackend, says

PIECES = 20
CALL = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
ASKED = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "Count."}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
}


class Clients:
    """Clients that send requests to HAProxy until ``over`` is set. ``counts``: the number of turns per outcome."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.over = threading.Event()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run a series of turns over one connection. After a failure, continue over a new connection."""
        line = Line(self.url, timeout=120)
        while not self.over.is_set():
            try:
                what = self._turn(line)
            except Exception as error:
                what = f"broken off: {type(error).__name__}"
            with self._lock:
                self.counts[what] += 1
            if what != "answered":
                line.close()
                time.sleep(0.2)
            if what != "answered" or line.is_closed:
                line = Line(self.url, timeout=120)
        line.close()

    def _turn(self, line: Line) -> str:
        reply = line.post("/v1/chat/completions", ASKED)
        if reply.status != 200:
            return f"status {reply.status}"
        events = reply.events()
        chunks = [event for event in events if isinstance(event, dict) and event.get("choices")]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        is_called = any(chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks)
        is_whole = text.split() == [str(number) for number in range(PIECES)] and is_called and events[-1] == "[DONE]"
        return "answered" if is_whole else f"not whole: {reply.body[-200:]!r}"


def restart(clients: int, seconds: float, *, kill: bool = False, drain: int = 60) -> dict[str, object]:
    """Restart both proxies under load; return the results.

    ``counts``: the number of turns with each outcome. ``open``: the number of exchanges in progress when each proxy was
    stopped. ``logged``: the number of logged turns with each outcome. ``stopping``: the seconds that each proxy took to
    exit.
    """
    turn = says(*(f"{number} " for number in range(PIECES)), CALL, pause=seconds / (PIECES + 1))
    port, *ports = (free_port() for _ in range(3))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend = stack.enter_context(TextBackend(lambda _: turn))

        def started(at: int) -> Mitmdump:
            proxy = Mitmdump(
                backend.url,
                toolsim_backend="chat",
                toolsim_engine="unknown",
                toolsim_drain_timeout=drain,
                arguments=["--listen-port", str(ports[at])],
                allow_crashes=kill,
            )
            return stack.enter_context(proxy)

        proxies = [started(0), started(1)]
        stack.enter_context(haproxy(folder, port, ports))
        crowd = Clients(f"http://127.0.0.1:{port}")
        wait_until_up(folder)
        pool = stack.enter_context(ThreadPoolExecutor(clients))
        asking = [pool.submit(crowd.run) for _ in range(clients)]
        stack.callback(crowd.over.set)
        opened, stopping, logs = [], [], []
        for at, proxy in enumerate(proxies):
            wait_until_up(folder)
            time.sleep(seconds / 2)
            with Line(proxy.url) as line:
                page = line.request("GET", "/toolsim/metrics").body.decode()
            opened.append(int(re.findall(r"^toolsim_exchanges_in_progress (\d+)", page, re.MULTILINE)[0]))
            began = time.monotonic()
            if kill:
                proxy.kill()
            else:
                proxy.signal()
                assert proxy.ended(drain + 20) == 0, proxy.log()
            stopping.append(round(time.monotonic() - began, 1))
            logs.append(proxy.log())
            proxies[at] = started(at)
        wait_until_up(folder)
        time.sleep(seconds / 2)
        crowd.over.set()
        for each in asking:
            each.result()
        logs += [proxy.log() for proxy in proxies]
        turns = [json.loads(line) for log in logs for line in log.splitlines() if line.startswith('{"time"')]
        logged = Counter(turn.get("error") or "answered" for turn in turns if "client" in turn)
        return {"counts": crowd.counts, "open": opened, "logged": logged, "stopping": stopping}


def wait_until_up(folder: Path) -> None:
    """Wait until HAProxy considers both proxies ready. An operator must do the same before each restart."""
    end = time.monotonic() + 60
    while True:
        with suppress(OSError):
            if [server["status"] for server in servers(folder)] == ["UP", "UP"]:
                return
        assert time.monotonic() < end, "HAProxy has not found both proxies ready"
        time.sleep(0.1)


def servers(folder: Path) -> list[dict[str, str]]:
    """Return HAProxy's statistics on each proxy. Raises OSError if HAProxy is not running."""
    with socket.socket(socket.AF_UNIX) as asked, asked.makefile("rw") as file:
        asked.connect(f"{folder}/stats")
        file.write("show stat\n")
        file.flush()
        rows = csv.DictReader(io.StringIO(file.read().removeprefix("# ")))
        return [row for row in rows if row["svname"].startswith("proxy")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()
    assert shutil.which("haproxy"), "needs haproxy"
    for name, value in restart(arguments.clients, arguments.seconds, kill=arguments.kill).items():
        print(f"{name}: {value}")
