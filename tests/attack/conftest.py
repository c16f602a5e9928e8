"""Fixtures for the attacks: real proxies, a neighbor client that must not be delayed, and the table of results."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attack import results
from attack.cases import KEY, Ports
from attack.neighbour import Neighbour
from support.mitmdump import Mitmdump
from support.raw_backend import RawBackend


class World:
    """A proxy, its backend, and a neighbor client whose delays are measured during an attack."""

    def __init__(self, proxy: Mitmdump, backend: RawBackend, hole: int) -> None:
        found = re.search(r"backend answers .*?127\.0\.0\.1:(\d+)", proxy.log())
        self.proxy, self.backend = proxy, backend
        self.ports = Ports(proxy.port, backend.port, int(found[1]) if found else 0, hole)
        self.neighbour = Neighbour(proxy.port, KEY)

    def send(self, data: bytes, seconds: float) -> bytes:
        """Send these bytes over one connection, and return everything received until the connection closes."""
        with socket.create_connection(("127.0.0.1", self.ports.proxy), timeout=seconds) as connection:
            sender = threading.Thread(target=self._sendall, args=(connection, data), daemon=True)
            sender.start()
            received = bytearray()
            with contextlib.suppress(ConnectionError):
                while chunk := connection.recv(65536):
                    received += chunk
            sender.join(seconds)
        return bytes(received)

    @staticmethod
    def _sendall(connection: socket.socket, data: bytes) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(data)

    def memory(self) -> float:
        """Return the peak memory of the proxy in MiB, or 0 if the system does not report it."""
        status = Path(f"/proc/{self.proxy.pid}/status")
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
        return int(found[1]) / 1024 if found else 0.0


@pytest.fixture(scope="session")
def hole() -> Iterator[int]:
    """A port whose connection queue is full, so an attempt to connect to it hangs."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


@pytest.fixture(scope="session")
def worlds(hole: int) -> Iterator[Any]:
    """A function that returns the world with a given name, and starts the world on first use."""
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(RawBackend())
        options: dict[str, tuple[str | None, dict[str, Any]]] = {
            "plain": (backend.url, {}),
            "locked": (backend.url, {"toolsim_api_key": KEY}),
            "over chat": (backend.url, {"toolsim_backend": "chat"}),
            "regular": (None, {}),
            "scripted": (None, {"toolsim_backend": "scripted"}),
            "locked scripted": (None, {"toolsim_backend": "scripted", "toolsim_api_key": KEY}),
            "locked forward": (None, {"toolsim_upstream": backend.url, "toolsim_api_key": KEY}),
            "hole": (f"http://127.0.0.1:{hole}", {"toolsim_connect_timeout": 2}),
        }
        started: dict[str, World] = {}

        def world(name: str) -> World:
            if name not in started:
                target, more = options[name]
                proxy = stack.enter_context(Mitmdump(target, **more))
                if "scripted" in name:
                    proxy.wait_for("scripted backend answers")
                started[name] = World(proxy, backend, hole)
                stack.callback(started[name].neighbour.close)
            return started[name]

        yield world


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of attacks at the end of the test run."""
    if results.ROWS:
        terminalreporter.section("attacks")
        terminalreporter.write_line(f"{'attack':48} {'answer':10} {'seconds':>8} {'MiB more':>9} {'delay ms':>9}")
        for name, answer, seconds, memory, delay in results.ROWS:
            terminalreporter.write_line(f"{name:48} {answer:10} {seconds:8.2f} {memory:9.1f} {delay * 1000:9.0f}")
