"""Tests for a local MCP server process: its output limits, its environment and its termination."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.processes import ESCAPING, is_running
from toolsim.mcp.servers import Server
from toolsim.mcp.stdio import (
    MAX_BETWEEN_BYTES,
    MAX_BETWEEN_MESSAGES,
    OutputLimitExceeded,
    OutputMeter,
    run_server,
)


def test_server_output_is_limited() -> None:
    """An exception is raised if an MCP server sends too many messages or too many bytes between two requests. Each
    request resets the count.
    """
    meter = OutputMeter()
    for _ in range(2):
        meter.add(MAX_BETWEEN_BYTES, MAX_BETWEEN_MESSAGES)
        meter.asked()
    meter.add(0, MAX_BETWEEN_MESSAGES)
    with pytest.raises(OutputLimitExceeded, match="messages"):
        meter.add(0, 1)
    meter.asked()
    with pytest.raises(OutputLimitExceeded, match="bytes"):
        meter.add(MAX_BETWEEN_BYTES + 1)


@pytest.mark.parametrize("is_stubborn", [False, True], ids=["ends by itself", "must be killed"])
async def test_stopping_a_server_stops_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_stubborn: bool
) -> None:
    """When an MCP server is stopped, its child processes are stopped as well, even if they ignore SIGTERM. The server
    has only the configured environment, and its last line on standard error is logged.
    """
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    pids = tmp_path / "pids"
    program = (
        "import os, signal, subprocess, sys, time\n"
        f"{is_stubborn} and signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "line = 'import signal, time; signal.signal(15, 1); time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', line])\n"
        f"subprocess.run([sys.executable, '-c', {ESCAPING!r}])\n"
        "while not os.path.exists(os.environ['PIDS']) or not open(os.environ['PIDS']).read(): time.sleep(0.01)\n"
        "print(child.pid, file=open(os.environ['PIDS'], 'a'), flush=True)\n"
        "print(os.environ.get('OPENAI_API_KEY'), os.environ['OWN'], file=sys.stderr, flush=True)\n"
        "print('no message', flush=True)\n"
        f"time.sleep(600) if {is_stubborn} else sys.stdin.read()\n"
    )
    cut: list[str] = []
    logged: list[str] = []
    server = Server("x", (sys.executable, "-c", program), (("OWN", "1"), ("PIDS", str(pids))))
    async with run_server(server, cut.append, logged.append) as both:
        problem = await asyncio.wait_for(both[0].receive(), 30)
        assert isinstance(problem, ValueError)
        assert "not a protocol message" in str(problem)
    assert (logged, cut) == (["None 1\n"], [])
    left = pids.read_text().split()
    assert len(left) == 2
    for _ in range(100):
        if not any(is_running(int(child)) for child in left):
            return
        await asyncio.sleep(0.05)
    pytest.fail("a child lives on")


async def test_missing_command_raises() -> None:
    """If an MCP server's command does not exist, the operating system's error is raised."""
    with pytest.raises(FileNotFoundError):
        async with run_server(Server("x", ("/no/such/program",)), print, print):
            pass
