"""Tests for turns in the real mitmproxy console."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader
from support.line import Line
from support.mitmdump import ADDON
from support.ports import free_port

CONSOLE = (sys.executable, "-c", "from mitmproxy.tools.main import mitmproxy; mitmproxy()")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|[\x0e\x0f]")
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
SECONDS = 60.0


@contextmanager
def console(folder: Path, port: int, columns: int, *options: str) -> Iterator[Callable[[str], str]]:
    """Start the console with the scripted backend; yield a function that waits until its screen shows a text."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    listen = ["--listen-host", "127.0.0.1", "--listen-port", str(port)]
    values = ["toolsim_backend=scripted", f"confdir={folder}", "toolsim_drain_timeout=0", *options]
    command = [*CONSOLE, "-s", str(ADDON), *listen, *[part for value in values for part in ("--set", value)]]
    environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    drawn = bytearray()

    def read() -> None:
        try:
            while data := os.read(screen, 65536):
                drawn.extend(data)
        except OSError:  # The other end of the pseudoterminal is closed.
            pass

    reader = threading.Thread(target=read)
    reader.start()

    def wait_for(wanted: str) -> str:
        end = time.monotonic() + SECONDS
        while wanted not in (text := ESCAPES.sub("", drawn.decode(errors="replace"))):
            assert time.monotonic() < end, text
            assert process.poll() is None, text
            time.sleep(0.1)
        return text

    try:
        yield wait_for
    finally:
        process.terminate()
        process.wait(SECONDS)
        reader.join()
        os.close(screen)


@pytest.mark.parametrize("columns", [150, 95], ids=["table", "two lines"])
def test_list_shows_client_url_and_outcome(columns: int, tmp_path: Path) -> None:
    """The flow list shows the client's URL and each turn's outcome. Only the saved flow has the built-in
    backend's URL.
    """
    port, saved = free_port(), tmp_path / "saved.flow"
    url = f"http://127.0.0.1:{port}"
    with console(tmp_path, port, columns, f"save_stream_file={saved}") as wait_for:
        wait_for(f"[127.0.0.1:{port}]")
        with Line(url) as line:
            end = time.monotonic() + SECONDS
            while line.request("GET", "/toolsim/ready").status != 200:
                assert time.monotonic() < end
                time.sleep(0.1)
            for question in ("Weather in Bonn?", "Weather in Rome? [429]"):
                body = {"model": "m", "messages": [{"role": "user", "content": question}], "tools": [TOOL]}
                line.post("/v1/chat/completions", body)
        text = wait_for("HTTP 429 · #2 turn 1")
        row = "/v1/chat/completions  1 call: get_weather · #1 turn 1"
        assert (row if columns == 150 else url + row) in text
        assert re.search(r"HTTP 429 · #2 turn 1[^\n]* ✖", text)
        assert "/v1/responses" not in text
    with saved.open("rb") as file:
        requests = [flow.request for flow in FlowReader(file).stream() if isinstance(flow, HTTPFlow)]
    turns = [(request.path, request.port == port) for request in requests if "/toolsim/" not in request.path]
    assert turns == [("/v1/responses", False)] * 2
