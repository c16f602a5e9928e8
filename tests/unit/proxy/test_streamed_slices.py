"""Splitting of long work into time slices without losing frames."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from toolsim.core.time_slice import PAUSE_SECONDS, TimeSlice
from toolsim.proxy.streamed import in_slices


def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the clocks advance by one second each time they are read."""
    for name in ("monotonic", "thread_time"):
        ticks = count(step=1)
        monkeypatch.setattr(f"time.{name}", lambda ticks=ticks: float(next(ticks)))


def test_quick_steps_take_one_slice() -> None:
    """If processing takes no time, all frames are emitted in a single slice."""
    assert list(in_slices([[b"a"], [], [b"b", b"c"]], lambda: False, TimeSlice())) == [[b"a", b"b", b"c"]]


def test_long_steps_take_separate_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each long step ends its time slice, so that other tasks can run, unless no more frames are needed."""
    slowly(monkeypatch)
    assert list(in_slices([[b"a"], [b"b"]], lambda: False, TimeSlice())) == [[b"a"], None, [b"b"], None, []]
    assert list(in_slices([[b"a"], [b"b"]], lambda: True, TimeSlice())) == [[b"a", b"b"]]


def test_exception_follows_earlier_frames() -> None:
    """Frames created before a step failed are emitted before the exception is raised."""

    def steps() -> Iterator[list[bytes]]:
        yield [b"a"]
        raise KeyError

    emitted = in_slices(steps(), lambda: False, TimeSlice())
    assert next(emitted) == [b"a"]
    with pytest.raises(KeyError):
        next(emitted)


def test_short_pieces_share_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short operations in quick succession pause as often as one long operation. Short operations with long gaps
    between them never pause.
    """
    now = [0.0]
    for name in ("monotonic", "thread_time"):
        monkeypatch.setattr(f"time.{name}", lambda: now[0])
    pace = TimeSlice()

    def piece(gap: float) -> list[list[bytes] | None]:
        def steps() -> Iterator[list[bytes]]:
            now[0] += 0.001
            yield [b"a"]

        now[0] += gap
        return list(in_slices(steps(), lambda: False, pace))

    assert [None in piece(0.0001) for _ in range(8)] == [False, False, False, True] * 2
    assert not any(None in piece(2 * PAUSE_SECONDS) for _ in range(8))
