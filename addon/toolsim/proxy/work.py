"""Does jobs: at once where that is quick, and in a separate process where it would block the event loop.

The process is for large bodies, and compressed ones.

A thread would not do: Python's JSON parser holds the GIL until it is done, for seconds on 16 MiB of empty lists. A
process can also be limited, unlike anything in this one:

1. *time*: the system ends it after ``MAX_SECONDS`` of processor time, and it runs at a lower priority;
2. *memory*: it may grow by at most ``GROWTH`` times the body (one emoji makes a text four times as large, and there are
   a few copies of it). Empty lists would take twenty times, small objects more.

Exceeding either limit fails the job, and the next one gets a new process. A process that ends for any other reason is
a bug, which the client gets as a 500; nothing that a job returns ends it. So does the job after one that has left its
process with more than ``KEEP_BYTES``, as many small objects do, and long strings do not. A worker starts when it is
first needed, does one job at a time, and exits when its input ends. Both ends exchange pickles over its pipes; neither
reads from anyone else.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from toolsim.core.one_thread import OneThread
from toolsim.core.report import Report
from toolsim.proxy.jobs import Done, Job, failed, is_heavy, run, size_of, too_much

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

MAX_SECONDS = 20
GROWTH = 16
HUGE_BYTES = 1024 * 1024
"""Bodies of more than this have a worker of their own."""
KEEP_BYTES = 128 * 1024 * 1024
# The memory that even the smallest job may take.
_SPARE_BYTES = 64 * 1024 * 1024
_DEATH_SECONDS = 5
# How the system ends a process that takes too much time; one that takes too much memory says so itself.
_TOO_LONG = getattr(signal, "SIGPROF", 0)
_PIPE_BYTES = 1024 * 1024
_PACKAGES = Path(__file__).parents[2]


class Worker:
    """Runs jobs one after another, owners in turns, in a process that it starts and replaces itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = OneThread(f"toolsim-{name}")
        self._process: subprocess.Popen[bytes] | None = None

    async def run(self, job: Job) -> Done:
        """Return the result of a job; never raises."""
        return await self._thread.do(lambda: self._run(job), job.owner)

    def stop(self) -> None:
        """End the process; a job in progress fails."""
        if (process := self._process) is not None:
            process.kill()

    def _run(self, job: Job) -> Done:
        try:
            process = self._started()
        except OSError as problem:
            logger.warning("toolsim cannot start a process for large bodies, and does without: %s", problem)
            return run(job)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # At once, so that a job that cannot be written leaves the process without half of it.
            process.stdin.write(pickle.dumps(job, protocol=5))
            process.stdin.flush()
            done = pickle.load(process.stdout)
            assert isinstance(done, Done)
        except (OSError, EOFError, pickle.UnpicklingError):
            return self._died(job, process)
        except Exception:
            self._end()
            return failed(job, traceback.format_exc())
        if size_of(job) > HUGE_BYTES and _resident(process.pid) > KEEP_BYTES:
            self._end()
        return done

    def _died(self, job: Job, process: subprocess.Popen[bytes]) -> Done:
        """Return the result of a job whose process has died: because of its limit, or for no known reason."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_DEATH_SECONDS)
        self._end()
        if _TOO_LONG and code == -_TOO_LONG:
            return Done(job.report, too_much(job, "time"))
        return failed(job, f"The process for large bodies has ended (exit code {code}).")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", __name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Each read of the thread interrupts the event loop; the system's default is a sixteenth of this.
                pipesize=_PIPE_BYTES,
                env={**os.environ, "PYTHONPATH": path},
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError):
                process.communicate()


class Work:
    """Does jobs; ``has_workers``: whether there is anybody who would have to wait."""

    def __init__(self, *, has_workers: bool) -> None:
        self._has_workers = has_workers
        # Two, so that large bodies do not wait for huge ones.
        self._large = Worker("large")
        self._huge = Worker("huge")

    def take(self, job: Job, then: Callable[[Done], Awaitable[None] | None]) -> Awaitable[None] | None:
        """Do a job and hand its result on: at once (None), or once what is returned is awaited, by ``then`` too."""
        if self._has_workers and is_heavy(job):
            return self._awaited(job, then)
        return then(run(job))

    async def do(self, job: Job) -> Done:
        """Do a job; never raises."""
        if not (self._has_workers and is_heavy(job)):
            return run(job)
        worker = self._huge if size_of(job) > HUGE_BYTES else self._large
        return await worker.run(job)

    def stop(self) -> None:
        """End both processes."""
        self._large.stop()
        self._huge.stop()

    async def _awaited(self, job: Job, then: Callable[[Done], Awaitable[None] | None]) -> None:
        if (following := then(await self.do(job))) is not None:
            await following


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Do jobs until the input ends."""
    while True:
        try:
            job: Job = pickle.load(incoming)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        _bound_memory(_SPARE_BYTES + GROWTH * size_of(job))
        # JSON is a tree: reference counts free all of it, and the search for cycles takes a quarter of a large job.
        gc.disable()
        done = run(job, patient=True)
        gc.enable()
        _bound_memory(None)
        try:
            result = pickle.dumps(done, protocol=5)
        except Exception:
            result = pickle.dumps(failed(replace(job, report=Report()), traceback.format_exc()), protocol=5)
        signal.setitimer(signal.ITIMER_PROF, 0)
        outgoing.write(result)
        outgoing.flush()
        del job, done, result


def _resident(pid: int) -> int:
    """Return the bytes of memory that a process has; more than any where the system does not say it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, AttributeError):
        return sys.maxsize


def _bound_memory(growth: int | None) -> None:
    """Let this process grow by so many bytes from now on; None = no limit. Linux only: others hide the size."""
    statm = Path("/proc/self/statm")
    if resource is None or not statm.exists():
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    size = int(statm.read_text().split()[0]) * resource.getpagesize()
    soft = resource.RLIM_INFINITY if growth is None else size + growth
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    # Ctrl-C is meant for the proxy, which ends its worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whoever waits for it sent something large; on a busy machine the proxy's own thread comes first.
    os.nice(10)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
