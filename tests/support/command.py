"""The command ``toolsim`` as people run it, in a process with a home of its own; and the lines that README prints."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.mitmdump import CRASHES, ROOT

HERE = (sys.executable, "-m", "toolsim")


def environment(home: Path) -> dict[str, str]:
    """Another home: mitmproxy's folder is in it, and no setting of this machine counts."""
    return {**os.environ, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def running(tmp_path: Path, *arguments: str, program: Sequence[str] = HERE) -> Iterator[tuple[str, Path]]:
    """Start a command that serves; yields its listener's URL and its log. It has to end well on Ctrl-C."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*program, *arguments, "--port", "0"],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield wait_for(log, r"base URL for clients +(http://[^/\s]+)/v1", process)[1], log
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(20)
    assert code == 0, log.read_text()
    assert not CRASHES.search(log.read_text()), log.read_text()


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes] | None = None) -> re.Match[str]:
    end = time.monotonic() + 60
    while not (found := re.search(pattern, log.read_text())):
        assert time.monotonic() < end, log.read_text()
        assert process is None or process.poll() is None, log.read_text()
        time.sleep(0.05)
    return found


def readme_lines(url: str) -> list[list[str]]:
    """Return the arguments of README's commands for a server at a URL, with host and port of ``url`` in it."""
    lines = re.findall(r"`toolsim (serve https?://[^`]+)`", (ROOT / "README.md").read_text())
    return [shlex.split(re.sub(r"https?://[^/]+", url, line)) for line in lines]
