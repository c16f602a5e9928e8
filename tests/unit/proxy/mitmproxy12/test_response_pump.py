"""Pausing of the response pump. During a pause, the backend is not read."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from toolsim.proxy.mitmproxy12 import response_pump


@pytest.mark.parametrize("is_reading", [True, False], ids=["reads", "paused by its reader"])
async def test_pause_restores_the_connection(monkeypatch: pytest.MonkeyPatch, is_reading: bool) -> None:
    """During a pause, nothing is read from the connection. Reading resumes after the pause, unless the connection was
    already paused before.
    """
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    transport: Any = writer.transport
    if not is_reading:
        transport.pause_reading()
    monkeypatch.setattr(response_pump, "writer_of", lambda client, server: writer)
    stream: Any = SimpleNamespace(context=SimpleNamespace(client=None, server=None))
    answer: Any = None
    pausing = response_pump.ResponsePump.pause(stream, answer)
    assert isinstance(next(pausing), response_pump.ToolsimPauseHook)
    assert not transport.is_reading()
    assert list(pausing) == []
    assert transport.is_reading() is is_reading
    writer.close()
    theirs.close()
