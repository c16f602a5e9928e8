"""The guard, which rejects flows if a hook has not completed, and the counting and logging of internal errors."""

from __future__ import annotations

import logging
import sys

import pytest
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test.tflow import tclient_conn, tflow, tserver_conn
from toolsim.core.failures import Failures
from toolsim.core.report import code_of
from toolsim.proxy.guard import Clearance, Guard, NotCleared, described, reporting


def raised() -> Exception:
    """Return an exception whose traceback contains a toolsim function."""
    try:
        code_of(None)  # type: ignore[arg-type]
    except Exception as problem:
        return problem
    raise AssertionError


def test_uncleared_flow_raises() -> None:
    """If any of toolsim's hooks has not completed for a flow, the guard raises an exception that names the hook."""
    guard, flow, other = Guard(), tflow(), tflow()
    clearance = Clearance(guard)
    guard.check(flow, "request")  # The guard accepts every flow until it is started.
    guard.start()
    for hook in ("requestheaders", "request", "responseheaders", "response", "http_connect", "toolsim_store"):
        guard.forget(flow)
        with pytest.raises(NotCleared, match=hook):
            guard.check(flow, hook)
        getattr(clearance, hook)(flow)
        guard.check(flow, hook)
    with pytest.raises(NotCleared):
        guard.check(other, "request")
    guard.stop()
    guard.check(other, "request")


def test_new_connection_needs_both_hooks() -> None:
    """A new connection to a server is accepted only after both of mitmproxy's connection hooks have completed.
    Connections that were opened before the guard started are always accepted.
    """
    guard = Guard()
    clearance = Clearance(guard)
    old, new = tserver_conn(), tserver_conn()
    guard.start()
    old.timestamp_start, new.timestamp_start = 1.0, sys.float_info.max
    guard.check_server(old)
    data = ServerConnectionHookData(new, tclient_conn())
    clearance.server_connected(data)
    with pytest.raises(NotCleared):
        guard.check_server(new)
    clearance.server_connect(data)
    clearance.server_connected(data)
    guard.check_server(new)


def test_location_of_an_exception_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An exception raised in toolsim is counted and logged with its location. Exceptions raised elsewhere are not
    logged.
    """
    guard, problem = Guard(Failures()), raised()
    guard.note(problem)
    guard.note(NotCleared("the hook request did not complete"))
    assert [record.getMessage() for record in caplog.records] == [described(problem)]
    assert described(problem).startswith("toolsim failed in core.report.code_of and ended the exchange;")
    assert guard.note_logged(problem) == described(problem)
    assert (guard.note_logged(ValueError()), guard.note_logged(None)) == ("", "")
    (family,) = guard.families()
    assert [line for line in family.lines() if not line.startswith("#")] == ["toolsim_internal_errors_total 2"]


def test_reporting_exception_does_not_end_the_exchange(caplog: pytest.LogCaptureFixture) -> None:
    """An exception during reporting is logged and does not end the exchange. A KeyboardInterrupt is still raised."""
    with caplog.at_level(logging.ERROR), reporting():
        raise KeyError("x")
    assert "failed to report" in caplog.text
    with pytest.raises(KeyboardInterrupt), reporting():
        raise KeyboardInterrupt
