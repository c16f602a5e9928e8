"""The HTTP client that pauses between the chunks of a page."""

from __future__ import annotations

import asyncio
import logging

import pytest
from toolsim.core.time_slice import TimeSlice
from toolsim.proxy.backend_registry import page_client

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage"


async def test_exit_during_a_page_logs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the client's task is canceled during a pause, tornado logs no exception."""
    is_paused = asyncio.Event()

    async def pause(self: TimeSlice) -> None:
        is_paused.set()
        await asyncio.sleep(60)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    monkeypatch.setattr(TimeSlice, "yield_to_others", pause)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        client = await page_client()
        fetching = asyncio.ensure_future(client.fetch(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
        await asyncio.wait_for(is_paused.wait(), 10)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        with caplog.at_level(logging.DEBUG):
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=10)
            await asyncio.gather(fetching, return_exceptions=True)
        client.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
