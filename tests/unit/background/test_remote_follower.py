"""Tests for following an answer that another proxy produces, by reading its events from the store."""

from __future__ import annotations

import json
from typing import Any

import pytest
from toolsim.background import remote_follower
from toolsim.background.background_store import PATIENCE, BackgroundStore, Ending, Lease
from toolsim.background.frames import DONE, events_value
from toolsim.background.remote_follower import follow_stored
from toolsim.proxy.response_store import ResponseStore
from toolsim.stores.record import StoreError
from toolsim.stores.url import StoreUrl
from toolsim.wire.responses.background import value_of
from toolsim.wire.sse import encode

FRAMES = [encode(json.dumps({"sequence_number": number}), "x") for number in range(3)]
END = encode('{"sequence_number":3}', "response.completed")
WAITS = value_of(b'{"status":"queued"}', b"[]", stream=True)


class Setup:
    """A background store in memory that contains one answer. Each time the follower waits, the next step in ``happens``
    is run.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = ResponseStore()
        memory.configure(StoreUrl("memory"))
        self.background_store = BackgroundStore(memory)
        self.lease = Lease("p", "resp_1")
        self.happens: list[Any] = []
        self.waits = 0
        monkeypatch.setattr(remote_follower.asyncio, "sleep", self._sleep)

    async def _sleep(self, _: float) -> None:
        self.waits += 1
        if self.happens:
            await self.happens.pop(0)

    async def follow(self, after: int = -1) -> list[bytes]:
        self.lease = await self.background_store.open("p", "resp_1", WAITS, "", [])
        return [data async for data in follow_stored(self.background_store, "p", "resp_1", after)]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(monkeypatch)


def words_of(frame: bytes) -> str:
    return str(json.loads(frame.partition(b"data: ")[2])["message"])


async def kept(setup: Setup, count: int, *, first: int = 0) -> None:
    assert await setup.background_store.events_requested(setup.lease)
    await setup.background_store.renew(setup.lease, events_value(first, FRAMES[first:count]))


async def ended(setup: Setup) -> None:
    assert await setup.background_store.end(setup.lease, Ending(WAITS, events=events_value(0, [*FRAMES, END]))) is True


async def nothing(setup: Setup) -> None:
    """Do nothing, so that no event arrives while the follower waits."""


async def test_events_are_received_once_from_the_cursor_on(setup: Setup) -> None:
    """The follower requests that events be stored. It receives each event after the cursor exactly once."""
    setup.happens = [kept(setup, 1), kept(setup, 2), nothing(setup), kept(setup, 3), ended(setup)]
    assert await setup.follow(0) == [FRAMES[1], FRAMES[2], END, DONE]


async def test_silence_is_filled_with_comments(setup: Setup) -> None:
    """While no events arrive, the follower sends comments to show the client that the stream is still alive."""
    setup.happens = [*(nothing(setup) for _ in range(25)), ended(setup)]
    received = await setup.follow()
    assert 1 <= len(received[:-2]) <= 3
    assert all(frame.startswith(b":") for frame in received[:-2])
    assert received[-2:] == [b"".join([*FRAMES, END]), DONE]


async def test_deleting_the_answer_ends_its_stream_with_an_error(setup: Setup) -> None:
    """If the answer is deleted while a client follows it, the stream ends with an error that reports the deletion."""
    setup.happens = [kept(setup, 1), setup.background_store.delete("p", "resp_1")]
    received = await setup.follow()
    assert received[0] == FRAMES[0]
    assert words_of(received[1]) == "The response was deleted."
    assert len(received) == 2


async def test_missing_last_events_end_the_stream_with_an_error(setup: Setup) -> None:
    """If the proxy that produces the answer disappears without storing the last events, the stream soon ends with an
    error.
    """
    setup.happens = [kept(setup, 2), setup.background_store.clean_up(setup.lease)]
    received = await setup.follow()
    assert received[0] == b"".join(FRAMES[:2])
    assert "are not stored" in words_of(received[1])
    assert setup.waits < 10


async def test_missing_events_are_an_error(setup: Setup) -> None:
    """If the store no longer contains events that the follower has not read yet, the stream ends with an error."""
    setup.happens = [kept(setup, 1), kept(setup, 3, first=2)]
    received = await setup.follow()
    assert received[0] == FRAMES[0]
    assert "no longer stored" in words_of(received[1])


@pytest.mark.parametrize("times", [3, 1000])
async def test_failed_reads_are_retried(setup: Setup, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store cannot be read, the follower tries again. If the store remains unavailable, the stream ends with an
    error.
    """
    read, left = setup.background_store.read, [None] * times

    async def failing(partition: str, id: str) -> Any:
        if left:
            left.pop()
            raise StoreError("down")
        return await read(partition, id)

    monkeypatch.setattr(setup.background_store, "read", failing)
    setup.happens = [nothing(setup) for _ in range(min(times, PATIENCE))]
    setup.happens += [ended(setup)] if times < PATIENCE else []
    received = await setup.follow()
    if times < PATIENCE:
        assert received == [b"".join([*FRAMES, END]), DONE]
    else:
        assert "not available" in words_of(received[0])
