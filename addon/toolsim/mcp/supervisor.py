"""Runs as the parent process of a local server, and kills all of the server's descendants when the proxy exits.

The supervisor is a separate program between the proxy and the server: ``python supervisor.py LIFELINE COMMAND …``. The
server inherits the standard streams. The supervisor does not use them.

- LIFELINE is the reading end of a pipe whose writing end only the proxy has. The writing end is closed by the proxy or,
  if the proxy was killed, by the kernel. Then the server and all processes that it started are killed. If the proxy
  writes a byte into the pipe, these processes are killed as soon as the server itself has exited.
- Children that left the server's process group or session, and children whose parent has died, are still descendants of
  the supervisor, since Linux assigns orphans to the nearest *subreaper*. Other systems have no subreapers. There, the
  process group is killed, and processes that have left it survive.

The supervisor is started without site packages and must import only small parts of the standard library.
"""

import contextlib
import os
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 127
"""The exit code if a command cannot be run, as in shells."""
_PATIENCE_SECONDS = 3.0
"""Timeout, in seconds, for killing all processes. Killing is retried, because processes can start others or belong to
another user.
"""


def main(arguments: list[str]) -> int:
    """Run a command until all of its processes have exited. Return the command's exit code, or 1 after a signal."""
    lifeline, command = int(arguments[0]), arguments[1:]
    os.set_inheritable(lifeline, False)
    is_subreaper = _adopt_orphans()
    woken = _wake_on_signals()
    try:
        # Python ignores these two signals. Without ``setsigdef``, the server would ignore them, too.
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
    """Make this process adopt orphaned descendants, and return whether the system supports this."""
    if sys.platform != "linux":
        return False
    import ctypes  # Only Linux needs this module.

    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _wake_on_signals() -> int:
    """Return a pipe that becomes readable when a child exits.

    This process ignores signals to the process group, because they are intended for the server.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The handler does nothing. SIG_IGN is not used, because the server would inherit it.
        signal.signal(number, lambda *_: None)
    return woken


def _drop_streams() -> None:
    """Close this process's standard streams, so that only the server holds them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _reap() -> tuple[dict[int, int], bool]:
    """Collect the exit codes of children that have exited. Also return whether any children are left."""
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
    """Kill all descendants repeatedly until none are left, because a process can start others before it is killed."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while is_subreaper and _reap()[1] and time.monotonic() < end:
        for child in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    if not is_subreaper:
        os.killpg(0, signal.SIGKILL)


def _descendants() -> list[int]:
    """Return all descendants of this process, which are found through the parent process IDs in /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # In /proc/PID/stat, the command name in parentheses can itself contain spaces and parentheses.
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
