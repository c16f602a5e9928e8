"""Runs a real redis-server on a free port of 127.0.0.1, with a separate folder. It can be killed and restarted."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Self

import pytest
from support.ports import free_port


class RedisServer:
    """A redis-server as a context manager. ``append``: whether its data survives a restart."""

    def __init__(self, *, append: bool = False) -> None:
        self._program = shutil.which("redis-server")
        if self._program is None:
            pytest.skip("needs redis-server (Debian: redis-server)")
        self._folder = tempfile.mkdtemp(prefix="toolsim-redis-")
        self._append = append
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        assert self._program is not None
        appending = ["--appendonly", "yes", "--appendfsync", "always"] if self._append else []
        self._process = subprocess.Popen(
            [
                self._program,
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                self._folder,
                *appending,
            ],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as line:
                    line.sendall(b"PING\r\n")
                    if line.recv(10).startswith(b"+PONG"):
                        return self
            except OSError:
                pass
            assert time.monotonic() < end, "redis-server does not start"
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None = None, _: object = None, __: TracebackType | None = None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
