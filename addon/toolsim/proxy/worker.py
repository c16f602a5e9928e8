"""Runs jobs with large or compressed bodies in separate processes, and all other jobs immediately.

A large body would block the event loop for too long, and a compressed body might be large.

A thread would not help, because Python's JSON parser holds the GIL until it is done, which takes seconds for 16 MiB of
empty lists. In addition, a separate process can have limits that do not apply to the proxy:

1. *time*: the system ends the process after ``MAX_SECONDS`` of CPU time. If the system has no such limit, the proxy
   ends the process after ``MAX_WAIT_SECONDS``. The process also runs at a lower priority.
2. *memory*: the process can grow by at most ``GROWTH`` times the size of the body. A single emoji makes a string four
   times as large in memory, and a job has a few copies of the string. Empty lists would need 20 times the size, and
   small objects even more.

A job that exceeds either limit fails, and the next job runs in a new process. If the process ends for any other reason,
this is a bug in toolsim, and the client receives a 500. The process is also replaced if a job leaves more than
``KEEP_BYTES`` in memory, as jobs with many small objects do. A worker starts on first use, runs one job at a time, and
exits when its input ends. The two processes exchange pickles over pipes, and neither process reads pickles from any
other source.
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
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from toolsim.core.failures import FAILURES
from toolsim.core.report import Report
from toolsim.core.serial_executor import SerialExecutor
from toolsim.proxy.jobs import Job, JobResult, failed, is_heavy, run

try:
    import resource
except ImportError:  # Windows has no ``resource`` module.
    resource = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

MAX_SECONDS = 20
"""Maximum CPU time of a job, in seconds."""
MAX_WAIT_SECONDS = 60
"""Maximum wall-clock time of a job, in seconds. It is used if the system cannot limit CPU time, as on Windows."""
GROWTH = 16
HUGE_BYTES = 1024 * 1024
"""Size, in bytes, above which a body is handled by a second worker, so that smaller bodies do not have to wait for it.
"""
KEEP_BYTES = 128 * 1024 * 1024
# The memory, in bytes, that every job is allowed to use, even if its body is small.
_SPARE_BYTES = 64 * 1024 * 1024
_DEATH_SECONDS = 5
# The signal that ends a process when it exceeds its CPU time limit. Exceeding the memory limit raises MemoryError.
_TOO_LONG = getattr(signal, "SIGPROF", 0) if hasattr(signal, "setitimer") else 0
_PIPE_BYTES = 1024 * 1024
_PACKAGES = Path(__file__).parents[2]


class Worker:
    """Runs jobs one at a time, alternating between owners, in a process that it starts and replaces as needed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = SerialExecutor(f"toolsim-{name}")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_overdue = False

    async def run[R: JobResult](self, job: Job[R]) -> R:
        """Return the result of a job. Never raises an exception."""
        return await self._thread.submit(lambda: self._run(job), job.owner)

    def stop(self) -> None:
        """End the process. A job in progress fails."""
        if (process := self._process) is not None:
            process.kill()

    def _run[R: JobResult](self, job: Job[R]) -> R:
        try:
            process = self._started()
        except OSError as problem:
            logger.warning(
                "toolsim cannot start a process for large bodies, so the main process parses them: %s", problem
            )
            return run(job)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # The job is pickled first, so that a job that cannot be pickled leaves no incomplete data in the pipe.
            process.stdin.write(pickle.dumps(job, protocol=5))
            process.stdin.flush()
            with self._time_limit(process):
                done = pickle.load(process.stdout)
            assert isinstance(done, job.result)
        except (OSError, EOFError, pickle.UnpicklingError):
            return self._died(job, process)
        except Exception:
            self._end()
            return failed(job, traceback.format_exc())
        if job.size > HUGE_BYTES and _resident(process.pid) > KEEP_BYTES:
            self._end()
        return done

    def _died[R: JobResult](self, job: Job[R], process: subprocess.Popen[bytes]) -> R:
        """Return the result of a job whose process exceeded its time limit or died for an unknown reason."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_DEATH_SECONDS)
        self._end()
        if self._is_overdue or (_TOO_LONG and code == -_TOO_LONG):
            return job.result(job.report, job.too_much("time"))
        return failed(job, f"The process for large bodies ended unexpectedly (exit code {code}).")

    @contextlib.contextmanager
    def _time_limit(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """End the process if a job takes too long, unless the system enforces the limit."""
        self._is_overdue = False
        if _TOO_LONG:
            yield
            return

        is_done = threading.Event()

        def watch() -> None:
            if not is_done.wait(MAX_WAIT_SECONDS):
                self._is_overdue = True
                process.kill()

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            is_done.set()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", __name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # A thread reads the pipe, and each read interrupts the event loop. So the pipe is 16 times as large as
                # the default, which reduces the number of reads.
                pipesize=_PIPE_BYTES,
                env={**os.environ, "PYTHONPATH": path},
                # On Windows, the priority class of the process replaces ``os.nice``.
                creationflags=getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0),
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError):
                process.communicate()


class WorkQueue:
    """Runs jobs, and reports bugs in toolsim that made a job fail.

    If ``has_workers`` is true, heavy jobs run in worker processes, so that other clients do not have to wait.
    """

    def __init__(self, *, has_workers: bool) -> None:
        self._has_workers = has_workers
        # A second worker is needed, so that large bodies do not have to wait for huge bodies.
        self._large = Worker("large")
        self._huge = Worker("huge")

    def submit[R: JobResult](self, job: Job[R], then: Callable[[R], Awaitable[None] | None]) -> Awaitable[None] | None:
        """Run a job and pass its result to ``then``.

        Return an awaitable that does both if the job is heavy, otherwise the result of ``then``.
        """
        if self._has_workers and is_heavy(job):
            return self._awaited(job, then)
        return then(_reported(job, run(job)))

    async def run[R: JobResult](self, job: Job[R]) -> R:
        """Run a job and return its result. Never raises an exception."""
        if not (self._has_workers and is_heavy(job)):
            return _reported(job, run(job))
        worker = self._huge if job.size > HUGE_BYTES else self._large
        return _reported(job, await worker.run(job))

    def stop(self) -> None:
        """End the processes of both workers."""
        self._large.stop()
        self._huge.stop()

    async def _awaited[R: JobResult](self, job: Job[R], then: Callable[[R], Awaitable[None] | None]) -> None:
        if (following := then(await self.run(job))) is not None:
            await following


def _reported[R: JobResult](job: Job[R], done: R) -> R:
    if done.crash:
        FAILURES.report(f"rewrite {job.subject}", done.crash)
    return done


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Run the jobs that arrive on the input until the input ends."""
    while True:
        try:
            job: Job[JobResult] = pickle.load(incoming)
        except EOFError:
            return
        _limit_time(MAX_SECONDS)
        _bound_memory(_SPARE_BYTES + GROWTH * job.size)
        # Cyclic garbage collection is turned off. JSON is a tree, so reference counting frees all of it, and searching
        # for cycles would take a quarter of a large job's time.
        gc.disable()
        done = run(job, long_budget=True)
        gc.enable()
        _bound_memory(None)
        try:
            result = pickle.dumps(done, protocol=5)
        except Exception:
            result = pickle.dumps(failed(replace(job, report=Report()), traceback.format_exc()), protocol=5)
        _limit_time(0)
        outgoing.write(result)
        outgoing.flush()
        del job, done, result


def _limit_time(seconds: int) -> None:
    """Make the system end this process after ``seconds`` of CPU time, or remove the limit if ``seconds`` is 0.

    On Windows, the parent enforces the limit.
    """
    if _TOO_LONG:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _resident(pid: int) -> int:
    """Return the resident memory of a process in bytes, or a very large number if the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, AttributeError):
        return sys.maxsize


def _bound_memory(growth: int | None) -> None:
    """Limit the memory growth of this process to ``growth`` bytes, or remove the limit if ``growth`` is None.

    This has an effect only on Linux.
    """
    statm = Path("/proc/self/statm")
    if resource is None or not statm.exists():
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    size = int(statm.read_text().split()[0]) * resource.getpagesize()
    soft = resource.RLIM_INFINITY if growth is None else size + growth
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    # Ctrl-C is intended for the proxy, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # On a busy machine, the proxy itself takes precedence over large bodies. But with a much lower priority, this
    # process would be delayed for seconds by a local model that uses all cores.
    if hasattr(os, "nice"):
        os.nice(5)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
