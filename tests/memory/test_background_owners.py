"""Tests for background answers if their proxy is killed, stopped or at its limit, or if a second proxy serves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from memory.conftest import connect
from memory.test_background import NEVER, SECONDS, ended, events_of, start, until
from memory.test_failures import metrics
from memory.test_references import CALL, TOOLS
from support.mitmdump import Mitmdump
from support.redis_server import RedisServer
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer(append=True) as redis:
        yield redis


def proxy(backend: TextBackend, store: str, **options: Any) -> Mitmdump:
    return Mitmdump(backend.url, toolsim_backend="chat", toolsim_store=store, allow_crashes=True, **options)


def test_proxy_dies(backend: TextBackend, redis: RedisServer, tmp_path: Path) -> None:
    """If a proxy is killed, its unfinished background answers count as failed once their leases have expired. Its
    finished answers remain.
    """
    # Test both kinds of store at the same time, so that the test waits only once for the leases to expire.
    left = []
    for store in f"sqlite:{tmp_path / 'store'}", redis.url:
        backend.play([says("Fine."), NEVER])
        with proxy(backend, store) as first, connect(first) as client:
            [*_, completed] = start(client, input="Hello", stream=True)
            lost = next(start(client, input="Count", stream=True)).response.id
            until(lambda: client.responses.retrieve(lost).status == "in_progress")  # noqa: B023
            first.kill()
        left.append((store, completed.response.id, lost))
    backend.play([says("Again.")] * 2)
    for store, done, lost in left:
        with proxy(backend, store) as second, connect(second) as client:
            assert ended(client, done).output_text == "Fine."
            assert events_of(client.responses.retrieve(done, stream=True))[-1]["type"] == "response.completed"
            failed = ended(client, lost)
            assert (failed.status, failed.error.message) == (
                "failed",
                "The proxy that generated the response is no longer running.",
            )
            assert client.responses.cancel(lost) == failed
            with pytest.raises(openai.BadRequestError, match="are not stored"):
                client.responses.retrieve(lost, stream=True)
            client.responses.delete(lost)
            assert ended(client, start(client, input="Hello").id).output_text == "Again."


def test_proxy_is_stopped(backend: TextBackend, tmp_path: Path) -> None:
    """If a proxy is stopped, its background answers fail immediately, their events are stored, and the backend is
    disconnected.
    """
    store = f"sqlite:{tmp_path / 'store'}"
    backend.play([NEVER])
    with proxy(backend, store) as first, connect(first) as client:
        stream = start(client, input="Count", stream=True)
        id = next(stream).response.id
        until(lambda: backend.exchanges and len(backend.exchanges[0].sent) == 2)
    assert backend.exchanges[0].over.wait(SECONDS)
    with proxy(backend, store) as second, connect(second) as client:
        failed = client.responses.retrieve(id)
        assert failed.status == "failed"
        assert "was stopped" in failed.error.message  # type: ignore[union-attr]
        with pytest.raises(openai.APIError, match="was stopped"):
            list(client.responses.retrieve(id, stream=True, starting_after=0))


def test_another_proxy_serves_the_answer(backend: TextBackend, redis: RedisServer) -> None:
    """A second proxy can retrieve, stream, cancel and delete an answer that the first proxy is running.

    If the answer is canceled or deleted, the connection to the backend is closed, and all streams of the answer end.
    """
    backend.play([NEVER, NEVER, says("Hello ", "there.")])
    with ExitStack() as stack:
        one, two = (stack.enter_context(proxy(backend, redis.url)) for _ in "12")
        here, there = (stack.enter_context(connect(running)) for running in (one, two))
        for call in there.responses.cancel, there.responses.delete:
            stream = start(here, input="Count", stream=True)
            received = [next(stream).to_dict() for _ in range(6)]
            id = received[0]["response"]["id"]
            followed = there.responses.retrieve(id, stream=True, starting_after=1)
            assert [next(followed).to_dict() for _ in range(4)] == received[2:]
            assert there.responses.retrieve(id).status == "in_progress"
            call(id)
            for events in stream, followed:
                with pytest.raises(openai.APIError, match=r"was (cancelled or )?deleted"):
                    list(events)
            assert backend.exchanges[-1].over.wait(SECONDS)
            if call == there.responses.cancel:
                assert here.responses.retrieve(id).status == "cancelled"
                with pytest.raises(openai.APIError, match="was cancelled or deleted"):
                    list(there.responses.retrieve(id, stream=True, starting_after=1))
            else:
                with pytest.raises(openai.NotFoundError):
                    here.responses.retrieve(id)
        events = events_of(start(here, input="Hello", stream=True))
        done = ended(there, events[0]["response"]["id"])
        assert done.to_dict() == events[-1]["response"]
        assert events_of(there.responses.retrieve(done.id, stream=True, starting_after=1)) == events[2:]


def test_redis_is_restarted(backend: TextBackend) -> None:
    """An answer that ends while the store is down is reported as finished only once the store contains it."""
    backend.play([says("Hello ", "there.", pause=0.3)])
    with RedisServer(append=True) as redis, proxy(backend, redis.url) as running, connect(running) as client:
        stream = start(client, input="Hello", stream=True)
        id = next(stream).response.id
        redis.stop()
        assert until(lambda: backend.exchanges and backend.exchanges[0].whole)
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.retrieve(id)
        assert caught.value.code == "store_unavailable"
        with pytest.raises(openai.InternalServerError):
            start(client, input="Hello")
        redis.__enter__()
        assert events_of(stream)[-1]["type"] == "response.completed"
        assert client.responses.retrieve(id).output_text == "Hello there."


def test_free_slot_goes_to_a_waiting_key(backend: TextBackend) -> None:
    """A single key can use all slots for background answers, but the next free slot is reserved for another key that
    has requested one.
    """
    backend.play([NEVER, NEVER, NEVER])
    with (
        Mitmdump(backend.url, toolsim_backend="chat", toolsim_store="memory?background=2") as running,
        connect(running, "one") as one,
        connect(running, "other") as other,
    ):
        ids = [start(one, input="Count").id for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="at most 2 at a time"):
            start(other, input="Count")
        one.responses.cancel(ids[0])
        with pytest.raises(openai.RateLimitError, match="at most 1 for one key"):
            start(one, input="Count")
        other.responses.cancel(start(other, input="Count").id)
        one.responses.cancel(ids[1])


def test_answers_above_the_limit_are_refused(backend: TextBackend) -> None:
    """Background answers above the limit are refused with 429. Once an answer has ended, a new one can start.

    An invalid call is retried as in any other answer, and each answer is counted and logged when it ends.
    """
    bad = CALL.replace('"Bonn"', "5")
    backend.play([NEVER, says(*["word "] * 400), says(bad), says(CALL)])
    options = {"toolsim_store": "memory?background=1", "toolsim_retry": 1}
    with (
        Mitmdump(backend.url, toolsim_backend="chat", **options) as running,
        connect(running) as client,
    ):
        id = start(client, input="Count").id
        with pytest.raises(openai.RateLimitError, match="at most 1 at a time") as caught:
            start(client, input="Count")
        assert caught.value.response.headers["retry-after"] == "5"
        assert "toolsim_background_answers 1" in metrics(running)
        client.responses.cancel(id)
        events = events_of(start(client, input="Count", stream=True))
        id = events[-1]["response"]["id"]
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "word " * 400
        assert events_of(client.responses.retrieve(id, stream=True, starting_after=len(events) - 3)) == events[-2:]
        tools: Any = [{**TOOLS[0], "strict": True}]
        asked_again = ended(client, start(client, input="Weather?", tools=tools).id)
        assert asked_again.output[-1].arguments.replace(" ", "") == '{"city":"Bonn"}'
        running.wait_for('"rounds": 2')
        text = metrics(running)
    for line in (
        "toolsim_background_answers 0",
        'toolsim_background_answers_total{status="cancelled"} 1',
        'toolsim_background_answers_total{status="completed"} 2',
    ):
        assert line in text
