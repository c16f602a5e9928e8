"""Tests for the runner's server, with real HTTP requests and simulated rounds."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from toolsim.core.errors import ApiError
from toolsim.core.events import Closed, Ended, Failed, KeepAlive, Opened, PassThrough, TextDelta
from toolsim.core.plan import AnswerForm
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.core.time_slice import SLICE_SECONDS, TimeSlice
from toolsim.rounds.load import MAX_CHARS, MAX_EVENTS
from toolsim.rounds.round_planner import Round
from toolsim.rounds.runner import TOKEN, Refused, RoundEvent, RoundReport, RunnerJob, with_keepalives
from toolsim.rounds.server import RunnerServer
from toolsim.wire.api import Api
from toolsim.wire.apis import CHAT, RESPONSES

WORDS: tuple[RoundEvent, ...] = (Opened(), TextDelta("Hello"), RoundReport(Report(calls=[])), Ended({0: "stop"}))


class Round1:
    """A round that yields the given events. It waits forever when it reaches the text "STALL". ``stopped`` is set when
    the round is closed.
    """

    def __init__(self, *said: RoundEvent) -> None:
        self.said = said
        self.stopped = asyncio.Event()
        self.stalls = asyncio.Event()

    async def ask(self, _: Round) -> AsyncGenerator[RoundEvent]:
        try:
            for event in self.said:
                if event == TextDelta("STALL"):
                    self.stalls.set()
                    await asyncio.Event().wait()
                yield event
        finally:
            self.stopped.set()


def job(round_: Round1, api: Api = CHAT, *, stream: bool = True, **policy: Any) -> RunnerJob:
    return RunnerJob(api, {}, AnswerForm(stream=stream, model="m"), Policy(**policy), round_.ask)


@pytest.fixture
async def server() -> AsyncIterator[RunnerServer]:
    server = RunnerServer(keepalive=0.05)
    server.start()
    yield server
    await server.stop()


async def post(server: RunnerServer, a_job: RunnerJob | None) -> httpx.Response:
    token = server.admit(a_job) if a_job is not None else "guessed"
    async with httpx.AsyncClient() as client:
        return await client.post(f"http://127.0.0.1:{server.port}/v1/x", json={}, headers={TOKEN: token})


async def test_job_is_answered_once(server: RunnerServer) -> None:
    """A job is answered in the format of its API, streamed or not. It is answered only once, and only if the request
    contains the job's token.
    """
    streamed = await post(server, job(Round1(*WORDS)))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["cache-control"] == "no-cache, no-transform"
    assert "server" not in streamed.headers
    assert '"content":"Hello"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    whole = await post(server, job(Round1(*WORDS), RESPONSES, stream=False))
    assert whole.json()["output"][0]["content"][0]["text"] == "Hello"
    refused = await post(server, None)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    token = server.admit(job(Round1(*WORDS)))
    server.forget(token)
    async with httpx.AsyncClient() as client:
        again = await client.post(f"http://127.0.0.1:{server.port}/v1/x", json={}, headers={TOKEN: token})
    assert again.status_code == 403


async def test_foreign_stream_is_passed_on(server: RunnerServer) -> None:
    """A stream that does not belong to a job is forwarded as it arrives, both for GET and for POST. It ends if the
    client disconnects.
    """
    is_over = asyncio.Event()

    async def stream() -> AsyncGenerator[bytes]:
        try:
            for number in range(3):
                yield b"data: %d\n\n" % number
            if stalls:
                await asyncio.Event().wait()
        finally:
            is_over.set()

    for method in "GET", "POST":
        stalls = False
        headers = {TOKEN: server.admit(stream)}
        async with httpx.AsyncClient() as client:
            answer = await client.request(method, f"http://127.0.0.1:{server.port}/v1/x", headers=headers)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text == "data: 0\n\ndata: 1\n\ndata: 2\n\n"
        stalls = True
        is_over.clear()
        headers = {TOKEN: server.admit(stream)}
        async with (
            httpx.AsyncClient() as client,
            client.stream(method, f"http://127.0.0.1:{server.port}/v1/x", headers=headers) as begun,
        ):
            assert (await anext(begun.aiter_bytes())).startswith(b"data: 0")
        await asyncio.wait_for(is_over.wait(), 5)


async def test_errors_reach_the_client(server: RunnerServer) -> None:
    """If the backend refuses the first round, its response is forwarded unchanged. A later failure determines the
    status of the response or, if the client's answer is streamed, becomes an error event.
    """
    headers = {"content-type": "application/json", "retry-after": "3"}
    refused = await post(server, job(Round1(RoundReport(Report()), Refused(429, headers, b'{"error":1}'))))
    assert (refused.status_code, refused.headers["retry-after"], refused.content) == (429, "3", b'{"error":1}')
    failed = Failed(ApiError("no", code="c", status=502))
    whole = await post(server, job(Round1(Opened(), failed), stream=False))
    assert (whole.status_code, whole.json()["error"]["code"]) == (502, "c")
    streamed = await post(server, job(Round1(Opened(), TextDelta("x"), failed), RESPONSES))
    assert streamed.status_code == 200
    assert "response.failed" in streamed.text


async def test_requested_report_precedes_the_last_frame(server: RunnerServer) -> None:
    """With ``sse_telemetry``, the stream contains the report as a comment before the last frame."""
    told = (await post(server, job(Round1(*WORDS), sse_telemetry=True))).text
    *_, comment, last, end = told.split("\n\n")
    assert json.loads(comment.removeprefix(": "))["rounds"] == 1
    assert (last, end) == ("data: [DONE]", "")


async def test_silent_stream_receives_keepalives(server: RunnerServer) -> None:
    """A stream contains keep-alives while no events arrive. This includes the time before the first event, in which the
    backend processes the prompt.
    """
    for events in ((Opened(), TextDelta("one"), TextDelta("STALL")), (TextDelta("STALL"),)):
        round_ = Round1(*events)
        token = server.admit(job(round_))
        url = f"http://127.0.0.1:{server.port}/v1/x"
        got = b""
        async with (
            asyncio.timeout(10),
            httpx.AsyncClient() as client,
            client.stream("POST", url, json={}, headers={TOKEN: token}) as response,
        ):
            async for chunk in response.aiter_raw():
                got += chunk
                if got.count(b'"delta":{}') + got.count(b": keepalive") >= 2:
                    break
        await asyncio.wait_for(round_.stopped.wait(), 5)


async def test_non_streamed_answer_receives_no_keepalives(server: RunnerServer) -> None:
    """A non-streamed response contains no keep-alives, because its status is not known before the answer ends."""
    silent = Round1(TextDelta("STALL"))
    url = f"http://127.0.0.1:{server.port}/v1/x"
    with pytest.raises(httpx.ReadTimeout):
        async with httpx.AsyncClient(timeout=0.4) as client, asyncio.timeout(10):
            await client.post(url, json={}, headers={TOKEN: server.admit(job(silent, stream=False))})
    await asyncio.wait_for(silent.stopped.wait(), 5)


async def test_late_refusal_is_an_error_event(server: RunnerServer) -> None:
    """If the backend returns an HTTP error after the client has received status 200, the error becomes an error event
    in the format of the client's API.
    """

    class Late(Round1):
        async def ask(self, _: Round) -> AsyncGenerator[RoundEvent]:
            await asyncio.sleep(server.keepalive * 3)
            yield RoundReport(Report())
            yield Refused(503, {"content-type": "application/json"}, b'{"error": {"message": "too hot"}}')

    answer = await post(server, job(Late(), RESPONSES))
    assert answer.status_code == 200
    assert "too hot" in answer.text
    assert "response.failed" in answer.text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("has_started", [True, False])
async def test_exception_ends_the_answer_with_an_error(
    server: RunnerServer, caplog: pytest.LogCaptureFixture, has_started: bool, stream: bool
) -> None:
    """If toolsim raises an exception during an answer, the client receives an HTTP error or, after the headers of a
    stream, an error event. The exception is logged.
    """

    class Broken(Round1):
        async def ask(self, _: Round) -> AsyncGenerator[RoundEvent]:
            if has_started:
                yield Opened()
                yield TextDelta("Hello")
                await asyncio.sleep(server.keepalive)
            raise ZeroDivisionError

    answer = await post(server, job(Broken(), RESPONSES, stream=stream))
    if stream and has_started:
        assert answer.status_code == 200
        assert "response.failed" in answer.text
        assert "response.completed" not in answer.text
    else:
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
    assert "ZeroDivisionError" in caplog.text


async def test_exception_while_writing_cuts_the_answer(server: RunnerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an event cannot be written after the headers have been sent, the connection is closed, so that the response
    does not appear complete.
    """
    writer_of = type(RESPONSES).writer

    def broken(api: Any, form: AnswerForm) -> Any:
        writer = writer_of(api, form)
        write = writer.write
        monkeypatch.setattr(
            writer, "write", lambda event: write(event) if not isinstance(event, Ended) else [][0], raising=False
        )
        return writer

    monkeypatch.setattr(type(RESPONSES), "writer", broken)
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await post(server, job(Round1(*WORDS), RESPONSES))


async def test_stop_ends_running_jobs(server: RunnerServer) -> None:
    """When the server stops, a running job ends, and the connection to its client is closed."""
    round_ = Round1(Opened(), TextDelta("one"), TextDelta("STALL"))
    asked = asyncio.create_task(post(server, job(round_)))
    await asyncio.wait_for(round_.stalls.wait(), 5)
    await server.stop()
    with pytest.raises(httpx.HTTPError):
        await asked
    assert round_.stopped.is_set()


@pytest.mark.parametrize("has_started", [False, True])
async def test_ended_job_reports_the_reason(server: RunnerServer, has_started: bool) -> None:
    """If a running job is ended with an error, the client receives the error as an HTTP error, or as an event if its
    stream has already started.
    """
    round_ = Round1(Opened(), TextDelta("one"), TextDelta("STALL")) if has_started else Round1(TextDelta("STALL"))
    asked = asyncio.create_task(post(server, job(round_)))
    await asyncio.wait_for(round_.stalls.wait(), 5)
    server.end(ApiError("It is late.", code="late", status=503, retry_after=1))
    answer = await asyncio.wait_for(asked, 5)
    assert (answer.status_code, answer.headers.get("retry-after")) == ((200, None) if has_started else (503, "1"))
    assert "It is late." in answer.text
    assert round_.stopped.is_set()


async def test_keepalives_do_not_affect_events() -> None:
    """Events arrive in order, with keep-alives between them if the next event is delayed."""
    closed: list[bool] = []

    async def slow() -> AsyncGenerator[object]:
        try:
            for number in range(3):
                await asyncio.sleep(0.05 * number)
                yield Closed() if number else Opened()
        finally:
            closed.append(True)

    told = [event async for event in with_keepalives(slow(), 0.02)]
    assert [event for event in told if not isinstance(event, KeepAlive)] == [Opened(), Closed(), Closed()]
    assert KeepAlive() in told
    events = with_keepalives(slow(), 1)
    await anext(events)
    await events.aclose()
    assert closed == [True, True]


@pytest.mark.parametrize(
    ("event", "most"),
    [
        (TextDelta("x"), MAX_EVENTS),
        (TextDelta("x" * 10_000), MAX_CHARS // 10_000 + 1),
        (PassThrough({"type": "x", "text": "x" * 10_000}), MAX_CHARS // 10_000 + 1),
        (TextDelta("x" * 1_000_000), 1),
    ],
)
async def test_waiting_events_are_limited(event: RoundEvent, most: int) -> None:
    """The number and the total text size of events that wait for the consumer are limited. Whenever the consumer takes
    an event, the producer can continue.
    """
    made = [0]

    async def events() -> AsyncGenerator[RoundEvent]:
        for _ in range(100):
            made[0] += 1
            yield event

    stream = with_keepalives(events(), 10)
    for taken in range(1, 101):
        assert await anext(stream) == event
        for _ in range(5):
            await asyncio.sleep(0)
        assert made[0] <= taken + most
    assert made == [100]
    assert [each async for each in stream] == []


async def test_immediate_events_share_time_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """If events are available immediately, their producer and consumer share time slices, and no event is lost."""
    pauses: list[float] = []
    renew = TimeSlice.restart

    def paused(pace: TimeSlice) -> None:
        pauses.append(time.thread_time())
        renew(pace)

    async def at_once() -> AsyncGenerator[int]:
        for number in range(500):
            end = time.thread_time() + SLICE_SECONDS / 30
            while time.thread_time() < end:
                pass
            yield number

    monkeypatch.setattr(TimeSlice, "restart", paused)
    started = time.thread_time()
    assert [event async for event in with_keepalives(at_once(), 60)] == list(range(500))
    slices = [after - before for before, after in pairwise([started, *pauses])]
    assert len(slices) > 5
    # Time spent on producing events in advance counts toward the current slice.
    assert max(slices) < 4 * SLICE_SECONDS
