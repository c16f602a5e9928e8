"""Runs the ``toolsim`` command as users do: as a real process with a separate home folder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.mitmdump import CRASHES

TOOLSIM = (sys.executable, "-m", "toolsim")
START_SECONDS = 60.0
BASE_URL = r"base URL for clients +(http://[^/\s]+)/v1"
"""Pattern for the line in the startup banner that contains the listener's URL."""


def environment(home: Path) -> dict[str, str]:
    """Return an environment with this home folder, so that the settings of the real user do not apply."""
    return {**os.environ, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def running(tmp_path: Path, *arguments: str, program: Sequence[str] = TOOLSIM) -> Iterator[tuple[str, Path]]:
    """Start a server command, yield its URL and log file, and check that it exits cleanly on Ctrl-C."""
    with started([*program, *arguments, "--port", "0"], tmp_path, environment(tmp_path)) as found:
        yield found


@contextlib.contextmanager
def started(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], *, banner: str = BASE_URL
) -> Iterator[tuple[str, Path]]:
    """Start a command line. Yield the first group of the pattern ``banner`` in its output, and the log file."""
    log = Path(env["HOME"]) / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield wait_for(log, banner, process)[1], log
    finally:
        # Signal all processes of the command line, as a terminal does on Ctrl-C.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        code = process.wait(20)
    assert code == 0, log.read_text()
    assert not CRASHES.search(log.read_text()), log.read_text()


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes] | None = None) -> re.Match[str]:
    """Wait until the log matches a pattern, and return the match."""
    end = time.monotonic() + START_SECONDS
    while not (found := re.search(pattern, log.read_text())):
        assert time.monotonic() < end, log.read_text()
        assert process is None or process.poll() is None, log.read_text()
        time.sleep(0.05)
    return found


def log_lines(text: str) -> list[str]:
    """Return the lines of a log without timestamps and durations."""
    return [re.sub(r"^\[[\d:.]+\]\s*|[\d.]+ s$", "", line) for line in text.splitlines()]
