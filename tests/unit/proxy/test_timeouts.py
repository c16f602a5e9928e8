from __future__ import annotations

import pytest
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.timeouts import MAX_TICK_SECONDS, Timeouts


def test_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each clock counts from its own event, and a limit of 0 means none."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    clocks, patient = (
        Timeouts(Limits(keepalive=10, connect_timeout=5, idle_timeout=12)),
        Timeouts(Limits(idle_timeout=0)),
    )
    assert (clocks.next_tick(), clocks.is_overdue, clocks.is_quiet) == (MAX_TICK_SECONDS, False, False)
    assert clocks.unreachable("gone").status == 502
    now += 5
    assert clocks.unreachable("gone").message == "The backend could not be reached within 5 s."
    clocks.connected()
    assert clocks.unreachable("gone").message == "The backend gave no answer: gone"
    assert clocks.overdue().message == "The backend sent no data for 12 s."
    now += 5
    assert (clocks.is_quiet, clocks.next_tick()) == (False, MAX_TICK_SECONDS)
    # The first byte may take longer; a tick at which nothing was sent does not come back at once.
    now += 4
    assert (clocks.is_quiet, clocks.next_tick()) == (True, MAX_TICK_SECONDS)
    clocks.client_served()
    assert clocks.first_byte is None
    assert (clocks.is_quiet, clocks.next_tick()) == (False, MAX_TICK_SECONDS)
    now += 2
    assert clocks.next_tick() == 1
    now += 1
    for _ in range(2):
        clocks.answered()
        assert clocks.first_byte == 17
        now += 1
    assert clocks.is_overdue
    clocks.backend_active()
    assert not clocks.is_overdue
    assert clocks.seconds() == patient.seconds() == 19
    now += 1_000
    assert not patient.is_overdue
