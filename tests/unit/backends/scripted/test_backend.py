"""Tests for the scripted model as a backend: streaming, and failures on demand."""

import time

import pytest
from toolsim.backends.scripted import backend
from toolsim.backends.scripted.backend import ScriptedBackend, pieces
from toolsim.core.events import BackendEvent, Closed, Counted, Failed, Opened, TextDelta
from toolsim.wire.apis import RESPONSES


async def answer(question: str, *, delay: float = 0.0) -> list[BackendEvent]:
    return [event async for event in ScriptedBackend(delay).answer(RESPONSES.read({"model": "m", "input": question}))]


def text(events: list[BackendEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_answer_is_streamed_in_pieces_and_counted() -> None:
    """An answer is streamed in short deltas and ends with token counts. The same question always has the same
    answer.
    """
    events = await answer("Hello there")
    assert events == await answer("Hello there")
    assert events[0] == Opened(model="m")
    assert events[-1] == Closed()
    [usage] = [event.usage for event in events if isinstance(event, Counted)]
    assert (usage.input_tokens, usage.output_tokens) == (2, len(text(events).split()))
    assert max(len(event.text) for event in events if isinstance(event, TextDelta)) <= 7


async def test_delay_sets_the_pace() -> None:
    """The scripted backend waits ``delay`` seconds before each delta."""
    began = time.monotonic()
    events = await answer("Hello", delay=0.01)
    assert time.monotonic() - began >= 0.01 * sum(isinstance(event, TextDelta) for event in events)


async def test_slow_direction_delays_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage direction [slow] delays the start of the answer without changing its text."""
    monkeypatch.setattr(backend, "_SLOW_START", 0.2)
    began = time.monotonic()
    events = await answer("Hello [slow]")
    assert time.monotonic() - began >= 0.2
    assert text(events) == text(await answer("Hello"))


async def test_429_direction_fails_before_any_text() -> None:
    """With the stage direction [429], the answer consists only of an error with status 429 and Retry-After."""
    [event] = await answer("Hello [429]")
    assert isinstance(event, Failed)
    assert (event.error.status, event.error.code, event.error.retry_after) == (429, "rate_limit_exceeded", 5)


async def test_cut_direction_breaks_off_the_text() -> None:
    """With the stage direction [cut], the stream ends in the middle of the text, without a closing event."""
    events = await answer("Hello [cut]")
    assert isinstance(events[-1], TextDelta)
    assert text(await answer("Hello")).startswith(text(events))


def test_pieces_add_up_to_the_text() -> None:
    assert "".join(pieces("x" * 100)) == "x" * 100
    assert list(pieces("")) == []
