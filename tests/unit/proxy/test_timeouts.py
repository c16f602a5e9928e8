from __future__ import annotations

import pytest
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.timeouts import MAX_TICK_SECONDS, Timeouts


def test_timeouts_start_with_their_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each timeout starts with a different event. A limit of 0 disables the timeout."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    timeouts, patient = (
        Timeouts(Limits(keepalive=10, connect_timeout=5, idle_timeout=12)),
        Timeouts(Limits(idle_timeout=0)),
    )
    assert (timeouts.next_tick(), timeouts.is_overdue, timeouts.is_quiet) == (MAX_TICK_SECONDS, False, False)
    assert timeouts.unreachable("gone").status == 502
    now += 5
    assert timeouts.unreachable("gone").message == "The backend could not be reached within 5 s."
    timeouts.connected()
    assert timeouts.unreachable("gone").message == "The backend did not answer: gone"
    assert timeouts.overdue().message == "The backend sent no data for 12 s."
    now += 5
    assert (timeouts.is_quiet, timeouts.next_tick()) == (False, MAX_TICK_SECONDS)
    # If a timer tick sends nothing, the next tick follows after the normal interval.
    now += 4
    assert (timeouts.is_quiet, timeouts.next_tick()) == (True, MAX_TICK_SECONDS)
    timeouts.client_served()
    assert timeouts.first_byte is None
    assert (timeouts.is_quiet, timeouts.next_tick()) == (False, MAX_TICK_SECONDS)
    now += 2
    assert timeouts.next_tick() == 1
    now += 1
    for _ in range(2):
        timeouts.answered()
        assert timeouts.first_byte == 17
        now += 1
    assert timeouts.is_overdue
    timeouts.backend_active()
    assert not timeouts.is_overdue
    assert timeouts.seconds() == patient.seconds() == 19
    now += 1_000
    assert not patient.is_overdue
