"""Runs mitmdump with the addon as a child process: builds the command line, and detects when mitmdump is ready."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from toolsim.command_line import addon_script
from toolsim.proxy.address import parse_url, url_host

# The child exits when its standard input is closed, which happens when the parent exits for any reason. Therefore, the
# child cannot outlive its parent.
_PROGRAM = """
import os, signal, sys, threading
def watch():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=watch, daemon=True).start()
from mitmproxy.tools.main import mitmdump
mitmdump()
"""

_LISTENING = re.compile(r"listening at \S+:(\d+)\.")
# Matches log messages about a problem with the addon or an option. They are searched for first, because mitmdump still
# listens for a moment before it exits.
_BROKEN = re.compile(r"error in script|Addon error|No such script|^(\S+ |\{.*\")toolsim_\w+: ", re.MULTILINE)
_MAX_LOG_SHOWN = 2000
# Startup timeout, in seconds. The first start creates a certificate authority, which can be slow on a busy machine.
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


class StartFailed(Exception):
    """Raised if mitmdump did not start. The message contains the end of its log."""


class Child:
    """A running mitmdump that listens on ``port``, which the system chooses.

    ``words`` and ``settings`` have the same meaning as in ``command``. ``folder`` is a new folder for the log. Children
    whose folders have the same parent folder share a certificate authority. Raises StartFailed if mitmdump does not
    start.
    """

    def __init__(self, words: Iterable[str], settings: Iterable[str], folder: Path) -> None:
        folder.mkdir(parents=True)
        self._log = folder / "log"
        settings = [f"confdir={folder.parent / 'confdir'}", *settings]
        if not any(setting.startswith("toolsim_log=") for setting in settings):
            # With the JSON log, toolsim prints no startup banner, and so does not request the backend's models.
            settings.append("toolsim_log=json")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command(words, settings),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                # Ctrl-C must reach only the parent process.
                start_new_session=True,
            )
        try:
            self.port = self._listening()
        except BaseException:
            self.stop()
            raise

    def _listening(self) -> int:
        end = time.monotonic() + _START_SECONDS
        while True:
            is_over = self._process.poll() is not None or time.monotonic() > end
            try:
                found = port(self.log())
            except ValueError as problem:
                raise StartFailed(str(problem)) from problem
            if found is not None:
                return found
            if is_over:
                raise StartFailed(f"mitmdump did not start:\n{tail(self.log())}")
            time.sleep(0.05)

    def log(self) -> str:
        """Return everything that the child has logged so far."""
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """Stop the process. Before it exits, it writes its recordings."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def command(words: Iterable[str], settings: Iterable[str]) -> list[str]:
    """Return the command line that starts mitmdump with the addon on a free port of 127.0.0.1.

    ``words`` are additional arguments, and ``settings`` have the form ``NAME=VALUE``. The process stops when its
    standard input is closed, so standard input must be a pipe.
    """
    line = [sys.executable, "-c", _PROGRAM, "-s", addon_script(), "--listen-host", "127.0.0.1", "--listen-port", "0"]
    return [*line, *words, *(word for setting in settings for word in ("--set", setting))]


def in_front_of(url: str) -> list[str]:
    """Return mitmdump's arguments for a proxy in front of a URL. ``toolsim_upstream`` contains the URL's path."""
    target = parse_url(url)
    return ["--mode", f"reverse:{target.scheme}://{url_host(target.host)}:{target.port}"]


def port(log: str) -> int | None:
    """Return the port on which the child listens, according to its log, or None if it is not listening yet.

    Raises ValueError if the log reports a problem with the addon or an option.
    """
    if _BROKEN.search(log):
        raise ValueError(f"mitmdump cannot run with the addon:\n{tail(log)}")
    found = _LISTENING.search(log)
    return int(found[1]) if found else None


def tail(log: str) -> str:
    """Return the end of a log, which shows why the startup failed."""
    return log[-_MAX_LOG_SHOWN:]
