"""Processes that are not children of the tests: one that escapes, and what has become of one."""

from __future__ import annotations

from pathlib import Path

ESCAPING = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.setsid()\n"
    # Its parent is gone before anyone could look for that parent's children.
    "if os.fork(): os._exit(0)\n"
    "print(os.getpid(), file=open(os.environ['PIDS'], 'a'), flush=True)\n"
    "time.sleep(600)\n"
)
"""A program that leaves its process group, its session and its parent, and writes its id to $PIDS."""


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not merely waiting to be forgotten (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
