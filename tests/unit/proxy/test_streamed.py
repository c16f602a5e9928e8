"""A streamed answer: its keep-alives, its timeouts, and how it ends after a bug in toolsim."""

from __future__ import annotations

from itertools import count

import pytest
from support.wire import DONE, chat_frame
from toolsim.core.errors import FAILED
from toolsim.core.plan import AnswerForm, Plan, Tool
from toolsim.core.report import Report
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.recorder import BodyRecorder
from toolsim.proxy.streamed import StreamedAnswer
from toolsim.proxy.timeouts import MAX_TICK_SECONDS, Timeouts


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def streamed(max_answer_bytes: int = 1_000, tools: tuple[Tool, ...] = ()) -> tuple[StreamedAnswer, Timeouts]:
    limits = Limits(keepalive=10, connect_timeout=5, idle_timeout=60, max_answer_bytes=max_answer_bytes)
    plan, timeouts = Plan("chat", "chat", AnswerForm(True, "m"), tools=tools), Timeouts(limits)
    made = StreamedAnswer(plan, Report(), limits=limits, timeouts=timeouts, recorder=BodyRecorder())
    return made, timeouts


def test_silence_causes_keepalives_and_an_error(clock: Clock) -> None:
    """While the backend is silent, the client receives a keep-alive every ten seconds and finally an error."""
    made, timeouts = streamed()
    assert timeouts.next_tick() == MAX_TICK_SECONDS
    timeouts.client_served()
    for _ in range(5):
        clock.now += 10
        assert made.tick() == [b": keepalive\n\n"]
        assert made.tick() == []
    assert timeouts.next_tick() == MAX_TICK_SECONDS
    clock.now += 5
    timeouts.backend_active()
    assert timeouts.next_tick() == MAX_TICK_SECONDS
    clock.now += 5
    assert not made.cut
    made.tick()
    clock.now += 54.9
    made.tick()
    assert timeouts.next_tick() == pytest.approx(0.1)
    clock.now += 0.1
    assert b"backend_timeout" in b"".join(made.tick())
    assert made.cut


def test_exception_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an exception, the answer ends with an error. Text that was still held back is never sent."""
    made, _ = streamed(10_000_000, (Tool("f", "f"),))
    made.feed(chat_frame('<tool_call>{"name":"f","arguments":{}}</tool_call> <tool_call>{"na'))
    with monkeypatch.context() as patched:
        patched.setattr(Timeouts, "answered", None)
        with pytest.raises(TypeError):
            made.feed(chat_frame('me":"f","arguments":{}}</tool_call>'))
    end = b"".join(made.crash(FAILED) or ())
    assert end.startswith(b'data: {"error":{')
    assert b"tool_call" not in end
    assert (made.finished, made.cut, made.report.error) == (True, True, "internal_error")
    assert (made.feed(b"data: {}\n\n"), made.feed(b"")) == ([], [])


def test_exception_after_the_end_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that occurs after an answer is complete does not turn it into a failed answer."""
    made, _ = streamed()
    with monkeypatch.context() as patched:
        patched.setattr(Timeouts, "answered", None)
        with pytest.raises(TypeError):
            made.feed(chat_frame("Hi", "stop") + DONE)
    assert made.crash(FAILED) is None


def test_other_tasks_run_between_slices() -> None:
    """A chunk with many calls is rewritten in several slices, with the same result as in a single slice."""
    call = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    made, whole = (streamed(10_000_000, (Tool("f", "f"),))[0] for _ in range(2))
    data = chat_frame(call * 2_000)
    slices = list(made.slices(data))
    assert None in slices
    frames = b"".join(chunk for chunks in slices for chunk in chunks or ())
    assert frames.count(b'"name":"f"') == b"".join(whole.feed(data)).count(b'"name":"f"') == 2_000
    assert all(chunk.endswith(b"\n\n") for chunks in slices for chunk in chunks or ())


def test_busy_machine_causes_no_more_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time used by other tasks does not count toward a stream's time slice, so a busy machine causes no additional
    pauses.
    """
    made, _ = streamed()
    ticks = count(step=1)
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    assert None not in list(made.slices(chat_frame("word ") * 5))


def test_oversized_stream_fails() -> None:
    """A stream that exceeds the size limit ends with an error, and toolsim stops reading from the backend."""
    made, _ = streamed()
    sent = b""
    for _ in range(100):
        sent += b"".join(made.feed(chat_frame("word ")))
    assert made.cut
    assert made.report.error == "backend_bad_answer"
    assert sent.count(b"toolsim_max_body_bytes") == 1
