"""Processes that are not children of the tests: a program that detaches itself, and functions to observe processes."""

from __future__ import annotations

import time
from pathlib import Path

ESCAPING = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.setsid()\n"
    # The parent exits before a supervisor can list its children.
    "if os.fork(): os._exit(0)\n"
    "print(os.getpid(), file=open(os.environ['PIDS'], 'a'), flush=True)\n"
    "time.sleep(600)\n"
)
"""A program that leaves its process group, session and parent, and appends its process ID to the file $PIDS."""


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie. Requires Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_busy(pid: int, seconds: float = 1.0) -> bool:
    """Return whether a process is running or runnable for over 5% of the next ``seconds``. Requires Linux."""

    def busy() -> float:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return (int(ran) + int(waited)) / 1e9

    before = busy()
    time.sleep(seconds)
    return busy() - before > seconds / 20


def members(session: int) -> list[str]:
    """Return the command lines of the running processes in a session. Requires Linux."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and is_running(int(folder.name)):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
