"""Tests for invalid options. mitmdump, mitmweb and mitmproxy do not start, and one line states the problem."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from io import FileIO
from pathlib import Path

import pytest
from support.mitmdump import ADDON, Mitmdump

WRONG = "toolsim_idle_timeout: got '5m', expected a whole number, 0 or more"


def lines(output: str) -> list[str]:
    """Return the lines of the given output without times and colors."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    return [re.sub(r"^\[[\d:.]+\]\s*", "", line.strip()) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"toolsim_idle_timeout": "5m"}, WRONG),
        ({"toolsim_bakend": "chat"}, "toolsim_bakend: no such option; did you mean toolsim_backend?"),
        (
            {"toolsim_upstream": "localhost:11434"},
            "toolsim_upstream: got 'localhost:11434', expected a URL such as http://127.0.0.1:11434/v1; did you mean "
            "http://localhost:11434?",
        ),
    ],
    ids=["type", "name", "value"],
)
def test_invalid_option_stops_mitmdump(options: dict[str, str], line: str) -> None:
    """If an option is invalid, mitmdump exits with status 1 and prints a single line about it, without a traceback."""
    proxy = Mitmdump(toolsim_api_key="k", **options)  # type: ignore[arg-type]
    assert proxy.exit_code() == 1
    assert lines(proxy.log()).count(line) == 1
    assert "Traceback" not in proxy.log()
    assert "never retrieved" not in proxy.log()


def test_codex_without_a_key_does_not_start() -> None:
    """If the proxy listens on all interfaces, the codex backend does not start without a key."""
    proxy = Mitmdump(listen_host="0.0.0.0", toolsim_backend="codex")
    assert proxy.exit_code() == 1
    assert "Traceback" not in proxy.log()
    assert "toolsim_backend=codex on 0.0.0.0 would share your login with others: set toolsim_api_key." in lines(
        proxy.log()
    )


@pytest.mark.parametrize(
    ("program", "given"),
    [
        ("mitmdump", []),
        ("mitmweb", ["--set", "toolsim_idle_timeout=5m", "--no-web-open-browser", "--web-port", "0"]),
        ("mitmproxy", ["--set", "toolsim_idle_timeout=5m"]),
    ],
    ids=["mitmdump with config.yaml", "mitmweb", "mitmproxy"],
)
def test_invalid_option_stops_every_program(program: str, given: list[str], tmp_path: Path) -> None:
    """If an option is invalid, none of the three programs starts, and the reason is still visible after the program has
    exited.

    The option can be on the command line or in a file.
    """
    if not given:
        (tmp_path / "config.yaml").write_text("toolsim_idle_timeout: 5m\n")
    command = [sys.executable, "-c", f"from mitmproxy.tools.main import {program}; {program}()"]
    command += ["-s", str(ADDON), "--listen-host", "127.0.0.1", "--listen-port", "0", "--set", f"confdir={tmp_path}"]
    # mitmproxy needs a terminal. When it closes its user interface, it prints its log to standard error.
    screen, terminal = pty.openpty()
    with open(screen, "rb", buffering=0) as shown:
        run = subprocess.run(
            [*command, *given],
            stdin=terminal,
            stdout=subprocess.PIPE if program == "mitmdump" else terminal,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        os.close(terminal)
        read = iter(lambda: _read(shown), b"")
        output = (run.stdout or "") + run.stderr + b"".join(read).decode(errors="replace")
    assert run.returncode == 1
    assert any(line.endswith(WRONG) for line in lines(output)), output
    assert "Traceback" not in output


def _read(screen: FileIO) -> bytes:
    try:
        return screen.read(65536) or b""
    except OSError:  # The other end of the pseudoterminal has been closed.
        return b""
