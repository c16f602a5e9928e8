"""Loading of the stored context that a request refers to, and storing of the answer before the client receives it."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow
from toolsim.core.errors import ApiError
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.auxiliary import AuxiliaryRequest
from toolsim.proxy.background import Background, Parts
from toolsim.proxy.context_loader import StoredContextLoader
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.jobs import Job, JobResult, run
from toolsim.proxy.mcp_servers import Servers
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.response_store import UNAVAILABLE, ResponseStore
from toolsim.proxy.rounds import Rounds
from toolsim.proxy.stored_context import StoredContext
from toolsim.stores.url import StoreUrl
from toolsim.wire.responses.resources import resource_of
from toolsim.wire.responses.stored import Recalled


async def do[R: JobResult](job: Job[R]) -> R:
    return run(job)


@pytest.fixture
def memory() -> ResponseStore:
    made = ResponseStore()
    made.configure(StoreUrl("memory"))
    return made


def over(memory: ResponseStore) -> StoredContextLoader:
    background = Background(Parts(memory, Rounds(10), Servers(), do, lambda *_: None))
    return StoredContextLoader(memory, do, background)


@pytest.fixture
def context_loader(memory: ResponseStore) -> StoredContextLoader:
    return over(memory)


def received(context_loader: StoredContextLoader, body: Any, encoding: str = "") -> tuple[HTTPFlow, Exchange, bool]:
    """Simulate a request with the given body. Return its flow, its exchange, and whether it must wait until its context
    is loaded.
    """
    flow = tflow.tflow()
    flow.live = True
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    flow.request.raw_content = data
    if encoding:
        flow.request.headers["content-encoding"] = encoding
    exchange = Exchange(Report(), client_id="c", cors={}, limits=Limits(max_request_bytes=2000))
    exchange.stored_context = StoredContext("p")
    return flow, exchange, context_loader.take(flow, exchange)


def turn_of(exchange: Exchange) -> StoredContext:
    found = exchange.stored_context
    assert found is not None
    return found


async def answered(context_loader: StoredContextLoader, flow: HTTPFlow, exchange: Exchange) -> dict[str, Any]:
    """Simulate a chat backend's answer to the request, and return the answer that the client receives."""
    job = exchange.request_job(flow, "responses", replace(Policy(), backend="chat"))
    assert job is not None
    exchange.take_request(flow, run(job))
    flow.response = tflow.tresp(content=b'{"choices":[{"message":{"content":"Fine."},"finish_reason":"stop"}]}')
    flow.response.headers.clear()
    exchange.begin(flow)
    answer = exchange.answer_job(flow)
    assert answer is not None
    done = await context_loader.store_whole(exchange, run(answer))
    assert done.error is None
    response: dict[str, Any] = json.loads(done.body)
    return response


async def test_request_without_references_is_not_delayed(
    context_loader: StoredContextLoader, memory: ResponseStore
) -> None:
    """A request that does not refer to stored data is not delayed. Later requests can refer to its answer by the ID
    that the client received.
    """
    flow, exchange, waits = received(context_loader, {"model": "m", "input": "Hello"})
    assert not waits
    first = await answered(context_loader, flow, exchange)
    assert memory.size.records == 1
    flow, exchange, waits = received(
        context_loader, {"model": "m", "input": "More", "previous_response_id": first["id"]}
    )
    assert waits
    await context_loader.recall(flow, exchange)
    again = await answered(context_loader, flow, exchange)
    sent = json.loads(flow.request.raw_content or b"")["messages"]
    assert [message["content"] for message in sent] == ["Hello", "Fine.", "More"]
    assert again["previous_response_id"] == first["id"]


async def test_large_body_is_searched_in_pieces(context_loader: StoredContextLoader) -> None:
    """The search for references in a large body pauses regularly so that other tasks can run. This is true even if the
    body contains many strings that resemble a reference.
    """
    body = b'{"input":"' + b'\\"pr' * 3_750_000 + b'"}'
    flow, exchange, waits = received(context_loader, body)
    assert waits
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(others())
    await context_loader.recall(flow, exchange)
    other.cancel()
    assert flow.response is None
    assert turns > 50


async def test_reference_name_within_a_text_is_ignored(context_loader: StoredContextLoader) -> None:
    """If ``previous_response_id`` occurs only within a string, the request is parsed to check for references, but the
    body is not changed.
    """
    body = {"model": "m", "input": 'a "previous_response_id"', "metadata": {"conversation": "x"}}
    flow, exchange, waits = received(context_loader, body)
    assert waits
    await context_loader.recall(flow, exchange)
    assert flow.response is None
    assert turn_of(exchange).body is None
    assert (await answered(context_loader, flow, exchange))["store"] is True


async def test_compressed_request_is_decompressed(context_loader: StoredContextLoader) -> None:
    """A compressed request is decompressed before it is searched for references."""
    body = gzip.compress(b'{"model":"m","input":"x","previous_response_id":"r"}')
    flow, exchange, waits = received(context_loader, body, "gzip")
    assert waits
    await context_loader.recall(flow, exchange)
    assert flow.response is not None
    assert flow.response.status_code == 400


async def test_background_request_is_detected(context_loader: StoredContextLoader) -> None:
    """A background request is detected in any content encoding, but only if ``background`` is a field at the top
    level.
    """
    for body, expected in (
        ({"input": "x", "background": True}, True),
        ({"input": "x", "background": True, "store": False}, True),
        ({"input": "x", "metadata": {"background": True}}, False),
    ):
        for encoding in "", "gzip":
            data = json.dumps({"model": "m", **body}).encode()
            flow, exchange, waits = received(context_loader, gzip.compress(data) if encoding else data, encoding)
            assert waits
            await context_loader.recall(flow, exchange)
            assert flow.response is None
            assert turn_of(exchange).in_background is expected


async def test_store_error_replaces_the_answer(
    context_loader: StoredContextLoader, memory: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client receives an error if the store fails, or if the request and its context together are too large."""

    async def fail(*_: object) -> Recalled | ApiError:
        return UNAVAILABLE

    flow, exchange, _ = received(context_loader, {"model": "m", "input": "x" * 1200})
    first = await answered(context_loader, flow, exchange)
    request = {"model": "m", "input": "y" * 1200, "previous_response_id": first["id"]}
    flow, exchange, _ = received(context_loader, request)
    await context_loader.recall(flow, exchange)
    assert flow.response is not None
    assert flow.response.status_code == 413
    monkeypatch.setattr(memory, "recall", fail)
    flow, exchange, _ = received(context_loader, request)
    await context_loader.recall(flow, exchange)
    assert flow.response is not None
    assert flow.response.status_code == 503


@pytest.mark.parametrize(
    ("data", "status"), [(b"no gzip", 400), (gzip.compress(b" " * 2001, mtime=0), 413)], ids=["bad", "large"]
)
async def test_undecodable_or_oversized_body_is_refused(
    context_loader: StoredContextLoader, data: bytes, status: int
) -> None:
    """A request body that cannot be decoded is refused with status 400, and a body that exceeds the size limit is
    refused with status 413.
    """
    flow = tflow.tflow()
    flow.live = True
    flow.request.method, flow.request.path = "POST", "/v1/conversations"
    flow.request.raw_content = data
    flow.request.headers["content-encoding"] = "gzip"
    exchange = Exchange(Report(), client_id="c", cors={}, limits=Limits(max_request_bytes=2000))
    exchange.stored_context = StoredContext("p", resource=resource_of(flow.request.path))
    await context_loader.serve(flow, exchange)
    assert flow.response is not None
    assert flow.response.status_code == status


async def test_without_a_store_nothing_is_remembered() -> None:
    """Without a store, nothing is stored, and even requests that refer to stored data are not delayed."""
    flow, exchange = tflow.tflow(), Exchange(Report(), client_id="c", cors={}, limits=Limits())
    flow.request.raw_content = b'{"previous_response_id":"r"}'
    assert not over(ResponseStore()).take(flow, exchange)


async def test_request_is_parsed_once(context_loader: StoredContextLoader) -> None:
    """The request items to store are prepared when the request is rewritten, so the request body is not parsed again
    for the store.
    """
    jobs: list[Job[Any]] = []

    async def noted[R: JobResult](job: Job[R]) -> R:
        jobs.append(job)
        return run(job)

    context_loader = replace(context_loader, run=noted)
    flow, exchange, _ = received(context_loader, {"model": "m", "input": [{"role": "user", "content": "Hello"}]})
    await answered(context_loader, flow, exchange)
    assert jobs == []
    (item,) = json.loads(turn_of(exchange).own or b"")
    assert (item["content"], turn_of(exchange).names) == ([{"type": "input_text", "text": "Hello"}], (item["id"],))


async def test_unstored_request_is_not_prepared(context_loader: StoredContextLoader) -> None:
    """The data to store is not prepared if ``store`` is false or if the request only counts tokens."""
    for body, action in ({"store": False}, None), ({}, "input_tokens"):
        flow, exchange, _ = received(context_loader, {"model": "m", "input": "Hello", **body})
        if action is not None:
            exchange.attach(AuxiliaryRequest(action))
        job = exchange.request_job(flow, "responses", replace(Policy(), backend="chat"))
        assert job is not None
        exchange.take_request(flow, run(job))
        assert turn_of(exchange).own is None


async def test_failed_storing_ends_with_store_false(
    memory: ResponseStore, context_loader: StoredContextLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an exception prevents an answer from being stored, the stream ends normally, and reports ``store: false``."""

    async def broken(*_: object) -> bool:
        raise RuntimeError

    flow, exchange, _ = received(context_loader, {"model": "m", "input": "Hi", "stream": True})
    job = exchange.request_job(flow, "responses", replace(Policy(), backend="chat"))
    assert job is not None
    exchange.take_request(flow, run(job))
    flow.response = tflow.tresp(content=None, headers=((b"content-type", b"text/event-stream"),))
    exchange.begin(flow)
    text = {"choices": [{"index": 0, "delta": {"content": "Fine."}, "finish_reason": "stop"}]}
    answer = exchange.streamed
    assert answer is not None
    list(answer.slices(b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(text).encode()))
    assert b'"store":true' in answer.end.split(b"event: response.completed")[1]
    monkeypatch.setattr(memory, "store", broken)
    with pytest.raises(RuntimeError):
        await context_loader.store_streamed(exchange)
    assert b'"store":false' in answer.end.split(b"event: response.completed")[1]


async def test_failed_loading_is_an_error(
    context_loader: StoredContextLoader, memory: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an exception prevents the context from being loaded, the client receives an error, rather than an answer that
    ignores the context.
    """

    async def fails(*_: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(memory, "recall", fails)
    flow, exchange, must_wait = received(context_loader, {"input": "hi", "previous_response_id": "resp_1"})
    assert must_wait
    await context_loader.recall(flow, exchange)
    assert flow.response is not None
    assert (flow.response.status_code, flow.response.json()["error"]["code"]) == (503, "store_unavailable")
