"""The worker process for large bodies, which returns the same results as the proxy itself. If the worker fails, the
proxy is not affected.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import io
import json
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toolsim.core.failures import FAILURES
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy import jobs, worker
from toolsim.proxy.jobs import LOOP_BYTES, Job, JobResult, PluginJob, RequestJob, RequestResult, failed, run
from toolsim.proxy.worker import HUGE_BYTES, Worker, WorkQueue, serve
from toolsim.wire.json_codec import MAX_DEPTH, TOO_DEEP

BODY = b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]%s}'
SMALL = BODY % b""


def job(body: bytes = SMALL) -> RequestJob:
    return RequestJob("chat", "/v1/chat/completions", Policy(), data=body, limit=100_000_000)


@pytest.fixture
def one() -> Iterator[Worker]:
    made = Worker("test")
    yield made
    made.stop()
    if made._process is not None:
        made._process.communicate()


@pytest.mark.slow
def test_jobs_have_the_same_results_as_locally(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several jobs run in the same worker process, and return the same results as in the proxy. A worker that uses too
    much memory is replaced.
    """
    for _ in range(2):
        assert asyncio.run(one.run(job())) == run(job(), long_budget=True)
    process = one._process
    assert process is not None
    padded = job(SMALL + b" " * HUGE_BYTES)
    assert asyncio.run(one.run(padded)).rewritten == run(padded).rewritten
    assert (one._process, process.poll()) == (process, None)
    monkeypatch.setattr(worker, "KEEP_BYTES", 0)
    assert asyncio.run(one.run(padded)).rewritten == run(padded).rewritten
    assert process.poll() is not None
    assert asyncio.run(one.run(job())).rewritten is not None


@pytest.mark.slow
def test_killed_worker_fails_one_job(one: Worker) -> None:
    """If the worker process dies, only the current job fails. The next job starts a new worker."""
    asyncio.run(one.run(job()))
    assert one._process is not None
    one._process.send_signal(signal.SIGSTOP)

    async def killed_meanwhile() -> RequestResult:
        waiting = asyncio.create_task(one.run(job()))
        await asyncio.sleep(0.2)
        one.stop()
        return await waiting

    error = asyncio.run(killed_meanwhile()).error
    assert error is not None
    assert (error.status, error.code) == (500, "internal_error")
    assert asyncio.run(one.run(job())).error is None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGPROF"), reason="Windows has no such limit")
def test_slow_worker_is_a_413(one: Worker) -> None:
    """If the worker exceeds the time limit, the job fails with status 413."""
    asyncio.run(one.run(job()))
    process = one._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)

    async def over_meanwhile() -> RequestResult:
        waiting = asyncio.create_task(one.run(job()))
        await asyncio.sleep(0.2)
        process.send_signal(signal.SIGPROF)
        process.send_signal(signal.SIGCONT)
        return await waiting

    error = asyncio.run(over_meanwhile()).error
    assert error is not None
    assert (error.status, error.code) == (413, "request_too_large")


@pytest.mark.slow
@pytest.mark.parametrize("levels", [400, 5_000, 100_000])
def test_nested_body_does_not_end_the_worker(one: Worker, levels: int) -> None:
    """A deeply nested body is either rewritten or refused with a reason. In both cases, the worker keeps running."""
    asyncio.run(one.run(job()))
    process = one._process
    nested = b',"x":' + b"[" * levels + b"]" * levels
    done = asyncio.run(one.run(job(BODY % nested)))
    assert (done.rewritten is not None) == (levels < MAX_DEPTH)
    if done.error is not None:
        assert done.error.status == 400
        assert TOO_DEEP in done.error.message
    assert asyncio.run(one.run(job())).rewritten is not None
    assert one._process is process


@pytest.mark.slow
def test_unpicklable_result_is_an_internal_error(one: Worker) -> None:
    """A result that cannot be pickled causes an internal error, but the worker keeps running."""
    asyncio.run(one.run(job()))
    process = one._process
    done = asyncio.run(one.run(PluginJob(json.loads, data=b"[" * 5_000 + b"]" * 5_000, limit=100_000)))
    assert done.error is not None
    assert (done.error.status, done.error.code) == (500, "internal_error")
    assert "RecursionError" in done.crash
    assert asyncio.run(one.run(job())).rewritten is not None
    assert one._process is process


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux bounds a process's memory")
def test_empty_lists_exceed_the_memory_limit(one: Worker) -> None:
    """A body that consists of empty lists needs far more memory than its size suggests. It is refused with status
    413.
    """
    error = asyncio.run(one.run(job(BODY % (b',"x":[' + b",".join([b"[]"] * 5_000_000) + b"]")))).error
    assert error is not None
    assert (error.status, error.code) == (413, "request_too_large")
    assert "memory" in error.message


def test_job_runs_locally_without_processes(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no worker process can be started, the job runs in the proxy's own process."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert asyncio.run(one.run(job())).rewritten == run(job()).rewritten


def test_large_jobs_do_not_wait_for_huge_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large and huge jobs run in separate workers, so large jobs do not wait for huge jobs."""

    ran: list[str] = []

    async def note(self: Worker, job: RequestJob) -> JobResult:
        ran.append(self.name)
        return JobResult(job.report)

    monkeypatch.setattr(Worker, "run", note)
    at_work: Any = WorkQueue(has_workers=True)
    asyncio.run(at_work.run(job(bytes(HUGE_BYTES // 2))))
    asyncio.run(at_work.run(job(bytes(HUGE_BYTES + 1))))
    assert ran == ["large", "huge"]
    at_work.stop()


@pytest.mark.parametrize("size", [0, LOOP_BYTES])
def test_bug_is_logged_and_counted(
    size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that fails because of a bug in toolsim is logged and counted once, in this process or in a worker."""
    broken = job(SMALL + b" " * size)
    monkeypatch.setattr(jobs, "_rewrite_request", lambda *_: 1 / 0)

    async def run_elsewhere(_: Worker, __: Job) -> JobResult:
        return failed(broken, "Traceback of a ZeroDivisionError")

    monkeypatch.setattr(Worker, "run", run_elsewhere)
    at_work, count = WorkQueue(has_workers=True), FAILURES.count
    done = asyncio.run(at_work.run(broken))
    assert done.error is not None
    assert FAILURES.count == count + 1
    [record] = caplog.records
    assert record.getMessage().startswith("toolsim failed to rewrite a request; please report this.")
    assert "ZeroDivisionError" in record.getMessage()


@pytest.mark.parametrize(
    "body", [SMALL, SMALL + b" " * LOOP_BYTES, gzip.compress(SMALL)], ids=["small", "large", "compressed"]
)
async def test_heavy_jobs_run_in_a_worker(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """If workers are enabled, jobs with large or compressed bodies run in a worker, and small jobs do not."""
    one, results = replace(job(body), encoding="gzip" if body[:1] != b"{" else ""), list[JobResult]()
    elsewhere = JobResult(Report())

    async def run_elsewhere(_: Worker, __: Job) -> JobResult:
        return elsewhere

    monkeypatch.setattr(Worker, "run", run_elsewhere)
    for has_workers in (True, False):
        at_work = WorkQueue(has_workers=has_workers)
        assert (await at_work.run(one) is elsewhere) == (has_workers and body != SMALL)
        if (waiting := at_work.submit(one, results.append)) is not None:
            await waiting
        assert (results.pop() is elsewhere) == (has_workers and body != SMALL)


async def test_owners_take_turns(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many jobs one client has queued, another client's job waits for at most one of them."""
    go, done = threading.Event(), list[str]()

    def run_later(self: Worker, job: RequestJob) -> RequestResult:
        go.wait(60)
        done.append(job.owner)
        return RequestResult(job.report)

    monkeypatch.setattr(Worker, "_run", run_later)
    waiting = [asyncio.create_task(one.run(replace(job(), owner=owner))) for owner in ("many",) * 18 + ("one",)]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*waiting)
    assert done.index("one") <= 2


def test_worker_runs_jobs_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker runs jobs until its input ends. Each job has limits on time and memory, and runs without garbage
    collection.
    """
    bounds: list[object] = []

    def collects(one: RequestJob, *, long_budget: bool) -> RequestResult:
        bounds.append(gc.isenabled())
        return run(one, long_budget=long_budget)

    monkeypatch.setattr(worker, "run", collects)
    monkeypatch.setattr(worker, "_bound_memory", bounds.append)
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: bounds.append(seconds))
    incoming, outgoing = io.BytesIO(pickle.dumps(job()) * 2), io.BytesIO()
    serve(incoming, outgoing)
    outgoing.seek(0)
    assert [pickle.load(outgoing) for _ in range(2)] == [run(job(), long_budget=True)] * 2
    assert bounds == [worker.MAX_SECONDS, worker._SPARE_BYTES + worker.GROWTH * len(SMALL), False, None, 0] * 2
    assert gc.isenabled()


@pytest.mark.slow
def test_worker_ends_with_its_input() -> None:
    """The worker ends when its input closes, so a killed proxy leaves no process behind."""
    command = [sys.executable, "-P", "-m", "toolsim.proxy.worker"]
    assert subprocess.run(command, input=b"", timeout=30, check=False).returncode == 0
