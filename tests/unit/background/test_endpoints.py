"""Tests for requests that start a background answer or refer to an existing one. ``tests/memory`` sends such requests
through a real proxy.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow
from toolsim.background.background_store import Ending
from toolsim.background.endpoints import BackgroundAnswers
from toolsim.background.frames import DELETED, DONE, NO_END, error_frame, events_value
from toolsim.core.errors import ApiError
from toolsim.core.plan import StoredAs
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.background import Parts
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.jobs import Job, JobResult, run
from toolsim.proxy.mcp_servers import Servers
from toolsim.proxy.options.settings import Limits, Settings
from toolsim.proxy.response_store import ResponseStore
from toolsim.proxy.rounds import Rounds
from toolsim.proxy.stored_context import StoredContext
from toolsim.stores.record import StoreError, StoreLimits
from toolsim.stores.url import StoreUrl
from toolsim.wire.apis import RESPONSES
from toolsim.wire.responses.background import CANCELLED
from toolsim.wire.responses.resources import Resource, ResourceCall

END = b"event: response.completed\ndata: {}\n\n"
BODY = {"model": "m", "input": "Hello", "background": True}


async def do[R: JobResult](job: Job[R]) -> R:
    return run(job)


class Setup:
    """The background endpoints with an in-memory store. Runs are recorded but not started, since there is no proxy."""

    def __init__(self, bounds: StoreLimits) -> None:
        self.memory = ResponseStore()
        self.memory.configure(StoreUrl("memory", bounds=bounds))
        self.answers = BackgroundAnswers(Parts(self.memory, Rounds(10), Servers(), do, lambda *_: None))
        self.settings = Settings()
        self.started: list[Any] = []
        self.answers._runs.start = self.started.append  # type: ignore[method-assign]

    async def begin(self, body: dict[str, Any] = BODY) -> HTTPFlow:
        flow, exchange = self.flow(
            StoredContext("p", json.dumps(body).encode(), stored_as=StoredAs(f"resp_{len(self.started)}"))
        )
        await self.answers.begin(flow, exchange, RESPONSES, Policy(backend="chat"), self.settings)
        return flow

    async def ask(self, kind: Any, method: str, id: str, query: str = "") -> tuple[bool, HTTPFlow]:
        flow, exchange = self.flow(StoredContext("p"))
        served = await self.answers.serve(flow, exchange, ResourceCall(Resource(kind, id), method, query))
        return served, flow

    @staticmethod
    def flow(turn: StoredContext) -> tuple[HTTPFlow, Exchange]:
        flow = tflow.tflow()
        flow.request.method, flow.request.path = "POST", "/v1/responses"
        exchange = Exchange(Report(client="responses"), client_id="c", cors={}, limits=Limits(max_request_bytes=5000))
        exchange.stored_context = turn
        return flow, exchange


@pytest.fixture
async def setup(request: pytest.FixtureRequest) -> AsyncIterator[Setup]:
    setup = Setup(getattr(request, "param", StoreLimits()))
    yield setup
    await setup.answers._rounds.stop()


def response_of(flow: HTTPFlow) -> tuple[int, dict[str, Any]]:
    assert flow.response is not None
    return flow.response.status_code, json.loads(flow.response.content or b"")


async def test_answer_is_stored_before_the_client_is_answered(setup: Setup) -> None:
    """An answer is stored as queued, and the client immediately receives the stored object. A run is started to produce
    the answer.
    """
    flow = await setup.begin()
    status, response = response_of(flow)
    assert (status, response["id"], response["status"], response["background"]) == (200, "resp_0", "queued", True)
    assert flow.comment == "in the background: resp_0"
    served, flow = await setup.ask("response", "GET", "resp_0")
    assert served
    assert response_of(flow) == (200, response)
    assert [run.lease.id for run in setup.started] == ["resp_0"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (BODY | {"store": False}, 400, "requires 'store'"),
        (BODY | {"input": 5}, 400, "input"),
        (BODY | {"tools": [{"type": "function", "name": "no name"}]}, 400, "tools"),
        (BODY | {"input": "x" * 6000}, 413, "too large"),
    ],
)
async def test_invalid_request_is_refused_immediately(
    setup: Setup, body: dict[str, Any], status: int, words: str
) -> None:
    """An invalid background request is refused immediately: no run is started, and nothing is stored."""
    got, response = response_of(await setup.begin(body))
    assert got == status
    assert words in json.dumps(response)
    assert (setup.started, setup.memory.size.records) == ([], 0)


@pytest.mark.parametrize("setup", [StoreLimits(bytes=300)], indirect=True)
async def test_request_too_large_for_the_store_is_a_413(setup: Setup) -> None:
    """A background request that is too large for the store is refused with status 413, because the client could never
    fetch the answer.
    """
    assert response_of(await setup.begin())[0] == 413
    assert setup.started == []


async def test_unavailable_store_is_a_503(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store is unavailable, background requests and requests for existing answers fail with status 503, and no
    run is started.
    """
    await setup.begin()

    async def down(*_: Sequence[object]) -> None:
        raise StoreError("down")

    monkeypatch.setattr(setup.memory, "_put", down)
    assert response_of(await setup.begin())[0] == 503
    assert len(setup.started) == 1
    served, flow = await setup.ask("cancel", "POST", "resp_0")
    assert served
    assert response_of(flow)[0] == 503


async def test_starting_answers_count_toward_the_limit(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is being started counts toward the limit on background answers. If the answer cannot be started,
    it no longer counts.
    """
    setup.settings = Settings(store=StoreUrl("memory", background=1))
    refused: list[int] = []
    open_ = setup.answers._background_store.open

    async def slow(*arguments: Any) -> Any:
        if not refused:
            refused.append(response_of(await setup.begin())[0])
            raise StoreError("down")
        return await open_(*arguments)

    monkeypatch.setattr(setup.answers._background_store, "open", slow)
    assert response_of(await setup.begin())[0] == 503
    assert refused == [429]
    assert response_of(await setup.begin())[0] == 200


async def test_other_requests_are_not_served(setup: Setup) -> None:
    """Requests for non-background answers, other resources and unknown IDs are not handled by the background
    endpoints.
    """
    await setup.memory.store(
        StoredContext("p", stored_as=StoredAs("resp_x"), own=b"[]"), b'{"status":"completed","output":[]}', []
    )
    await setup.begin()
    for kind, method, id in (
        ("response", "GET", "resp_x"),
        ("cancel", "POST", "resp_x"),
        ("response", "GET", "lease_resp_0"),
        ("response", "DELETE", "resp_y"),
        ("input_items", "GET", "resp_0"),
        ("conversation", "GET", "resp_0"),
    ):
        served, flow = await setup.ask(kind, method, id, "stream=true" if method == "GET" else "")
        assert (served, flow.response) == (False, None)


@pytest.mark.parametrize(("kind", "method", "why"), [("cancel", "POST", CANCELLED), ("response", "DELETE", DELETED)])
async def test_canceling_or_deleting_ends_a_local_run(
    setup: Setup, kind: str, method: str, why: ApiError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an answer that this process produces is canceled or deleted, its run ends with the corresponding error."""
    await setup.begin()
    [run] = setup.started
    ended: list[tuple[object, ApiError]] = []

    async def end(run: object, why: ApiError) -> None:
        ended.append((run, why))

    monkeypatch.setattr(setup.answers._runs, "find", lambda *_: run)
    monkeypatch.setattr(setup.answers._runs, "end", end)
    served, _ = await setup.ask(kind, method, "resp_0")
    assert (served, ended) == (True, [(run, why)])


async def test_remote_answer_is_followed_through_the_store(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another proxy produces the answer, the client receives its events from the store."""
    await setup.begin(BODY | {"stream": True})
    shown: list[tuple[HTTPFlow, Any]] = []

    def show(flow: HTTPFlow, _exchange: Any, stream: Any) -> None:
        shown.append((flow, stream))
        return SimpleNamespace(take=lambda _: None)

    monkeypatch.setattr(setup.answers._rounds, "show", show)
    served, flow = await setup.ask("response", "GET", "resp_0", "stream=true")
    assert served
    [(shown_flow, stream)] = shown
    assert (shown_flow, flow.response) == (flow, None)
    await setup.ask("response", "DELETE", "resp_0")
    assert DELETED.message in (await anext(stream())).decode()


@pytest.mark.parametrize(("last", "tail"), [(END, END + DONE), (b"", error_frame(NO_END, 2))])
async def test_stored_events_are_replayed_from_the_cursor(setup: Setup, last: bytes, tail: bytes) -> None:
    """The client receives the stored events after its cursor. If the last event of the answer was not stored, the
    stream ends with an error event.
    """
    await setup.begin(BODY | {"stream": True})
    [run], background_store = setup.started, setup.answers._background_store
    entry = await background_store.read("p", "resp_0")
    assert entry is not None
    frames = [f"event: e\ndata: {number}\n\n".encode() for number in range(2)]
    assert await background_store.end(run.lease, Ending(entry.value, events=events_value(0, [*frames, last]))) is True
    served, flow = await setup.ask("response", "GET", "resp_0", "stream=true&starting_after=0")
    assert served
    assert flow.response is not None
    assert (flow.response.status_code, flow.response.content) == (200, frames[1] + tail)
    assert flow.response.headers["content-type"].startswith("text/event-stream")
