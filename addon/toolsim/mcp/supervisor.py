"""The parent process of a local server, which kills all of the server's descendants when the proxy exits.

It is a separate program between the proxy and the server: ``python supervisor.py LIFELINE COMMAND …``.
The server has the standard streams; the supervisor only watches.

- LIFELINE is the reading end of a pipe whose other end only the proxy has. When that end is closed, by the proxy or by
  the kernel because the proxy was killed, all processes that the server started are killed. A byte in the pipe means to
  do the same once the server itself has exited.
- Children that left the server's process group or session, and those whose parent has died, are still descendants of
  the supervisor, since Linux gives orphans to the nearest *subreaper*. Other systems have no subreapers. There the
  process group is killed, and processes that have left it survive.

It is started without site packages: it must import only small parts of the standard library.
"""

import contextlib
import os
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 127
"""The exit code for a command that cannot be run, as in shells."""
_PATIENCE_SECONDS = 3.0
"""How long to keep trying to kill processes that restart, or that this user is not allowed to kill."""


def main(arguments: list[str]) -> int:
    """Run a command until all of its processes have exited; return its exit code, 1 for a signal."""
    lifeline, command = int(arguments[0]), arguments[1:]
    os.set_inheritable(lifeline, False)
    is_subreaper = _adopt_orphans()
    woken = _wake_on_signals()
    try:
        # Python ignores these two signals, and programs that it starts would inherit that.
        ignored = [signal.SIGPIPE, signal.SIGXFSZ]
        server = os.posix_spawnp(command[0], command, os.environ, setsigdef=ignored)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_STARTED
    _drop_streams()
    code: int | None = None
    is_ending = False
    while not (is_ending and code is not None):
        readable, _, _ = select.select([woken, lifeline], [], [])
        if woken in readable:
            os.read(woken, 4096)
        if lifeline in readable:
            if not os.read(lifeline, 1):
                break
            is_ending = True
        ended, is_any_left = _reap()
        code = ended.get(server, code)
        if not is_any_left:
            return code or 0
    _kill_all(is_subreaper)
    return code or 0


def _adopt_orphans() -> bool:
    """Become the parent of descendants whose parent dies; return whether the system supports that."""
    if sys.platform != "linux":
        return False
    import ctypes  # only needed on this system

    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _wake_on_signals() -> int:
    """Return a pipe that is readable once a child has ended. Signals to the group are for the server."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A handler, unlike SIG_IGN, is not passed on to the server.
        signal.signal(number, lambda *_: None)
    return woken


def _drop_streams() -> None:
    """Close this process's standard streams, so that only the server has them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _reap() -> tuple[dict[int, int], bool]:
    """Return the exit codes of the children that have exited, and whether any are left."""
    ended: dict[int, int] = {}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if not child:
            return ended, True
        ended[child] = max(os.waitstatus_to_exitcode(status), 0) or int(os.WIFSIGNALED(status))


def _kill_all(is_subreaper: bool) -> None:
    """Kill descendants until there are none left, since a process can start others until it is killed."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while is_subreaper and _reap()[1] and time.monotonic() < end:
        for child in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    if not is_subreaper:
        os.killpg(0, signal.SIGKILL)


def _descendants() -> list[int]:
    """Return all descendants of this process, according to the parents listed in /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses can itself contain spaces and parentheses.
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, unread = [], [os.getpid()]
    while unread:
        own = children.get(unread.pop(), [])
        found += own
        unread += own
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
