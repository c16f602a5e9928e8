"""Refused requests: their responses, log lines and metric."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow
from toolsim.core.errors import ApiError
from toolsim.proxy import refusals
from toolsim.proxy.access import REASONS, Refusal
from toolsim.proxy.metadata import REFUSED
from toolsim.proxy.refusals import ALL_LINES, MAX_SOURCES, SOURCE_LINES, Refusals, source_of
from toolsim.proxy.reporting.log import FIELDS, Log

WRONG = Refusal("Wrong.", "invalid_request_error", "invalid_api_key", status=401, reason="wrong_key")


def asked(host: str = "192.0.2.7", path: str = "/v1/models") -> HTTPFlow:
    flow = tflow.tflow()
    flow.client_conn.peername = (host, 5000)
    flow.request.path = path
    return flow


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [getattr(record, FIELDS) for record in caplog.records if hasattr(record, FIELDS)]


def counts(made: Refusals) -> dict[str, int]:
    [family] = made.families()
    found = [line.partition('reason="')[2].partition('"} ') for line in family.lines() if not line.startswith("#")]
    return {reason: int(count) for reason, _, count in found}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/v1/chat/completions", ("error", "invalid_api_key")),
        ("/v1/responses", ("error", "invalid_api_key")),
        ("/v1/messages", ("error", None)),
    ],
)
def test_answer_has_the_format_of_its_api(path: str, found: tuple[str, str | None]) -> None:
    flow = asked(path=path)
    Refusals(Log()).answer(flow, WRONG, {"vary": "Origin"})
    assert flow.response is not None
    assert (flow.response.status_code, flow.response.headers["vary"]) == (401, "Origin")
    body = json.loads(flow.response.content or b"")
    assert body["error"].get("code") == found[1]
    assert (body.get("type") == "error") == (path == "/v1/messages")


def test_refusal_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal is logged in one line. Control characters in the URL are replaced, and its query is omitted because it
    can contain a key.
    """
    made, flow = Refusals(Log()), asked(path="/v1/mo\x1bdels?key=secret")
    with caplog.at_level(logging.WARNING):
        made.answer(flow, WRONG)
    [record] = caplog.records
    assert record.getMessage() == "✗ refused GET /v1/mo\ufffddels · from 192.0.2.7 · HTTP 401 Wrong."
    [fields] = lines(caplog)
    assert (fields["reason"], fields["status"], fields["source"]) == ("wrong_key", 401, "192.0.2.7")
    assert counts(made) == dict.fromkeys(REASONS, 0) | {"wrong_key": 1}
    assert (flow.comment, flow.metadata[REFUSED]) == ("refused: wrong_key", "wrong_key")


def test_other_errors_are_neither_logged_nor_counted(caplog: pytest.LogCaptureFixture) -> None:
    made, flow = Refusals(Log()), asked()
    with caplog.at_level(logging.WARNING):
        made.answer(flow, ApiError("No such endpoint.", status=404))
    assert flow.response is not None
    assert flow.response.status_code == 404
    assert caplog.records == []
    assert set(counts(made).values()) == {0}


def test_log_lines_per_source_are_limited(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of log lines about refusals per source is limited. The next line for that source states how many lines
    were omitted.
    """
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    made = Refusals(Log())
    with caplog.at_level(logging.WARNING):
        for _ in range(10_000):
            made.answer(asked(), WRONG)
        made.answer(asked("192.0.2.8"), WRONG)
        now += 60 / SOURCE_LINES
        made.answer(asked(), WRONG)
        made.answer(asked(), WRONG)
    found = [(fields["source"], fields["unlogged"]) for fields in lines(caplog)]
    assert found == [*[("192.0.2.7", 0)] * SOURCE_LINES, ("192.0.2.8", 0), ("192.0.2.7", 10_000 - SOURCE_LINES)]
    assert counts(made)["wrong_key"] == 10_003


@pytest.mark.ci
def test_log_lines_of_all_sources_are_limited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of log lines about refusals for all sources together is limited, as is the number of remembered
    sources.
    """
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    made = Refusals(Log())
    with caplog.at_level(logging.WARNING):
        for number in range(10_000):
            made.answer(asked(f"10.0.{number // 250}.{number % 250}"), WRONG)
    assert len(lines(caplog)) == ALL_LINES
    assert len(made._sources) == MAX_SOURCES
    assert counts(made)["wrong_key"] == 10_000


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7%eth0", "2001:db8:1:2::/64"),
        ("::1", "::1"),
        ("fe80::7%eth0", "fe80::7"),
        ("socket", "socket"),
    ],
)
def test_source_is_an_address_or_a_network(host: str, source: str) -> None:
    assert source_of(asked(host).client_conn) == source


def test_refusal_survives_a_failing_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "source_of", lambda _: 1 / 0)
    flow = asked()
    Refusals(Log()).answer(flow, WRONG)
    assert flow.response is not None
    assert flow.response.status_code == 401
    assert "failed to report" in caplog.text


def test_log_can_be_off(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(log, "_form", "off")
    made = Refusals(log)
    made.answer(asked(), WRONG)
    assert caplog.records == []
    assert counts(made)["wrong_key"] == 1
