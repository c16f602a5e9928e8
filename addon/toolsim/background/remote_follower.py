"""Follows an answer that another proxy is generating, by reading the answer's events from the store.

By default, the proxy that generates an answer stores the events only when the answer ends. The follower's proxy
therefore leaves a request for the events in the store. From then on, new events are stored about once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from toolsim.background.background_store import FOLLOW_SECONDS, PATIENCE, RENEW_SECONDS, RETRY_SECONDS, BackgroundStore
from toolsim.background.frames import BEHIND, DELETED, DONE, NO_END, error_frame, frames_after, has_end
from toolsim.proxy.response_store import UNAVAILABLE
from toolsim.stores.record import StoreError
from toolsim.wire.sse import comment

# Seconds to wait for the last events of an answer that was canceled. The proxy that generates the answer stores them
# only after it has noticed the cancellation.
_LAST_SECONDS = RENEW_SECONDS + 2 * FOLLOW_SECONDS
_KEEPALIVE_SECONDS = 10.0


async def follow_stored(
    background_store: BackgroundStore, partition: str, id: str, after: int
) -> AsyncGenerator[bytes]:
    """Yield the frames after the event with the number ``after``, as soon as they are stored, until the answer ends."""
    has_asked, failures, quiet = False, 0, 0.0
    while True:
        try:
            entry = await background_store.read(partition, id)
            if entry is not None and entry.state and not has_asked:
                await background_store.request_events(partition, id)
                has_asked = True
            stored = await background_store.events(partition, id)
        except StoreError:
            failures += 1
            if failures > PATIENCE:
                yield error_frame(UNAVAILABLE, after + 1)
                return
            await asyncio.sleep(RETRY_SECONDS)
            continue
        failures = 0
        frames = frames_after(stored, after) if stored is not None else []
        if entry is None or frames is None:
            yield error_frame(DELETED if entry is None else BEHIND, after + 1)
            return
        if frames:
            after, quiet = after + len(frames), 0.0
            yield b"".join(frames)
        if stored is not None and has_end(stored):
            yield DONE
            return
        if not entry.state and quiet >= _LAST_SECONDS:
            yield error_frame(NO_END, after + 1)
            return
        await asyncio.sleep(FOLLOW_SECONDS)
        quiet += FOLLOW_SECONDS
        if entry.state and quiet % _KEEPALIVE_SECONDS < FOLLOW_SECONDS:
            # The keepalive is a comment, because an event would need a sequence number, which only the proxy that
            # generates the answer can assign.
            yield comment("keepalive")
