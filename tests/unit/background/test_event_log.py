"""Tests for the log of an answer's events, which several clients can read at the same time."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st
from toolsim.background.event_log import EventLog
from toolsim.background.frames import DONE, frames_after
from toolsim.wire.sse import encode


def frame(number: int, size: int = 0) -> bytes:
    return encode(json.dumps({"type": "x", "pad": "y" * size, "sequence_number": number}), "x")


async def followed(log: EventLog, after: int) -> bytes:
    return b"".join([each async for each in log.follow(after)])


@given(st.integers(0, 30), st.integers(-1, 40), st.integers(1, 5))
async def test_all_followers_receive_equal_frames(count: int, after: int, at_once: int) -> None:
    """All clients receive the same frames, whether they follow the answer from the start, read the log at the end, or
    read the events from the store.
    """
    log = EventLog(1_000_000)
    early = asyncio.create_task(followed(log, after))
    await asyncio.sleep(0)
    frames = [frame(number) for number in range(count)]
    for start in range(0, count, at_once):
        # The writer can emit several frames in one chunk. The final ``[DONE]`` frame is not an event.
        log.add([b"".join(frames[start : start + at_once]), DONE])
        await asyncio.sleep(0)
    end = [frame(count), DONE]
    kept = log.value(end)
    log.add(end)
    log.end()
    expected = b"".join([*frames, frame(count)][after + 1 :]) + DONE
    assert await early == await followed(log, after) == expected
    assert b"".join(frames_after(kept, after) or []) + DONE == expected
    assert log.last == count


async def test_oldest_events_are_discarded_at_the_limit() -> None:
    """When the event log reaches its size limit, the oldest events are discarded. A follower that still needs a
    discarded event receives an error. A follower that has already read the discarded events continues.
    """
    log = EventLog(10_000)
    reader, read = log.follow(-1), b""
    slow = log.follow(-1)
    for number in range(100):
        log.add([frame(number, 1000)])
        if number == 0:
            await anext(slow)
        read += await anext(reader)
    log.end()
    assert read.count(b"\n\n") == 100
    assert not log.has(50)
    assert log.has(95)
    assert len(log.value()) <= 10_000
    assert frames_after(log.value(), 50) is None
    assert len(frames_after(log.value(), 95) or []) == 4
    (error,) = [frame async for frame in slow]
    assert json.loads(error.partition(b"data: ")[2])["sequence_number"] == 1
    assert b"no longer stored" in error
    assert repr(log).endswith("to 99, over)")
