"""A mitmdump with the addon as a child process: its command line, and how to detect that it is up."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from toolsim.command_line import addon_script

# The child's standard input ends with its parent, however that ends, so no proxy outlives its parent.
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
# Without the addon, or with an option that it rejects, mitmdump still listens for a moment before it exits.
_BROKEN = re.compile(r"error in script|Addon error|No such script|^(\S+ |\{.*\")toolsim_\w+: ", re.MULTILINE)
_MAX_LOG_SHOWN = 2000


def command(words: Iterable[str], settings: Iterable[str]) -> list[str]:
    """Return the command line of a mitmdump on any free port of 127.0.0.1; its standard input must be a pipe.

    ``words``: further arguments; ``settings``: ``NAME=VALUE``.
    """
    line = [sys.executable, "-c", _PROGRAM, "-s", addon_script(), "--listen-host", "127.0.0.1", "--listen-port", "0"]
    return [*line, *words, *(word for setting in settings for word in ("--set", setting))]


def port(log: str) -> int | None:
    """Return the port on which the child listens, None if it does not yet. Raises ValueError if it never will."""
    if _BROKEN.search(log):
        raise ValueError(f"mitmdump cannot run with the addon:\n{tail(log)}")
    found = _LISTENING.search(log)
    return int(found[1]) if found else None


def tail(log: str) -> str:
    """Return the end of a log, which shows why a start has failed."""
    return log[-_MAX_LOG_SHOWN:]
