"""Tests for runs, which produce background answers while no client is waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from toolsim.background import remote_follower
from toolsim.background import runs as runs_module
from toolsim.background.background_store import BackgroundStore
from toolsim.background.event_log import EventLog
from toolsim.background.frames import DONE
from toolsim.background.remote_follower import follow_stored
from toolsim.background.runs import BackgroundRun, Runs
from toolsim.core.errors import ApiError
from toolsim.core.events import Ended, Failed, Opened, TextDelta
from toolsim.core.plan import AnswerForm
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.response_store import ResponseStore
from toolsim.rounds.runner import Refused, RoundEvent, RunnerJob
from toolsim.stores.record import Record, StoreError, StoreLimits
from toolsim.stores.url import StoreUrl
from toolsim.wire.apis import RESPONSES
from toolsim.wire.responses.background import CANCELLED, is_streamed, value_of
from toolsim.wire.responses.writer import ResponsesWriter
from unit.rounds.test_server import WORDS, Round1

STALL = TextDelta("STALL")


class Setup:
    """Runs with an in-memory store. ``over`` contains the report and the status of each finished answer."""

    def __init__(self) -> None:
        self.memory = ResponseStore()
        self.memory.configure(StoreUrl("memory"))
        self.background_store = BackgroundStore(self.memory)
        self.over: list[tuple[Report, int | None]] = []
        self.runs = Runs(
            self.background_store, 0.05, lambda report, status, seconds: self.over.append((report, status))
        )

    async def begin(
        self, *events: RoundEvent, stream: bool = True, conversation: str = ""
    ) -> tuple[BackgroundRun, Round1]:
        round_, form = Round1(*events), AnswerForm(stream, "m", id="resp_1", echo={"background": True})
        writer = ResponsesWriter(form)
        response, frames = writer.queue()
        value = value_of(json.dumps(response).encode(), b"[]", stream=stream)
        lease = await self.background_store.open("p", "resp_1", value, "", [])
        job = RunnerJob(RESPONSES, {}, form, Policy(), round_.ask)
        log = EventLog(100_000) if stream else None
        run = BackgroundRun(job, lease, writer, log, b'[{"id":"i1"}]', ("i1",), conversation=conversation)
        run.publish(frames)
        self.runs.start(run)
        return run, round_

    async def kept(self) -> dict[str, Any]:
        entry = await self.background_store.read("p", "resp_1")
        assert entry is not None
        response: dict[str, Any] = json.loads(entry.value)["response"]
        return {**response, "state": entry.state}

    async def is_streamed(self) -> bool:
        entry = await self.background_store.read("p", "resp_1")
        return entry is not None and is_streamed(entry.value)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    yield setup
    await setup.runs.stop()


async def events_of(run: BackgroundRun) -> list[dict[str, Any]]:
    assert run.log is not None
    data = b"".join([data async for data in run.log.follow(-1)])
    assert data.endswith(DONE)
    return [json.loads(frame.partition(b"\ndata: ")[2]) for frame in data.removesuffix(DONE).split(b"\n\n")[:-1]]


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_is_stored_as_emitted(setup: Setup, stream: bool) -> None:
    """If no client follows an answer, the stored answer and events equal the answer and events that were emitted. The
    answer is counted and reported, and its run is removed.
    """
    run, _ = await setup.begin(*WORDS, stream=stream)
    assert setup.runs.find("p", "resp_1") is run
    assert setup.runs.find("q", "resp_1") is None
    assert run.task is not None
    await run.task
    kept = await setup.kept()
    assert (kept["status"], kept["state"], kept["output"][0]["content"][0]["text"]) == ("completed", "", "Hello")
    assert await setup.is_streamed() == stream
    assert [status for _, status in setup.over] == [200]
    assert setup.runs.partitions() == []
    lines = [line for family in setup.runs.families() for line in family.lines()]
    assert 'toolsim_background_answers_total{status="completed"} 1' in lines
    if stream:
        events = await events_of(run)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"] == {key: value for key, value in kept.items() if key != "state"}
        assert await setup.background_store.events("p", "resp_1") == (run.log.value() if run.log else None)
    else:
        assert await setup.background_store.events("p", "resp_1") is None


REFUSAL = Refused(500, {}, b'{"error": {"message": "no model"}}')


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((REFUSAL,), "no model"),
        ((Opened(), TextDelta("Hel"), Failed(ApiError("it broke", status=502))), "it broke"),
        ((), "ended unexpectedly"),
    ],
)
async def test_failed_answer_is_stored_as_failed(setup: Setup, events: Sequence[RoundEvent], words: str) -> None:
    """If an answer fails for any reason, it is stored as failed, and the stream of its events ends with the error."""
    run, _ = await setup.begin(*events)
    assert run.task is not None
    await run.task
    kept = await setup.kept()
    assert kept["status"] == "failed"
    assert words in kept["error"]["message"]
    assert (await events_of(run))[-1]["type"] == "response.failed"
    assert setup.over[0][0].error


async def test_bug_is_stored_as_a_failed_answer(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    """If an unexpected exception is raised while an answer is produced, the exception is logged, and the answer is
    stored as failed.
    """
    bad: Any = Ended(None)  # type: ignore[arg-type]
    run, _ = await setup.begin(Opened(), bad)
    assert run.task is not None
    await run.task
    assert (await setup.kept())["status"] == "failed"
    assert "please report" in caplog.text


async def test_ending_an_answer_stops_its_model_first(setup: Setup) -> None:
    """Ending a run stops the model first. The stream then ends with the reason, for example that the response was
    canceled. Ending the run again has no effect.
    """
    run, round_ = await setup.begin(Opened(), STALL)
    await round_.stalls.wait()
    while (await setup.kept())["state"] != "in_progress":
        await asyncio.sleep(0.01)
    while (entry := await setup.background_store.read("p", "resp_1")) is not None:
        # ``finalize`` fails if the run has renewed its lease since the entry was read. If so, try again.
        if await setup.background_store.finalize(entry, value_of(b'{"status":"cancelled"}', b"[]", stream=True)):
            break
    await setup.runs.end(run, CANCELLED)
    assert round_.stopped.is_set()
    assert (await setup.kept())["status"] == "cancelled"
    error, failed = (await events_of(run))[-2:]
    assert (error["message"], failed["type"]) == ("The response was cancelled.", "response.failed")
    assert [(report.error, status) for report, status in setup.over] == [("response_cancelled", None)]
    assert await setup.background_store.events("p", "resp_1") == (run.log.value() if run.log else None)
    await setup.runs.end(run, CANCELLED)


async def test_lost_lease_stops_the_model(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another proxy cancels or deletes the answer, the run loses its lease and stops the model."""
    monkeypatch.setattr(runs_module, "RENEW_SECONDS", 0.02)
    run, round_ = await setup.begin(Opened(), STALL)
    await round_.stalls.wait()
    await setup.background_store.delete("p", "resp_1")
    await asyncio.wait_for(round_.stopped.wait(), 5)
    assert run.task is not None
    await run.task
    assert await setup.background_store.read("p", "resp_1") is None
    assert "cancelled or deleted" in (await events_of(run))[-2]["message"]


async def test_followed_answer_is_stored_as_it_arrives(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a client reads an answer from the store, the answer's events are stored as they are produced. The last
    events are stored even if the run has lost its lease.
    """
    monkeypatch.setattr(runs_module, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(runs_module, "FOLLOW_SECONDS", 0.02)
    run, round_ = await setup.begin(Opened(), TextDelta("Hel"), STALL)
    await round_.stalls.wait()
    await asyncio.sleep(0.1)
    assert await setup.background_store.events("p", "resp_1") is None
    stream = follow_stored(setup.background_store, "p", "resp_1", 0)
    monkeypatch.setattr(remote_follower, "FOLLOW_SECONDS", 0.02)
    read = await anext(stream)
    assert b'"delta":"Hel"' in read
    assert b"response.created" not in read
    cancelled = value_of(b'{"status":"cancelled"}', b"[]", stream=True)
    # ``finalize`` fails if the run has renewed its lease since the entry was read. If so, try again.
    while (entry := await setup.background_store.read("p", "resp_1")) and not await setup.background_store.finalize(
        entry, cancelled
    ):
        pass
    assert entry is not None
    rest = b"".join([data async for data in stream])
    assert b"response.failed" in rest
    assert rest.endswith(DONE)
    assert run.log is not None
    assert (read + rest).count(b"\n\n") >= run.log.last + 1
    assert setup.runs.partitions() == []


async def test_stopping_proxy_stores_answers_as_failed(setup: Setup) -> None:
    """When a proxy stops, its unfinished answers are stored as failed, together with their events."""
    run, round_ = await setup.begin(Opened(), TextDelta("Hel"), STALL)
    await round_.stalls.wait()
    await setup.runs.stop()
    kept = await setup.kept()
    assert (kept["status"], kept["state"]) == ("failed", "")
    assert "was stopped" in kept["error"]["message"]
    assert await setup.background_store.events("p", "resp_1") == (run.log.value() if run.log else None)


class Down:
    """A store that fails the first ``times`` attempts to write the answer. ``failed`` is set at the first failure."""

    def __init__(self, memory: ResponseStore, times: int) -> None:
        self.times, self.put = times, memory._put
        self.failed = asyncio.Event()

    async def __call__(self, partition: str, records: Sequence[Record], expected: Any = None) -> None:
        if self.times and any(record.id == "resp_1" for record in records):
            self.times -= 1
            self.failed.set()
            raise StoreError("down")
        await self.put(partition, records, expected)


@pytest.mark.parametrize(("times", "status"), [(3, "completed"), (1000, "")])
async def test_failed_write_of_the_result_is_retried(
    setup: Setup, times: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write of the completed answer is retried. If the store remains unavailable, the stream ends with
    ``response.failed``.
    """
    monkeypatch.setattr(runs_module, "RETRY_SECONDS", 0.001)
    run, _ = await setup.begin(*WORDS)
    monkeypatch.setattr(setup.memory, "_put", Down(setup.memory, times))
    assert run.task is not None
    await run.task
    last = (await events_of(run))[-1]
    if status:
        assert (last["type"], (await setup.kept())["status"]) == ("response.completed", status)
    else:
        assert last["type"] == "response.failed"
        assert (await setup.kept())["state"]


async def test_answer_too_large_for_the_store_is_failed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an answer is too large for the store, it is stored as failed, with the reason but without its text."""
    monkeypatch.setattr(runs_module, "RETRY_SECONDS", 0.001)
    setup.memory.configure(StoreUrl("memory", bounds=StoreLimits(bytes=2500)))
    run, _ = await setup.begin(Opened(), TextDelta("word " * 400), Ended({0: "stop"}))
    assert run.task is not None
    await run.task
    kept = await setup.kept()
    assert (kept["status"], kept["output"], kept["state"]) == ("failed", [], "")
    assert "too large" in kept["error"]["message"]
    assert (await events_of(run))[-1]["type"] == "response.failed"
    assert setup.over[0][0].error == "server_error"


async def test_answer_ended_before_its_start_leaves_nothing(setup: Setup) -> None:
    run, _ = await setup.begin(Opened(), STALL)
    await setup.runs.end(run, CANCELLED)
    assert setup.runs.partitions() == []


async def test_stopping_proxy_writes_pending_answers_once_more(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a proxy stops, it tries once more to store an answer that is complete but not yet stored. The answer is
    stored as completed.
    """
    monkeypatch.setattr(runs_module, "RETRY_SECONDS", 60)
    run, _ = await setup.begin(*WORDS)
    down = Down(setup.memory, 1)
    monkeypatch.setattr(setup.memory, "_put", down)
    await down.failed.wait()
    await asyncio.sleep(0)
    await setup.runs.stop()
    assert (await setup.kept())["status"] == "completed"
    assert (await events_of(run))[-1]["type"] == "response.completed"


async def test_missing_conversation_fails_the_answer(setup: Setup) -> None:
    """If an answer cannot be added to its conversation, it fails, because later turns would not contain it."""
    run, _ = await setup.begin(*WORDS, conversation="conv_1")
    assert run.task is not None
    await run.task
    kept = await setup.kept()
    assert kept["status"] == "failed"
    assert "could not be added" in kept["error"]["message"]
    assert (await events_of(run))[-1]["type"] == "response.failed"
    assert setup.over[0][0].error == "store_unavailable"
